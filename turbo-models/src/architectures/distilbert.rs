//! DistilBERT (Sanh et al., 2019): BERT with other names, half the layers, and no token types.

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

pub(super) const DISTILBERT: Architecture = Architecture {
    names: &[Name { model_type: "distilbert", class_prefix: "DistilBert" }],
    tensor_prefixes: &["distilbert."],
    fields: ConfigFields {
        hidden_size: Setting::Field("dim", 768),
        num_hidden_layers: Setting::Field("n_layers", 6),
        num_attention_heads: Setting::Field("n_heads", 12),
        intermediate_size: Setting::Field("hidden_dim", 3072),
        hidden_act: Setting::Field("activation", "gelu"),
        type_vocab_size: None,
        layer_norm_eps: Setting::Always(1e-12),
        attribute_map: &[
            ("hidden_size", "dim"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
        ],
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
            Step::Linear("pre_classifier", Width::Hidden, HasBias::Always),
            Step::Activate(Activation::Relu),
            Step::Linear("classifier", Width::Labels, HasBias::Always),
        ],
    },
    heads::TOKEN_CLASSIFIER,
    heads::ANSWERS,
    Head {
        task: Task::MaskedLm,
        steps: &[
            Step::Linear("vocab_transform", Width::Hidden, HasBias::Always),
            Step::HiddenAct,
            Step::Norm("vocab_layer_norm", HasBias::Always),
            Step::Words(Words {
                table: heads::WORD_TABLE,
                matrix: "vocab_projector",
                bias: &["vocab_projector.bias"],
                has_bias: HasBias::Always,
            }),
        ],
    },
];

const LAYER: LayerNames = LayerNames {
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    context: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    wide: "ffn.lin1",
    narrow: "ffn.lin2",
    output_norm: "output_layer_norm",
};

fn draw(drawing: &mut Drawing<'_>, config: &ModelConfig) -> Result<ValueId, ModelError> {
    let mut x = post_norm::embeddings(drawing, config)?;
    for layer in 0..config.num_hidden_layers {
        drawing.graph.layer(Some(layer));
        x = post_norm::layer(drawing, config, &LAYER, &format!("transformer.layer.{layer}"), x)?;
    }
    Ok(x)
}
