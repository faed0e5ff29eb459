//! ELECTRA (Clark et al., 2020): BERT whose embeddings may be narrower than its layers, with a matrix between them.

use turbo_graph::{Activation, Pooling, ValueId};

use super::{
    ActivationRange, Architecture, Name, bert,
    heads::{self, HasBias, Head, Step, Width, Words},
    post_norm,
};
use crate::{
    ModelConfig, ModelError, Task,
    config::{ConfigFields, Setting},
    drawing::Drawing,
};

const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[
            Step::Pool(Pooling::Cls),
            Step::Linear("classifier.dense", Width::Hidden, HasBias::Always),
            Step::Activate(Activation::GeluErf),
            Step::Linear("classifier.out_proj", Width::Labels, HasBias::Always),
        ],
    },
    heads::TOKEN_CLASSIFIER,
    // the discriminator: was this token replaced?
    Head {
        task: Task::TokenClassification,
        steps: &[
            Step::Linear("discriminator_predictions.dense", Width::Hidden, HasBias::Always),
            Step::HiddenAct,
            Step::Linear("discriminator_predictions.dense_prediction", Width::Fixed(1), HasBias::Always),
        ],
    },
    heads::ANSWERS,
    Head {
        task: Task::MaskedLm,
        steps: &[
            Step::Linear("generator_predictions.dense", Width::Embedding, HasBias::Always),
            Step::Activate(Activation::GeluErf),
            Step::Norm("generator_predictions.LayerNorm", HasBias::Always),
            Step::Words(Words {
                table: heads::WORD_TABLE,
                matrix: "generator_lm_head",
                bias: &["generator_lm_head.bias"],
                has_bias: HasBias::Always,
            }),
        ],
    },
];

pub(super) const ELECTRA: Architecture = Architecture {
    names: &[Name { model_type: "electra", class_prefix: "Electra" }],
    tensor_prefixes: &["electra."],
    fields: ConfigFields {
        embedding_size: Some(Setting::Field("embedding_size", 128)),
        hidden_size: Setting::Field("hidden_size", 256),
        num_attention_heads: Setting::Field("num_attention_heads", 4),
        intermediate_size: Setting::Field("intermediate_size", 1024),
        ..bert::FIELDS
    },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
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
