//! Qwen2 (Yang et al., 2024) as an embedder, GTE-Qwen2 among them: a decoder whose queries, keys and values have biases.

use turbo_graph::ValueId;

use super::{
    ActivationRange, Architecture, Name,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, Only, Setting},
    drawing::{Bias, Drawing},
};

/// What the configurations of Qwen's models have in common.
pub(super) const FIELDS: ConfigFields = ConfigFields {
    vocab_size: Setting::Field("vocab_size", 151_936),
    intermediate_size: Setting::Field("intermediate_size", 22016),
    max_position_embeddings: Setting::Field("max_position_embeddings", 32768),
    only: &[Only { field: "use_sliding_window", values: &["false"], default: "false" }],
    ..decoder::FIELDS
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
