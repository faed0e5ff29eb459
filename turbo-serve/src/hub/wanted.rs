//! Which files of a model turbo reads.

use std::path::Path;

use serde_json::Value;

use super::HubError;

/// Files that describe the model. Those that exist are fetched, before the weights.
const DESCRIPTIONS: [&str; 14] = [
    "config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    MODULES,
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    // A model with an adapter is more than its weights: it is refused.
    "adapter_config.json",
    INDEX,
];
const TOKENIZER: &str = "tokenizer.json";
const MODULES: &str = "modules.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Extensions of weight files that are not read.
const OTHER_WEIGHTS: [&str; 5] = [".bin", ".h5", ".gguf", ".onnx", ".msgpack"];

/// The files among those `listed` that describe the model.
///
/// # Errors
/// [`HubError::NoModel`], [`HubError::NoWeights`].
pub(super) fn descriptions(model: &str, listed: &[String]) -> Result<Vec<String>, HubError> {
    let has = |name: &str| listed.iter().any(|file| file == name);
    if !has("config.json") {
        return Err(HubError::NoModel { model: model.to_owned(), file: "config.json".to_owned() });
    }
    if !has(WEIGHTS) && !has(INDEX) {
        return Err(no_weights(model.to_owned(), listed, ""));
    }
    let wanted = |name: &&&str| has(name) && !is_spare(name, has);
    let named = DESCRIPTIONS.iter().filter(wanted).map(|name| (*name).to_owned());
    Ok(named.chain(listed.iter().filter(|file| is_of_a_family(file)).cloned()).collect())
}

/// Refuses a model whose dense module in the folder `module` has no weights that can be read.
///
/// # Errors
/// [`HubError::NoWeights`] of the module.
pub(super) fn check_dense(model: &str, listed: &[String], module: &str) -> Result<(), HubError> {
    if listed.contains(&format!("{module}/{WEIGHTS}")) {
        return Ok(());
    }
    Err(no_weights(format!("{model}/{module}"), listed, &format!("{module}/")))
}

/// The error for a `model` without weights in a readable format in the folder `within`.
fn no_weights(model: String, listed: &[String], within: &str) -> HubError {
    let is_other = |file: &&String| {
        let name = file.strip_prefix(within).filter(|name| !name.contains('/'));
        name.is_some_and(|name| OTHER_WEIGHTS.iter().any(|end| name.ends_with(end)))
    };
    HubError::NoWeights { model, others: listed.iter().filter(is_other).take(3).cloned().collect() }
}

/// Whether a file is one that older versions of sentence-transformers wrote instead of `sentence_bert_config.json`,
/// such as `sentence_roberta_config.json`.
fn is_of_a_family(file: &str) -> bool {
    let family = file.strip_prefix("sentence_").and_then(|rest| rest.strip_suffix("_config.json"));
    family.is_some_and(|family| family != "bert")
}

/// The files of `module`, and of the modules of a sentence-transformers model that the descriptions in `folder` name.
///
/// # Errors
/// What is wrong with a description.
pub(super) fn modules(folder: &Path, module: Option<&str>) -> Result<Vec<String>, String> {
    let list = list(folder)?;
    let of_module = |path: &str| [format!("{path}/config.json"), format!("{path}/{WEIGHTS}")];
    Ok(list.iter().filter_map(folder_of).chain(module).flat_map(of_module).collect())
}

/// The folders of the modules whose weights turbo reads: `module`, or the dense ones that the descriptions in `folder`
/// name.
///
/// # Errors
/// What is wrong with a description.
pub(super) fn dense(folder: &Path, module: Option<&str>) -> Result<Vec<String>, String> {
    if let Some(module) = module {
        return Ok(vec![module.to_owned()]);
    }
    let list = list(folder)?;
    let is_dense = |module: &&Value| {
        module["type"].as_str().is_some_and(|class| class.rsplit('.').next() == Some("Dense"))
    };
    Ok(list.iter().filter(is_dense).filter_map(folder_of).map(str::to_owned).collect())
}

/// The entries of the list of modules; none where there is no list.
fn list(folder: &Path) -> Result<Vec<Value>, String> {
    if !folder.join(MODULES).exists() {
        return Ok(Vec::new());
    }
    Ok(json(folder, MODULES)?.as_array().cloned().unwrap_or_default())
}

/// The folder of an entry; `None` if that is the model's own.
fn folder_of(module: &Value) -> Option<&str> {
    module["path"].as_str().map(|path| path.trim_matches('/')).filter(|path| !path.is_empty())
}

/// The files with the weights of the model itself. They are fetched last: a snapshot that has them has the rest.
///
/// # Errors
/// What is wrong with their index.
pub(super) fn weights(folder: &Path) -> Result<Vec<String>, String> {
    if folder.join(INDEX).exists() { Ok(shards(&json(folder, INDEX)?)) } else { Ok(vec![WEIGHTS.to_owned()]) }
}

/// Whether all files that turbo would read are in `folder` or known not to exist, so that the Hub need not be asked.
///
/// A folder with weights may still be incomplete: other tools leave out files that they do not read.
pub(super) fn is_settled(folder: &Path, module: Option<&str>, is_absent: impl Fn(&str) -> bool) -> bool {
    let there = |file: &str| folder.join(file).exists();
    let Ok(modules) = modules(folder, module) else { return false };
    let descriptions = DESCRIPTIONS.into_iter().filter(|file| !is_spare(file, there));
    let mut named = descriptions.chain(modules.iter().map(String::as_str));
    is_whole(folder) && named.all(|file| there(file) || is_absent(file))
}

/// Files that turbo would read of the model in `folder`, but that are not among those `listed`.
pub(super) fn absent(listed: &[String], folder: &Path, module: Option<&str>) -> Vec<String> {
    let modules = modules(folder, module).unwrap_or_default();
    let named = DESCRIPTIONS.iter().map(|&file| file.to_owned()).chain(modules);
    named.filter(|file| !listed.contains(file)).collect()
}

/// Whether a file is not needed: an index beside a single weight file, or parts of a tokenizer beside a whole one.
fn is_spare(file: &str, has: impl Fn(&str) -> bool) -> bool {
    match file {
        INDEX => has(WEIGHTS),
        "vocab.txt" | "vocab.json" | "merges.txt" => has(TOKENIZER),
        _ => false,
    }
}

/// Whether `folder` has a model with all its weights.
pub(super) fn is_whole(folder: &Path) -> bool {
    let there = |file: &str| folder.join(file).exists();
    let shards_there = || match json(folder, INDEX) {
        Ok(index) => shards(&index).iter().all(|shard| there(shard)),
        Err(_) => false,
    };
    there("config.json") && (there(WEIGHTS) || shards_there())
}

/// Whether a path leads to a file below the folder it is taken from.
pub(super) fn stays_inside(path: &str) -> bool {
    !path.is_empty() && !path.contains('\\') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn shards(index: &Value) -> Vec<String> {
    let files = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let mut shards: Vec<String> = files.filter_map(|file| file.as_str().map(str::to_owned)).collect();
    shards.sort();
    shards.dedup();
    shards
}

fn json(folder: &Path, file: &str) -> Result<Value, String> {
    let text = std::fs::read(folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
    serde_json::from_slice(&text).map_err(|error| format!("{file}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(files: &[&str]) -> Vec<String> {
        files.iter().map(|&file| file.to_owned()).collect()
    }

    #[test]
    fn only_what_is_read_is_fetched() {
        let all = listed(&[
            "README.md",
            "config.json",
            "model.safetensors",
            INDEX,
            "onnx/model.onnx",
            "tokenizer.json",
            "vocab.json",
            "merges.txt",
        ]);
        assert_eq!(descriptions("m", &all).unwrap(), ["config.json", "tokenizer.json"]);
        let parts = listed(&["config.json", "model.safetensors", "vocab.json", "merges.txt"]);
        assert_eq!(descriptions("m", &parts).unwrap(), ["config.json", "vocab.json", "merges.txt"]);
        let of_a_family = ["config.json", "model.safetensors", "sentence_roberta_config.json"];
        assert_eq!(descriptions("m", &listed(&of_a_family)).unwrap(), [of_a_family[0], of_a_family[2]]);
        let sharded = listed(&["config.json", INDEX, "model-00001-of-00002.safetensors"]);
        assert_eq!(descriptions("m", &sharded).unwrap(), ["config.json", INDEX]);
        let reranker = ["config.json", "model.safetensors", "chat_template.jinja"];
        assert_eq!(descriptions("m", &listed(&reranker)).unwrap(), [reranker[0], reranker[2]]);
        let adapted =
            ["config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"];
        assert_eq!(descriptions("m", &listed(&adapted)).unwrap(), [adapted[0], adapted[2]]);
    }

    #[test]
    fn what_cannot_be_loaded_is_said_before_anything_is_fetched() {
        let error = |files: &[&str]| descriptions("m", &listed(files)).unwrap_err().to_string();
        assert!(error(&["README.md"]).contains("no config.json"));
        let bin = error(&["config.json", "pytorch_model.bin", "onnx/model.onnx"]);
        assert!(bin.contains("no safetensors weights (but pytorch_model.bin):"), "{bin}");
        let module =
            |files: &[&str]| check_dense("m", &listed(files), "2_Dense").map_err(|it| it.to_string());
        assert_eq!(module(&["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"]), Ok(()));
        let said = "m/2_Dense: it has no safetensors weights (but 2_Dense/pytorch_model.bin): look for a revision or a \
                    copy that has them";
        let bin = module(&["model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin"]);
        assert_eq!(bin, Err(said.to_owned()));
        assert!(module(&["model.safetensors"]).unwrap_err().contains("no safetensors weights:"));
    }

    #[test]
    fn dense_modules_have_weights() {
        let folder = tempfile::tempdir().unwrap();
        assert!(dense(folder.path(), None).unwrap().is_empty());
        let list = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"path": "3_Dense/", "type": "sentence_transformers.base.modules.dense.Dense"}, {"path": "4_Other"}]"#;
        std::fs::write(folder.path().join(MODULES), list).unwrap();
        assert_eq!(dense(folder.path(), None).unwrap(), ["2_Dense", "3_Dense"]);
        assert_eq!(dense(folder.path(), Some("2_Dense_8")).unwrap(), ["2_Dense_8"]);
    }

    #[test]
    fn modules_and_shards_follow_from_the_descriptions() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        write(MODULES, r#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense/"}]"#);
        let files = modules(folder.path(), Some("2_Dense_8")).unwrap();
        let expected = [
            "1_Pooling/config.json",
            "1_Pooling/model.safetensors",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense_8/config.json",
            "2_Dense_8/model.safetensors",
        ];
        assert_eq!(files, expected);
        assert_eq!(weights(folder.path()).unwrap(), [WEIGHTS]);
        write(INDEX, r#"{"weight_map": {"a": "s2", "b": "s1", "c": "s2"}}"#);
        assert_eq!(weights(folder.path()).unwrap(), ["s1", "s2"]);
        write("config.json", "{}");
        write("s1", "");
        assert!(!is_whole(folder.path()));
        write("s2", "");
        assert!(is_whole(folder.path()));
        write(MODULES, "oops");
        assert!(modules(folder.path(), None).unwrap_err().starts_with(MODULES));
    }

    #[test]
    fn no_file_lies_outside() {
        assert!(["a", "a/b.c", "..a/b"].into_iter().all(stays_inside));
        assert!(!["", "/a", "a//b", "../a", "a/../b", "a/.", "a\\b"].into_iter().any(stays_inside));
    }
}
