//! MPNet (Song et al., 2020): BERT with a bias on the attention scores by the distance between two tokens, the same in
//! all layers. Positions are counted as in RoBERTa, and there are no token types.

use turbo_graph::{Positions, ValueId};

use super::{
    ActivationRange, Architecture, Name,
    attention::RelativeBias,
    bert,
    post_norm::{self, LayerNames},
    roberta,
};
use crate::{
    ModelConfig, ModelError,
    config::{ConfigFields, Only, Setting},
    drawing::Drawing,
};

pub(super) const MPNET: Architecture = Architecture {
    names: &[Name { model_type: "mpnet", class_prefix: "MPNet" }],
    tensor_prefixes: &["mpnet."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 30527),
        type_vocab_size: None,
        // whatever the file says of the padding token
        positions: Setting::Always(Positions::AfterPad { pad_id: 1 }),
        only: &[Only { field: "relative_attention_num_buckets", values: &["32"], default: "32" }],
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: roberta::HEADS,
    draw,
};

const LAYER: LayerNames = LayerNames {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    context: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    wide: "intermediate.dense",
    narrow: "output.dense",
    output_norm: "output.LayerNorm",
};

/// The reference reads neither of these from the configuration.
const NUM_BUCKETS: usize = 32;
const MAX_DISTANCE: usize = 128;

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let mut x = post_norm::embeddings(drawing, config)?;
    let shape = [NUM_BUCKETS, config.num_attention_heads];
    let table = drawing.weight("encoder.relative_attention_bias.weight", &shape)?;
    let bias = RelativeBias::Buckets { table, num_buckets: NUM_BUCKETS, max_distance: MAX_DISTANCE };
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        x = post_norm::biased_layer(
            drawing,
            config,
            &LAYER,
            &format!("encoder.layer.{layer}"),
            x,
            Some(bias),
            None,
        )?;
    }
    Ok(x)
}
