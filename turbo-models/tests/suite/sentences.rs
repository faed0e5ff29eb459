//! From text to normalised vectors through a whole folder, against the reference.

use std::fs;

use serde::Deserialize;
use turbo_models::{
    Capacity, Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, LayoutKind, ModelError, Pooling,
    TokenizeError, Truncation, l2_normalize,
};

use crate::common::{data, max_difference};

#[derive(Deserialize)]
struct Golden {
    sentences: Vec<Sentence>,
}

#[derive(Deserialize)]
struct Sentence {
    text: String,
    input_ids: Vec<u32>,
    cls: Vec<f32>,
    mean: Vec<f32>,
    last_token: Vec<f32>,
    embedding: Vec<f32>,
}

fn golden() -> Vec<Sentence> {
    let golden = fs::read(data("tiny-sentence/golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&golden).unwrap().sentences
}

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&data("tiny-sentence")).unwrap()
}

fn encoder(checkpoint: &Checkpoint, layout: LayoutKind, pooling: Pooling) -> Encoder<Cpu> {
    let options = EncoderOptions { layout, task: pooling.into(), ..EncoderOptions::of(checkpoint) };
    Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options).unwrap()
}

fn encoded(checkpoint: &Checkpoint) -> Vec<Encoded> {
    let tokenizer = checkpoint.tokenizer().unwrap();
    golden().iter().map(|sentence| tokenizer.encode(&sentence.text, Truncation::Right).unwrap()).collect()
}

#[test]
fn the_folder_says_how_it_is_used() {
    let checkpoint = checkpoint();
    assert_eq!(checkpoint.name(), "tiny-sentence");
    assert_eq!(checkpoint.pooling(), Some(Pooling::Mean));
    assert!(checkpoint.normalizes());
    assert_eq!(checkpoint.max_input_length(), 48);
    assert_eq!(checkpoint.warnings(), [""; 0]);
}

#[test]
fn ids_are_the_reference_s() {
    let (checkpoint, golden) = (checkpoint(), golden());
    for (encoded, sentence) in encoded(&checkpoint).iter().zip(&golden) {
        assert_eq!(encoded.input_ids, sentence.input_ids, "{:?}", sentence.text);
    }
    assert!(golden.iter().any(|sentence| sentence.input_ids.len() == checkpoint.max_input_length()));
}

/// A pooling, and where its golden vector is.
type Case = (Pooling, fn(&Sentence) -> &[f32]);

/// 1e-5: the reference loses 1.7e-6 in float32 before pooling, and another order of summation as much.
#[test]
fn every_pooling_matches_in_both_layouts() {
    let (checkpoint, golden) = (checkpoint(), golden());
    let inputs = encoded(&checkpoint);
    let poolings: [Case; 3] = [
        (Pooling::Cls, |sentence| &sentence.cls),
        (Pooling::Mean, |sentence| &sentence.mean),
        (Pooling::LastToken, |sentence| &sentence.last_token),
    ];
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        for (pooling, expected) in poolings {
            let vectors = encoder(&checkpoint, layout, pooling).embed_batch(&inputs).unwrap();
            for (vector, sentence) in vectors.iter().zip(&golden) {
                let difference = max_difference(vector, expected(sentence));
                assert!(
                    difference < 1e-5,
                    "{layout:?}, {pooling:?}, {:?}: off by {difference}",
                    sentence.text
                );
            }
        }
    }
}

#[test]
fn normalised_vectors_match() {
    let checkpoint = checkpoint();
    let inputs = encoded(&checkpoint);
    let mut vectors = encoder(&checkpoint, LayoutKind::Packed, Pooling::Mean).embed_batch(&inputs).unwrap();
    for (vector, sentence) in vectors.iter_mut().zip(golden()) {
        l2_normalize(vector);
        let difference = max_difference(vector, &sentence.embedding);
        assert!(difference < 1e-5, "{:?}: off by {difference}", sentence.text);
    }
}

#[test]
fn ids_outside_the_limits_are_refused_and_the_next_batch_works() {
    let checkpoint = checkpoint();
    let mut encoder = encoder(&checkpoint, LayoutKind::Packed, Pooling::Mean);
    let input = |input_ids: Vec<u32>| Encoded { input_ids, token_type_ids: Vec::new() };
    let cases = [
        (input(vec![]), TokenizeError::Empty),
        (input(vec![103]), TokenizeError::Vocabulary { id: 103, vocab_size: 103 }),
        (input(vec![1; 49]), TokenizeError::TooLong { tokens: 49, limit: 48 }),
    ];
    for (bad, expected) in cases {
        match encoder.embed_batch(&[input(vec![2, 3]), bad]) {
            Err(ModelError::Input(error)) => assert_eq!(error, expected),
            other => panic!("{other:?} instead of {expected}"),
        }
        let row = &encoder.embed_batch(&[input(vec![2, 3])]).unwrap()[0];
        assert_eq!(Some(row.len()), encoder.pooled_len());
    }
    assert!(encoder.embed_batch(&[]).unwrap().is_empty());
}

#[test]
fn a_larger_capacity_has_a_larger_plan() {
    let mut encoder = encoder(&checkpoint(), LayoutKind::Packed, Pooling::Mean);
    let capacity = |batch_size| Capacity {
        batch_size,
        total_tokens: batch_size * 48,
        max_seq_len: 48,
        ..Capacity::default()
    };
    encoder.reserve(capacity(4)).unwrap();
    let (small, large) = (encoder.planned_bytes(capacity(1)), encoder.planned_bytes(capacity(400)));
    assert!(0 < small && small < large, "{small} {large}");
}
