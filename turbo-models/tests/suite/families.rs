//! What only one family does.

use std::{fs, path::Path};

use serde_json::Value;
use turbo_kernels::{Cpu, CpuOptions};
use turbo_models::{Checkpoint, Encoded, Encoder, EncoderOptions, TokenizeError};

use crate::common::{data, golden_rows};

fn open(fixture: &str) -> (Checkpoint, Encoder<Cpu>) {
    open_folder(&data(fixture))
}

fn open_folder(folder: &Path) -> (Checkpoint, Encoder<Cpu>) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EncoderOptions::of(&checkpoint);
    let encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
    (checkpoint, encoder)
}

#[test]
fn distilbert_ignores_token_types() {
    let (_, mut encoder) = open("distilbert-base");
    let mut vector = |token_type_ids: &[u32]| {
        let input = Encoded { input_ids: vec![7, 8, 9], token_type_ids: token_type_ids.to_vec() };
        encoder.embed_batch(&[input]).unwrap()
    };
    assert_eq!(vector(&[0, 1, 9]), vector(&[]));
}

/// Positions come from the ids, so a padding id inside a text moves all that follow. The goldens have such rows.
#[test]
fn roberta_s_goldens_have_padding_inside() {
    let rows = golden_rows("roberta-base", 2);
    let inside = |ids: &[u32]| ids[..ids.len() - 1].contains(&1);
    assert!(rows.iter().filter(|row| inside(&row.input.input_ids)).count() > 5);
}

#[test]
fn roberta_takes_as_many_tokens_as_there_are_rows_behind_that_of_padding() {
    let (checkpoint, mut encoder) = open("roberta-base");
    assert_eq!((checkpoint.config().max_position_embeddings, checkpoint.max_input_length()), (66, 64));
    let limits = encoder.limits();
    assert_eq!(limits.check_ids(&[5; 65]), Err(TokenizeError::TooLong { tokens: 65, limit: 64 }));
    for ids in [[5; 64], [1; 64]] {
        let input = Encoded { input_ids: ids.to_vec(), token_type_ids: Vec::new() };
        assert_eq!(encoder.embed_batch(&[input]).unwrap()[0].len(), 32);
    }
    let two_texts = Encoded { input_ids: vec![5, 6], token_type_ids: vec![0, 1] };
    let only_one = TokenizeError::TokenType { id: 1, type_vocab_size: 1 };
    assert_eq!(limits.check(&two_texts), Err(only_one));
}

/// Without a matrix between embeddings and layers ELECTRA is BERT.
#[test]
fn electra_projects_only_where_widths_differ() {
    let folder = tempfile::tempdir().unwrap();
    let bert = data("bert-base");
    fs::copy(bert.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(bert.join("config.json")).unwrap()).unwrap();
    (config["model_type"], config["embedding_size"]) = ("electra".into(), config["hidden_size"].clone());
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();

    let input = Encoded { input_ids: vec![7, 8, 9], token_type_ids: vec![0, 1, 1] };
    let [vector, expected] = [folder.path(), &bert]
        .map(|folder| open_folder(folder).1.embed_batch(std::slice::from_ref(&input)).unwrap());
    assert_eq!(vector, expected);

    config["embedding_size"] = 16.into();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(
        error.contains("embeddings.word_embeddings.weight has shape [600, 32], expected [600, 16]"),
        "{error}"
    );
}
