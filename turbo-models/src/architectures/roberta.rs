//! RoBERTa (Liu et al., 2019), XLM-R and CamemBERT: BERT, except for where positions begin.
//!
//! Positions begin behind the row of the padding token, so the longest input has `pad_token_id + 1` tokens fewer than
//! the table has rows.

use turbo_graph::{Activation, Pooling, Positions};

use super::{
    ActivationRange, Architecture, Name, bert,
    heads::{self, HasBias, Head, Step, Width, Words},
};
use crate::{
    Task,
    config::{ConfigFields, Setting},
};

pub(super) const ROBERTA: Architecture = Architecture {
    names: &[Name { model_type: "roberta", class_prefix: "Roberta" }],
    tensor_prefixes: &["roberta."],
    fields: ConfigFields { vocab_size: Setting::Field("vocab_size", 50265), ..FIELDS },
    activations: ActivationRange::WithinF16,
    heads: HEADS,
    draw: bert::draw,
};

/// The same in more languages, with BERT's default vocabulary size.
pub(super) const XLM_ROBERTA: Architecture = Architecture {
    names: &[
        Name { model_type: "xlm-roberta", class_prefix: "XLMRoberta" },
        Name { model_type: "camembert", class_prefix: "Camembert" },
    ],
    fields: FIELDS,
    ..ROBERTA
};

const FIELDS: ConfigFields = ConfigFields {
    positions: Setting::Field("pad_token_id", Positions::AfterPad { pad_id: 1 }),
    ..bert::FIELDS
};

pub(super) const HEADS: &[Head] = &[
    Head {
        task: Task::SequenceClassification,
        steps: &[
            Step::Pool(Pooling::Cls),
            Step::Linear("classifier.dense", Width::Hidden, HasBias::Always),
            Step::Activate(Activation::Tanh),
            Step::Linear("classifier.out_proj", Width::Labels, HasBias::Always),
        ],
    },
    heads::TOKEN_CLASSIFIER,
    heads::ANSWERS,
    Head {
        task: Task::MaskedLm,
        steps: &[
            Step::Linear("lm_head.dense", Width::Hidden, HasBias::Always),
            Step::Activate(Activation::GeluErf),
            Step::Norm("lm_head.layer_norm", HasBias::Always),
            Step::Words(Words {
                table: heads::WORD_TABLE,
                matrix: "lm_head.decoder",
                bias: &["lm_head.decoder.bias", "lm_head.bias"],
                has_bias: HasBias::Always,
            }),
        ],
    },
];
