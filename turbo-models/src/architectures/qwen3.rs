//! Qwen3 (Yang et al., 2025) as an embedder: a decoder with norms of every head of queries and keys, and as a rule no
//! biases.

use turbo_graph::ValueId;

use super::{
    Architecture, Name, bert,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config_fields::{ConfigFields, HeadDim, Only, Setting},
    drawing::{Drawing, Gain},
};

const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);

pub(super) const QWEN3: Architecture = Architecture {
    names: &[Name { model_type: "qwen3", class_prefix: "Qwen3" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 151_936),
        hidden_size: Setting::Field("hidden_size", 4096),
        num_hidden_layers: Setting::Field("num_hidden_layers", 32),
        num_attention_heads: Setting::Field("num_attention_heads", 32),
        num_key_value_heads: Some("num_key_value_heads"),
        head_dim: HeadDim::Own(Setting::Field("head_dim", 128)),
        intermediate_size: Setting::Field("intermediate_size", 22016),
        hidden_act: Setting::Field("hidden_act", "silu"),
        max_position_embeddings: Setting::Field("max_position_embeddings", 32768),
        type_vocab_size: None,
        layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
        only: &[Only { field: "use_sliding_window", values: &["false"], default: "false" }],
        ..bert::FIELDS
    },
    heads: decoder::HEADS,
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    refuse_projection(drawing, config)?;
    let bias = config.bias(ATTENTION_BIAS)?;
    let projections = Projections { bias, context_bias: bias, head_norms: Some(Gain::Weight) };
    decoder::draw(drawing, config, projections)
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
