//! ALBERT (Lan et al., 2019): BERT whose layers share weights and whose embeddings are narrower than its layers.
//!
//! Layers are divided into groups in order, and each layer of a group runs the same few inner layers one after the
//! other. Each weight is loaded once, however many layers use it.

use turbo_graph::{Activation, Pooling, ValueId};

use super::{
    ActivationRange, Architecture, Name, bert,
    heads::{self, HasBias, Head, Step, Width, Words},
    post_norm::{self, LayerNames},
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, Setting},
    drawing::Drawing,
};

const LAYERS: Setting<u32> = Setting::Field("num_hidden_layers", 12);
const GROUPS: Setting<u32> = Setting::Field("num_hidden_groups", 1);
const INNER_LAYERS: Setting<u32> = Setting::Field("inner_group_num", 1);

/// Most inner layers that an input passes through: no file bounds layers that share weights. Published models have 12.
const MOST_LAYERS: u32 = 128;

pub(super) const ALBERT: Architecture = Architecture {
    names: &[Name { model_type: "albert", class_prefix: "Albert" }],
    tensor_prefixes: &["albert."],
    fields: ConfigFields {
        vocab_size: Setting::Field("vocab_size", 30000),
        embedding_size: Some(Setting::Field("embedding_size", 128)),
        hidden_size: Setting::Field("hidden_size", 4096),
        num_hidden_layers: LAYERS,
        num_attention_heads: Setting::Field("num_attention_heads", 64),
        intermediate_size: Setting::Field("intermediate_size", 16384),
        hidden_act: Setting::Field("hidden_act", "gelu_new"),
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw,
};

const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[
            Step::Pool(Pooling::Cls),
            Step::Linear("pooler", Width::Hidden, HasBias::Always),
            Step::Activate(Activation::Tanh),
            Step::Linear("classifier", Width::Labels, HasBias::Always),
        ],
    },
    heads::TOKEN_CLASSIFIER,
    heads::ANSWERS,
    Head {
        task: Task::MaskedLm,
        steps: &[
            Step::Linear("predictions.dense", Width::Embedding, HasBias::Always),
            Step::HiddenAct,
            Step::Norm("predictions.LayerNorm", HasBias::Always),
            Step::Words(Words {
                table: heads::WORD_TABLE,
                matrix: "predictions.decoder",
                bias: &["predictions.decoder.bias", "predictions.bias"],
                has_bias: HasBias::Always,
            }),
        ],
    },
];

const LAYER: LayerNames = LayerNames {
    query: "attention.query",
    key: "attention.key",
    value: "attention.value",
    context: "attention.dense",
    attention_norm: "attention.LayerNorm",
    wide: "ffn",
    narrow: "ffn_output",
    output_norm: "full_layer_layer_norm",
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let layers = config.count_up_to(MOST_LAYERS, LAYERS)?;
    let inner_layers = config.count_up_to(MOST_LAYERS / layers, INNER_LAYERS)?;
    let groups = config.count_up_to(layers, GROUPS)?;
    let x = post_norm::embeddings(drawing, config)?;
    let widths = (config.embedding_size, config.hidden_size);
    let mut x = drawing.linear(x, "encoder.embedding_hidden_mapping_in", widths)?;
    for layer in 0..layers {
        let group = group_of(layer, layers, groups);
        for inner in 0..inner_layers {
            drawing.graph.layer(Some(layer * inner_layers + inner));
            let name = format!("encoder.albert_layer_groups.{group}.albert_layers.{inner}");
            x = post_norm::layer(drawing, config, &LAYER, &name, x)?;
        }
    }
    Ok(x)
}

/// The group whose weights layer `layer` has, computed in `f64` as in the transformers library.
fn group_of(layer: u32, layers: u32, groups: u32) -> u32 {
    (f64::from(layer) / (f64::from(layers) / f64::from(groups))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_dealt_out_in_order() {
        let groups = |layers, groups| -> Vec<u32> {
            (0..layers).map(|layer| group_of(layer, layers, groups)).collect()
        };
        assert_eq!(groups(4, 1), [0, 0, 0, 0]);
        assert_eq!(groups(4, 2), [0, 0, 1, 1]);
        assert_eq!(groups(4, 4), [0, 1, 2, 3]);
        assert_eq!(groups(5, 2), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn every_layer_has_a_group() {
        for layers in 1..=MOST_LAYERS {
            for groups in 1..=layers {
                assert!(
                    (0..layers).all(|layer| group_of(layer, layers, groups) < groups),
                    "{layers} {groups}"
                );
            }
        }
    }
}
