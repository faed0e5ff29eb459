//! Mistral (Jiang et al., 2023) as an embedder, E5-Mistral among them: a decoder without biases. Its tokens see a
//! window of the tokens before them; inputs end at the length of that window.

use turbo_graph::ValueId;

use super::{
    ActivationRange, Architecture, Name,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, KeyValueHeads, Setting},
    drawing::{Bias, Drawing},
};

pub(super) const MISTRAL: Architecture = Architecture {
    names: &[Name { model_type: "mistral", class_prefix: "Mistral" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 32000),
        num_key_value_heads: KeyValueHeads::Own(Setting::Field("num_key_value_heads", 8)),
        intermediate_size: Setting::Field("intermediate_size", 14336),
        max_position_embeddings: Setting::Field("max_position_embeddings", 4096 * 32),
        causal_window: Some(Setting::Field("sliding_window", 4096)),
        ..decoder::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: decoder::HEADS,
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let projections = Projections { bias: Bias::Without, context_bias: Bias::Without, head_norms: None };
    decoder::draw(drawing, config, projections)
}
