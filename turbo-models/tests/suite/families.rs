//! What only one family does.

use turbo_kernels::{Cpu, CpuOptions};
use turbo_models::{Checkpoint, Encoded, Encoder, EncoderOptions, TokenizeError};

use crate::common::{data, golden_rows};

fn open(fixture: &str) -> (Checkpoint, Encoder<Cpu>) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
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
