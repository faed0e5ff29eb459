//! The feed-forward part of an encoder layer, over the packed rows of several texts: its speed and its error in every
//! dtype.
//!
//! ```text
//! cargo run --release -p turbo-kernels --example feed_forward                texts of 128, 40, 17 and 6 tokens
//! cargo run --release -p turbo-kernels --example feed_forward -- 500 9       texts of so many tokens
//! ```
//! The sizes are MiniLM's, the values are invented. The last four rows are compared with plain loops in f64. It fails
//! unless one operation gives the same bits as two, and every text the same bits alone as among the others.
//! `TURBO_CPU=portable` selects instructions that every processor has.

use std::{
    error::Error,
    f64::consts::PI,
    time::{Duration, Instant},
};

use turbo_kernels::{
    Activation, Cpu, CpuOptions, DType, Device, Epilogue, FeedForward, Gemm, Hidden, KernelError,
    device::CpuQueue, gemm::PackedWeight, limits, norm::NormWeights,
};

const SIZE: usize = 384;
const WIDE: usize = 1536;
const ACTIVATION: Activation = Activation::GeluTanh;
const PEAK_TIME: Duration = Duration::from_millis(10);
const NORM: NormWeights<&[f32]> = NormWeights { gain: &[1.0; SIZE], offset: None, epsilon: 1e-12 };

fn main() -> Result<(), Box<dyn Error>> {
    let parse = |word: String| word.parse::<usize>().map_err(|error| format!("{word}: {error}"));
    let mut lens = std::env::args().skip(1).map(parse).collect::<Result<Vec<_>, _>>()?;
    if lens.is_empty() {
        lens = vec![128, 40, 17, 6];
    }
    let rows: usize = lens.iter().sum();
    let x = values(rows * SIZE, 1.0); // the rows of a text follow those of the text before
    let (up, down) = (values(WIDE * SIZE, 0.1), values(SIZE * WIDE, 0.1)); // `[outputs, inputs]`, as published
    let last = rows.saturating_sub(4) * SIZE;
    let plain = plain(&x[last..], &up, &down);

    let cpu = Cpu::new(CpuOptions::default())?;
    let mut queue = cpu.queue()?;
    println!("{}, rows of {SIZE}→{WIDE}→{SIZE}: {rows}", cpu.name());
    for dtype in DType::ALL {
        let weights = [cpu.pack(&up, WIDE, SIZE, dtype)?, cpu.pack(&down, SIZE, WIDE, dtype)?];
        let (mut out, mut seconds) = (vec![0.0; x.len()], f64::INFINITY);
        for _ in 0..5 {
            let start = Instant::now();
            as_one(&cpu, &mut queue, &weights, &x, &mut out)?;
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        let rate = (4 * rows * SIZE * WIDE) as f64 / seconds; // a multiply-add is two operations
        let peak = limits::operations(&cpu, dtype, PEAK_TIME)?.into_iter().fold(0.0, f64::max);
        let errors = out[last..].iter().zip(&plain).map(|(out, plain)| (f64::from(*out) - plain).abs());
        let (error, means) = (errors.fold(0.0, f64::max), cpu.computes(dtype));
        let (millis, giga, percent) = (seconds * 1e3, rate / 1e9, rate / peak * 100.0);
        println!(
            "{dtype:4} {millis:7.2} ms {giga:5.0} Gop/s, {percent:2.0} % of the peak, error {error:.0e} ({means})"
        );

        let mut again = vec![0.0; x.len()];
        as_two(&cpu, &mut queue, &weights, &x, &mut again)?;
        assert!(bits(&again) == bits(&out), "two operations give other bits than one");
        again.fill(0.0);
        let mut first = 0;
        for len in &lens {
            let text = first..first + len * SIZE;
            as_one(&cpu, &mut queue, &weights, &x[text.clone()], &mut again[text.clone()])?;
            first = text.end;
        }
        assert!(bits(&again) == bits(&out), "a text alone has other bits than among others");
    }
    Ok(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

type Weights = [PackedWeight; 2];

/// `norm(gelu(x · upᵀ) · downᵀ + x)`; the wide rows are never stored whole.
fn as_one(cpu: &Cpu, q: &mut CpuQueue, w: &Weights, x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    let ([up, down], hidden) = (w, Hidden::Activation(ACTIVATION));
    let (residual, norm) = (Some(x), Some(NORM));
    let layer = FeedForward { up, up_bias: None, hidden, down, down_bias: None, residual, norm };
    cpu.feed_forward(q, x, layer, out)
}

/// The same with the wide rows in memory between two products.
fn as_two(cpu: &Cpu, q: &mut CpuQueue, w: &Weights, x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    let ([up, down], mut wide) = (w, vec![0.0; x.len() / SIZE * WIDE]);
    cpu.gemm(q, x, up, Epilogue::Act(ACTIVATION), &mut wide)?;
    cpu.gemm_norm(q, &wide, down, None, Some(x), NORM, out)
}

/// The same as a textbook writes it.
fn plain(x: &[f32], up: &[f32], down: &[f32]) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
    let gelu = |x: f64| x / 2.0 * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let mut out = Vec::new();
    for row in x.chunks(SIZE) {
        let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
        let wide: Vec<f64> = up.chunks(SIZE).map(|output| gelu(dot(&row, output))).collect();
        let sums: Vec<f64> = down.chunks(WIDE).zip(row).map(|(output, x)| dot(&wide, output) + x).collect();
        let mean = sums.iter().sum::<f64>() / SIZE as f64;
        let variance = sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / SIZE as f64;
        out.extend(sums.iter().map(|sum| (sum - mean) / variance.sqrt()));
    }
    out
}

/// Values from `-most` to `most`, the same every time: a linear congruence.
fn values(len: usize, most: f32) -> Vec<f32> {
    let mut state = len as u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..len).map(|_| next() * most).collect()
}
