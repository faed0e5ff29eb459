//! The real model: all-MiniLM-L6-v2 against reference embeddings in float64.
//!
//! Runs if the weights are there: in the folder `minilm` of `TURBO_MODELS_DIR`, else of `models` at the root of the
//! workspace. With `TURBO_REQUIRE_MINILM=1`, missing weights are a failure.

use std::{env, fs, path::PathBuf};

use serde::Deserialize;
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, LayoutKind, Pooling, Truncation,
    l2_normalize,
};

use crate::common::{data, max_difference};

#[derive(Deserialize)]
struct Reference {
    sentences: Vec<Sentence>,
}

#[derive(Deserialize)]
struct Sentence {
    sentence: String,
    tokens: usize,
    /// The first 64 ids.
    input_ids: Vec<u32>,
    embedding: Vec<f32>,
}

/// The model's folder.
pub(crate) fn folder() -> Option<PathBuf> {
    let models = env::var_os("TURBO_MODELS_DIR").map(PathBuf::from);
    let models = models.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models"));
    let folder = models.join("minilm");
    if folder.join("config.json").exists() {
        return Some(folder);
    }
    let required = env::var_os("TURBO_REQUIRE_MINILM").is_some_and(|value| value == "1");
    assert!(!required, "TURBO_REQUIRE_MINILM=1, and there is no model in {}", folder.display());
    eprintln!("skipped: there is no model in {}; `cargo xtask model` fetches it", folder.display());
    None
}

fn reference() -> Vec<Sentence> {
    let reference = fs::read(data("minilm/embed_reference.json")).unwrap();
    serde_json::from_slice::<Reference>(&reference).unwrap().sentences
}

/// 2e-6 for vectors of norm 1: the reference has six decimals (5e-7), and its own float32 differs from it by 6e-7.
#[test]
fn embeddings_match_the_reference() {
    let Some(folder) = folder() else { return };
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!((checkpoint.pooling(), checkpoint.normalizes()), (Some(Pooling::Mean), true));
    assert_eq!(checkpoint.max_input_length(), 256);
    assert_eq!(checkpoint.warnings(), [""; 0]);

    let reference = reference();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let encode = |sentence: &Sentence| tokenizer.encode(&sentence.sentence, Truncation::Right).unwrap();
    let inputs: Vec<Encoded> = reference.iter().map(encode).collect();
    for (input, expected) in inputs.iter().zip(&reference) {
        assert_eq!(input.input_ids.len(), expected.tokens, "{:?}", expected.sentence);
        assert!(input.input_ids.starts_with(&expected.input_ids), "{:?}", expected.sentence);
    }

    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let options = EncoderOptions { layout, ..EncoderOptions::of(&checkpoint) };
        let mut encoder = Encoder::new(cpu, &checkpoint, options).unwrap();
        let together = encoder.embed_batch(&inputs).unwrap();
        let alone: Vec<Vec<f32>> =
            inputs.chunks(1).map(|input| encoder.embed_batch(input).unwrap().remove(0)).collect();
        assert!(together == alone, "{layout:?}: bits depend on batch mates");
        for (mut vector, expected) in together.into_iter().zip(&reference) {
            l2_normalize(&mut vector);
            let difference = max_difference(&vector, &expected.embedding);
            assert!(difference <= 2e-6, "{layout:?}, {:?}: off by {difference}", expected.sentence);
        }
    }
}
