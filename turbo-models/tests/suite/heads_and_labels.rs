//! What a folder says of its head: the task, the labels, and how logits become scores.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use turbo_models::{Checkpoint, EncoderOptions, Pooling, ScoreFunction, Task};

use crate::{
    common::{data, encoder, max_difference, word_logits},
    copies::{copy, set},
};

/// What to do if a task lacks the requested rows.
const HINT: &str = ": create the encoder with a task and outputs that have them (`EncoderOptions`)";

/// Later versions of the library say in their own file what `tiny-cross-encoder` says in `config.json`.
#[test]
fn cross_encoders_of_later_versions() {
    let folder = copy("tiny-cross-encoder");
    let library = folder.path().join("config_sentence_transformers.json");
    let function = || Checkpoint::open(folder.path()).unwrap().pair_score_function();
    fs::write(&library, r#"{"activation_fn": "torch.nn.modules.activation.Sigmoid"}"#).unwrap();
    assert_eq!(function(), ScoreFunction::Sigmoid);
    fs::write(&library, r#"{"activation_fn": null}"#).unwrap();
    assert_eq!(function(), ScoreFunction::Identity);
    set(&folder.path().join("config.json"), "sentence_transformers", Value::Null);
    assert_eq!(function(), ScoreFunction::Sigmoid, "one label, and nobody says otherwise");
}

/// With an unknown activation there are vectors, but no scores.
#[test]
fn an_unknown_activation_stops_a_cross_encoder_only() {
    const TANH: &str = r#"{"activation_fn": "torch.nn.modules.activation.Tanh"}"#;
    let write = |folder: &TempDir| {
        fs::write(folder.path().join("config_sentence_transformers.json"), TANH).unwrap();
        Checkpoint::open(folder.path()).unwrap()
    };
    let folder = copy("tiny-cross-encoder");
    let checkpoint = write(&folder);
    assert!(checkpoint.supports(Pooling::Cls.into()) && !checkpoint.supports(Task::SequenceClassification));
    let why = r#"activation_fn is "torch.nn.modules.activation.Tanh", supported: Identity, Sigmoid, Softmax"#;
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(why), "{warning}");
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(&format!("config_sentence_transformers.json: {why}")), "{refused}");

    let folder = copy("tiny-sentence");
    let checkpoint = write(&folder);
    assert_eq!(checkpoint.warnings(), [""; 0]);
    assert!(encoder(&checkpoint, EncoderOptions::of(&checkpoint)).is_ok());
}

/// A reranker that would have to write its answer.
#[test]
fn models_that_write_give_vectors_only() {
    let folder = copy("qwen3-base");
    set(&folder.path().join("config.json"), "architectures", json!(["Qwen3ForCausalLM"]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.task(), None);
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("config.json: Qwen3ForCausalLM writes words, "), "{warning}");
}

/// In the masked language model's head, the reference's own class applies GELU whatever the layers have; the models'
/// own code applies the layers' activation. Expected for "gte" are the first logits from the reference in float64.
#[test]
fn gte_s_words_are_activated_otherwise_under_each_name() {
    const EXPECTED: [f32; 6] = [-0.622_884_8, 2.362_23, -0.976_795_73, -1.955_075_9, 1.121_784_4, 3.172_685];
    let folder = copy("gte-mlm");
    let config = folder.path().join("config.json");
    let logits = |model_type: &str| {
        set(&config, "model_type", json!(model_type));
        word_logits(folder.path())
    };
    assert_eq!(logits("gte"), logits("new"), "the layers have GELU, too");
    set(&config, "rope_scaling", Value::Null);
    set(&config, "hidden_act", json!("relu"));
    let (gte, new) = (logits("gte"), logits("new"));
    assert!(max_difference(&gte[..EXPECTED.len()], &EXPECTED) < 1e-4, "{gte:?}");
    assert!(max_difference(&new, &gte) > 1e-2, "{new:?}");
}

/// The class names a head that the file does not have: there are vectors, but no logits.
#[test]
fn a_missing_head_is_one_line_where_it_is_wanted() {
    let folder = copy("bert-base");
    set(&folder.path().join("config.json"), "architectures", json!(["BertForSequenceClassification"]));
    set(&folder.path().join("config.json"), "id2label", json!({"0": "no", "1": "yes", "2": "perhaps"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
    assert_eq!(checkpoint.labels(), ["no", "yes", "perhaps"]);
    let missing = "model.safetensors: tensor classifier.weight is missing";
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(missing), "{warning}");
    assert!(!checkpoint.supports(Task::SequenceClassification));
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(missing), "{refused}");
    let options = EncoderOptions { task: Pooling::Cls.into(), ..EncoderOptions::of(&checkpoint) };
    assert!(encoder(&checkpoint, options).is_ok());
}

#[test]
fn more_labels_than_logits_are_noticed() {
    let folder = copy("bert-seqcls");
    set(&folder.path().join("config.json"), "id2label", json!({"0": "no", "1": "yes"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::SequenceClassification).unwrap_err().to_string();
    assert!(refused.ends_with("tensor classifier.weight has shape [3, 16], expected [2, 16]"), "{refused}");
}

/// `num_labels` counts, as in version 5 of the reference; if the weights fit the names instead, the error names both
/// fields.
#[test]
fn a_number_of_labels_counts_before_other_names() {
    let folder = copy("bert-seqcls");
    let config = folder.path().join("config.json");
    set(&config, "num_labels", json!(3));
    set(&config, "id2label", json!({"0": "no", "1": "yes"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.labels(), ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert!(checkpoint.supports(Task::SequenceClassification));
    set(&config, "num_labels", json!(5));
    set(&config, "id2label", json!({"0": "no", "1": "yes", "2": "perhaps"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::SequenceClassification).unwrap_err().to_string();
    let why = "config.json: num_labels: is 5 and counts before the 3 names of id2label, but tensor classifier.weight \
               has shape [3, 16]: make both fields say what it has";
    assert!(refused.ends_with(why), "{refused}");
}

/// If labels are counted from 1, there are vectors, but no logits.
#[test]
fn labels_that_make_no_sense_stop_a_classifier_only() {
    let folder = copy("bert-seqcls");
    let from_one = json!({"1": "no", "2": "yes", "3": "perhaps"});
    set(&folder.path().join("config.json"), "id2label", from_one);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.labels(), [""; 0]);
    assert!(checkpoint.supports(Pooling::Cls.into()) && !checkpoint.supports(Task::SequenceClassification));
    let why = r#"config.json: id2label: "3" is not one of 0, 1, 2, …"#;
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(why), "{warning}");
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(why), "{refused}");
}

#[test]
fn a_task_that_the_family_has_no_head_for_is_refused() {
    let checkpoint = Checkpoint::open(&data("qwen3-base")).unwrap();
    let refused = checkpoint.graph(Task::MaskedLm).unwrap_err().to_string();
    let supported = "embedding, sequence-classification, token-classification";
    assert_eq!(refused, format!("qwen3 models have no head for masked-lm here, supported: {supported}"));
    assert!(!checkpoint.supports(Task::SparseEmbedding) && checkpoint.supports(Pooling::LastToken.into()));
    let nomic = Checkpoint::open(&data("nomic-base")).unwrap();
    let refused = nomic.graph(Task::QuestionAnswering).unwrap_err().to_string();
    assert_eq!(refused, "nomic_bert models have no head for question-answering here, supported: embedding");
}

#[test]
fn rows_that_a_task_does_not_give_are_refused() {
    let checkpoint = Checkpoint::open(&data("bert-seqcls")).unwrap();
    let mut encoder = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).unwrap();
    assert_eq!((encoder.pooled_len(), encoder.token_len(), encoder.selected_len()), (Some(3), None, None));
    let input = turbo_models::Encoded { input_ids: vec![5, 6], token_type_ids: Vec::new() };
    assert_eq!(encoder.embed_batch(&[input]).unwrap()[0].len(), 3);
    let refused = encoder.tokens(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(refused, format!("sequence-classification gives no token rows{HINT}"));
    let refused = encoder.selected(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(refused, format!("sequence-classification gives no selected rows{HINT}"));
}
