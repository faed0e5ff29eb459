//! Inputs of thousands of tokens, in the families whose positions reach that far.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use turbo_models::{
    Capacity, Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, LayoutKind, Pooling, Staging,
};

use crate::common::{data, max_difference};

const LONG: usize = 8192;

/// The folder of a fixture whose positions reach to `LONG`.
fn stretched(fixture: &str, field: &str) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    let from = data(fixture);
    fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config[field] = json!(LONG);
    fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

fn input(tokens: usize) -> Encoded {
    let input_ids = (0..tokens as u32).map(|index| 5 + (index * index + index / 7) % 50).collect();
    Encoded { input_ids, token_type_ids: Vec::new() }
}

/// The hidden states of the inputs of one batch.
fn tokens(checkpoint: &Checkpoint, layout: LayoutKind, inputs: &[Encoded]) -> Vec<Vec<f32>> {
    let options =
        EncoderOptions { layout, task: Pooling::LastToken.into(), ..EncoderOptions::of(checkpoint) };
    let mut encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options).unwrap();
    let mut batch = Staging::with_capacity(Capacity::default());
    inputs.iter().for_each(|input| batch.push(&input.input_ids, &input.token_type_ids).unwrap());
    encoder.run(&batch).unwrap();
    let mut of = |sequence| {
        let mut rows = Vec::new();
        encoder.tokens(sequence, &mut rows).unwrap();
        rows
    };
    (0..inputs.len()).map(&mut of).collect()
}

/// A long input beside a short one: packed rows equal padded ones, and the short input gives the same as alone.
fn long_inputs_run(fixture: &str, field: &str) {
    let folder = stretched(fixture, field);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.max_input_length(), LONG, "{fixture}");
    let inputs = [input(LONG), input(3)];
    let packed = tokens(&checkpoint, LayoutKind::Packed, &inputs);
    let padded = tokens(&checkpoint, LayoutKind::Padded, &inputs);
    assert!(packed == padded, "{fixture}: the layout changes bits");
    assert_eq!(packed[0].len(), LONG * checkpoint.config().hidden_size);
    assert!(packed[0].iter().all(|value| value.is_finite()), "{fixture}");
    let short = tokens(&checkpoint, LayoutKind::Packed, &inputs[1..]);
    assert!(short[0] == packed[1], "{fixture}: company changes bits");
}

#[test]
fn modernbert() {
    long_inputs_run("modernbert-seqcls", "max_position_embeddings");
}

#[test]
fn nomic() {
    long_inputs_run("nomic-base", "n_positions");
}

#[test]
fn gte() {
    long_inputs_run("gte-rerank", "max_position_embeddings");
}

#[test]
fn jina() {
    long_inputs_run("jina-rerank", "max_position_embeddings");
}

/// In a causal model, the result of a token does not depend on the tokens behind it.
#[test]
fn qwen3() {
    long_inputs_run("qwen3-rerank", "max_position_embeddings");
    let folder = stretched("qwen3-rerank", "max_position_embeddings");
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let whole = input(LONG);
    let start = Encoded { input_ids: whole.input_ids[..100].to_vec(), token_type_ids: Vec::new() };
    let rows = tokens(&checkpoint, LayoutKind::Packed, &[whole, start]);
    let difference = max_difference(&rows[0][..rows[1].len()], &rows[1]);
    assert!(difference < 1e-5, "off by {difference}");
}
