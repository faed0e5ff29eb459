//! ModernBERT (Warner et al., 2024): norms before each part of a layer and one behind the last layer, rotary positions,
//! a gated feed-forward part. Every few layers a token sees all others. In the layers between it sees only its
//! neighbours, and positions rotate faster.

use turbo_graph::{Activation, AttentionMask, Input, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    attention::TurnedAttention,
    bert,
    global_layers::GlobalLayers,
    heads::{HasBias, Head, Step, Width, Words},
    rotary,
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, Setting},
    drawing::{Bias, Drawing},
};

const GLOBAL_EVERY: Setting<u32> = Setting::Field("global_attn_every_n_layers", 3);
const LOCAL_TOKENS: Setting<u32> = Setting::Field("local_attention", 128);
/// The reference's other name for half of that; its value takes precedence there.
const LOCAL_REACH: &str = "sliding_window";
const GLOBAL_THETA: Setting<f64> = Setting::Field("global_rope_theta", 160_000.0);
const LOCAL_THETA: Setting<f64> = Setting::Field("local_rope_theta", 10_000.0);
const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);
const MLP_BIAS: Setting<bool> = Setting::Field("mlp_bias", false);
const NORM_BIAS: Setting<bool> = Setting::Field("norm_bias", false);

pub(super) const MODERNBERT: Architecture = Architecture {
    names: &[Name { model_type: "modernbert", class_prefix: "ModernBert" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 50368),
        num_hidden_layers: Setting::Field("num_hidden_layers", 22),
        intermediate_size: Setting::Field("intermediate_size", 1152),
        hidden_act: Setting::Field("hidden_activation", "gelu"),
        max_position_embeddings: Setting::Field("max_position_embeddings", 8192),
        type_vocab_size: None,
        layer_norm_eps: Setting::Field("norm_eps", 1e-5),
        only: &[],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw,
};

const DENSE: Step =
    Step::Linear("head.dense", Width::Hidden, HasBias::If(Setting::Field("classifier_bias", false)));
const ACTIVATE: Step = Step::ActivateAs(Setting::Field("classifier_activation", "gelu"));
const NORM: Step = Step::Norm("head.norm", HasBias::If(NORM_BIAS));
const CLASSIFIER: Step = Step::Linear("classifier", Width::Labels, HasBias::Always);

const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[
            Step::PoolAs(Setting::Field("classifier_pooling", "cls")),
            DENSE,
            ACTIVATE,
            NORM,
            CLASSIFIER,
        ],
    },
    Head { task: Task::TokenClassification, steps: &[DENSE, ACTIVATE, NORM, CLASSIFIER] },
    Head {
        task: Task::QuestionAnswering,
        steps: &[DENSE, ACTIVATE, NORM, Step::Linear("classifier", Width::Fixed(2), HasBias::Always)],
    },
    Head {
        task: Task::MaskedLm,
        steps: &[
            DENSE,
            ACTIVATE,
            NORM,
            Step::Words(Words {
                table: "embeddings.tok_embeddings",
                matrix: "decoder",
                bias: &["decoder.bias"],
                has_bias: HasBias::If(Setting::Field("decoder_bias", true)),
            }),
        ],
    },
];

/// What all layers have in common.
struct Layers {
    hidden: usize,
    inner: usize,
    epsilon: f32,
    activation: Activation,
    attention_bias: Bias,
    mlp_bias: Bias,
    norm_bias: Bias,
}

/// How far a layer sees, and how fast its positions rotate.
#[derive(Clone, Copy)]
struct Sight {
    mask: AttentionMask,
    table: ValueId,
}

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let layers = Layers {
        hidden: config.hidden_size,
        inner: config.intermediate_size,
        epsilon: config.layer_norm_eps,
        activation: config.hidden_act,
        attention_bias: config.bias(ATTENTION_BIAS)?,
        mlp_bias: config.bias(MLP_BIAS)?,
        norm_bias: config.bias(NORM_BIAS)?,
    };
    rotary::refuse_scaling(config)?;
    let global_theta = rotary::theta(config, rotary::Layers::Global, GLOBAL_THETA)?;
    let global = Sight {
        mask: AttentionMask::Full,
        table: rotary::table(drawing, config, global_theta, rotary::Stretch::None)?,
    };
    // null does not mean the default here, but the base of the other layers
    let local = if config.is_null(LOCAL_THETA.name()) { GLOBAL_THETA } else { LOCAL_THETA };
    let theta = rotary::theta(config, rotary::Layers::Local, local)?;
    rotary::refuse_theta_in_scaling(config, [global_theta, theta])?;
    let reach = config.count(LOCAL_TOKENS)? as usize / 2;
    if let Some(other) = config.optional::<usize>(LOCAL_REACH)?.filter(|other| *other != reach) {
        let why = format!("is {other}, expected {reach}, half of {}", LOCAL_TOKENS.name());
        return Err(config.wrong(LOCAL_REACH, why));
    }
    let local = Sight {
        mask: AttentionMask::Window { reach },
        table: rotary::table(drawing, config, theta, rotary::Stretch::None)?,
    };
    let regular = || Ok(GlobalLayers::Every { distance: config.count(GLOBAL_EVERY)?, first: 0 });
    let global_layers = GlobalLayers::listed_or(config, regular)?;

    let ids = drawing.graph.input(Input::InputIds);
    let words = (config.vocab_size, config.hidden_size);
    let x = drawing.embed("embeddings.tok_embeddings", words, ids)?;
    let mut x = layers.norm(drawing, "embeddings.norm", x)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        let Sight { mask, table } = if global_layers.has(layer) { global } else { local };
        let name = format!("layers.{layer}");
        // the output of the embeddings is already normed
        let normed = if layer == 0 { x } else { layers.norm(drawing, &format!("{name}.attn_norm"), x)? };
        let matrices = [&format!("{name}.attn.Wqkv")[..], &format!("{name}.attn.Wo")];
        let attention = TurnedAttention { matrices, bias: layers.attention_bias, mask, table };
        let context = attention.draw(drawing, config, normed)?;
        x = drawing.graph.add(x, context)?;
        let normed = layers.norm(drawing, &format!("{name}.mlp_norm"), x)?;
        let narrow = layers.feed_forward(drawing, &name, normed)?;
        x = drawing.graph.add(x, narrow)?;
    }
    drawing.graph.layer(None);
    layers.norm(drawing, "final_norm", x)
}

impl Layers {
    fn norm(&self, drawing: &mut Drawing<'_>, name: &str, x: ValueId) -> Result<ValueId, ModelError> {
        drawing.layer_norm_with(x, name, self.hidden, self.epsilon, self.norm_bias)
    }

    fn feed_forward(
        &self,
        drawing: &mut Drawing<'_>,
        layer: &str,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let (hidden, inner, bias) = (self.hidden, self.inner, self.mlp_bias);
        let wide = drawing.linear_with(x, &format!("{layer}.mlp.Wi"), (hidden, 2 * inner), bias)?;
        let gated = drawing.graph.gate(wide, self.activation)?;
        drawing.linear_with(gated, &format!("{layer}.mlp.Wo"), (inner, hidden), bias)
    }
}
