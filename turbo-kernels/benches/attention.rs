//! Attention at the shapes of BERT-base and MiniLM, beside what the machine can do.
//!
//! `cargo bench -p turbo-kernels --bench attention`; `TURBO_CPU=avx2` and so on choose the vectors.
//!
//! `peak` is the share of the measured multiply-add peak that the two products reach, `4 · seq_len² · head_dim`
//! operations a head. The floor of the time is those operations at the peak; exponentials, `seq_len²` a head, come on
//! top and are not counted: at some sixteen instructions for a vector of them they alone are a tenth of the products'
//! instructions at `head_dim` 64 and a fifth at 32. Times are medians; everything is in cache.

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{
    Attention, AttentionMask, Columns, Cpu, CpuOptions, Device, KernelError, Layout,
    attention::AttentionShape, limits::Limits,
};

/// `(model, head_dim)`; both have 12 heads.
const MODELS: [(&str, usize); 2] = [("BERT-base", 64), ("MiniLM", 32)];
const NUM_HEADS: usize = 12;
/// Sequences of one length.
const BATCHES: [(usize, usize); 8] =
    [(1, 5), (1, 10), (1, 40), (1, 128), (1, 500), (20, 10), (20, 40), (20, 128)];
/// Seconds for each number.
const SECONDS: f64 = 0.15;

fn main() -> Result<(), KernelError> {
    // `cargo test --benches` runs this without the flag: then once is enough
    let seconds = if std::env::args().any(|a| a == "--bench") { SECONDS } else { 0.0 };
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None })?;
        let limits = Limits::measure(&cpu)?;
        println!("\n{}: {:.0} GFLOP/s", cpu.name(), limits.flops / 1e9);
        println!("{:>10} {:>9} {:>10} {:>8} {:>6}", "model", "batch", "us", "GFLOP/s", "peak");
        for (model, head_dim) in MODELS {
            for (batch_size, seq_len) in BATCHES {
                let time = median_seconds(&cpu, head_dim, batch_size, seq_len, seconds)?;
                let flops = (4 * batch_size * NUM_HEADS * seq_len * seq_len * head_dim) as f64;
                println!(
                    "{model:>10} {:>9} {:>10.1} {:>8.1} {:>5.1}%",
                    format!("{batch_size} x {seq_len}"),
                    time * 1e6,
                    flops / time / 1e9,
                    flops / time / limits.flops * 100.0
                );
            }
        }
    }
    Ok(())
}

/// Median time of one call over `seconds` of them.
fn median_seconds(
    cpu: &Cpu,
    head_dim: usize,
    batch_size: usize,
    seq_len: usize,
    seconds: f64,
) -> Result<f64, KernelError> {
    let shape = AttentionShape {
        num_heads: NUM_HEADS,
        num_kv_heads: NUM_HEADS,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        mask: AttentionMask::Full,
    };
    let values = batch_size * seq_len * NUM_HEADS * head_dim;
    let qkv: Vec<f32> = (0..3 * values).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    let cu_seqlens: Vec<u32> = (0..=batch_size).map(|b| (b * seq_len) as u32).collect();
    let hidden_size = NUM_HEADS * head_dim;
    let part = |first| Columns { rows: &qkv[..], first: first * hidden_size, row_stride: 3 * hidden_size };
    let mut out = vec![0.0; values];
    let mut queue = cpu.queue()?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
        cpu.attention(&mut queue, shape, layout, part(0), part(1), part(2), None, &mut out)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
