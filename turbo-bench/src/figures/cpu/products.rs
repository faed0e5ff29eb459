//! Products with packed weights, alone: one operation, bias fused, weights that no cache holds.
//!
//! Weights rotate over copies, as the layers of a model do, rows and results lie in memory of the device, and its
//! threads stay awake from one product to the next. Once a round, for each shape and number of threads, the machine shows
//! what it can do. Both factors' conversion is included: what goes in and out is f32 at every precision.

use std::{num::NonZeroUsize, time::Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use turbo_kernels::{Activation, Cpu, CpuOptions, Device, Epilogue, Gemm, Isa};

use super::{Ceilings, Precision};
use crate::{
    figures::numbers::{quantile, rounded},
    progress::Timeline,
};

/// Bytes of all copies of a weight, at its precision: several times the caches of the processors that are known.
const COPIES: usize = 128 << 20;
/// Seconds of a turn.
const TURN: f64 = 0.05;
/// Runs of a turn at least.
const FEWEST: usize = 3;

/// One product.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Product {
    /// Threads that computed it.
    pub threads: usize,
    /// Rows of the first factor.
    pub rows: usize,
    /// Columns of the first factor.
    pub in_features: usize,
    /// Columns of the product.
    pub out_features: usize,
    /// Median with bias, µs.
    pub bias_us: f64,
    /// Median with bias and GELU, µs.
    pub gelu_us: f64,
    /// 10⁹ operations a second, with bias.
    pub giga_ops: f64,
    /// Share of the peak of these threads.
    pub of_peak: f64,
    /// Share of the bandwidth of memory at which the weight is read.
    pub of_memory: f64,
    /// Share of what both allow together.
    pub of_floor: f64,
}

/// Ways to end a product that are compared.
#[derive(Clone, Copy)]
enum End {
    Bias,
    Gelu,
}

/// Milliseconds of each run, of one thread count and row count.
#[derive(Default)]
struct Runs {
    bias: Vec<f64>,
    gelu: Vec<f64>,
}

/// Measures all shapes at all row counts, with one thread and with `threads`, which take turns; gives the ceilings with
/// `threads` too.
///
/// # Errors
/// When there is no memory, no thread, or a product fails.
pub(super) fn run(
    (shapes, rows): (&[(usize, usize)], &[usize]),
    precision: Precision,
    threads: usize,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<(Vec<Product>, Ceilings)> {
    let cpu =
        |threads| Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(Isa::from_env()?) });
    let mut counts = vec![1, threads];
    counts.dedup();
    let cpus = counts.iter().map(|&threads| cpu(threads)).collect::<Result<Vec<_>, _>>()?;
    let mut of_all = Vec::new();
    let mut products = Vec::new();
    for &(k, n) in shapes {
        let mut bench = Bench::new(&cpus[0], [k, n], precision, rows)?;
        let mut runs: Vec<Vec<Runs>> =
            cpus.iter().map(|_| rows.iter().map(|_| Runs::default()).collect()).collect();
        let mut looks = vec![Vec::new(); cpus.len()];
        for _ in 0..rounds {
            for ((cpu, runs), looks) in cpus.iter().zip(&mut runs).zip(&mut looks) {
                looks.push(Ceilings::measure(cpu)?);
                let mut queue = cpu.queue()?;
                for (&rows, runs) in rows.iter().zip(runs) {
                    runs.bias.extend(bench.turn(cpu, &mut queue, rows, End::Bias)?);
                    runs.gelu.extend(bench.turn(cpu, &mut queue, rows, End::Gelu)?);
                }
            }
            timeline.done(1.0 / (rounds * shapes.len()) as f64);
        }
        for ((&threads, looks), runs) in counts.iter().zip(&looks).zip(&runs) {
            let (of_rows, ceilings) = (rows.iter().zip(runs), Ceilings::median(looks));
            products.extend(
                of_rows.map(|(&rows, runs)| product(threads, rows, [k, n], runs, &ceilings, precision)),
            );
        }
        of_all.extend(looks.pop().into_iter().flatten());
    }
    Ok((products, Ceilings::median(&of_all)))
}

fn product(
    threads: usize,
    rows: usize,
    [k, n]: [usize; 2],
    runs: &Runs,
    ceilings: &Ceilings,
    precision: Precision,
) -> Product {
    let seconds = quantile(&runs.bias, 0.5);
    let (operations, weights) = (2.0 * (rows * k * n) as f64, (k * n) as f64);
    let share = |best: f64| rounded(best / seconds);
    Product {
        threads,
        rows,
        in_features: k,
        out_features: n,
        bias_us: rounded(seconds * 1e6),
        gelu_us: rounded(quantile(&runs.gelu, 0.5) * 1e6),
        giga_ops: rounded(operations / seconds / 1e9),
        of_peak: share(ceilings.floor(precision, operations, 0.0)),
        of_memory: share(ceilings.floor(precision, 0.0, weights)),
        of_floor: share(ceilings.floor(precision, operations, weights)),
    }
}

/// Copies of a weight, and room for the factors.
struct Bench {
    shape: [usize; 2],
    weights: Vec<<Cpu as Gemm>::Weight>,
    /// Where a turn goes on in them: the first ones may still be in a cache, if every turn began there.
    next: usize,
    x: <Cpu as Device>::Block,
    out: <Cpu as Device>::Block,
    bias: Vec<f32>,
}

/// Copies of a weight of so many values that no cache holds together.
fn copies(values: usize, precision: Precision) -> usize {
    COPIES.div_ceil(values * precision.bytes() as usize).max(2)
}

impl Bench {
    fn new(cpu: &Cpu, [k, n]: [usize; 2], precision: Precision, rows: &[usize]) -> Result<Self> {
        let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect() };
        let (weight, copies) = (values(n * k), copies(n * k, precision));
        let pack = |_| cpu.pack(&weight, n, k, precision.into());
        let most = rows.iter().copied().max().unwrap_or(1);
        let mut x = cpu.allocate(most * k * size_of::<f32>())?;
        cpu.view_mut(&mut x, 0, most * k)?.copy_from_slice(&values(most * k));
        Ok(Self {
            shape: [k, n],
            weights: (0..copies).map(pack).collect::<Result<_, _>>()?,
            next: 0,
            x,
            out: cpu.allocate(most * n * size_of::<f32>())?,
            bias: values(n),
        })
    }

    /// Seconds of each run of a turn.
    fn turn(
        &mut self,
        cpu: &Cpu,
        queue: &mut <Cpu as Device>::Queue,
        rows: usize,
        end: End,
    ) -> Result<Vec<f64>> {
        let [k, n] = self.shape;
        let epilogue = match end {
            End::Bias => Epilogue::Bias(&self.bias[..]),
            End::Gelu => Epilogue::BiasAct(&self.bias[..], Activation::GeluErf),
        };
        let x = cpu.view(&self.x, 0, rows * k)?;
        let out: &mut [f32] = cpu.view_mut(&mut self.out, 0, rows * n)?;
        let (weights, next) = (&self.weights, &mut self.next);
        cpu.region(queue, |queue| {
            let (mut times, begin) = (Vec::new(), Instant::now());
            while times.len() < FEWEST || begin.elapsed().as_secs_f64() < TURN {
                let weight = &weights[*next];
                *next = (*next + 1) % weights.len();
                let start = Instant::now();
                cpu.gemm(queue, x, weight, epilogue, out)?;
                times.push(start.elapsed().as_secs_f64());
            }
            Ok(times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cache_holds_the_copies_at_any_precision() {
        for precision in Precision::ALL {
            let bytes = copies(768 * 768, precision) * 768 * 768 * precision.bytes() as usize;
            assert!((COPIES..COPIES + (4 << 20)).contains(&bytes), "{}: {bytes}", precision.name());
        }
        assert_eq!(copies(1 << 30, Precision::Int8), 2);
    }
}
