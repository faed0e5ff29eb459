//! Llama (Touvron et al., 2023; Grattafiori et al., 2024) as an embedder or a reranker: a decoder, usually without
//! biases.

use turbo_graph::{AttentionMask, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, KeyValueHeads, Only, Setting},
    drawing::Drawing,
};

const ATTENTION_BIAS: Setting<bool> = Setting::Field("attention_bias", false);

pub(super) const LLAMA: Architecture = Architecture {
    names: &[Name { model_type: "llama", class_prefix: "Llama" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 32000),
        num_key_value_heads: KeyValueHeads::SharedUnless("num_key_value_heads"),
        intermediate_size: Setting::Field("intermediate_size", 11008),
        max_position_embeddings: Setting::Field("max_position_embeddings", 2048),
        only: &[Only { field: "mlp_bias", values: &["false"], default: "false" }],
        ..decoder::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: decoder::HEADS,
    draw,
};

/// NVIDIA's embedders: every token sees all others.
pub(super) const BIDIRECTIONAL: Architecture = Architecture {
    names: &[Name { model_type: "llama_bidirec", class_prefix: "LlamaBidirectional" }],
    fields: ConfigFields { causal_fields: &[], ..LLAMA.fields },
    heads: &[],
    draw: |drawing, config| decoder::draw_with(drawing, config, projections(config)?, AttentionMask::Full),
    ..LLAMA
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    decoder::draw(drawing, config, projections(config)?)
}

fn projections(config: &ModelConfig) -> Result<Projections, ModelError> {
    let bias = config.bias(ATTENTION_BIAS)?;
    Ok(Projections { bias, context_bias: bias, head_norms: None })
}
