//! Attention at the shapes of published encoders, beside what the machine can do.
//!
//! `cargo bench -p turbo-kernels --bench attention`; `TURBO_CPU=avx2` and so on choose the vectors, and words after
//! `--` the models (`ModernBERT/local`).
//!
//! `peak` is the share of the measured multiply-add peak that the two products reach, `4 · head_dim` operations for
//! each head and each pair of query and key that the mask lets see each other. The floor of the time is those
//! operations at the peak; exponentials, one a pair, come on top and are not counted: at some eleven instructions for
//! a vector of them they alone are a tenth of the products' instructions at `head_dim` 64 and a fifth at 32. bf16 is
//! held to the same peak, of f32. Times are the least of many; short batches are in cache.

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{
    Attention, AttentionMask, Columns, Cpu, CpuOptions, DType, Device, KernelError, Layout, Queries,
    RelativeBias, attention::AttentionShape, limits::Limits,
};

/// What is added to scores by distance.
#[derive(Clone, Copy)]
enum Bias {
    None,
    Buckets,
    Alibi,
}

struct Model {
    name: &'static str,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    mask: AttentionMask,
    bias: Bias,
    dtype: DType,
    /// Batch size and length.
    batches: &'static [(usize, usize)],
}

const BERT: Model = Model {
    name: "BERT-base",
    num_heads: 12,
    num_kv_heads: 12,
    head_dim: 64,
    mask: AttentionMask::Full,
    bias: Bias::None,
    dtype: DType::F32,
    batches: &[
        (1, 5),
        (1, 10),
        (1, 20),
        (1, 40),
        (1, 80),
        (1, 128),
        (1, 200),
        (1, 300),
        (1, 500),
        (20, 10),
        (20, 40),
        (20, 128),
    ],
};
const MODELS: [Model; 9] = [
    BERT,
    Model { name: "MiniLM", head_dim: 32, ..BERT },
    Model { name: "BERT-base/bf16", dtype: DType::Bf16, ..BERT },
    Model { name: "MiniLM/bf16", head_dim: 32, dtype: DType::Bf16, ..BERT },
    Model { name: "MPNet", bias: Bias::Buckets, batches: &[(1, 40), (1, 500), (20, 40)], ..BERT },
    Model {
        name: "JinaBERT",
        bias: Bias::Alibi,
        batches: &[(1, 40), (1, 500), (20, 40), (1, 2048), (1, 8192)],
        ..BERT
    },
    Model { name: "ModernBERT/global", batches: &[(1, 2048), (1, 8192)], ..BERT },
    Model {
        name: "ModernBERT/local",
        mask: AttentionMask::Window { reach: 64 },
        batches: &[(1, 128), (1, 512), (1, 2048), (1, 8192)],
        ..BERT
    },
    Model {
        name: "Qwen3-0.6B",
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 128,
        mask: AttentionMask::Causal,
        batches: &[(1, 40), (1, 500), (20, 40), (1, 2048), (1, 8192)],
        ..BERT
    },
];
/// Seconds for each number.
const SECONDS: f64 = 0.15;

fn main() -> Result<(), KernelError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag: then once is enough
    let bench = arguments.iter().any(|a| a == "--bench");
    let wanted: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None })?;
        let limits = Limits::measure(&cpu)?;
        println!("\n{}: {:.0} GFLOP/s", cpu.name(), limits.flops / 1e9);
        println!(
            "{:>17} {:>9} {:>10} {:>8} {:>8} {:>6}",
            "model", "batch", "us", "ns/row", "GFLOP/s", "peak"
        );
        for model in MODELS.iter().filter(|m| wanted.is_empty() || wanted.iter().any(|w| *w == m.name)) {
            for &(batch_size, seq_len) in model.batches {
                if !bench && seq_len > 512 {
                    continue;
                }
                let time =
                    model.least_seconds(&cpu, batch_size, seq_len, if bench { SECONDS } else { 0.0 })?;
                let flops = (4 * batch_size * model.num_heads * model.head_dim * model.pairs(seq_len)) as f64;
                println!(
                    "{:>17} {:>9} {:>10.1} {:>8.1} {:>8.1} {:>5.1}%",
                    model.name,
                    format!("{batch_size} x {seq_len}"),
                    time * 1e6,
                    time * 1e9 / (batch_size * seq_len) as f64,
                    flops / time / 1e9,
                    flops / time / limits.flops * 100.0
                );
            }
        }
    }
    Ok(())
}

impl Model {
    /// Pairs of a query and a key that it sees, in one sequence.
    fn pairs(&self, seq_len: usize) -> usize {
        (0..seq_len).map(|row| self.mask.visible(row, seq_len).len()).sum()
    }

    /// Least time of one call over `seconds` of them.
    fn least_seconds(
        &self,
        cpu: &Cpu,
        batch_size: usize,
        seq_len: usize,
        seconds: f64,
    ) -> Result<f64, KernelError> {
        let Model { num_heads, num_kv_heads, head_dim, mask, dtype, .. } = *self;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape =
            AttentionShape { num_heads, num_kv_heads, head_dim, scale, mask, dtype, queries: Queries::All };
        let (rows, q_width, kv_width) = (batch_size * seq_len, num_heads * head_dim, num_kv_heads * head_dim);
        let row_stride = q_width + 2 * kv_width;
        let qkv: Vec<f32> = (0..rows * row_stride).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
        let [q, k, v] =
            [0, q_width, q_width + kv_width].map(|first| Columns { rows: &qkv[..], first, row_stride });
        let table = vec![0.5; 32 * num_heads];
        let bias = match self.bias {
            Bias::None => None,
            Bias::Buckets => {
                Some(RelativeBias::Buckets { table: &table[..], num_buckets: 32, max_distance: 128 })
            }
            Bias::Alibi => Some(RelativeBias::Alibi),
        };
        let cu_seqlens: Vec<u32> = (0..=batch_size).map(|b| (b * seq_len) as u32).collect();
        let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
        let mut out = vec![0.0; rows * q_width];
        let mut queue = cpu.queue()?;
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 3 || begin.elapsed().as_secs_f64() < seconds {
            let start = Instant::now();
            cpu.attention(&mut queue, shape, layout, q, k, v, bias, &mut out)?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(times.into_iter().fold(f64::INFINITY, f64::min))
    }
}
