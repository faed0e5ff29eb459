//! turbo as a rival at products alone: rows times packed weights, with the bias fused. No cache holds the weights.
//!
//! Runs rotate over copies of the weight, as a model goes from layer to layer. Rows and results lie in memory of the
//! device, whose threads stay awake from one product of a turn to the next. Input and output are f32 at every
//! precision, so the times include their conversion.

use std::{
    io::{BufRead, Write},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use turbo_kernels::{Activation, Cpu, Device, Epilogue, Gemm, KernelError};

use super::{Answer, Linear, Request, bias, converse, turbo, value, weight};
use crate::figures::cpu::Precision;

/// Bytes of all copies of a weight, at its precision: several times the caches of the known processors.
const COPIES: usize = 128 << 20;
/// The fewest runs of a turn.
pub(super) const FEWEST: usize = 3;

/// Answers requests until there are no more.
///
/// # Errors
/// When there is no memory, a product fails, or a request makes no sense.
pub fn serve(device: Cpu, precision: Precision, requests: impl BufRead, answers: impl Write) -> Result<()> {
    let library = turbo::library(&device.name());
    let mut products = Products { device, precision, bench: None };
    let ready = Answer::Ready { library, variant: precision.name().into() };
    converse(&ready, |request| products.answer(request), requests, answers)
}

/// The first and the last row of each of several products with one weight. The first product must have the most rows.
///
/// # Errors
/// When there is no memory, or a product fails.
pub(crate) fn rows(device: &Cpu, precision: Precision, all: &[Linear]) -> Result<Vec<Vec<Vec<f32>>>> {
    let first = *all.first().context("expected a product")?;
    let mut bench = Bench::new(device, precision, first, 1)?;
    all.iter().map(|&linear| bench.rows(device, linear)).collect()
}

/// A device, and what the last request left there.
struct Products {
    device: Cpu,
    precision: Precision,
    bench: Option<Bench>,
}

impl Products {
    fn answer(&mut self, request: &Request) -> Result<Answer> {
        match *request {
            Request::Product { linear, seconds } => {
                let (device, bench) = self.bench(linear)?;
                Ok(Answer::Ms(vec![bench.turn(device, linear, seconds)?]))
            }
            Request::ProductRows { linear_rows } => {
                let (device, bench) = self.bench(linear_rows)?;
                Ok(Answer::Rows(bench.rows(device, linear_rows)?))
            }
            Request::Time { .. } | Request::Rows { .. } => {
                bail!("asked for batches of a model, and there are products alone: `turbo-bench peer MODEL`")
            }
        }
    }

    /// What a product needs. It is made anew if the last product had another weight, or fewer rows.
    fn bench(&mut self, linear: Linear) -> Result<(&Cpu, &mut Bench)> {
        let Linear { rows, in_features, out_features, .. } = linear;
        if rows * in_features * out_features == 0 {
            bail!("expected a product with at least one row, column and value, got {linear:?}");
        }
        if self.bench.as_ref().is_none_or(|bench| !bench.has_room_for(linear)) {
            self.bench = None; // not two at once
            let copies = copies(linear.in_features * linear.out_features, self.precision);
            self.bench = Some(Bench::new(&self.device, self.precision, linear, copies)?);
        }
        Ok((&self.device, self.bench.as_mut().context("it was just made")?))
    }
}

/// How many copies of a weight of so many values are needed so that no cache holds them all.
fn copies(values: usize, precision: Precision) -> usize {
    COPIES.div_ceil(values * precision.bytes() as usize).max(2)
}

/// Copies of a weight, and room for the factors.
struct Bench {
    /// The product with the most rows that there is room for.
    linear: Linear,
    weights: Vec<<Cpu as Gemm>::Weight>,
    /// The copy with which the next turn begins. If every turn began with the first copy, that might still be in a
    /// cache.
    next: usize,
    x: <Cpu as Device>::Block,
    out: <Cpu as Device>::Block,
    bias: Vec<f32>,
}

impl Bench {
    fn new(cpu: &Cpu, precision: Precision, linear: Linear, copies: usize) -> Result<Self> {
        let Linear { rows, in_features: k, out_features: n, .. } = linear;
        let weight: Vec<f32> = (0..n * k).map(|i| weight(i, k)).collect();
        let pack = |_| cpu.pack(&weight, n, k, precision.into());
        let mut x = cpu.allocate(rows * k * size_of::<f32>())?;
        let values: Vec<f32> = (0..rows * k).map(value).collect();
        cpu.view_mut(&mut x, 0, rows * k)?.copy_from_slice(&values);
        Ok(Self {
            linear,
            weights: (0..copies).map(pack).collect::<Result<_, _>>()?,
            next: 0,
            x,
            out: cpu.allocate(rows * n * size_of::<f32>())?,
            bias: (0..n).map(bias).collect(),
        })
    }

    fn has_room_for(&self, Linear { rows, in_features, out_features, .. }: Linear) -> bool {
        (self.linear.in_features, self.linear.out_features) == (in_features, out_features)
            && rows <= self.linear.rows
    }

    /// Milliseconds of each run of a turn.
    fn turn(&mut self, cpu: &Cpu, linear: Linear, seconds: f64) -> Result<Vec<f64>> {
        let Self { weights, next, x, out, bias, .. } = self;
        let epilogue = match linear.gelu {
            false => Epilogue::Bias(&bias[..]),
            true => Epilogue::BiasAct(&bias[..], Activation::GeluErf),
        };
        let x = cpu.view(x, 0, linear.rows * linear.in_features)?;
        let out: &mut [f32] = cpu.view_mut(out, 0, linear.rows * linear.out_features)?;
        cpu.region(&mut cpu.queue()?, |queue| {
            let mut once = || {
                let weight = &weights[*next];
                *next = (*next + 1) % weights.len();
                let start = Instant::now();
                cpu.gemm(queue, x, weight, epilogue, out)?;
                Ok::<_, KernelError>(start.elapsed().as_secs_f64() * 1e3)
            };
            once()?;
            let (mut times, begin) = (Vec::new(), Instant::now());
            while times.len() < FEWEST || begin.elapsed().as_secs_f64() < seconds {
                times.push(once()?);
            }
            Ok(times)
        })
    }

    /// The first and the last row.
    fn rows(&mut self, cpu: &Cpu, linear: Linear) -> Result<Vec<Vec<f32>>> {
        self.turn(cpu, linear, 0.0)?;
        let out: &[f32] = cpu.view(&self.out, 0, linear.rows * linear.out_features)?;
        let row = |i: usize| out[i * linear.out_features..(i + 1) * linear.out_features].to_vec();
        Ok(vec![row(0), row(linear.rows - 1)])
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
