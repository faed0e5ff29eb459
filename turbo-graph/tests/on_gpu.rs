//! A program on a GPU, which the processor emulates: memory is asked for once, and where there is none the batch fails and
//! the next one does not.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::sync::Arc;

use common::{NamedNoise, SMALL, batch, encoder, greatest, on_cpu, sequences};
use turbo_graph::{Capacity, Executor, ExecutorConfig, GraphError, LayoutKind, Program, passes};
use turbo_kernels::{
    DeviceError, EncoderKernels, KernelError, bf16,
    cuda::{
        Cuda, CudaOptions,
        emulator::{Emulator, Order},
    },
};

const CAPACITY: Capacity = Capacity { batch_size: 8, total_tokens: 160, max_seq_len: 40, selected_rows: 0 };

/// An emulated GPU, to be asked what it was asked, and the same as a device.
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

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    greatest(a.iter().zip(b).map(|(a, b)| (a - b).abs()))
}

/// Batches of which no sizes are those of their bucket, one after the other and again.
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
        assert!(off < 2e-5, "{lens:?}: off by {off}");
        // values are of order 1 behind a norm; 2⁻⁸ of them for each of three layers' roundings
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
