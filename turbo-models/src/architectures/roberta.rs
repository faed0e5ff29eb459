//! RoBERTa (Liu et al., 2019), XLM-R and CamemBERT: BERT, but for where positions begin.
//!
//! The position table has a row for padding and none before it is taken, so that an input may have `pad_token_id + 1`
//! tokens fewer than the table has rows.

use turbo_graph::Positions;

use super::{Architecture, Name, bert};
use crate::config_fields::{ConfigFields, Setting};

pub(super) const ROBERTA: Architecture = Architecture {
    names: &[Name { model_type: "roberta", class_prefix: "Roberta" }],
    tensor_prefix: "roberta.",
    fields: ConfigFields { vocab_size: Setting::Field("vocab_size", 50265), ..FIELDS },
    draw: bert::draw,
};

/// The same in more languages, with the default vocabulary of BERT.
pub(super) const XLM_ROBERTA: Architecture = Architecture {
    names: &[
        Name { model_type: "xlm-roberta", class_prefix: "XLMRoberta" },
        Name { model_type: "camembert", class_prefix: "Camembert" },
    ],
    fields: FIELDS,
    ..ROBERTA
};

const FIELDS: ConfigFields = ConfigFields { positions: Positions::AfterPad { pad_id: 1 }, ..bert::FIELDS };
