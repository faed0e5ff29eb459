//! Within a reserved capacity a batch allocates nothing, from the ids to the answers.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout as Size, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use common::{Sizes, encoder, families, on_threads};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use turbo_graph::{
    Activation, Capacity, DType, ExecutorConfig, Graph, GraphBuilder, Input, LayoutKind, Pass, Program,
    Staging, passes,
};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator with the arguments it came with. `alloc_zeroed` and `realloc` are
// the trait's own, which call `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, size: Size) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` came from `System`.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Wide enough that the packed activations of some hundred rows exceed every bound on the scratch of a product.
const WIDE: Sizes = Sizes {
    num_layers: 2,
    hidden_size: 48,
    num_heads: 3,
    intermediate_size: 2048,
    vocab_size: 50,
    positions: 64,
};

const CAPACITY: Capacity = Capacity { batch_size: 24, total_tokens: 600, max_seq_len: 64, selected_rows: 48 };

/// A gated layer so wide that the few rows of a product that a thread computes at a time exceed the memory held for it,
/// and the longest sequence has enough rows for only some of the threads.
fn gated() -> Graph {
    const WIDTH: usize = 16_384;
    let mut g = GraphBuilder::new("gated");
    let [words, up, down] = [("words", [50, 16]), ("up", [2 * WIDTH, 16]), ("down", [16, WIDTH])]
        .map(|(name, shape)| g.weight(name, &shape));
    let ids = g.input(Input::InputIds);
    let x = g.embed(words, ids).unwrap();
    g.layer(Some(0));
    let wide = g.matmul(x, up).unwrap();
    let wide = g.gate(wide, Activation::Silu).unwrap();
    let narrow = g.matmul(wide, down).unwrap();
    let sum = g.add(narrow, x).unwrap();
    g.output("rows", sum);
    g.finish().unwrap()
}

/// Lengths of sequences that together are within [`CAPACITY`], padding counted where the layout has it.
fn batches(layout: LayoutKind) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..=CAPACITY.max_seq_len, 1..=CAPACITY.batch_size).prop_map(move |mut lens| {
        let rows = |lens: &[usize]| match layout {
            LayoutKind::Packed => lens.iter().sum::<usize>(),
            LayoutKind::Padded => lens.len() * lens.iter().max().unwrap(),
        };
        while rows(&lens) > CAPACITY.total_tokens {
            lens.pop();
        }
        lens
    })
}

fn allocations_of_batches(
    graph: &Graph,
    layout: LayoutKind,
    passes: &[Pass],
    (threads, dtype): (usize, DType),
    config: ExecutorConfig,
) {
    let program = Program::compile(graph, layout, passes).unwrap().with_dtype(dtype);
    let mut executor = on_threads(threads, program, config);
    let outputs: Vec<_> = graph.outputs().map(|(_, name)| executor.output(name).unwrap()).collect();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    executor.reserve(CAPACITY).unwrap();
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before, "the counter counts");
    // large blocks come from the system, past the allocator
    let scratch = executor.scratch_bytes();

    let mut staging = Staging::with_capacity(CAPACITY);
    let rows = CAPACITY.total_tokens + CAPACITY.batch_size + CAPACITY.selected_rows;
    let mut answers = Vec::with_capacity(rows * 64);
    let ids = [7; CAPACITY.max_seq_len];
    let mut runner = TestRunner::deterministic();
    for _ in 0..20 {
        let lens = batches(layout).new_tree(&mut runner).unwrap().current();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        staging.clear();
        answers.clear();
        for &len in &lens {
            staging.push(&ids[..len], &[]).unwrap();
            staging.select(if len > 20 { &[20, 0] } else { &[] }).unwrap();
        }
        executor.run(&staging).unwrap();
        for &output in &outputs {
            (0..lens.len()).for_each(|sequence| executor.read(output, sequence, &mut answers).unwrap());
        }
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(
            (made, executor.scratch_bytes()),
            (0, scratch),
            "{} {layout:?} {dtype} with {threads} threads: a batch of {lens:?}",
            graph.name()
        );
    }
}

/// One test, since the counter is the process's.
#[test]
fn a_reserved_executor_allocates_nothing() {
    let families = families::all();
    let graphs = || families.iter().map(|(_, graph)| graph);
    let wide = encoder(WIDE);
    let all = ExecutorConfig::default;
    for threads in [1, 2] {
        for dtype in DType::ALL {
            for graph in graphs().chain([&wide]) {
                allocations_of_batches(graph, LayoutKind::Packed, passes::ALL, (threads, dtype), all());
            }
        }
        for passes in [passes::ALL, &passes::paper()] {
            allocations_of_batches(&wide, LayoutKind::Padded, passes, (threads, DType::F32), all());
        }
    }
    allocations_of_batches(&gated(), LayoutKind::Packed, passes::ALL, (8, DType::F32), all());
    // what is reserved is kept, even if it is more than the bindings that are kept otherwise
    let few = ExecutorConfig { cached_bindings: 2, ..all() };
    allocations_of_batches(&wide, LayoutKind::Packed, passes::ALL, (1, DType::F32), few);
}
