//! Weights that were packed at an earlier start are not read again, and what is read is released.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::{borrow::Cow, collections::BTreeMap, error::Error, sync::Mutex};

use common::{NamedNoise, SMALL, Sizes, cpu, encoder, families, on_cpu, sequences};
use turbo_graph::{
    DType, Executor, Graph, LayoutKind, PackedStore, PlannerConfig, Program, Staging, WeightBytes,
    WeightSource, passes,
};

/// A store in memory.
#[derive(Default)]
struct Kept(Mutex<BTreeMap<[String; 2], Vec<u8>>>);

impl PackedStore for Kept {
    fn load(&self, name: &str, packing: &str) -> Option<Cow<'_, [u8]>> {
        let kept = self.0.lock().unwrap();
        kept.get(&[name.to_owned(), packing.to_owned()]).map(|image| Cow::Owned(image.clone()))
    }

    fn store(&self, name: &str, packing: &str, image: &[u8]) {
        let before = self.0.lock().unwrap().insert([name.to_owned(), packing.to_owned()], image.to_vec());
        assert!(before.is_none_or(|before| before.len() < image.len()), "{name} was stored already");
    }
}

/// The calls for each tensor: `read`, or `done`.
#[derive(Default)]
struct Watched(Mutex<BTreeMap<String, Vec<&'static str>>>);

impl Watched {
    fn told(&self, name: &str, what: &'static str) {
        self.0.lock().unwrap().entry(name.to_owned()).or_default().push(what);
    }
}

impl WeightSource for Watched {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        self.told(name, "read");
        NamedNoise.weight(name, shape)
    }

    fn done(&self, name: &str) {
        self.told(name, "done");
    }
}

/// An answer for three sequences, and the calls for each tensor.
struct Start {
    answer: Vec<f32>,
    told: BTreeMap<String, Vec<&'static str>>,
}

fn start(graph: &Graph, store: Option<&dyn PackedStore>, dtype: DType) -> Start {
    let program = Program::compile(graph, LayoutKind::Packed, passes::ALL).unwrap().with_dtype(dtype);
    let source = Watched::default();
    let mut executor = Executor::load(cpu(), program, &source, store, PlannerConfig::default()).unwrap();
    let mut batch = Staging::new();
    for ids in sequences(&[9, 1, 30], 50) {
        batch.push(&ids, &[]).unwrap();
        batch.select(&[0]).unwrap();
    }
    executor.run(&batch).unwrap();
    let outputs: Vec<_> = graph.outputs().map(|(_, name)| executor.output(name).unwrap()).collect();
    let mut answer = Vec::new();
    for sequence in 0..3 {
        outputs.iter().for_each(|&output| executor.read(output, sequence, &mut answer).unwrap());
    }
    Start { answer, told: source.0.into_inner().unwrap() }
}

fn graphs() -> impl Iterator<Item = (&'static str, Graph)> {
    families::all().into_iter().chain([("encoder", encoder(SMALL))])
}

#[test]
fn a_second_start_reads_no_matrix_and_answers_the_same() {
    for (name, graph) in graphs() {
        for dtype in DType::ALL {
            let store = Kept::default();
            let plain = start(&graph, None, dtype);
            let [first, second] = [0, 1].map(|_| start(&graph, Some(&store), dtype));
            assert_eq!(first.answer, plain.answer, "{name} {dtype}");
            assert_eq!(second.answer, plain.answer, "{name} {dtype}");
            assert_eq!(first.told, plain.told, "{name} {dtype}: a store that is empty changes nothing");
            for (tensor, told) in second.told {
                // the words' table is read by rows too
                let is_matrix = store.0.lock().unwrap().keys().any(|[kept, _]| kept.contains(&tensor));
                let expected = if is_matrix && tensor != "words" { &["done"][..] } else { &["read", "done"] };
                assert_eq!(told, expected, "{name} {dtype}: {tensor}");
            }
        }
    }
}

/// However many constants are made of a tensor, it is released once, after the last.
#[test]
fn what_is_read_is_let_go_once() {
    for (name, graph) in graphs() {
        for (tensor, told) in start(&graph, None, DType::F32).told {
            assert_eq!(
                (told.last(), told.iter().filter(|told| **told == "done").count()),
                (Some(&"done"), 1),
                "{name}: {tensor}"
            );
        }
    }
}

#[test]
fn an_image_that_cannot_be_restored_is_made_anew() {
    let (graph, store) = (encoder(SMALL), Kept::default());
    let first = start(&graph, Some(&store), DType::F32);
    let whole = store.0.lock().unwrap().clone();
    assert!(whole.keys().all(|[name, _]| name.ends_with(']')), "{:?}", whole.keys());
    for image in store.0.lock().unwrap().values_mut() {
        image.pop();
    }
    assert_eq!(start(&graph, Some(&store), DType::F32).answer, first.answer);
    assert_eq!(*store.0.lock().unwrap(), whole);
}

/// Wide enough that incomplete panels and the scales of rows are a small part of a matrix.
const WIDE: Sizes = Sizes {
    num_layers: 3,
    hidden_size: 384,
    num_heads: 6,
    intermediate_size: 1536,
    vocab_size: 50,
    positions: 64,
};

#[test]
fn weights_say_what_they_take() {
    let bytes = |dtype| {
        let program = Program::compile(&encoder(WIDE), LayoutKind::Packed, passes::ALL).unwrap();
        on_cpu(program.with_dtype(dtype)).weight_bytes()
    };
    let (hidden, inner) = (WIDE.hidden_size, WIDE.intermediate_size);
    // three tables and a norm; of each layer, vectors of biases and of two norms
    let tables = (WIDE.vocab_size + 2 + WIDE.positions + 2) * hidden + 3 * (9 * hidden + inner);
    let values = 3 * (4 * hidden * hidden + 2 * hidden * inner);
    for dtype in DType::ALL {
        let WeightBytes { packed, tables: of_tables } = bytes(dtype);
        assert_eq!(of_tables, 4 * tables, "{dtype}");
        let share = packed as f64 / (4 * values) as f64;
        let expected = dtype.bytes() as f64 / 4.0;
        assert!(share >= expected && share < 1.05 * expected, "{dtype}: {share} of f32's values");
    }
}
