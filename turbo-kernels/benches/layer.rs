//! An encoder layer of BERT-base, operation by operation, told apart by how far from each other the two cores are.
//!
//! `cargo bench -p turbo-kernels --bench layer`; words after `--` are numbers of tokens (`128 200`). Twelve layers with
//! weights of their own follow each other, as in the model. The hypervisor of a virtual machine moves its cores: where
//! a cache line takes [`FAR`] or longer to the other core and back, they share no cache. Runs of twelve layers during
//! which the cores were moved are left out. Times are medians, percentages the shares of the multiply-add peak of the
//! dtype of the weights; attention of int8 is in bf16, as in the model.

use std::{
    array::from_fn,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use turbo_kernels::{
    Activation, Attention, AttentionMask, Columns, Cpu, CpuOptions, DType, Device, Epilogue, FeedForward,
    Gemm, Hidden, KernelError, Layout, Queries,
    attention::AttentionShape,
    device::CpuQueue,
    gemm::PackedWeight,
    limits::{operations, round_trip},
    norm::NormWeights,
};

const SIZE: usize = 768;
const WIDE: usize = 3072;
const HEADS: usize = 12;
const LAYERS: usize = 12;
/// Tokens of one text, unless words say otherwise.
const TOKENS: [usize; 2] = [128, 200];
const OPERATIONS: [&str; 4] = ["qkv", "attention", "out, norm", "feed forward"];
const FAR: Duration = Duration::from_nanos(120);
/// For each number of tokens and each dtype.
const SECONDS: f64 = 20.0;
const PEAK_TIME: Duration = Duration::from_millis(50);

fn main() -> Result<(), KernelError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag: then once is enough
    let seconds = if arguments.iter().any(|a| a == "--bench") { SECONDS } else { 0.0 };
    let words: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: None })?;
    for dtype in DType::ALL {
        let encoder = Encoder::new(&cpu, dtype)?;
        let peak = operations(&cpu, dtype, PEAK_TIME)?.into_iter().fold(0.0, f64::max);
        for &tokens in if words.is_empty() { &TOKENS[..] } else { &words } {
            let times = encoder.times(tokens, seconds)?;
            for (distance, mut times) in ["near", "far"].into_iter().zip(times) {
                print(&format!("{dtype}, {tokens} tokens, {distance}"), tokens, peak, &mut times);
            }
        }
    }
    Ok(())
}

/// Seconds of each operation, layer by layer.
type Times = [Vec<f64>; OPERATIONS.len()];

struct Encoder<'a> {
    cpu: &'a Cpu,
    /// Of each layer: query, key and value; output; up; down.
    weights: Vec<[PackedWeight; 4]>,
    /// Of all layers.
    bias: Vec<f32>,
    dtype: DType,
}

impl Encoder<'_> {
    fn new(cpu: &Cpu, dtype: DType) -> Result<Encoder<'_>, KernelError> {
        let pack = |n: usize, k: usize| cpu.pack(&values(n * k), n, k, dtype);
        let layer = |_| Ok([pack(3 * SIZE, SIZE)?, pack(SIZE, SIZE)?, pack(WIDE, SIZE)?, pack(SIZE, WIDE)?]);
        let weights = (0..LAYERS).map(layer).collect::<Result<_, KernelError>>()?;
        Ok(Encoder { cpu, weights, bias: values(WIDE), dtype })
    }

    /// While the cores were near each other, and while they were far.
    fn times(&self, tokens: usize, seconds: f64) -> Result<[Times; 2], KernelError> {
        let mut queue = self.cpu.queue()?;
        // where a model has them, in huge pages: rows in small ones take some per cent more
        let rows = |width| self.cpu.allocate(tokens * width * SIZE * size_of::<f32>());
        let [mut x, mut qkv, mut context, mut sum] = [rows(1)?, rows(3)?, rows(1)?, rows(1)?];
        let view = |block, width| self.cpu.view_mut::<f32>(block, 0, tokens * width * SIZE);
        let (x, qkv) = (view(&mut x, 1)?, view(&mut qkv, 3)?);
        let (context, sum) = (view(&mut context, 1)?, view(&mut sum, 1)?);
        x.copy_from_slice(&values(tokens * SIZE));
        let mut times: [Times; 2] = from_fn(|_| from_fn(|_| Vec::new()));
        let is_far = || Ok::<_, KernelError>(round_trip(self.cpu)?.is_some_and(|time| time >= FAR));
        let (begin, mut before) = (Instant::now(), is_far()?);
        loop {
            let run = self.cpu.region(&mut queue, |queue| {
                let layer = |weights| self.layer(queue, weights, x, [qkv, context, sum]);
                self.weights.iter().map(layer).collect::<Result<Vec<_>, KernelError>>()
            })?;
            let after = is_far()?;
            if before == after {
                for (i, time) in run.iter().flat_map(|times| times.iter().enumerate()) {
                    times[usize::from(after)][i].push(*time);
                }
            }
            before = after;
            if begin.elapsed().as_secs_f64() >= seconds {
                return Ok(times);
            }
        }
    }

    /// `x` becomes what the layer makes of it.
    fn layer(
        &self,
        queue: &mut CpuQueue,
        [qkv_weight, out_weight, up, down]: &[PackedWeight; 4],
        x: &mut [f32],
        [qkv, context, sum]: [&mut [f32]; 3],
    ) -> Result<[f64; OPERATIONS.len()], KernelError> {
        let (cpu, tokens) = (self.cpu, x.len() / SIZE);
        let (wide, row) = (&self.bias[..], &self.bias[..SIZE]);
        let norm = NormWeights { gain: row, offset: Some(row), epsilon: 1e-12 };
        let mut marks = [Instant::now(); OPERATIONS.len() + 1];
        cpu.gemm(queue, x, qkv_weight, Epilogue::Bias(&wide[..3 * SIZE]), qkv)?;
        marks[1] = Instant::now();
        let shape = AttentionShape {
            num_heads: HEADS,
            num_kv_heads: HEADS,
            head_dim: SIZE / HEADS,
            scale: 0.125,
            mask: AttentionMask::Full,
            dtype: if self.dtype == DType::F32 { DType::F32 } else { DType::Bf16 },
            queries: Queries::All,
        };
        let [q, k, v] =
            [0, SIZE, 2 * SIZE].map(|first| Columns { rows: &qkv[..], first, row_stride: 3 * SIZE });
        let cu_seqlens = [0, tokens as u32];
        cpu.attention(queue, shape, Layout::Packed { cu_seqlens: &cu_seqlens[..] }, q, k, v, None, context)?;
        marks[2] = Instant::now();
        cpu.gemm_norm(queue, context, out_weight, Some(row), Some(&*x), norm, sum)?;
        marks[3] = Instant::now();
        let layer = FeedForward {
            up,
            up_bias: Some(wide),
            hidden: Hidden::Activation(Activation::GeluErf),
            down,
            down_bias: Some(row),
            residual: Some(&*sum),
            norm: Some(norm),
        };
        cpu.feed_forward(queue, sum, layer, x)?;
        marks[4] = Instant::now();
        Ok(from_fn(|i| (marks[i + 1] - marks[i]).as_secs_f64()))
    }
}

/// Nothing, where nothing was measured.
fn print(what: &str, tokens: usize, peak: f64, times: &mut Times) {
    if times[0].is_empty() {
        return;
    }
    println!("\n{what}: {} layers", times[0].len());
    let per_token = [2 * 3 * SIZE * SIZE, 4 * tokens * SIZE, 2 * SIZE * SIZE, 4 * SIZE * WIDE];
    for ((name, times), operations) in OPERATIONS.into_iter().zip(times).zip(per_token) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let of_peak = (operations * tokens) as f64 / median / peak * 100.0;
        println!("{name:>15} {:>9.1} us {of_peak:>6.1}%", median * 1e6);
    }
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect()
}
