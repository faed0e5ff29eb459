//! The engine with a real model, tiny and with random weights: text in, the reference's vectors out.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::Value;
use turbo_models::{
    Cpu, CpuOptions,
    graph::kernels::cuda::{
        Cuda, CudaOptions,
        emulator::{Emulator, Order},
    },
};
use turbo_sched::Layout;
use turbo_serve::{
    cache::ResponseCache,
    engine::{
        BatchTokens, Capacity, DType, Engine, EngineConfig, EngineError, Infer, InferRequest, Input, Model,
        OpenOptions, OutputKind, Progress, Rows, Sequence, Truncation,
    },
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
    start_with(OpenOptions { layout, ..OpenOptions::default() })
}

fn start_with(options: OpenOptions) -> Engine {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder(), cpu, options).unwrap();
    Engine::start(model, &config()).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        max_batch_tokens: BatchTokens::AtMost(512),
        warm_up: Duration::ZERO,
        ..EngineConfig::default()
    }
}

fn embed(
    engine: &Engine,
    inputs: Vec<Input>,
    truncation: Option<Truncation>,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let output = OutputKind::Pooled { normalize: true, dimensions: None };
    let request = InferRequest { truncation, ..InferRequest::new(inputs, output) };
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
fn an_answer_that_was_kept_has_the_bits_of_one_that_is_computed() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder(), cpu, OpenOptions::default()).unwrap();
    let cache = Some(ResponseCache::in_memory(16 << 20).unwrap());
    let (computes, keeps) =
        (start(Layout::Packed), Engine::start(model, &EngineConfig { cache, ..config() }).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let texts: Vec<_> = golden().into_iter().map(|golden| Input::Text(golden.text)).collect();
    let pooled = |normalize, dimensions| OutputKind::Pooled { normalize, dimensions };
    for output in [pooled(true, None), pooled(true, Some(5)), pooled(false, None), OutputKind::Tokens] {
        let bits = |engine: &Engine| -> Vec<Vec<u32>> {
            let answer = runtime.block_on(engine.infer(InferRequest::new(texts.clone(), output))).unwrap();
            answer.rows.iter().map(|row| row.values.iter().map(|value| value.to_bits()).collect()).collect()
        };
        let computed = bits(&computes);
        (0..2).for_each(|time| assert_eq!(bits(&keeps), computed, "{output:?}, time {time}"));
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

/// What is not computed is not counted, neither for a client nor in the predicted cost of a batch.
#[test]
fn padding_at_the_end_of_what_a_decoder_classifies_is_no_part_of_its_batch() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let folder = folder().with_file_name("qwen3-rerank");
    let model = Model::open(&folder, cpu, OpenOptions::default()).unwrap();
    let engine = Engine::start(model, &config()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ask = |ids| {
        let request = InferRequest::new(vec![Input::Ids(ids)], OutputKind::RAW);
        runtime.block_on(engine.infer(request)).unwrap().rows
    };
    let padded = ask([vec![5, 6], vec![0; 100]].concat());
    assert_eq!((padded[0].tokens, engine.observed().unwrap().totals.tokens), (2, 2));
    assert_eq!(padded, ask(vec![5, 6]));
}

#[test]
fn every_dtype_answers_nearly_the_same() {
    let golden = golden();
    let texts: Vec<_> = golden.iter().map(|golden| Input::Text(golden.text.clone())).collect();
    for (dtype, name, least) in
        [(DType::F32, "float32", 0.999_99), (DType::Bf16, "bfloat16", 0.999), (DType::Int8, "int8", 0.99)]
    {
        let engine = start_with(OpenOptions { dtype, ..OpenOptions::default() });
        assert_eq!(engine.info().model.dtype, name);
        let rows = embed(&engine, texts.clone(), None).unwrap();
        for (golden, row) in golden.iter().zip(&rows) {
            let cosine: f32 = row.iter().zip(&golden.vector).map(|(x, y)| x * y).sum();
            assert!(cosine >= least, "{:?} in {dtype}: cosine {cosine}", golden.text);
        }
    }
}

#[test]
fn packed_weights_that_were_kept_give_the_same_bits() {
    let cache = tempfile::tempdir().unwrap();
    for dtype in DType::ALL {
        let options =
            || OpenOptions { dtype, packed_cache: Some(cache.path().into()), ..OpenOptions::default() };
        let answers = || embed(&start_with(options()), vec![Input::Text("the cat".into())], None).unwrap();
        let packed = answers();
        assert_eq!(packed, answers(), "{dtype}");
    }
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 3, "a file for each dtype");
}

#[test]
fn a_batch_that_nobody_wants_ends_between_layers() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let mut model = Model::open(&folder(), cpu, OpenOptions::default()).unwrap();
    let capacity = Capacity { batch_size: 4, total_tokens: 64, max_seq_len: 48 };
    let mut runner = (model.build)(capacity).unwrap();
    let ids = golden()[0].ids.clone();
    let mut run = |keep_going: &mut dyn FnMut() -> bool| {
        runner.submit(&mut std::iter::once(Sequence::of(&ids)), keep_going).unwrap();
        let (progress, mut row) = (runner.poll().unwrap(), Vec::new());
        let row = runner.read(0, Rows::Pooled, &mut row).map(|()| row).ok();
        runner.release();
        (progress, row)
    };
    let mut asked = 0;
    let all = |asked: &mut i32| {
        *asked += 1;
        true
    };
    let (progress, whole) = run(&mut || all(&mut asked));
    assert_eq!(progress, Progress::Done);
    assert!(asked >= 2, "a model of two layers asked {asked} times");
    for layers in 0..asked {
        let mut left = layers;
        let stopped = run(&mut || {
            left -= 1;
            left >= 0
        });
        assert_eq!(stopped, (Progress::Stopped, None), "after {layers}");
        assert_eq!(run(&mut || true), (Progress::Done, whole.clone()), "the runner can be used on");
    }
}

/// An emulated GPU, which from now on computes only when its results are waited for or polled, and the model on it.
fn on_a_gpu_that_lags() -> Option<(Arc<Emulator>, Model)> {
    let emulator = Arc::new(Emulator::or_skip(Order::Forward)?);
    let device = Cuda::<f32>::new(emulator.clone(), CudaOptions::default());
    let model = Model::open(&folder(), device, OpenOptions::default()).unwrap();
    emulator.lag();
    Some((emulator, model))
}

/// The timeline of a GPU: the second batch is packed, planned and launched before the first is done.
#[test]
fn a_gpu_gets_the_next_batch_while_it_computes() {
    let Some((emulator, mut model)) = on_a_gpu_that_lags() else { return };
    let capacity = Capacity { batch_size: 4, total_tokens: 64, max_seq_len: 48 };
    let mut runner = (model.build)(capacity).unwrap();
    assert_eq!(runner.depth(), 2);
    let golden = golden();
    let submit = |runner: &mut dyn turbo_serve::engine::Runner, golden: &Golden| {
        let sequence = Sequence { rows: Some(Rows::Pooled), ..Sequence::of(&golden.ids) };
        runner.submit(&mut std::iter::once(sequence), &mut || true)
    };
    submit(&mut *runner, &golden[0]).unwrap();
    for (this, next) in golden.iter().zip(&golden[1..]) {
        assert_eq!(runner.poll().unwrap(), Progress::Running);
        let left = emulator.waiting();
        submit(&mut *runner, next).unwrap();
        assert!(left > 0 && emulator.waiting() > left, "both are under way");
        assert!(submit(&mut *runner, next).is_err(), "a third has no place");
        while runner.poll().unwrap() == Progress::Running {}
        assert!(emulator.waiting() > 0, "the next one has not been waited for");
        let mut row = Vec::new();
        runner.read(0, Rows::Pooled, &mut row).unwrap();
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        let off = row.iter().zip(&this.vector).map(|(x, y)| (x / norm - y).abs()).fold(0.0, f32::max);
        assert!(off <= TOLERANCE, "{:?}: off by {off}", this.text);
        runner.release();
    }
}

#[test]
fn an_engine_on_a_gpu_gives_the_reference_vectors() {
    let Some((_, model)) = on_a_gpu_that_lags() else { return };
    let config = EngineConfig {
        max_batch_tokens: BatchTokens::AtMost(64),
        warm_up: Duration::ZERO,
        ..EngineConfig::default()
    };
    let (engine, golden) = (Engine::start(model, &config).unwrap(), golden());
    // several batches' worth at once, from several clients
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let texts = golden.iter().map(|golden| Input::Text(golden.text.clone())).collect();
                let rows = embed(&engine, texts, None).unwrap();
                for (golden, row) in golden.iter().zip(&rows) {
                    let off = row.iter().zip(&golden.vector).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                    assert!(off <= TOLERANCE, "{:?}: off by {off}", golden.text);
                }
            });
        }
    });
}
