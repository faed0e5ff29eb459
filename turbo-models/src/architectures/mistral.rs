//! Mistral (Jiang et al., 2023) as an embedder, E5-Mistral among them: a decoder without biases. Its tokens see a window
//! of those before them, at whose length inputs end.

use turbo_graph::ValueId;

use super::{
    Architecture, Name, bert,
    decoder::{self, Projections},
};
use crate::{
    ModelConfig, ModelError,
    config_fields::{ConfigFields, HeadDim, Setting},
    drawing::{Bias, Drawing},
};

pub(super) const MISTRAL: Architecture = Architecture {
    names: &[Name { model_type: "mistral", class_prefix: "Mistral" }],
    tensor_prefixes: &["model."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 32000),
        hidden_size: Setting::Field("hidden_size", 4096),
        num_hidden_layers: Setting::Field("num_hidden_layers", 32),
        num_attention_heads: Setting::Field("num_attention_heads", 32),
        num_key_value_heads: Some("num_key_value_heads"),
        head_dim: HeadDim::SharedUnless("head_dim"),
        intermediate_size: Setting::Field("intermediate_size", 14336),
        hidden_act: Setting::Field("hidden_act", "silu"),
        max_position_embeddings: Setting::Field("max_position_embeddings", 4096 * 32),
        type_vocab_size: None,
        layer_norm_eps: Setting::Field("rms_norm_eps", 1e-6),
        causal_window: Some(Setting::Field("sliding_window", 4096)),
        only: &[],
        ..bert::FIELDS
    },
    heads: decoder::HEADS,
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let projections = Projections { bias: Bias::Without, context_bias: Bias::Without, head_norms: None };
    decoder::draw(drawing, config, projections)
}
