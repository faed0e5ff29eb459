//! Qwen2 (Yang et al., 2024) as an embedder, GTE-Qwen2 among them: a decoder whose queries, keys and values have biases.

use turbo_graph::ValueId;

use super::{
    ActivationRange, Architecture, Name, bert,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config_fields::{ConfigFields, HeadDim, Only, Setting},
    drawing::{Bias, Drawing},
};

/// What the configurations of decoders have in common.
pub(super) const FIELDS: ConfigFields = ConfigFields {
    vocab_size: Setting::Field("vocab_size", 151_936),
    hidden_size: Setting::Field("hidden_size", 4096),
    num_hidden_layers: Setting::Field("num_hidden_layers", 32),
    num_attention_heads: Setting::Field("num_attention_heads", 32),
    num_key_value_heads: Some(Setting::Field("num_key_value_heads", 32)),
    head_dim: HeadDim::SharedUnless("head_dim"),
    intermediate_size: Setting::Field("intermediate_size", 22016),
    hidden_act: Setting::Field("hidden_act", "silu"),
    max_position_embeddings: Setting::Field("max_position_embeddings", 32768),
    type_vocab_size: None,
    layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
    only: &[Only { field: "use_sliding_window", values: &["false"], default: "false" }],
    ..bert::FIELDS
};

pub(super) const QWEN2: Architecture = Architecture {
    names: &[Name { model_type: "qwen2", class_prefix: "Qwen2" }],
    tensor_prefixes: &["model."],
    fields: FIELDS,
    activations: ActivationRange::WithinF16,
    heads: decoder::HEADS,
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let projections = Projections { bias: Bias::With, context_bias: Bias::Without, head_norms: None };
    decoder::draw(drawing, config, projections)
}
