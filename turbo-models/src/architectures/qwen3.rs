//! Qwen3 (Yang et al., 2025) as an embedder: a causal decoder whose last token has seen the whole input, or one trained
//! on so that every token sees it. Norms by root mean square before the parts of a layer, and of every head of queries
//! and keys; several heads of queries share one of keys and values; rotary positions; a gated feed-forward part; no biases.

use turbo_graph::{AttentionMask, Input, Pooling, ValueId};

use super::{
    Architecture, Name,
    attention::{Attention, HeadRows},
    bert,
    heads::{HasBias, Head, Step, Width},
    rotary,
};
use crate::{
    ModelConfig, ModelError, Task,
    config_fields::{ConfigFields, Only, Setting},
    drawing::{Bias, Drawing},
};

const THETA: Setting<f64> = Setting::Field("rope_theta", 10_000.0);
const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);
const BIDIRECTIONAL: Setting<bool> = Setting::Field("use_bidirectional_attention", false);
const CAUSAL: Setting<bool> = Setting::Field("is_causal", true);

pub(super) const QWEN3: Architecture = Architecture {
    names: &[Name { model_type: "qwen3", class_prefix: "Qwen3" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 151_936),
        hidden_size: Setting::Field("hidden_size", 4096),
        num_hidden_layers: Setting::Field("num_hidden_layers", 32),
        num_attention_heads: Setting::Field("num_attention_heads", 32),
        num_key_value_heads: Some("num_key_value_heads"),
        head_dim: Some(Setting::Field("head_dim", 128)),
        intermediate_size: Setting::Field("intermediate_size", 22016),
        hidden_act: Setting::Field("hidden_act", "silu"),
        max_position_embeddings: Setting::Field("max_position_embeddings", 32768),
        type_vocab_size: None,
        layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
        only: &[Only { field: "use_sliding_window", values: &["false"], default: "false" }],
        ..bert::FIELDS
    },
    heads: &[
        Head {
            task: Task::SequenceClassification,
            steps: &[Step::Pool(Pooling::LastToken), Step::Linear("score", Width::Labels, HasBias::Never)],
        },
        Head {
            task: Task::TokenClassification,
            steps: &[Step::Linear("score", Width::Labels, HasBias::Always)],
        },
    ],
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    rotary::refuse_scaling(config)?;
    refuse_projection(drawing, config)?;
    let theta = rotary::theta(config, rotary::Layers::All, THETA)?;
    let table = rotary::table(drawing, config, theta, 1.0)?;
    let (bias, mask) = (config.bias(ATTENTION_BIAS)?, mask(config)?);
    let (hidden, epsilon) = (config.hidden_size, config.layer_norm_eps);

    let ids = drawing.graph.input(Input::InputIds);
    let mut x = drawing.embed("embed_tokens", (config.vocab_size, hidden), ids)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let name = format!("layers.{layer}");
        let normed = drawing.rms_norm(x, &format!("{name}.input_layernorm"), hidden, epsilon)?;
        let context = attention(drawing, config, &format!("{name}.self_attn"), table, bias, mask, normed)?;
        x = drawing.graph.add(x, context)?;
        let normed = drawing.rms_norm(x, &format!("{name}.post_attention_layernorm"), hidden, epsilon)?;
        let narrow = feed_forward(drawing, config, &format!("{name}.mlp"), normed)?;
        x = drawing.graph.add(x, narrow)?;
    }
    drawing.graph.layer(None);
    drawing.rms_norm(x, "norm", hidden, epsilon)
}

/// Refuses models with a matrix behind the last norm, which makes rows of another width.
fn refuse_projection(drawing: &Drawing<'_>, config: &ModelConfig) -> Result<(), ModelError> {
    const WIDTH: &str = "num_labels";
    match config.is_given(WIDTH) && drawing.has("linear.weight") {
        true => {
            Err(config.wrong(WIDTH, "is the width of the tensor linear.weight, which is not computed here"))
        }
        false => Ok(()),
    }
}

/// Older files say that tokens see what is behind them in a field of their own, newer ones in that of all decoders.
fn mask(config: &ModelConfig) -> Result<AttentionMask, ModelError> {
    let is_causal = config.read(CAUSAL)? && !config.read(BIDIRECTIONAL)?;
    Ok(if is_causal { AttentionMask::Causal } else { AttentionMask::Full })
}

/// Refuses models whose tokens see what is behind them.
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

fn attention(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    name: &str,
    table: ValueId,
    bias: Bias,
    mask: AttentionMask,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (hidden, head_dim) = (config.hidden_size, config.head_dim());
    let mut project = |part: &str, num_heads| {
        let sizes = (hidden, num_heads * head_dim);
        let rows = drawing.linear_with(x, &format!("{name}.{part}_proj"), sizes, bias)?;
        Ok::<_, ModelError>(HeadRows::all(rows, num_heads, head_dim))
    };
    let query = project("q", config.num_attention_heads)?;
    let key = project("k", config.num_key_value_heads)?;
    let value = project("v", config.num_key_value_heads)?;
    let mut turned = |of: HeadRows, norm: &str| {
        let gain = drawing.weight(&format!("{name}.{norm}.weight"), &[head_dim])?;
        let rows = drawing.graph.head_rms_norm(of.rows, of.heads, gain, config.layer_norm_eps)?;
        HeadRows::all(rows, of.heads.num_heads, head_dim).turned(drawing, table)
    };
    let (query, key) = (turned(query, "q_norm")?, turned(key, "k_norm")?);
    let context = Attention { query, key, value, mask, bias: None }.draw(drawing)?;
    let columns = config.num_attention_heads * head_dim;
    drawing.linear_with(context, &format!("{name}.o_proj"), (columns, hidden), bias)
}

fn feed_forward(
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
