//! ELECTRA (Clark et al., 2020): BERT whose embeddings may be narrower than its layers, with a matrix between them.

use turbo_graph::ValueId;

use super::{Architecture, Name, bert, post_norm};
use crate::{
    ModelConfig, ModelError,
    config_fields::{ConfigFields, Setting},
    drawing::Drawing,
};

pub(super) const ELECTRA: Architecture = Architecture {
    names: &[Name { model_type: "electra", class_prefix: "Electra" }],
    tensor_prefix: "electra.",
    fields: ConfigFields {
        embedding_size: Some(Setting::Field("embedding_size", 128)),
        hidden_size: Setting::Field("hidden_size", 256),
        num_attention_heads: Setting::Field("num_attention_heads", 4),
        intermediate_size: Setting::Field("intermediate_size", 1024),
        ..bert::FIELDS
    },
    draw,
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let mut x = post_norm::embeddings(drawing, config)?;
    let (narrow, hidden) = (config.embedding_size, config.hidden_size);
    if narrow != hidden {
        x = drawing.linear(x, "embeddings_project", (narrow, hidden))?;
    }
    bert::layers(drawing, config, x)
}
