//! Products in every dtype at the shapes of BERT-base and MiniLM, on one thread, beside what the machine can do.
//!
//! `cargo bench -p turbo-kernels --bench gemm_dtypes`; `TURBO_CPU=avx2` and so on choose the kernel, words after `--` the
//! shapes and dtypes (`768x3072`, `int8`).
//!
//! Weights rotate over copies that no cache holds, as the layers of a model do; the bias is fused; activations are f32
//! and packed, rounded or quantised within the time. The time is the best of each copy, averaged over the copies. `peak`
//! is the share of the ceiling of the dtype, `memory` the share of the measured bandwidth at which the weight was read.

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{Cpu, CpuOptions, DType, Device, Epilogue, Gemm, KernelError, limits::Limits};

/// `(in_features, out_features)`.
const SHAPES: [(usize, usize); 6] =
    [(768, 768), (768, 2304), (768, 3072), (3072, 768), (384, 1536), (1536, 384)];
const ROWS: [usize; 6] = [1, 10, 40, 128, 500, 1000];
/// Bytes of all copies of a weight.
const COPIES: usize = 96 << 20;
/// Seconds for each number.
const SECONDS: f64 = 0.3;

fn main() -> Result<(), KernelError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag: then it is enough that it runs
    let (seconds, copies) =
        if arguments.iter().any(|a| a == "--bench") { (SECONDS, COPIES) } else { (0.0, 0) };
    let wanted: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    let wants = |name: &str, is_kind: fn(&str) -> bool| {
        let mut kind = wanted.iter().filter(|word| is_kind(word)).peekable();
        kind.peek().is_none() || kind.any(|word| *word == name)
    };
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: None })?;
    let limits = Limits::measure(&cpu)?;
    println!("{}: {:.1} GB/s from memory", cpu.name(), limits.memory_bytes / 1e9);
    for dtype in DType::ALL {
        if !wants(&dtype.to_string(), |word| word.parse::<DType>().is_ok()) {
            continue;
        }
        let ceiling = ceiling(&limits, dtype);
        println!("\n{dtype}: {}, {:.0} GOP/s", cpu.computes(dtype), ceiling / 1e9);
        println!(
            "{:>12} {:>5} {:>10} {:>8} {:>6} {:>6}",
            "in x out", "rows", "us", "GOP/s", "peak", "memory"
        );
        for (k, n) in SHAPES {
            let shape = format!("{k}x{n}");
            if wants(&shape, |word| word.parse::<DType>().is_err()) {
                for rows in ROWS {
                    let time = best_seconds(&cpu, [rows, n, k], dtype, seconds, copies)?;
                    let rate = 2.0 * (rows * n * k) as f64 / time;
                    let bytes = (n * k * dtype.bytes()) as f64 / time;
                    println!(
                        "{shape:>12} {rows:>5} {:>10.1} {:>8.1} {:>5.1}% {:>5.1}%",
                        time * 1e6,
                        rate / 1e9,
                        rate / ceiling * 100.0,
                        bytes / limits.memory_bytes * 100.0
                    );
                }
            }
        }
    }
    Ok(())
}

fn ceiling(limits: &Limits, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => limits.flops,
        DType::Bf16 => limits.bf16_flops,
        DType::Int8 => limits.int8_ops,
    }
}

/// Best time of a product within `seconds`: the least of each copy in turn, averaged over the copies.
fn best_seconds(
    cpu: &Cpu,
    [rows, n, k]: [usize; 3],
    dtype: DType,
    seconds: f64,
    copies: usize,
) -> Result<f64, KernelError> {
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect() };
    let weight = values(n * k);
    let copies = (copies / (dtype.bytes() * n * k)).max(2);
    let weights: Vec<_> = (0..copies).map(|_| cpu.pack(&weight, n, k, dtype)).collect::<Result<_, _>>()?;
    let bias = values(n);
    // where a model has them: aligned, and in huge pages
    let [mut x, mut out] =
        [cpu.allocate(rows * k * size_of::<f32>())?, cpu.allocate(rows * n * size_of::<f32>())?];
    let (x, out) = (cpu.view_mut(&mut x, 0, rows * k)?, cpu.view_mut::<f32>(&mut out, 0, rows * n)?);
    x.copy_from_slice(&values(rows * k));
    let mut queue = cpu.queue()?;
    let mut best = vec![f64::INFINITY; copies];
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || begin.elapsed().as_secs_f64() < seconds {
        for (weight, best) in weights.iter().zip(&mut best) {
            let start = Instant::now();
            cpu.gemm(&mut queue, x, weight, Epilogue::Bias(&bias), out)?;
            *best = best.min(start.elapsed().as_secs_f64());
        }
        rounds += 1;
    }
    Ok(best.iter().sum::<f64>() / copies as f64)
}
