//! Products with packed weights, alone: one operation, bias fused, weights that no cache holds.
//!
//! Once a round, for each shape and number of threads, the ceilings of the machine are measured. How a rival multiplies
//! is described where it does ([`crate::rival::products`], `peers/products_peer.py`).

use std::thread::sleep;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use turbo_kernels::{Cpu, CpuOptions, Isa};

use super::{Agreement, Ceilings, Precision, Stage, TURBO, turn::PAUSE};
use crate::{
    figures::{
        agree,
        numbers::{quantile, rounded},
    },
    progress::Timeline,
    rival::{Linear, Rival, products},
};

/// Seconds of a turn.
const TURN: f64 = 0.05;

/// The least cosine of a row with turbo's in f32 that counts as the same. f32 sums in another order stay within 1e-11; the
/// others round both factors once, which costs some 1e-6 of these values.
pub(super) fn least_cosine(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1.0 - 1e-9,
        Precision::Bf16 | Precision::Int8 => 1.0 - 1e-5,
    }
}

/// One product, by one rival.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Product {
    /// The engine that computed it.
    #[serde(default = "turbo")]
    pub rival: String,
    /// Threads that computed it.
    pub threads: usize,
    /// Rows of the first factor.
    pub rows: usize,
    /// Columns of the first factor.
    pub in_features: usize,
    /// Columns of the product.
    pub out_features: usize,
    /// With bias, µs: the median of the rounds' medians.
    pub bias_us: f64,
    /// With bias and GELU, µs.
    pub gelu_us: f64,
    /// Times as long as turbo takes, with bias: the median of the rounds; of others alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_turbo: Option<f64>,
    /// 10⁹ operations a second, with bias.
    pub giga_ops: f64,
    /// Share of the peak of these threads.
    pub of_peak: f64,
    /// Share of the bandwidth of memory at which the weight is read.
    pub of_memory: f64,
    /// Share of what both allow together.
    pub of_floor: f64,
}

/// The engine that computed the products of older records.
fn turbo() -> String {
    TURBO.to_owned()
}

/// Milliseconds of a rival at one number of rows: the median of each round's turn. A round's rivals are compared with each
/// other, for from round to round cores may be moved.
#[derive(Clone, Default)]
struct Turns {
    bias: Vec<f64>,
    gelu: Vec<f64>,
}

/// The rivals that multiply with so many threads, turbo first, and a device to measure the ceilings of these threads.
struct Group {
    threads: usize,
    device: Cpu,
    rivals: Vec<Rival>,
}

/// What is multiplied.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    /// `(in_features, out_features)` of the weights.
    pub shapes: &'a [(usize, usize)],
    /// Row counts.
    pub rows: &'a [usize],
    /// How.
    pub precision: Precision,
    /// The other engines that multiply.
    pub others: &'a [String],
}

/// Measures all shapes at all row counts, with one thread and with `threads`; gives the ceilings with `threads` too, and
/// how near all engines are to turbo in f32.
///
/// # Errors
/// When there is no memory, no thread, a rival does not start, ends, or computes something else.
pub(super) fn run(
    plan: Plan<'_>,
    threads: usize,
    stage: &impl Stage,
    rounds: usize,
    timeline: &mut Timeline,
) -> Result<(Vec<Product>, Ceilings, Vec<Agreement>)> {
    let mut counts = vec![1, threads];
    counts.dedup();
    let mut groups =
        counts.iter().map(|&threads| Group::new(plan, threads, stage)).collect::<Result<Vec<_>>>()?;
    let mut agreement = Vec::new();
    let mut of_all = Vec::new();
    let mut products = Vec::new();
    for &shape in plan.shapes {
        agree_on(plan, shape, &mut groups, &mut agreement)?;
        let mut looks = vec![Vec::new(); groups.len()];
        let mut turns: Vec<Vec<Vec<Turns>>> =
            groups.iter().map(|it| vec![vec![Turns::default(); plan.rows.len()]; it.rivals.len()]).collect();
        for round in 0..rounds {
            for ((group, looks), turns) in groups.iter_mut().zip(&mut looks).zip(&mut turns) {
                looks.push(Ceilings::measure(&group.device)?);
                group.round(plan.rows, shape, round, turns)?;
            }
            timeline.done(1.0 / (rounds * plan.shapes.len()) as f64);
        }
        for ((group, looks), turns) in groups.iter().zip(&looks).zip(&turns) {
            let ceilings = Ceilings::median(looks);
            for (rival, of_rival) in group.rivals.iter().zip(turns) {
                for (place, &rows) in plan.rows.iter().enumerate() {
                    let who = (rival.name(), group.threads);
                    let times = (&of_rival[place], &turns[0][place]);
                    products.push(product(who, linear(rows, shape), times, &ceilings, plan.precision));
                }
            }
        }
        of_all.extend(looks.pop().into_iter().flatten());
    }
    Ok((products, Ceilings::median(&of_all), agreement))
}

/// With bias alone.
fn linear(rows: usize, (in_features, out_features): (usize, usize)) -> Linear {
    Linear { rows, in_features, out_features, gelu: false }
}

impl Group {
    fn new(plan: Plan<'_>, threads: usize, stage: &impl Stage) -> Result<Self> {
        let count = std::num::NonZeroUsize::new(threads);
        let device = Cpu::new(CpuOptions { threads: count, isa: Some(Isa::from_env()?) })?;
        let names = std::iter::once(TURBO).chain(plan.others.iter().map(String::as_str));
        let rivals = names.map(|rival| stage.multiply(rival, plan.precision, threads));
        Ok(Self { threads, device, rivals: rivals.collect::<Result<_>>()? })
    }

    /// A turn of each rival at each number of rows, with each end; their order changes from round to round.
    fn round(
        &mut self,
        rows: &[usize],
        shape: (usize, usize),
        round: usize,
        turns: &mut [Vec<Turns>],
    ) -> Result<()> {
        let first = round % self.rivals.len();
        for (place, &rows) in rows.iter().enumerate() {
            let mut all: Vec<_> = self.rivals.iter_mut().zip(turns.iter_mut()).collect();
            all.rotate_left(first);
            for (rival, turns) in all {
                let bias = linear(rows, shape);
                sleep(PAUSE);
                turns[place].bias.push(quantile(&rival.product(bias, TURN)?, 0.5));
                turns[place].gelu.push(quantile(&rival.product(Linear { gelu: true, ..bias }, TURN)?, 0.5));
            }
        }
        Ok(())
    }
}

/// Whether all compute the same at a shape, with each number of rows and each end: another may have a kernel, and a layout
/// of the weight, for each. The most rows come first: a rival that makes room for rows makes it once.
fn agree_on(
    plan: Plan<'_>,
    shape: (usize, usize),
    groups: &mut [Group],
    agreement: &mut Vec<Agreement>,
) -> Result<()> {
    let mut rows = plan.rows.to_vec();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    let both = |rows| [false, true].map(|gelu| Linear { gelu, ..linear(rows, shape) });
    let all: Vec<Linear> = rows.into_iter().flat_map(both).collect();
    let device = &groups.last().context("somebody multiplies")?.device;
    let expected = products::rows(device, Precision::F32, &all)?;
    for (linear, expected) in all.into_iter().zip(&expected) {
        let mut found = Vec::new();
        for rival in groups.iter_mut().flat_map(|group| &mut group.rivals) {
            let rows = rival.product_rows(linear)?;
            let about = (rival.name(), rival.library());
            let agreement = agree::judge(about, expected, &rows, least_cosine(plan.precision));
            found.push(agreement.with_context(|| format!("products {} {linear:?}", plan.precision.name()))?);
        }
        keep_the_worse(agreement, found);
    }
    Ok(())
}

/// Keeps the worse agreement of each rival that was compared again.
fn keep_the_worse(all: &mut Vec<Agreement>, again: Vec<Agreement>) {
    if all.is_empty() {
        *all = again;
        return;
    }
    for (agreement, again) in all.iter_mut().zip(again) {
        agreement.cosine = agreement.cosine.min(again.cosine);
        agreement.difference = agreement.difference.max(again.difference);
    }
}

fn product(
    (rival, threads): (&str, usize),
    Linear { rows, in_features: k, out_features: n, .. }: Linear,
    (turns, of_turbo): (&Turns, &Turns),
    ceilings: &Ceilings,
    precision: Precision,
) -> Product {
    let seconds = quantile(&turns.bias, 0.5) / 1e3;
    let beside: Vec<f64> = turns.bias.iter().zip(&of_turbo.bias).map(|(ms, turbo)| ms / turbo).collect();
    let (operations, weights) = (2.0 * (rows * k * n) as f64, (k * n) as f64);
    let share = |best: f64| rounded(best / seconds);
    Product {
        rival: rival.to_owned(),
        threads,
        rows,
        in_features: k,
        out_features: n,
        bias_us: rounded(seconds * 1e6),
        gelu_us: rounded(quantile(&turns.gelu, 0.5) * 1e3),
        times_turbo: (rival != TURBO).then(|| rounded(quantile(&beside, 0.5))),
        giga_ops: rounded(operations / seconds / 1e9),
        of_peak: share(ceilings.floor(precision, operations, 0.0)),
        of_memory: share(ceilings.floor(precision, 0.0, weights)),
        of_floor: share(ceilings.floor(precision, operations, weights)),
    }
}
