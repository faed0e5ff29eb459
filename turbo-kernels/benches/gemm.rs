//! Products with constant weights at the shapes of BERT-base and MiniLM, beside what the machine can do.
//!
//! `cargo bench -p turbo-kernels --bench gemm`; `TURBO_CPU=avx2` and so on choose the kernel, and words after `--`
//! the shapes (`768x3072`).
//!
//! Weights rotate over 192 MB of copies, more than caches hold, as the layers of a model do; the bias is fused; times
//! are medians. `peak` is the share of the measured multiply-add peak; `floor` the share of the rate at which the
//! operations at that peak, or one reading of the weight from memory, whichever takes longer, would be done. Above
//! 100 % of the floor, part of the weights stayed in a cache.
//!
//! The last lines of each table are the vocabulary's product, folded into the maximum of two sequences (`max`).

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{Cpu, CpuOptions, DType, Device, Epilogue, Gemm, KernelError, Layout, limits::Limits};

/// `(in_features, out_features)`.
const SHAPES: [(usize, usize); 8] =
    [(768, 768), (768, 2304), (768, 3072), (3072, 768), (384, 384), (384, 1152), (384, 1536), (1536, 384)];
const ROWS: [usize; 5] = [1, 10, 40, 128, 500];
/// Of a masked-language head.
const VOCABULARY: (usize, usize) = (768, 30_522);
/// Bytes of all copies of a weight.
const COPIES: usize = 192 << 20;
/// Seconds for each number.
const SECONDS: f64 = 0.15;

fn main() -> Result<(), KernelError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag: then it is enough that it runs
    let (seconds, copies) =
        if arguments.iter().any(|a| a == "--bench") { (SECONDS, COPIES) } else { (0.0, 0) };
    let wanted: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None })?;
        let limits = Limits::measure(&cpu)?;
        println!(
            "\n{}: {:.0} GFLOP/s, {:.1} GB/s from memory",
            cpu.name(),
            limits.flops / 1e9,
            limits.memory_bytes / 1e9
        );
        println!(
            "{:>12} {:>5} {:>10} {:>8} {:>6} {:>6}",
            "in x out", "rows", "us", "GFLOP/s", "peak", "floor"
        );
        let products =
            SHAPES.iter().map(|&shape| (shape, false)).chain([(VOCABULARY, false), (VOCABULARY, true)]);
        for ((k, n), pooled) in products {
            let shape = format!("{k}x{n}{}", if pooled { "max" } else { "" });
            if wanted.is_empty() || wanted.contains(&&shape) {
                for rows in ROWS {
                    let time = median_seconds(&cpu, [rows, n, k], pooled, seconds, copies)?;
                    let flops = 2.0 * (rows * n * k) as f64;
                    let floor = (flops / limits.flops).max((4 * n * k) as f64 / limits.memory_bytes);
                    println!(
                        "{shape:>12} {rows:>5} {:>10.1} {:>8.1} {:>5.1}% {:>5.1}%",
                        time * 1e6,
                        flops / time / 1e9,
                        flops / time / limits.flops * 100.0,
                        floor / time * 100.0
                    );
                }
            }
        }
    }
    Ok(())
}

/// Median time of one product over `seconds` of them, with `copies` bytes of weights.
fn median_seconds(
    cpu: &Cpu,
    [rows, n, k]: [usize; 3],
    pooled: bool,
    seconds: f64,
    copies: usize,
) -> Result<f64, KernelError> {
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect() };
    let weights: Vec<_> = {
        let weight = values(n * k);
        (0..(copies / (4 * n * k)).max(2))
            .map(|_| cpu.pack(&weight, n, k, DType::F32))
            .collect::<Result<_, _>>()?
    };
    let (x, bias, mut out) = (values(rows * k), values(n), vec![0.0; rows.max(2) * n]);
    let mut queue = cpu.queue()?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < seconds {
        let weight = &weights[times.len() % weights.len()];
        let start = Instant::now();
        if pooled {
            let cu_seqlens = [0, rows as u32 / 2, rows as u32];
            let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
            cpu.gemm_max_pool(&mut queue, layout, &x, weight, Some(&bias), &mut out[..2 * n])?;
        } else {
            cpu.gemm(&mut queue, &x, weight, Epilogue::Bias(&bias), &mut out[..rows * n])?;
        }
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
