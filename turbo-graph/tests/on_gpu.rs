//! A program on a GPU that is emulated on the processor: memory is allocated once, and if there is none, the batch
//! fails and the next one does not.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::sync::Arc;

use common::{
    NamedNoise, SMALL, batch, encoder,
    families::family,
    on_cpu, sequences,
    twin::{self, distance},
};
use turbo_graph::{Capacity, Executor, ExecutorConfig, GraphError, LayoutKind, Program, passes};
use turbo_kernels::{
    DeviceError, EncoderKernels, KernelError, bf16,
    cuda::{
        Cuda, CudaOptions,
        emulator::{Emulator, Order},
    },
};

const CAPACITY: Capacity = Capacity { batch_size: 8, total_tokens: 160, max_seq_len: 40, selected_rows: 0 };

/// An emulated GPU, which counts its calls, and the same GPU as a device.
fn gpu() -> Option<(Arc<Emulator>, Cuda<f32>)> {
    let emulator = Arc::new(Emulator::or_skip(Order::Forward)?);
    let device = Cuda::new(emulator.clone(), CudaOptions::default());
    Some((emulator, device))
}

fn packed() -> Program {
    Program::compile(&encoder(SMALL), LayoutKind::Packed, passes::ALL).unwrap()
}

fn on<D: EncoderKernels>(device: D) -> Executor<D> {
    Executor::new(device, packed(), &NamedNoise, ExecutorConfig::default()).unwrap()
}

/// Pooled rows of sequences of these lengths.
fn pooled<D: EncoderKernels>(executor: &mut Executor<D>, lens: &[usize]) -> Result<Vec<f32>, GraphError> {
    let ids = sequences(lens, SMALL.vocab_size);
    executor.run(&batch(&ids))?;
    let (output, mut rows) = (executor.output("pooled").unwrap(), Vec::new());
    (0..lens.len()).try_for_each(|sequence| executor.read(output, sequence, &mut rows))?;
    Ok(rows)
}

/// How far such rows may differ if both are computed in f32.
fn allowed(lens: &[usize]) -> f32 {
    let ids = sequences(lens, SMALL.vocab_size);
    let batch: Vec<twin::Sequence<'_>> =
        ids.iter().map(|ids| twin::Sequence { ids, types: &[], selected: &[] }).collect();
    let (_, allowed) = twin::answers(&encoder(SMALL), &["pooled"], &batch);
    allowed
}

/// Batches whose sizes all differ from those of their bucket, one after the other and again.
const BATCHES: [&[usize]; 4] = [&[9, 1, 17], &[40, 40, 40, 40], &[3], &[1, 2, 3, 4, 5, 6, 7, 8]];

#[test]
fn it_computes_what_the_processor_does() {
    let Some((_, device)) = gpu() else { return };
    let mut cpu = on_cpu(packed());
    let (mut exact, mut rounded) = (on(device.clone()), on(device.with_float::<bf16>()));
    for lens in BATCHES.iter().chain(&BATCHES) {
        let want = pooled(&mut cpu, lens).unwrap();
        let (in_f32, in_bf16) = (pooled(&mut exact, lens).unwrap(), pooled(&mut rounded, lens).unwrap());
        let off = distance(&in_f32, &want);
        assert!(off <= allowed(lens), "{lens:?}: off by {off}");
        // values are of order 1 behind a norm; the tolerance is 2⁻⁸ of that for the rounding of each of three layers
        let off = distance(&in_bf16, &want);
        assert!(off < 0.1, "{lens:?} in bf16: off by {off}");
    }
}

#[test]
fn within_a_reserved_capacity_it_asks_for_no_memory() {
    let Some((emulator, device)) = gpu() else { return };
    let mut executor = on(device);
    executor.reserve(CAPACITY).unwrap();
    let asked = emulator.allocations();
    assert!(asked > 0);
    for lens in BATCHES.iter().chain(&BATCHES) {
        pooled(&mut executor, lens).unwrap();
        assert_eq!(emulator.allocations(), asked, "{lens:?}");
    }
}

/// The plan decides whether a batch fits into a device's memory: it includes both chunks and scratch.
#[test]
fn what_operators_keep_to_themselves_is_planned_too() {
    let Some((_, device)) = gpu() else { return };
    // a gate and a norm inside a feed-forward, all experts, the greatest products, wide rows and a norm
    for graph in [family("Nomic"), family("experts"), family("SPLADE"), encoder(SMALL)] {
        let name = graph.name().to_owned();
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        let config = ExecutorConfig::default();
        let mut executor = Executor::new(device.clone(), program, &NamedNoise, config).unwrap();
        let planned = executor.planned_bytes(CAPACITY).unwrap();
        executor.reserve(CAPACITY).unwrap();
        let scratch = executor.scratch_bytes();
        assert!(scratch > 0, "{name}");
        assert_eq!(planned, executor.footprint_bytes() + scratch, "{name}");
    }
}

/// Launches sequences of these lengths behind what runs.
fn behind<D: EncoderKernels>(executor: &mut Executor<D>, lens: &[usize]) -> Result<(), GraphError> {
    let wanted = [executor.output("pooled").unwrap()].into_iter().collect();
    executor.run_behind(&batch(&sequences(lens, SMALL.vocab_size)), wanted)
}

/// Pooled rows of the oldest batch, which is then dropped.
fn oldest<D: EncoderKernels>(executor: &mut Executor<D>, lens: &[usize]) -> Vec<f32> {
    let (output, mut rows) = (executor.output("pooled").unwrap(), Vec::new());
    (0..lens.len()).for_each(|sequence| executor.read(output, sequence, &mut rows).unwrap());
    executor.forget_oldest();
    rows
}

#[test]
fn the_next_batch_is_launched_while_one_runs() {
    let Some((emulator, device)) = gpu() else { return };
    let (mut executor, mut cpu) = (on(device), on_cpu(packed()));
    executor.reserve(CAPACITY).unwrap();
    let asked = emulator.allocations();
    emulator.lag();
    let rounds = || BATCHES.iter().chain(&BATCHES);
    behind(&mut executor, BATCHES[0]).unwrap();
    for (lens, next) in rounds().zip(rounds().skip(1)) {
        assert!(!executor.is_done().unwrap(), "it only looks");
        let left = emulator.waiting();
        behind(&mut executor, next).unwrap();
        assert!(left > 0 && emulator.waiting() > left, "the next batch waits behind one that runs");
        assert!(matches!(behind(&mut executor, next), Err(GraphError::Full { depth: 2 })));
        while !executor.is_done().unwrap() {}
        assert!(emulator.waiting() > 0, "nobody waited for the next batch");
        let off = distance(&oldest(&mut executor, lens), &pooled(&mut cpu, lens).unwrap());
        assert!(off <= allowed(lens), "{lens:?}: off by {off}");
    }
    assert_eq!(emulator.allocations(), asked);
}

#[test]
fn a_larger_batch_behind_one_that_runs_leaves_its_results_alone() {
    let Some((emulator, device)) = gpu() else { return };
    // nothing is reserved: outputs and inputs move while the first batch is under way
    let (mut executor, mut cpu) = (on(device), on_cpu(packed()));
    emulator.lag();
    let all: [&[usize]; 2] = [&[3], &[40, 40, 40, 40]];
    all.iter().for_each(|lens| behind(&mut executor, lens).unwrap());
    for lens in all {
        let off = distance(&oldest(&mut executor, lens), &pooled(&mut cpu, lens).unwrap());
        assert!(off <= allowed(lens), "{lens:?}: off by {off}");
    }
    assert!(matches!(
        executor.read(executor.output("pooled").unwrap(), 0, &mut Vec::new()),
        Err(GraphError::NoSuchSequence { batch_size: 0, .. })
    ));
}

#[test]
fn a_batch_without_memory_leaves_the_one_that_runs_alone() {
    let Some((emulator, device)) = gpu() else { return };
    let mut executor = on(device);
    let before = pooled(&mut executor, &[5, 7]).unwrap();
    emulator.lag();
    emulator.leave_free(1 << 20);
    behind(&mut executor, &[5, 7]).unwrap();
    assert!(behind(&mut executor, &[64; 400]).is_err());
    assert_eq!(oldest(&mut executor, &[5, 7]), before);
    emulator.leave_free(64 << 20);
    assert_eq!(pooled(&mut executor, &[5, 7]).unwrap(), before);
}

#[test]
fn a_processor_has_one_batch_at_a_time() {
    let mut cpu = on_cpu(packed());
    assert_eq!(cpu.depth(), 1);
    let want = pooled(&mut cpu, &[5, 7]).unwrap();
    cpu.forget_oldest();
    behind(&mut cpu, &[5, 7]).unwrap();
    assert!(cpu.is_done().unwrap());
    assert!(matches!(behind(&mut cpu, &[3]), Err(GraphError::Full { depth: 1 })));
    assert_eq!(oldest(&mut cpu, &[5, 7]), want);
}

#[test]
fn a_batch_without_memory_fails_and_the_next_one_does_not() {
    let Some((emulator, device)) = gpu() else { return };
    let mut executor = on(device);
    let before = pooled(&mut executor, &[5, 7]).unwrap();
    emulator.leave_free(1 << 20);
    let refused = pooled(&mut executor, &[64; 400]).unwrap_err();
    let is_memory = matches!(
        refused,
        GraphError::Device(DeviceError::OutOfMemory { .. })
            | GraphError::Kernel(KernelError::Device(DeviceError::OutOfMemory { .. }))
    );
    assert!(is_memory, "{refused}");
    emulator.leave_free(64 << 20);
    assert_eq!(pooled(&mut executor, &[5, 7]).unwrap(), before);
}
