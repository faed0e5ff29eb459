//! The matrix and the bias that make logits of words, and the embedding table that they may share.

use std::path::Path;

use serde_json::json;
use turbo_models::{Checkpoint, Encoded, Pooling, Task};

use crate::{
    common::{bare_vector, data, word_logits},
    copies::{change, copy, error, negate, set},
};

/// A separate vocabulary matrix, if the file says that it is not the embedding table.
#[test]
fn words_may_have_a_matrix_of_their_own() {
    let folder = copy("bert-mlm");
    set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::MaskedLm).unwrap_err().to_string();
    assert!(refused.ends_with("tensor cls.predictions.decoder.weight is missing"), "{refused}");
    let folder = copy("bert-mlm-legacy");
    set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
    assert!(Checkpoint::open(folder.path()).unwrap().supports(Task::MaskedLm));
}

/// Two matrices that differ are not shared, whatever the configuration says, as in the reference.
#[test]
fn a_matrix_of_their_own_counts_where_the_file_has_one() {
    let folder = copy("bert-mlm-legacy");
    negate(&folder.path().join("model.safetensors"), "cls.predictions.decoder.weight");
    let logits = word_logits(folder.path());
    assert_ne!(logits, word_logits(&data("bert-mlm-legacy")));
    for tied in [true, false] {
        set(&folder.path().join("config.json"), "tie_word_embeddings", json!(tied));
        assert_eq!(word_logits(folder.path()), logits, "{tied}");
    }
}

/// Later versions of the reference write both biases if they are not shared, and compute with that of the matrix.
#[test]
fn of_two_biases_of_words_that_of_the_matrix_counts() {
    for (fixture, head) in [
        ("bert-mlm", "cls.predictions"),
        ("jina-mlm", "cls.predictions"),
        ("roberta-mlm", "lm_head"),
        ("camembert-mlm", "lm_head"),
        ("mpnet-mlm", "lm_head"),
        ("albert-mlm", "predictions"),
    ] {
        let [bias, of_matrix] = [format!("{head}.bias"), format!("{head}.decoder.bias")];
        let (expected, folder) = (copy(fixture), copy(fixture));
        negate(&expected.path().join("model.safetensors"), &bias);
        let expected = word_logits(expected.path());
        assert_ne!(expected, word_logits(folder.path()), "{fixture}");
        let weights = folder.path().join("model.safetensors");
        change(&weights, |tensors| drop(tensors.insert(of_matrix.clone(), tensors[&bias].clone())));
        negate(&weights, &of_matrix);
        assert_eq!(word_logits(folder.path()), expected, "{fixture}");
        change(&weights, |tensors| drop(tensors.remove(&bias)));
        assert_eq!(word_logits(folder.path()), expected, "{fixture}, that of the matrix alone");
    }
}

/// Files that keep a shared tensor under one name may use the head's: `save_model` of the safetensors library does.
#[test]
fn the_matrix_of_the_words_stands_for_a_table_that_the_file_lacks() {
    for (fixture, table, matrix) in [
        ("bert-mlm", "bert.embeddings.word_embeddings", "cls.predictions.decoder"),
        ("roberta-mlm", "roberta.embeddings.word_embeddings", "lm_head.decoder"),
        ("albert-mlm", "albert.embeddings.word_embeddings", "predictions.decoder"),
        ("distilbert-mlm", "distilbert.embeddings.word_embeddings", "vocab_projector"),
        ("electra-mlm", "electra.embeddings.word_embeddings", "generator_lm_head"),
        ("modernbert-mlm", "model.embeddings.tok_embeddings", "decoder"),
        ("gte-mlm", "new.embeddings.word_embeddings", "lm_head.decoder"),
    ] {
        let [table, matrix] = [table, matrix].map(|name| format!("{name}.weight"));
        let folder = copy(fixture);
        change(&folder.path().join("model.safetensors"), |tensors| {
            let words = tensors.remove(&table).unwrap();
            tensors.insert(matrix, words);
        });
        assert_eq!(word_logits(folder.path()), word_logits(&data(fixture)), "{fixture}");
        let input = Encoded { input_ids: vec![5, 6, 7], token_type_ids: Vec::new() };
        let vector = |folder: &Path| bare_vector(folder, Pooling::Mean, &input);
        assert_eq!(vector(folder.path()), vector(&data(fixture)), "{fixture}");
        set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
        let (_, of_model) = table.split_once('.').unwrap();
        let missing = format!("model.safetensors: tensor {of_model} is missing");
        assert_eq!(error(folder.path()), missing, "{fixture}");
    }
}
