//! The chain of modules in `modules.json`: each module has to accept what the one before it returns.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{Dense, EncoderGives, LogitScore, SentenceModules, check_names, pooling};
use crate::{ModelError, error::one_line, json::JsonObject};

/// An entry of `modules.json`.
#[derive(Deserialize)]
pub(super) struct Module {
    /// Folder with its configuration; need not exist if there is nothing to configure.
    path: String,
    /// Path of its Python class.
    r#type: String,
}

/// Where the list of modules is, for the paths in it and for errors about it.
pub(super) struct List<'a> {
    pub(super) dir: &'a Path,
    pub(super) file: PathBuf,
}

/// What the modules up to some place in the list have made of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Text,
    TokenVectors,
    Vector,
    UnitVector,
    Codes,
    WordLogits,
    WordWeights,
    NextLogits,
    Score,
}

/// Classes of modules that are implemented here.
pub(super) const CLASSES: [&str; 9] = [
    "Transformer",
    "Pooling",
    "Dense",
    "Normalize",
    "Dropout",
    "MLMTransformer",
    "SpladePooling",
    "LogitScore",
    "FlexibleQuantizer",
];
/// Paths of the classes that are not the library's own: they are reimplemented here.
const OTHERS: [&str; 1] = ["st_quantize.FlexibleQuantizer"];

impl SentenceModules {
    /// Reads the list, which says everything about pooling and what follows it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn read_list(&mut self, list: &List<'_>, modules: &[Module]) -> Result<(), ModelError> {
        let last = modules.iter().try_fold(Stage::Text, |stage, module| self.add(list, module, stage))?;
        match last {
            Stage::WordLogits | Stage::NextLogits => Err(list.out_of_order("the list ends", last)),
            _ => Ok(()),
        }
    }

    /// Adds a module behind those that led to `stage`; returns the stage that it leads to.
    fn add(&mut self, list: &List<'_>, module: &Module, stage: Stage) -> Result<Stage, ModelError> {
        let whole = module.r#type.as_str();
        let class = whole.rsplit('.').next().unwrap_or_default();
        if whole != class && !whole.starts_with("sentence_transformers.") && !OTHERS.contains(&whole) {
            self.warnings.push(format!(
                "modules.json: type is {}, whose code is not run: the library's {} is taken for it",
                one_line(whole),
                one_line(class)
            ));
        }
        match (class, stage) {
            ("Transformer" | "MLMTransformer", Stage::Text) if !module.path.is_empty() => {
                Err(list.unsupported("path", &module.path, "the folder itself"))
            }
            ("Transformer", Stage::Text) => Ok(match self.inputs.gives {
                EncoderGives::Vectors => Stage::TokenVectors,
                EncoderGives::WordLogits => Stage::WordLogits,
                EncoderGives::NextLogits => Stage::NextLogits,
            }),
            ("MLMTransformer", Stage::Text) => Ok(Stage::WordLogits),
            ("Pooling", Stage::TokenVectors) => {
                self.pooling = pooling::open(&list.folder(module)?)?;
                Ok(Stage::Vector)
            }
            ("SpladePooling", Stage::WordLogits) => {
                pooling::check_splade(&list.folder(module)?)?;
                self.splade = true;
                Ok(Stage::WordWeights)
            }
            ("LogitScore", Stage::NextLogits) => {
                self.score = Some(LogitScore::open(&list.folder(module)?)?);
                Ok(Stage::Score)
            }
            ("Dense", Stage::Vector) => {
                self.add_dense(list, Dense::open(&list.folder(module)?)?)?;
                Ok(Stage::Vector)
            }
            ("Normalize", Stage::Vector | Stage::UnitVector) => {
                if let Some(json) = JsonObject::open(list.folder(module)?.join("config.json"))? {
                    check_names(&json)?;
                }
                self.normalize = true;
                Ok(Stage::UnitVector)
            }
            // in int8, the default unless the caller asks for another type
            ("FlexibleQuantizer", Stage::Vector) => {
                self.tanh_int8 = true;
                Ok(Stage::Codes)
            }
            // has an effect in training only
            ("Dropout", stage) => Ok(stage),
            (class, stage) if CLASSES.contains(&class) => {
                Err(list.out_of_order(&format!("{class} is out of order"), stage))
            }
            (other, _) => Err(list.unsupported("type", other, &CLASSES.join(", "))),
        }
    }

    fn add_dense(&mut self, list: &List<'_>, dense: Dense) -> Result<(), ModelError> {
        if let Some(before) = self.dense.last().filter(|before| before.out_features != dense.in_features) {
            let why = format!(
                "Dense takes {} features, the one before gives {}",
                dense.in_features, before.out_features
            );
            return Err(list.wrong("type", why));
        }
        self.dense.push(dense);
        Ok(())
    }
}

impl List<'_> {
    fn folder(&self, module: &Module) -> Result<PathBuf, ModelError> {
        if stays_inside(&module.path) {
            Ok(self.dir.join(&module.path))
        } else {
            Err(self.unsupported("path", &module.path, "a folder in this one"))
        }
    }

    fn out_of_order(&self, found: &str, stage: Stage) -> ModelError {
        let expected = match stage {
            Stage::Text => "Transformer or MLMTransformer first",
            Stage::TokenVectors => "Pooling behind Transformer",
            Stage::WordLogits => "SpladePooling behind the logits of words",
            Stage::Vector => "Dense, Normalize or FlexibleQuantizer behind Pooling and Dense",
            Stage::UnitVector => "nothing behind Normalize",
            Stage::WordWeights => "nothing behind SpladePooling",
            Stage::NextLogits => "LogitScore behind the logits of the next token",
            Stage::Score => "nothing behind LogitScore",
            Stage::Codes => "nothing behind FlexibleQuantizer",
        };
        self.wrong("type", format!("{found}, expected {expected}"))
    }

    fn wrong(&self, field: &'static str, why: String) -> ModelError {
        ModelError::Field { file: self.file.clone(), field, why }
    }

    fn unsupported(&self, field: &'static str, value: &str, supported: &str) -> ModelError {
        ModelError::Unsupported {
            file: self.file.clone(),
            field,
            value: one_line(value),
            supported: supported.to_owned(),
        }
    }
}

fn stays_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}
