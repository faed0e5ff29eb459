//! What follows the encoder in a folder of the sentence-transformers library: pooling, normalisation, a length limit.

use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::Value;
use turbo_graph::Pooling;

use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, read_json},
};

/// From `modules.json`, `1_Pooling/config.json` and `sentence_bert_config.json`, each of which may be absent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SentenceModules {
    /// How token vectors become one.
    pub(crate) pooling: Option<Pooling>,
    /// Whether that one is divided by its L2 norm.
    pub(crate) normalize: bool,
    /// Longest input, special tokens included; the position table may allow more.
    pub(crate) max_seq_length: Option<usize>,
    /// Whether texts are lower-cased before the tokenizer sees them.
    pub(crate) do_lower_case: bool,
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    /// Folder with its configuration; need not exist where there is nothing to configure.
    path: String,
    /// Path of its Python class.
    r#type: String,
}

impl SentenceModules {
    /// Reads them from the folder `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let mut modules = Self::default();
        if let Some(json) = JsonObject::open(dir.join("sentence_bert_config.json"))? {
            modules.max_seq_length = json.get("max_seq_length")?;
            modules.do_lower_case = json.get("do_lower_case")?.unwrap_or(false);
            if modules.max_seq_length == Some(0) {
                return Err(json.wrong("max_seq_length", "is 0, expected at least 1"));
            }
        }
        let file = dir.join("modules.json");
        match read_json::<Vec<Module>>(&file)? {
            Some(list) => list.iter().try_for_each(|module| modules.add(dir, &file, module))?,
            None => modules.pooling = pooling(&dir.join("1_Pooling"))?,
        }
        Ok(modules)
    }

    fn add(&mut self, dir: &Path, file: &Path, module: &Module) -> Result<(), ModelError> {
        let unsupported = |field, value: &str, supported: &str| ModelError::Unsupported {
            file: file.to_owned(),
            field,
            value: one_line(value),
            supported: supported.to_owned(),
        };
        let class = module.r#type.rsplit('.').next().unwrap_or_default();
        match class {
            "Transformer" if module.path.is_empty() => {}
            "Transformer" => return Err(unsupported("path", &module.path, "the folder itself")),
            "Pooling" if stays_inside(&module.path) => self.pooling = pooling(&dir.join(&module.path))?,
            "Pooling" => return Err(unsupported("path", &module.path, "a folder in this one")),
            "Normalize" => self.normalize = true,
            other => return Err(unsupported("type", other, "Transformer, Pooling, Normalize")),
        }
        Ok(())
    }
}

fn stays_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The mode that `config.json` of the folder `dir` switches on: old files have a flag per mode, new ones name it.
fn pooling(dir: &Path) -> Result<Option<Pooling>, ModelError> {
    const FLAG: &str = "pooling_mode";
    let Some(json) = JsonObject::open(dir.join("config.json"))? else { return Ok(None) };
    let flags = json.iter().filter(|(_, value)| **value == Value::Bool(true));
    let flags = flags.filter_map(|(field, _)| field.strip_prefix("pooling_mode_"));
    let modes: Vec<String> = match json.get::<String>(FLAG)? {
        Some(mode) => vec![mode],
        None => flags.map(str::to_owned).collect(),
    };
    match modes.join(" and ").as_str() {
        "cls" | "cls_token" => Ok(Some(Pooling::Cls)),
        "mean" | "mean_tokens" => Ok(Some(Pooling::Mean)),
        "lasttoken" => Ok(Some(Pooling::LastToken)),
        other => Err(json.unsupported(FLAG, other, "one of cls_token, mean_tokens, lasttoken")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Opens a folder with these files; its name is taken out of the error.
    fn open(files: &[(&str, &str)]) -> Result<SentenceModules, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let prefix = format!("{}/", dir.path().display());
        SentenceModules::open(dir.path()).map_err(|error| error.to_string().replace(&prefix, ""))
    }

    const MODULES: &str = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    fn open_pooling(config: &str) -> Result<SentenceModules, String> {
        open(&[("modules.json", MODULES), ("1_Pooling/config.json", config)])
    }

    #[test]
    fn a_folder_without_any_of_it_asks_for_nothing() {
        assert_eq!(open(&[]), Ok(SentenceModules::default()));
    }

    #[test]
    fn one_flag_decides_and_normalize_needs_no_folder() {
        let cases =
            [("cls_token", Pooling::Cls), ("mean_tokens", Pooling::Mean), ("lasttoken", Pooling::LastToken)];
        for (mode, expected) in cases {
            let config = format!(r#"{{"pooling_mode_{mode}": true, "pooling_mode_max_tokens": false}}"#);
            let modules = open_pooling(&config).unwrap();
            assert_eq!((modules.pooling, modules.normalize), (Some(expected), true));
        }
        assert_eq!(open_pooling(r#"{"pooling_mode": "cls"}"#).unwrap().pooling, Some(Pooling::Cls));
    }

    #[test]
    fn pooling_is_found_without_a_list_of_modules() {
        let modules = open(&[("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true}"#)]).unwrap();
        assert_eq!((modules.pooling, modules.normalize), (Some(Pooling::Cls), false));
    }

    #[test]
    fn the_length_limit_is_read() {
        let config = r#"{"max_seq_length": 256, "do_lower_case": true}"#;
        let modules = open(&[("sentence_bert_config.json", config)]).unwrap();
        assert_eq!((modules.max_seq_length, modules.do_lower_case), (Some(256), true));
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        let supported = "supported: one of cls_token, mean_tokens, lasttoken";
        let cases = [
            (r#"{"pooling_mode_max_tokens": true}"#, "max_tokens"),
            (
                r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#,
                "max_tokens and mean_tokens",
            ),
            (r#"{"pooling_mode_mean_tokens": false}"#, ""),
        ];
        for (config, mode) in cases {
            let expected = format!("1_Pooling/config.json: pooling_mode is {mode:?}, {supported}");
            assert_eq!(open_pooling(config).unwrap_err(), expected);
        }
        let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
        let expected = r#"modules.json: type is "Dense", supported: Transformer, Pooling, Normalize"#;
        assert_eq!(open(&[("modules.json", dense)]).unwrap_err(), expected);
        let outside = r#"[{"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
        let expected = r#"modules.json: path is "../1_Pooling", supported: a folder in this one"#;
        assert_eq!(open(&[("modules.json", outside)]).unwrap_err(), expected);
        let zero = open(&[("sentence_bert_config.json", r#"{"max_seq_length": 0}"#)]).unwrap_err();
        assert_eq!(zero, "sentence_bert_config.json: max_seq_length: is 0, expected at least 1");
    }
}
