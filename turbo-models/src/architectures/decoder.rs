//! Decoders that embed texts: an RMS norm before each part of a layer, rotary positions, several query heads for each
//! key and value head, and a gated feed-forward part (Touvron et al., 2023). They are causal, so that the last token
//! has seen the whole input, or were trained further so that every token sees it.

use turbo_graph::{AttentionMask, Input, Pooling, ValueId};

use super::{
    attention::{Attention, HeadRows},
    bert,
    heads::{HasBias, Head, Step, Width},
    rotary,
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, HeadDim, KeyValueHeads, Setting},
    drawing::{Bias, Drawing, Gain},
};

const THETA: Setting<f64> = Setting::Field("rope_theta", 10_000.0);
const BIDIRECTIONAL: Setting<bool> = Setting::Field("use_bidirectional_attention", false);
const CAUSAL: Setting<bool> = Setting::Field("is_causal", true);

/// What the configurations of decoders have in common. Vocabulary sizes and lengths differ by family.
pub(super) const FIELDS: ConfigFields = ConfigFields {
    hidden_size: Setting::Field("hidden_size", 4096),
    num_hidden_layers: Setting::Field("num_hidden_layers", 32),
    num_attention_heads: Setting::Field("num_attention_heads", 32),
    num_key_value_heads: KeyValueHeads::Own(Setting::Field("num_key_value_heads", 32)),
    head_dim: HeadDim::SharedUnless("head_dim"),
    hidden_act: Setting::Field("hidden_act", "silu"),
    type_vocab_size: None,
    layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
    causal_fields: &[CAUSAL.name(), BIDIRECTIONAL.name()],
    only: &[],
    ..bert::FIELDS
};

/// Heads that the reference puts behind any decoder.
pub(super) const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[Step::Pool(Pooling::LastToken), Step::Linear("score", Width::Labels, HasBias::Never)],
    },
    Head { task: Task::TokenClassification, steps: &[Step::Linear("score", Width::Labels, HasBias::Always)] },
];

/// What differs between the attentions of these families.
#[derive(Clone, Copy)]
pub(super) struct Projections {
    /// Bias of the matrices of queries, keys and values.
    pub(super) bias: Bias,
    /// Bias of the matrix behind attention.
    pub(super) context_bias: Bias,
    /// Gain of the norms of every query and key head; `None` if there are no such norms.
    pub(super) head_norms: Option<Gain>,
}

/// The whole decoder, from ids to the hidden state of every token.
pub(super) fn draw(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    projections: Projections,
) -> Result<ValueId, ModelError> {
    draw_with(drawing, config, projections, mask(config)?)
}

/// Like [`draw`], with a given `mask`, for files that do not say which tokens see each other.
pub(super) fn draw_with(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    projections: Projections,
    mask: AttentionMask,
) -> Result<ValueId, ModelError> {
    let table = rotary::stretched_table(drawing, config, THETA)?;
    let attention = SelfAttention { projections, table, mask, scale: None };
    let (hidden, epsilon) = (config.hidden_size, config.layer_norm_eps);
    let norm =
        |drawing: &mut Drawing<'_>, x, name: &str| drawing.rms_norm(x, name, hidden, epsilon, Gain::Weight);

    let ids = drawing.graph.input(Input::InputIds);
    let mut x = drawing.embed("embed_tokens", (config.vocab_size, hidden), ids)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("layers.{layer}");
        let normed = norm(drawing, x, &format!("{name}.input_layernorm"))?;
        let context = attention.draw(drawing, config, &format!("{name}.self_attn"), normed)?;
        x = drawing.graph.add(x, context)?;
        let normed = norm(drawing, x, &format!("{name}.post_attention_layernorm"))?;
        let narrow = feed_forward(drawing, config, &format!("{name}.mlp"), normed)?;
        x = drawing.graph.add(x, narrow)?;
    }
    drawing.graph.layer(None);
    norm(drawing, x, "norm")
}

/// `is_causal` is written by the authors of models whose own code reads it, GTE-Qwen2 among them.
/// `use_bidirectional_attention` is written by the transformers library for Gemma, and since then by the authors of
/// other decoders.
fn mask(config: &ModelConfig) -> Result<AttentionMask, ModelError> {
    let is_causal = config.read(CAUSAL)? && !config.read(BIDIRECTIONAL)?;
    Ok(if is_causal { AttentionMask::Causal } else { AttentionMask::Full })
}

/// Refuses models whose tokens see those behind them.
pub(super) fn refuse_full_attention(config: &ModelConfig) -> Result<(), ModelError> {
    for (setting, supported) in [(CAUSAL, true), (BIDIRECTIONAL, false)] {
        let (name, value) = (setting.name(), config.read(setting)?);
        if value != supported {
            let supported =
                format!("{supported}, where the last token that is not padding stands for a text");
            return Err(config.unsupported(name, value, &supported));
        }
    }
    Ok(())
}

/// The attention of a layer.
#[derive(Clone, Copy)]
pub(super) struct SelfAttention {
    pub(super) projections: Projections,
    /// Angles by position.
    pub(super) table: ValueId,
    /// Which keys a query sees.
    pub(super) mask: AttentionMask,
    /// Factor of the scores; `None`: 1 / √head_dim.
    pub(super) scale: Option<f32>,
}

impl SelfAttention {
    /// Draws it for the rows `x`, with the weights below `name`; the result has the same width.
    pub(super) fn draw(
        self,
        drawing: &mut Drawing<'_>,
        config: &ModelConfig,
        name: &str,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let Self { projections, mask, scale, .. } = self;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim());
        let mut project = |part: &str, num_heads| {
            let sizes = (hidden, num_heads * head_dim);
            let rows = drawing.linear_with(x, &format!("{name}.{part}_proj"), sizes, projections.bias)?;
            Ok::<_, ModelError>(HeadRows::all(rows, num_heads, head_dim))
        };
        let query = project("q", config.num_attention_heads)?;
        let key = project("k", config.num_key_value_heads)?;
        let value = project("v", config.num_key_value_heads)?;
        let query = self.turned(drawing, config, &format!("{name}.q_norm"), query)?;
        let key = self.turned(drawing, config, &format!("{name}.k_norm"), key)?;
        let context = Attention { query, key, value, mask, bias: None, scale }.draw(drawing)?;
        let columns = config.num_attention_heads * head_dim;
        drawing.linear_with(context, &format!("{name}.o_proj"), (columns, hidden), projections.context_bias)
    }

    /// The same heads, normed if the family norms them, and rotated by their positions.
    fn turned(
        self,
        drawing: &mut Drawing<'_>,
        config: &ModelConfig,
        norm: &str,
        mut of: HeadRows,
    ) -> Result<HeadRows, ModelError> {
        if let Some(gain) = self.projections.head_norms {
            let gain = drawing.gain(norm, of.heads.head_dim, gain)?;
            of.rows = drawing.graph.head_rms_norm(of.rows, of.heads, gain, config.layer_norm_eps)?;
        }
        of.turned(drawing, self.table)
    }
}

/// Draws the feed-forward part of a layer for the rows `x`, with the weights below `name`.
pub(super) fn feed_forward(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let mut wide =
        |part: &str| drawing.linear_with(x, &format!("{name}.{part}_proj"), (hidden, inner), Bias::Without);
    let (gate, up) = (wide("gate")?, wide("up")?);
    let gated = drawing.gated(gate, config.hidden_act, up)?;
    drawing.linear_with(gated, &format!("{name}.down_proj"), (inner, hidden), Bias::Without)
}
