//! Folders of a few small files, read as the modules around an encoder.

mod chain;
mod inputs;
mod library;

use std::fs;

use proptest::prelude::*;

use super::SentenceModules;

/// Opens a folder with these files; the folder's name is removed from messages.
fn open(files: &[(&str, &str)]) -> Result<SentenceModules, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let file = dir.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let prefix = format!("{}/", dir.path().display());
    let opened = SentenceModules::open(dir.path());
    let mut modules = opened.map_err(|error| error.to_string().replace(&prefix, ""))?;
    for dense in &mut modules.dense {
        dense.path = dense.path.strip_prefix(dir.path()).unwrap().to_owned();
    }
    Ok(modules)
}

/// A list of these modules, each in the folder of its class, the first in the folder itself.
fn list(classes: &[&str]) -> String {
    let entries: Vec<String> = classes
        .iter()
        .map(|class| {
            let path = if class.ends_with("Transformer") { "" } else { class };
            format!(r#"{{"path": "{path}", "type": "sentence_transformers.models.{class}"}}"#)
        })
        .collect();
    format!("[{}]", entries.join(", "))
}

fn open_list(classes: &[&str], more: &[(&str, &str)]) -> Result<SentenceModules, String> {
    let list = list(classes);
    open(&[&[("modules.json", list.as_str())], more].concat())
}

#[test]
fn a_folder_without_any_of_it_asks_for_nothing() {
    assert_eq!(open(&[]), Ok(SentenceModules::default()));
}

/// Parts of the files, valid and not.
fn json() -> impl Strategy<Value = String> {
    let words = [
        "path",
        "type",
        "Transformer",
        "Pooling",
        "Dense",
        "Normalize",
        "MLMTransformer",
        "SpladePooling",
        "in_features",
        "out_features",
        "bias",
        "activation_function",
        "pooling_mode",
        "pooling_mode_mean_tokens",
        "include_prompt",
        "prompts",
        "default_prompt_name",
        "max_seq_length",
        "model_args",
        "tokenizer_args",
        "model_max_length",
        "mean",
        "",
        "..",
        "\u{0}",
        "a\nb",
    ];
    let leaf = prop_oneof![
        prop::sample::select(words.to_vec()).prop_map(serde_json::Value::from),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (0_u32..9).prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
    ];
    let value = leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map(prop::sample::select(words.to_vec()), inner, 0..6).prop_map(
                |fields| { fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
            ),
        ]
    });
    (value, 0_usize..400).prop_map(|(value, cut)| {
        let text = value.to_string();
        let cut = text.floor_char_boundary(cut.min(text.len()));
        if cut % 3 == 0 { text[..cut].to_owned() } else { text }
    })
}

proptest! {
    /// Whatever the files hold, the result is modules or an error of one line.
    #[test]
    fn no_file_makes_it_panic(list in json(), pooling in json(), dense in json(), limits in json(), prompts in json()) {
        let sound = self::list(&["Transformer", "Pooling", "Dense"]);
        for list in [&list, &sound] {
            let opened = open(&[
                ("modules.json", list),
                ("Pooling/config.json", &pooling),
                ("Dense/config.json", &dense),
                ("sentence_bert_config.json", &limits),
                ("config_sentence_transformers.json", &prompts),
            ]);
            if let Err(error) = opened {
                prop_assert_eq!(error.lines().count(), 1, "{}", error);
            }
        }
    }
}
