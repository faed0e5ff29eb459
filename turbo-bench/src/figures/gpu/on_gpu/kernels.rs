//! An operation on a device: its inputs, and its launches, which are replayed from a recording where the device can
//! record.

use std::time::Instant;

use anyhow::{Result, ensure};
use turbo_kernels::{
    Activation, Attention, AttentionMask, BiasAct, Columns, DType, Device, Element, Embed, Epilogue, Float,
    Gemm, KernelError, Layout, Norm, Queries, Softmax,
    attention::AttentionShape,
    cuda::{Cuda, CudaBlock, CudaQueue, CudaRecording, CudaView, CudaViewMut, Reduction},
    embed::Lookup,
    norm::NormWeights,
    softmax::ScoreShape,
};

use super::super::operation::{Operation, id, sampled, values};

/// The most runs in one recording, and the microseconds that they may take together: they share the host's cost of a
/// replay. PyTorch's side has as many in one graph.
const MOST_RUNS: f64 = 20.0;
const RECORDING_US: f64 = 2000.0;
/// The epsilon of BERT's norms.
const EPSILON: f32 = 1e-12;

/// A way in which turbo runs an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As turbo chooses by default.
    Chosen,
    /// The same, with each run enqueued.
    Enqueued,
    /// Rows are reduced by this [`Reduction`]; for softmax and layer norm.
    By(Reduction),
}

/// An operation, ready to be run in some ways.
pub(super) struct Kernels<F: Float> {
    memory: Memory<F>,
    queue: CudaQueue,
    ways: Vec<(Way, Option<Noted>)>,
}

/// A recording of some runs.
struct Noted {
    recording: CudaRecording,
    runs: usize,
}

/// What an operation reads and writes, and the device that runs it.
struct Memory<F: Float> {
    device: Cuda<F>,
    operation: Operation,
    /// In the order of [`inputs`].
    inputs: Vec<CudaBlock>,
    /// Ids, or ends of sequences.
    numbers: CudaBlock,
    weight: Option<<Cuda<F> as Gemm>::Weight>,
    out: CudaBlock,
}

/// Length and seed of each input, the same as on PyTorch's side.
pub(super) fn inputs(operation: &Operation) -> Vec<(u64, u32)> {
    match *operation {
        Operation::Softmax { rows, columns }
        | Operation::Embedding { rows, columns }
        | Operation::Copy { rows, columns }
        | Operation::Product { rows, columns } => vec![(rows * columns, 0)],
        Operation::BiasGelu { rows, columns } => vec![(rows * columns, 0), (columns, 2)],
        Operation::LayerNorm { rows, columns } => vec![(rows * columns, 0), (columns, 3), (columns, 4)],
        Operation::ResidualLayerNorm { rows, columns } => {
            vec![(rows * columns, 0), (columns, 3), (columns, 4), (columns, 2), (rows * columns, 1)]
        }
        Operation::Attention { .. } => vec![(3 * operation.results(), 0)],
    }
}

/// Ids of an embedding, or ends of the sequences of an attention.
fn numbers(operation: &Operation) -> Vec<u32> {
    match operation {
        Operation::Embedding { rows, .. } => (0..*rows).map(|place| id(place, *rows)).collect(),
        Operation::Attention { lens, .. } => {
            let ends = lens.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect()
        }
        _ => Vec::new(),
    }
}

impl<F: Float> Kernels<F> {
    /// Uploads the inputs, runs each way once, and records those ways that can be recorded.
    pub(super) fn new(device: &Cuda<F>, operation: &Operation, ways: &[Way]) -> Result<Self> {
        let mut queue = device.queue()?;
        let mut memory = Memory::new(device, &mut queue, operation)?;
        // All ways run before any is recorded: memory that grows makes a recording stale.
        for &way in ways {
            memory.launch(&mut queue, way)?;
        }
        device.finish(&mut queue)?;
        let mut note = |way: Way| Ok((way, memory.note(&mut queue, way)?));
        let ways = ways.iter().map(|&way| note(way)).collect::<Result<_>>()?;
        Ok(Self { memory, queue, ways })
    }

    /// Microseconds of one run of way number `way`, from at least so many runs.
    pub(super) fn time(&mut self, way: usize, runs: usize) -> Result<f64> {
        let Self { memory, queue, ways } = self;
        let (way, noted) = &ways[way];
        let device = memory.device.clone();
        let mut enqueue = |queue: &mut CudaQueue| -> Result<usize> {
            let Some(Noted { recording, runs }) = noted else {
                memory.launch(queue, *way)?;
                return Ok(1);
            };
            // nothing else uses the device, and all ways were launched before
            ensure!(device.replay(queue, recording)?, "memory moved since {way:?} was noted");
            Ok(*runs)
        };
        enqueue(queue)?; // the one that had its turn before left the caches to itself
        device.finish(queue)?;
        let (begin, mut done) = (Instant::now(), 0);
        while done < runs {
            done += enqueue(queue)?;
        }
        device.finish(queue)?;
        Ok(begin.elapsed().as_secs_f64() * 1e6 / done as f64)
    }

    /// `count` values of the result, evenly spread.
    pub(super) fn sample(&mut self, way: Way, count: u64) -> Result<Vec<f32>> {
        let Self { memory, queue, .. } = self;
        // Earlier values must not pass for a result, so all are set to NaN first.
        let len = memory.operation.results() as usize;
        let nothing = vec![F::from_f32(f32::NAN); len];
        memory.device.upload(queue, &nothing, memory.device.view_mut(&mut memory.out, 0, len)?)?;
        memory.launch(queue, way)?;
        let mut all = nothing;
        memory.device.download(queue, memory.device.view(&memory.out, 0, len)?, &mut all)?;
        Ok(sampled(len as u64, count).map(|place| all[place as usize].to_f32()).collect())
    }
}

impl<F: Float> Memory<F> {
    fn new(device: &Cuda<F>, queue: &mut CudaQueue, operation: &Operation) -> Result<Self> {
        let mut upload = |len: u64, seed| -> Result<CudaBlock> {
            let all: Vec<F> = values(len as usize, seed).map(F::from_f32).collect();
            uploaded(device, queue, &all)
        };
        let inputs =
            inputs(operation).into_iter().map(|(len, seed)| upload(len, seed)).collect::<Result<_>>()?;
        let weight = match *operation {
            Operation::Product { columns, .. } => {
                let (columns, weight) =
                    (columns as usize, values((columns * columns) as usize, 1).collect::<Vec<_>>());
                Some(device.pack(&weight, columns, columns, DType::F32)?)
            }
            _ => None,
        };
        Ok(Self {
            device: device.clone(),
            operation: operation.clone(),
            inputs,
            numbers: uploaded(device, queue, &numbers(operation))?,
            weight,
            out: device.allocate(operation.results() as usize * size_of::<F>())?,
        })
    }

    /// Records many runs of `way`, to be enqueued at once, if that can be done.
    fn note(&mut self, queue: &mut CudaQueue, way: Way) -> Result<Option<Noted>> {
        let device = self.device.clone();
        if way == Way::Enqueued || !device.records() {
            return Ok(None);
        }
        let begin = Instant::now();
        self.launch(queue, way)?;
        device.finish(queue)?;
        let us = begin.elapsed().as_secs_f64() * 1e6;
        let runs = (RECORDING_US / us).clamp(1.0, MOST_RUNS) as usize;
        let work = |queue: &mut CudaQueue| (0..runs).try_for_each(|_| self.launch(queue, way));
        Ok(device.record(queue, work)?.map(|recording| Noted { recording, runs }))
    }

    /// Enqueues one run.
    fn launch(&mut self, queue: &mut CudaQueue, way: Way) -> Result<(), KernelError> {
        let Self { device, operation, inputs, numbers, weight, out } = self;
        let inputs: &[CudaBlock] = inputs;
        let input = |index: usize| -> Result<CudaView<'_, F>, KernelError> {
            Ok(device.view(&inputs[index], 0, inputs[index].bytes() / size_of::<F>())?)
        };
        let norm = || -> Result<_, KernelError> {
            Ok(NormWeights { gain: input(1)?, offset: Some(input(2)?), epsilon: EPSILON })
        };
        let out: CudaViewMut<'_, F> = device.view_mut(out, 0, operation.results() as usize)?;
        match (&*operation, way) {
            (&Operation::Softmax { columns, .. }, Way::By(reduction)) => {
                device.softmax_by(queue, reduction, input(0)?, columns as usize, out)
            }
            (&Operation::Softmax { rows, columns }, _) => {
                let [rows, keys] = [rows, columns].map(|size| size as usize);
                let shape = ScoreShape { batch_size: rows, num_heads: 1, queries: 1, keys };
                let mask = AttentionMask::Full;
                device.scale_mask_softmax(queue, shape, input(0)?, 1.0, None, None, mask, out)
            }
            (Operation::LayerNorm { .. }, Way::By(reduction)) => {
                device.layer_norm_by(queue, reduction, input(0)?, norm()?, out)
            }
            (Operation::LayerNorm { .. }, _) => device.layer_norm(queue, input(0)?, norm()?, out),
            (Operation::ResidualLayerNorm { .. }, _) => {
                let (bias, residual) = (Some(input(3)?), input(4)?);
                device.bias_residual_layer_norm(queue, input(0)?, bias, residual, norm()?, out)
            }
            (Operation::BiasGelu { .. }, _) => {
                device.bias_activate(queue, input(0)?, input(1)?, Activation::GeluErf, out)
            }
            (&Operation::Embedding { rows, .. }, _) => {
                let ids = device.view(numbers, 0, rows as usize)?;
                device.embed(queue, Lookup { table: input(0)?, ids }, out)
            }
            (Operation::Attention { lens, num_heads, head_dim }, _) => {
                let [num_heads, head_dim] = [*num_heads, *head_dim].map(|size| size as usize);
                let shape = AttentionShape {
                    num_heads,
                    num_kv_heads: num_heads,
                    head_dim,
                    scale: 1.0 / (head_dim as f32).sqrt(),
                    mask: AttentionMask::Full,
                    dtype: DType::F32,
                    queries: Queries::All,
                };
                let layout = Layout::Packed { cu_seqlens: device.view(numbers, 0, lens.len() + 1)? };
                let (rows, width) = (input(0)?, num_heads * head_dim);
                let [q, k, v] =
                    [0, 1, 2].map(|part| Columns { rows, first: part * width, row_stride: 3 * width });
                device.attention(queue, shape, layout, q, k, v, None, out)
            }
            (Operation::Copy { .. }, _) => device.scale(queue, input(0)?, 1.0, out),
            (Operation::Product { .. }, _) => {
                let weight = weight.as_ref().expect("a product has one");
                device.gemm(queue, input(0)?, weight, Epilogue::None, out)
            }
        }
    }
}

/// A block that holds `values`.
fn uploaded<F: Float, T: Element>(
    device: &Cuda<F>,
    queue: &mut CudaQueue,
    values: &[T],
) -> Result<CudaBlock> {
    let mut block = device.allocate(size_of_val(values))?;
    let view = device.view_mut(&mut block, 0, values.len())?;
    device.upload(queue, values, view)?;
    Ok(block)
}
