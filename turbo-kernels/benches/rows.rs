//! What stands between the products, at 128 rows of BERT-base and one thread, beside a copy of the same bytes.
//!
//! `cargo bench -p turbo-kernels --bench rows`; `TURBO_CPU=avx2` and so on choose the vectors.
//!
//! `vs copy` is the time over that of copying as many values as the kernel writes, in the same cache: the floor of any
//! kernel that reads and writes once. Times are the least of many.

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{
    Activation, AttentionMask, BiasAct, Columns, Cpu, CpuOptions, Device, HeadSizes, KernelError, Layout,
    Norm, Pool, Pooling, Rotary, Softmax, device::CpuQueue, norm::NormWeights, softmax::ScoreShape,
};

const ROWS: usize = 128;
const HIDDEN_SIZE: usize = 768;
const HEAD_DIM: usize = 64;
const INTERMEDIATE_SIZE: usize = 3072;
/// Scores of 12 heads.
const SCORES: ScoreShape = ScoreShape { batch_size: 1, num_heads: 12, queries: ROWS, keys: ROWS };
/// Seconds for each number.
const SECONDS: f64 = 0.1;

fn main() -> Result<(), KernelError> {
    // `cargo test --benches` runs this without the flag: then once is enough
    let seconds = if std::env::args().any(|a| a == "--bench") { SECONDS } else { 0.0 };
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: None })?;
    let mut queue = cpu.queue()?;
    println!(
        "{}\n{:>26} {:>10} {:>10} {:>10} {:>8}",
        cpu.name(),
        "kernel",
        "us",
        "ns/row",
        "ns/value",
        "vs copy"
    );
    let mut run = |name: &str, len: usize, kernel: Kernel<'_>| -> Result<(), KernelError> {
        let (time, copy) =
            (least(&mut queue, len, seconds, kernel)?, least(&mut queue, len, seconds, &copy)?);
        let (row, value) = (time * 1e9 / ROWS as f64, time * 1e9 / len as f64);
        println!("{name:>26} {:>10.1} {row:>10.1} {value:>10.3} {:>8.1}", time * 1e6, time / copy);
        Ok(())
    };
    let (hidden, wide) = (ROWS * HIDDEN_SIZE, ROWS * INTERMEDIATE_SIZE);
    for (name, activation) in [
        ("gelu (erf)", Activation::GeluErf),
        ("gelu (tanh)", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("tanh", Activation::Tanh),
        ("sigmoid", Activation::Sigmoid),
        ("ln(1 + relu)", Activation::Log1pRelu),
    ] {
        run(name, wide, &|queue, x, out| cpu.activate(queue, x, activation, out))?;
    }
    let ones = vec![1.0; HIDDEN_SIZE];
    run("gate (gelu), 2 in, 1 out", wide, &|queue, x, out| {
        let (n, half) = (INTERMEDIATE_SIZE / 2, out.len() / 2);
        cpu.gate(queue, Activation::GeluErf, x, n, &mut out[..half])
    })?;
    let weights = NormWeights { gain: &ones[..], offset: Some(&ones[..]), epsilon: 1e-12 };
    run("layer_norm", hidden, &|queue, x, out| cpu.layer_norm(queue, x, weights, out))?;
    run("bias_residual_layer_norm", hidden, &|queue, x, out| {
        cpu.bias_residual_layer_norm(queue, x, Some(&ones), x, weights, out)
    })?;
    run("rms_norm", hidden, &|queue, x, out| cpu.rms_norm(queue, x, &ones, 1e-6, out))?;
    let heads = HeadSizes { num_heads: HIDDEN_SIZE / HEAD_DIM, head_dim: HEAD_DIM };
    run("head_rms_norm", hidden, &|queue, x, out| {
        cpu.head_rms_norm(queue, heads, Columns::all(x, HIDDEN_SIZE), &ones[..HEAD_DIM], 1e-6, out)
    })?;
    let angles = vec![0.5; ROWS * HEAD_DIM];
    let layout = || Layout::Packed { cu_seqlens: &[0, ROWS as u32][..] };
    run("rotary", hidden, &|queue, x, out| {
        cpu.rotary(queue, heads, layout(), Columns::all(x, HIDDEN_SIZE), &angles, out)
    })?;
    for (name, pooling) in
        [("mean", Pooling::Mean), ("max", Pooling::Max), ("weighted mean", Pooling::WeightedMean)]
    {
        run(name, hidden, &|queue, x, out| cpu.pool(queue, pooling, layout(), x, &mut out[..HIDDEN_SIZE]))?;
    }
    run("scale_mask_softmax", SCORES.num_heads * ROWS * ROWS, &|queue, x, out| {
        cpu.scale_mask_softmax(queue, SCORES, x, 0.125, None, Some(&[ROWS as u32]), AttentionMask::Full, out)
    })?;
    run("l2_normalize", hidden, &|queue, x, out| cpu.l2_normalize(queue, HIDDEN_SIZE, x, out))
}

type Kernel<'a> = &'a dyn Fn(&mut CpuQueue, &[f32], &mut [f32]) -> Result<(), KernelError>;

fn copy(_: &mut CpuQueue, x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    out.copy_from_slice(x);
    Ok(())
}

/// Least time of one call on `len` values over `seconds` of them.
fn least(queue: &mut CpuQueue, len: usize, seconds: f64, kernel: Kernel<'_>) -> Result<f64, KernelError> {
    let x: Vec<f32> = (0..len).map(|i| (i % 251) as f32 / 25.0 - 5.0).collect();
    let mut out = vec![0.0; len];
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        kernel(queue, &x, &mut out)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(times.into_iter().fold(f64::INFINITY, f64::min))
}
