//! The engine with a real model, tiny and with random weights: text in, the reference's vectors out.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{path::Path, time::Duration};

use serde_json::Value;
use turbo_models::{Cpu, CpuOptions};
use turbo_sched::Layout;
use turbo_serve::engine::{
    BatchTokens, Engine, EngineConfig, EngineError, Infer, InferRequest, Input, Model, OpenOptions,
    OutputKind, Truncation,
};

/// The reference is f64; ours is f32 through two layers whose hidden states are of order 1.
const TOLERANCE: f32 = 1e-5;

struct Golden {
    text: String,
    ids: Vec<u32>,
    vector: Vec<f32>,
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence")
}

fn golden() -> Vec<Golden> {
    let text = std::fs::read_to_string(folder().join("golden.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let read = |sentence: &Value| Golden {
        text: sentence["text"].as_str().unwrap().to_owned(),
        ids: serde_json::from_value(sentence["input_ids"].clone()).unwrap(),
        vector: serde_json::from_value(sentence["embedding"].clone()).unwrap(),
    };
    all["sentences"].as_array().unwrap().iter().map(read).collect()
}

fn start(layout: Layout) -> Engine {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder(), cpu, OpenOptions { layout, ..OpenOptions::default() }).unwrap();
    let config = EngineConfig {
        max_batch_tokens: BatchTokens::AtMost(512),
        warm_up: Duration::ZERO,
        ..EngineConfig::default()
    };
    Engine::start(model, &config).unwrap()
}

fn embed(
    engine: &Engine,
    inputs: Vec<Input>,
    truncation: Option<Truncation>,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let output = OutputKind::Pooled { normalize: true, dimensions: None };
    let request = InferRequest { inputs, output, truncation, prompt_name: None };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let response = runtime.block_on(engine.infer(request))?;
    Ok(response.rows.into_iter().map(|row| row.values).collect())
}

#[test]
fn text_and_ids_give_the_reference_vectors_in_both_layouts() {
    let golden = golden();
    assert!(!golden.is_empty());
    for layout in [Layout::Packed, Layout::Padded] {
        let engine = start(layout);
        let texts = golden.iter().map(|golden| Input::Text(golden.text.clone())).collect();
        let ids = golden.iter().map(|golden| Input::Ids(golden.ids.clone())).collect();
        let from_text = embed(&engine, texts, Some(Truncation::Right)).unwrap();
        assert_eq!(from_text, embed(&engine, ids, None).unwrap());
        for (golden, row) in golden.iter().zip(&from_text) {
            assert_eq!(row.len(), golden.vector.len());
            let off = row.iter().zip(&golden.vector).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(off <= TOLERANCE, "{:?}, {layout:?}: off by {off}", golden.text);
        }
    }
}

#[test]
fn an_answer_has_the_same_bits_alone_and_in_company() {
    let engine = start(Layout::Packed);
    let inputs: Vec<_> = golden().into_iter().map(|golden| Input::Text(golden.text)).collect();
    let together = embed(&engine, inputs.clone(), None).unwrap();
    for (input, row) in inputs.into_iter().zip(together) {
        assert_eq!(embed(&engine, vec![input.clone()], None).unwrap(), [row], "{input:?}");
    }
}

#[test]
fn a_long_text_is_cut_or_refused() {
    let engine = start(Layout::Packed);
    let long = || vec![Input::Text("cat ".repeat(100))];
    assert!(embed(&engine, long(), None).is_ok());
    assert!(matches!(
        embed(&engine, long(), Some(Truncation::Off)),
        Err(EngineError::TooLong { input: 0, limit: 48, tokens }) if tokens > 48
    ));
}
