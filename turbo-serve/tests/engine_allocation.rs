//! From packing a batch to the last kernel, nothing is allocated for shapes within the reserved capacity.
//!
//! A test of its own, because it counts every allocation of the process.
#![allow(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    alloc::{GlobalAlloc, Layout as Bytes, System},
    num::NonZeroUsize,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use turbo_models::{Cpu, CpuOptions};
use turbo_sched::Layout;
use turbo_serve::engine::{Capacity, Model, OpenOptions, Progress, Runner, Sequence};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Bytes) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Bytes) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Bytes, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: `ptr` came from this allocator, so from the system's, with the same layout.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Bytes) {
        // SAFETY: `ptr` came from this allocator, so from the system's, with the same layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CAPACITY: Capacity = Capacity { batch_size: 16, total_tokens: 256, max_seq_len: 48 };

#[test]
fn a_warm_runner_allocates_nothing() {
    assert!(allocations_of(|| drop(std::hint::black_box(vec![0_u8; 4096]))) > 0, "nothing is counted");
    // Pooled by the mean, logits of labels, weights of words, logits of selected tokens, logits of tokens.
    for fixture in [
        "tiny-sentence",
        "pipeline-classify",
        "tiny-splade",
        "pipeline-fill-mask-wordpiece",
        "pipeline-answers-wordpiece",
    ] {
        for (layout, threads) in
            [(Layout::Packed, 1), (Layout::Packed, 2), (Layout::Padded, 1), (Layout::Padded, 2)]
        {
            let what = format!("{fixture}, {layout:?}, {threads} threads");
            check(&mut *runner(fixture, layout, threads), &what);
        }
    }
}

fn runner(fixture: &str, layout: Layout, threads: usize) -> Box<dyn Runner> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(fixture);
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None }).unwrap();
    let mut model = Model::open(&folder, cpu, OpenOptions { layout, ..OpenOptions::default() }).unwrap();
    (model.build)(CAPACITY).unwrap()
}

fn check(runner: &mut dyn Runner, what: &str) {
    let ids: Vec<u32> = (0..48).map(|i| i * 7 % 100).collect();
    let positions: Vec<u32> = (0..48).collect();
    // What the engine's warm-up does among other things: the largest batches.
    for (len, batch_size) in [(16, 16), (48, 5)] {
        runner.submit(&mut std::iter::repeat_n(Sequence::of(&ids[..len]), batch_size), &mut || true).unwrap();
        runner.release();
    }
    let shapes: &[&[usize]] =
        &[&[1], &[48], &[3, 1, 2], &[16; 16], &[48; 5], &[1; 16], &[33, 5, 17], &[48, 40, 1], &[2]];
    for lens in shapes {
        // Every token is selected, which is the most there can be.
        let sequence = |&len: &usize| Sequence { selected: &positions[..len], ..Sequence::of(&ids[..len]) };
        let allocations = allocations_of(|| {
            runner.submit(&mut lens.iter().map(sequence), &mut || true).unwrap();
            assert_eq!(runner.poll().unwrap(), Progress::Done);
            runner.release();
        });
        assert_eq!(allocations, 0, "{lens:?}, {what}");
    }
}

/// How often anything in this process allocated while `work` ran. There is one test here, so nothing else runs.
fn allocations_of(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Relaxed);
    work();
    ALLOCATIONS.load(Relaxed) - before
}
