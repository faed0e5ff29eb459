//! The modules around the encoder in a folder of the sentence-transformers library. Pooling, dense modules and
//! normalisation follow it; a length limit and prompts come before it.

mod dense;
mod inputs;
mod list;
mod logit_score;
mod messages;
mod pooling;
mod prompts;

use std::path::Path;

use serde_json::Value;
use turbo_graph::Pooling;

pub use self::prompts::Prompts;
pub(crate) use self::{
    dense::Dense,
    inputs::{CutSide, EncoderInputs},
    logit_score::LogitScore,
};
use self::{
    inputs::EncoderGives,
    list::{List, Module},
};
use crate::{
    ModelError,
    config::ScoreClass,
    error::one_line,
    json::{JsonObject, read_json},
};

/// The modules of a folder, from `modules.json` and the folders it names, `sentence_bert_config.json`,
/// `tokenizer_config.json` and `config_sentence_transformers.json`. Each of these files may be absent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SentenceModules {
    /// Whether `modules.json` lists the modules.
    pub(crate) is_listed: bool,
    /// How token vectors become one.
    pub(crate) pooling: Option<Pooling>,
    /// Dense modules that the pooled vector passes through, in this order.
    pub(crate) dense: Vec<Dense>,
    /// Whether the vector is then divided by its L2 norm.
    pub(crate) normalize: bool,
    /// Whether the vector's values become whole numbers instead ([`tanh_int8`](crate::tanh_int8)).
    pub(crate) tanh_int8: bool,
    /// Whether the model returns a weight per token of its vocabulary instead (SPLADE).
    pub(crate) splade: bool,
    /// The score that is made from the logits of the next token instead.
    pub(crate) score: Option<LogitScore>,
    /// What the encoder takes, and what it passes to the other modules.
    pub(crate) inputs: EncoderInputs,
    /// The prompts that are put in front of texts.
    pub(crate) prompts: Prompts,
    /// The score function that a cross-encoder's file names, if any.
    pub(crate) activation: Option<ScoreClass>,
    /// Oddities of the folder that do not stop it from being read.
    pub(crate) warnings: Vec<String>,
}

impl SentenceModules {
    /// Reads them from the folder `dir`.
    ///
    /// # Errors
    /// [`ModelError`] naming the file and the field in it: a module that is not implemented, or an order that makes no
    /// sense.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let inputs = EncoderInputs::open(dir)?;
        let mut modules = Self { inputs, ..Self::default() };
        if let Some(library) = JsonObject::open(dir.join("config_sentence_transformers.json"))? {
            modules.prompts = Prompts::read(&library)?;
            modules.activation = activation(&library)?;
            modules.warnings = cuts_of_rows(&library)?;
        }
        let file = dir.join("modules.json");
        match read_json::<Vec<Module>>(&file)? {
            Some(list) => {
                modules.is_listed = true;
                modules.read_list(&List { dir, file }, &list)?;
            }
            None => modules.pooling = pooling::open(&dir.join("1_Pooling"))?,
        }
        Ok(modules)
    }
}

fn activation(json: &JsonObject) -> Result<Option<ScoreClass>, ModelError> {
    const FIELD: &str = "activation_fn";
    Ok(json.get::<String>(FIELD)?.map(|class| ScoreClass::new(json, FIELD, class)))
}

/// Warns that the library would return fewer values of each row than are returned here.
fn cuts_of_rows(json: &JsonObject) -> Result<Vec<String>, ModelError> {
    let mut warnings = Vec::new();
    for (field, advice) in [
        ("truncate_dim", "ask for as many values with `dimensions`"),
        ("max_active_dims", "rows have every weight that is not zero"),
    ] {
        if let Some(most) = json.get::<Value>(field)? {
            let most = one_line(most);
            warnings.push(format!(
                "config_sentence_transformers.json: {field} is {most}, which is not done here: {advice}"
            ));
        }
    }
    Ok(warnings)
}

/// The name under which modules take and return the text's vector.
const VECTOR: &str = "sentence_embedding";

/// Refuses a module that takes or returns anything but the text's vector.
fn check_names(json: &JsonObject) -> Result<(), ModelError> {
    for field in ["module_input_name", "module_output_name"] {
        if let Some(other) = json.get::<String>(field)?.filter(|name| name != VECTOR) {
            return Err(json.unsupported(field, other, VECTOR));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
