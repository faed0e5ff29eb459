//! What a folder may lack or say differently.

use std::{fs, path::Path};

use serde_json::{Value, json};
use turbo_models::{Checkpoint, OpenOptions, Pooling, Task, TextTokenizer, Truncation};

use crate::copies::{copy, error, set};

fn edit(dir: &Path, file: &str, edit: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(dir.join(file)).unwrap()).unwrap();
    edit(&mut json);
    fs::write(dir.join(file), json.to_string()).unwrap();
}

#[test]
fn a_folder_of_weights_alone_serves_ids() {
    let dir = copy("tiny-sentence");
    for file in ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer.json"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.tokenizer().is_none());
    assert_eq!((checkpoint.pooling(), checkpoint.normalizes()), (None, false));
    assert_eq!(checkpoint.max_input_length(), 64, "the position table is the limit");
    assert_eq!(checkpoint.check_ids(&[0, 102]), Ok(()));
    assert!(checkpoint.check_ids(&[103]).is_err());
}

#[test]
fn a_limit_beyond_the_position_table_is_a_warning() {
    let dir = copy("tiny-sentence");
    edit(dir.path(), "sentence_bert_config.json", |json| json["max_seq_length"] = 512.into());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.max_input_length(), 64);
    assert_eq!(
        checkpoint.warnings(),
        ["sentence_bert_config.json: max_seq_length is 512, the model has 64 positions"]
    );
}

/// Texts are not distinguished by purpose here, but a folder may have limits for some purposes alone.
#[test]
fn other_limits_of_queries_or_documents_are_a_warning() {
    let dir = copy("tiny-sentence");
    let warnings = |field: &str, length: u32| {
        let dir = copy("tiny-sentence");
        edit(dir.path(), "sentence_bert_config.json", |json| json[field] = length.into());
        Checkpoint::open(dir.path()).unwrap().warnings().to_vec()
    };
    let limit = Checkpoint::open(dir.path()).unwrap().max_input_length();
    for field in ["query_length", "document_length"] {
        let why = format!("is 9, which is not done here: all texts are cut at {limit} tokens");
        assert_eq!(warnings(field, 9), [format!("sentence_bert_config.json: {field} {why}")]);
        assert_eq!(warnings(field, limit as u32), [""; 0]);
    }
    // more than the model has positions
    edit(dir.path(), "sentence_bert_config.json", |json| {
        json["max_seq_length"] = 64.into();
        json["document_length"] = 512.into();
    });
    assert_eq!(Checkpoint::open(dir.path()).unwrap().warnings(), [""; 0]);
}

/// As the library saves routers to several models: the folder itself holds no part of a model.
#[test]
fn what_lies_in_folders_of_its_own_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (module, expected) in [
        (
            r#"{"path": "", "type": "sentence_transformers.models.Router"}"#,
            r#"type is "Router", supported: "#,
        ),
        (
            r#"{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}"#,
            r#"path is "0_Transformer", supported: the folder itself"#,
        ),
    ] {
        fs::write(dir.path().join("modules.json"), format!("[{module}]")).unwrap();
        let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("/modules.json: {expected}")), "{error}");
    }
}

#[test]
fn a_file_is_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    fs::write(&file, "").unwrap();
    let error = Checkpoint::open(&file).err().unwrap().to_string();
    assert!(error.ends_with("/model.safetensors: it is a file, expected a model folder"), "{error}");
}

/// The reference applies the adapter, and the vectors would differ.
#[test]
fn an_adapter_beside_the_weights_is_refused() {
    let dir = copy("tiny-sentence");
    let adapter = r#"{"peft_type": "LORA", "base_model_name_or_path": "tiny"}"#;
    fs::write(dir.path().join("adapter_config.json"), adapter).unwrap();
    let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
    let why = "supported: none: merge the adapter into the weights (`merge_and_unload` of PEFT), save them, and leave this \
               file out";
    let expected = format!(r#"adapter_config.json: peft_type is "LORA", {why}"#);
    assert!(error.ends_with(&format!("/{expected}")), "{error}");
    fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(r#"/adapter_config.json: peft_type is "null", "#), "{error}");
}

/// Fewer tokens than rows are usual, because tables are filled up to a round number; additional tokens cannot be run.
#[test]
fn a_tokenizer_of_more_tokens_than_rows_is_a_warning() {
    for (change, expected) in [(-1, None), (1, Some("the tokenizer knows 104 tokens, the model has 103"))] {
        let dir = copy("tiny-sentence");
        edit(dir.path(), "tokenizer.json", |json| {
            let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
            match change {
                -1 => drop(vocabulary.remove("batch").unwrap()),
                _ => drop(vocabulary.insert("novel".to_owned(), 103.into())),
            }
        });
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.warnings(), expected.as_slice());
    }
}

#[test]
fn a_tokenizer_s_files_that_contradict_each_other_are_a_warning() {
    let dir = copy("tiny-sentence");
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"do_lower_case": false}"#).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let expected = "tokenizer_config.json: do_lower_case is false, tokenizer.json has true, which counts";
    assert_eq!(checkpoint.warnings(), [expected]);
}

/// A class of someone else may do anything.
#[test]
fn a_class_that_is_not_the_library_s_own_is_a_warning() {
    let dir = copy("tiny-sentence");
    edit(dir.path(), "modules.json", |json| json[1]["type"] = "my_pooling.Pooling".into());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let why = "whose code is not run: the library's Pooling is taken for it";
    assert_eq!(checkpoint.warnings(), [format!("modules.json: type is my_pooling.Pooling, {why}")]);
}

#[test]
fn a_tokenizer_that_is_not_read_is_named() {
    for file in ["sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"] {
        let dir = copy("tiny-sentence");
        fs::rename(dir.path().join("tokenizer.json"), dir.path().join(file)).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let expected = format!("{file} is not read: without tokenizer.json there are ids only");
        assert_eq!(checkpoint.warnings(), [expected]);
    }
}

#[test]
fn lower_casing_may_be_asked_for_beside_the_tokenizer() {
    let dir = copy("tiny-sentence");
    edit(dir.path(), "tokenizer.json", |json| json["normalizer"]["lowercase"] = false.into());
    let ids = || {
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let alone = TextTokenizer::open(dir.path(), checkpoint.limits()).unwrap().unwrap();
        let [ids, by_alone] = [checkpoint.tokenizer().unwrap(), &alone]
            .map(|tokenizer| tokenizer.encode("CAT", Truncation::Off).unwrap().input_ids);
        assert_eq!(ids, by_alone);
        ids
    };
    assert_eq!(ids(), [2, 1, 3]);
    edit(dir.path(), "sentence_bert_config.json", |json| json["do_lower_case"] = true.into());
    assert_eq!(ids(), [2, 90, 3]);
}

#[test]
fn pooling_may_be_the_first_token() {
    let dir = copy("tiny-sentence");
    edit(dir.path(), "1_Pooling/config.json", |json| {
        json["pooling_mode_mean_tokens"] = false.into();
        json["pooling_mode_cls_token"] = true.into();
    });
    assert_eq!(Checkpoint::open(dir.path()).unwrap().pooling(), Some(Pooling::Cls));
}

/// Hub downloads are links into a store of blobs.
#[cfg(unix)]
#[test]
fn files_may_be_links() {
    let (dir, store) = (copy("tiny-sentence"), tempfile::tempdir().unwrap());
    let (file, blob) = (dir.path().join("model.safetensors"), store.path().join("blob"));
    fs::rename(&file, &blob).unwrap();
    std::os::unix::fs::symlink(&blob, &file).unwrap();
    Checkpoint::open(dir.path()).unwrap();
}

/// The store may have been cleared. Without the list of modules, vectors would silently not be normalised.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_no_absent_file() {
    let files = ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer.json"];
    for file in files.into_iter().chain(["vocab.txt", "config_sentence_transformers.json"]) {
        let dir = copy("tiny-sentence");
        if file == "vocab.txt" {
            fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
        }
        fs::remove_file(dir.path().join(file)).ok();
        std::os::unix::fs::symlink("nowhere", dir.path().join(file)).unwrap();
        let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("/{file}: ")), "{error}");
    }
    let (dir, weights) = (copy("tiny-sentence"), "model.safetensors");
    fs::write(dir.path().join("pytorch_model.bin"), "pickled").unwrap();
    fs::remove_file(dir.path().join(weights)).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join(weights)).unwrap();
    let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(&format!("/{weights}: ")), "{error}");
}

#[test]
fn another_dense_module_may_be_asked_for() {
    let folder = copy("tiny-dense");
    fs::rename(folder.path().join("2_Dense"), folder.path().join("2_Dense_12")).unwrap();
    assert_eq!(error(folder.path()), "2_Dense/config.json: there is no such file");
    fs::rename(folder.path().join("2_Dense_12"), folder.path().join("2_Dense")).unwrap();
    let options = OpenOptions { dense_path: Some("2_Dense".into()) };
    let checkpoint = Checkpoint::open_with(folder.path(), &options).unwrap();
    assert_eq!(checkpoint.row_lens(Pooling::Mean.into()).unwrap().pooled, Some(12));
    // this module takes what the first one returns
    let options = OpenOptions { dense_path: Some("3_Dense".into()) };
    let refused = Checkpoint::open_with(folder.path(), &options).err().unwrap().to_string();
    assert!(refused.ends_with("3_Dense/config.json: in_features: is 12, expected 16"), "{refused}");
}

#[test]
fn a_dense_module_without_its_tensors_is_named() {
    let folder = copy("tiny-dense");
    set(&folder.path().join("3_Dense/config.json"), "bias", json!(true));
    assert_eq!(error(folder.path()), "3_Dense/model.safetensors: tensor linear.bias is missing");
    set(&folder.path().join("3_Dense/config.json"), "out_features", json!(7));
    let wrong = "3_Dense/model.safetensors: tensor linear.weight has shape [6, 12], expected [7, 12]";
    assert_eq!(error(folder.path()), wrong);
}

/// Pickles are not read, whichever part they hold.
#[test]
fn pickled_weights_are_named() {
    for module in ["", "2_Dense"] {
        let folder = copy("tiny-dense");
        let dir = folder.path().join(module);
        let mut file = dir.join("model.safetensors");
        for pickle in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
            fs::rename(&file, dir.join(pickle)).unwrap();
            let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
            let expected = format!(r#"the file of weights is "{pickle}", supported: model.safetensors"#);
            assert!(error.ends_with(&expected), "{error}");
            assert_eq!(error.contains("2_Dense: "), module == "2_Dense", "{error}");
            file = dir.join(pickle);
        }
    }
}

/// What later versions of the library write in place of the module classes of `tiny-splade`.
#[test]
fn splade_of_later_versions() {
    let folder = copy("tiny-splade");
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling",
            "type": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"},
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    let inputs = json!({"transformer_task": "fill-mask", "module_output_name": "token_embeddings"});
    fs::write(folder.path().join("sentence_bert_config.json"), inputs.to_string()).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), r#"{"model_max_length": 9}"#).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.task(), checkpoint.max_input_length()), (Some(Task::SparseEmbedding), 9));
}

/// Wherever a folder says so, it is up to requests where texts are cut.
#[test]
fn arguments_of_the_tokenizer_may_want_texts_cut_on_the_left() {
    let folder = copy("tiny-sentence");
    let file = folder.path().join("sentence_bert_config.json");
    set(&file, "tokenizer_args", json!({"truncation_side": "left"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let left = "sentence_bert_config.json: truncation_side in tokenizer_args is left, ";
    let warnings = checkpoint.warnings();
    assert!(warnings.iter().any(|warning| warning.starts_with(left)), "{warnings:?}");
}
