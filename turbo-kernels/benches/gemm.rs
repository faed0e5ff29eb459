//! Products with constant weights at the shapes of BERT-base and MiniLM, beside what the machine can do.
//!
//! `cargo bench -p turbo-kernels --bench gemm`; `TURBO_CPU=avx2` and so on choose the kernel, and words after `--`
//! the shapes (`768x3072`; `768x3072x768` is a feed-forward layer).
//!
//! Weights rotate over 192 MB of copies, more than caches hold, as the layers of a model do; the bias is fused, and in
//! a second column GELU as well. Times are the best of many runs: the kernel on an undisturbed machine.
//! `peak` is the share of the measured multiply-add peak; `floor` the share of the rate at which the operations at that
//! peak, or one reading of the weight from memory, whichever takes longer, would be done. Above 100 % of the floor,
//! part of the weights stayed in a cache, or prefetching read them faster than the plain loop that measures the limit.
//!
//! Lines `max` are the vocabulary's product, folded into the maximum of two sequences. Feed-forward layers (GELU,
//! residual, layer norm) are compared with their three parts, one after the other on other copies.

use std::{num::NonZeroUsize, time::Instant};

use turbo_kernels::{
    Activation, Cpu, CpuOptions, DType, Device, Epilogue, FeedForward, Gemm, Hidden, KernelError, Layout,
    Norm, device::CpuQueue, gemm::PackedWeight, limits::Limits, norm::NormWeights,
};

/// `(in_features, out_features)`.
const SHAPES: [(usize, usize); 8] =
    [(768, 768), (768, 2304), (768, 3072), (3072, 768), (384, 384), (384, 1152), (384, 1536), (1536, 384)];
/// `(hidden_size, intermediate_size)`.
const LAYERS: [(usize, usize); 2] = [(768, 3072), (384, 1536)];
const ROWS: [usize; 6] = [1, 5, 10, 40, 128, 500];
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
    let shapes: Vec<String> = arguments.into_iter().filter(|a| !a.starts_with("--")).collect();
    let wanted = |shape: &String| shapes.is_empty() || shapes.contains(shape);
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None })?;
        let (limits, mut queue) = (Limits::measure(&cpu)?, cpu.queue()?);
        println!(
            "\n{}: {:.0} GFLOP/s, {:.1} GB/s from memory, {:.2} us to hand an operation over",
            cpu.name(),
            limits.flops / 1e9,
            limits.memory_bytes / 1e9,
            queue.hand_over().as_secs_f64() * 1e6,
        );
        let mut bench = Bench { cpu, queue: &mut queue, limits, seconds, copies };
        println!("{:>15} {:>5} {:>9} {:>7} {:>7} {:>7}", "in x out", "rows", "us", "peak", "floor", "+ gelu");
        for (k, n) in SHAPES.into_iter().filter(|(k, n)| wanted(&format!("{k}x{n}"))) {
            bench.products(k, n)?;
        }
        if wanted(&format!("{}x{}", VOCABULARY.0, VOCABULARY.1)) {
            bench.vocabulary()?;
        }
        println!(
            "{:>15} {:>5} {:>9} {:>7} {:>7} {:>7}",
            "feed forward", "rows", "us", "peak", "floor", "parts"
        );
        for (size, wide) in LAYERS.into_iter().filter(|(size, wide)| wanted(&format!("{size}x{wide}x{size}")))
        {
            bench.layers(size, wide)?;
        }
    }
    Ok(())
}

struct Bench<'a> {
    cpu: Cpu,
    queue: &'a mut CpuQueue,
    limits: Limits,
    seconds: f64,
    copies: usize,
}

impl Bench<'_> {
    /// With bias, and with bias and GELU.
    fn products(&mut self, k: usize, n: usize) -> Result<(), KernelError> {
        let (cpu, weights, bias) = (self.cpu.clone(), self.weights(n, k)?, values(n));
        for rows in ROWS {
            let (x, mut out) = (values(rows * k), vec![0.0; rows * n]);
            let plain = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                cpu.gemm(queue, &x, &weights[i % weights.len()], Epilogue::Bias(&bias), out)
            };
            let gelu = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                let epilogue = Epilogue::BiasAct(&bias[..], Activation::GeluErf);
                cpu.gemm(queue, &x, &weights[i % weights.len()], epilogue, out)
            };
            let [plain, gelu] = self.best([&plain, &gelu], &mut out)?;
            self.print(&format!("{k}x{n}"), rows, plain, n * k, Some(gelu / plain));
        }
        Ok(())
    }

    /// Alone, and folded into the maximum of two sequences.
    fn vocabulary(&mut self) -> Result<(), KernelError> {
        let (k, n) = VOCABULARY;
        let (cpu, weights, bias) = (self.cpu.clone(), self.weights(n, k)?, values(n));
        for rows in ROWS {
            let (x, mut out) = (values(rows * k), vec![0.0; rows.max(2) * n]);
            let plain = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                let out = &mut out[..rows * n];
                cpu.gemm(queue, &x, &weights[i % weights.len()], Epilogue::Bias(&bias), out)
            };
            let pooled = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                let cu_seqlens = [0, rows as u32 / 2, rows as u32];
                let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
                let weight = &weights[i % weights.len()];
                cpu.gemm_max_pool(queue, layout, &x, weight, Some(&bias), &mut out[..2 * n])
            };
            let [plain, pooled] = self.best([&plain, &pooled], &mut out)?;
            self.print(&format!("{k}x{n}"), rows, plain, n * k, None);
            self.print(&format!("{k}x{n}max"), rows, pooled, n * k, None);
        }
        Ok(())
    }

    /// As one operation, and as three.
    fn layers(&mut self, size: usize, wide: usize) -> Result<(), KernelError> {
        let cpu = self.cpu.clone();
        let (ups, downs) = (self.weights(wide, size)?, self.weights(size, wide)?);
        let (up_bias, row) = (values(wide), values(size));
        let norm = NormWeights { gain: &row[..], offset: Some(&row[..]), epsilon: 1e-12 };
        for rows in ROWS {
            let x = values(rows * size);
            let mut out = vec![0.0; rows * (2 * size + wide)];
            let fused = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                let layer = FeedForward {
                    up: &ups[i % ups.len()],
                    up_bias: Some(&up_bias[..]),
                    hidden: Hidden::Activation(Activation::GeluErf),
                    down: &downs[i % downs.len()],
                    down_bias: Some(&row[..]),
                    residual: Some(&x[..]),
                    norm: Some(norm),
                };
                cpu.feed_forward(queue, &x, layer, &mut out[..rows * size])
            };
            let parts = |queue: &mut CpuQueue, i: usize, out: &mut [f32]| {
                let (out, rest) = out.split_at_mut(rows * size);
                let (sums, hidden) = rest.split_at_mut(rows * size);
                let gelu = Epilogue::BiasAct(&up_bias[..], Activation::GeluErf);
                cpu.gemm(queue, &x, &ups[i % ups.len()], gelu, hidden)?;
                cpu.gemm(queue, hidden, &downs[i % downs.len()], Epilogue::Bias(&row), sums)?;
                cpu.bias_residual_layer_norm(queue, sums, None, &x, norm, out)
            };
            let [fused, parts] = self.best([&fused, &parts], &mut out)?;
            self.print(&format!("{size}x{wide}x{size}"), rows, fused, 2 * size * wide, Some(parts / fused));
        }
        Ok(())
    }

    /// Copies of a weight.
    fn weights(&self, n: usize, k: usize) -> Result<Vec<PackedWeight>, KernelError> {
        let (weight, count) = (values(n * k), (self.copies / (4 * n * k)).max(2));
        (0..count).map(|_| self.cpu.pack(&weight, n, k, DType::F32)).collect()
    }

    /// The shortest time of each of two operations, which take turns with the copies of the weights.
    #[allow(clippy::type_complexity)]
    fn best(
        &mut self,
        operations: [&dyn Fn(&mut CpuQueue, usize, &mut [f32]) -> Result<(), KernelError>; 2],
        out: &mut [f32],
    ) -> Result<[f64; 2], KernelError> {
        let (cpu, seconds) = (self.cpu.clone(), self.seconds);
        cpu.region(self.queue, |queue| {
            let mut best = [f64::MAX; 2];
            let (begin, mut runs) = (Instant::now(), 0);
            while runs < 3 || begin.elapsed().as_secs_f64() < seconds {
                for (operation, best) in operations.iter().zip(&mut best) {
                    let start = Instant::now();
                    operation(queue, runs, out)?;
                    *best = best.min(start.elapsed().as_secs_f64());
                    runs += 1;
                }
            }
            Ok(best)
        })
    }

    /// A line for rows that meet `weights` values each.
    fn print(&self, what: &str, rows: usize, time: f64, weights: usize, beside: Option<f64>) {
        let of_peak = 2.0 * (rows * weights) as f64 / self.limits.flops;
        let floor = of_peak.max((4 * weights) as f64 / self.limits.memory_bytes);
        let beside = beside.map_or(String::new(), |ratio| format!("{ratio:>6.3}x"));
        let (peak, floor) = (of_peak / time * 100.0, floor / time * 100.0);
        println!("{what:>15} {rows:>5} {:>9.1} {peak:>6.1}% {floor:>6.1}% {beside}", time * 1e6);
    }
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect()
}
