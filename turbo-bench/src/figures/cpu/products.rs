//! Products with packed weights alone: one operation, with the bias fused. No cache holds the weights.
//!
//! The peak has a turn at each shape and number of rows, like a rival. The other ceilings of the machine are measured
//! once a round, for each shape and number of threads. How a rival multiplies is described where it does
//! ([`crate::rival::products`], `peers/products_peer.py`).

use std::{thread::sleep, time::Duration};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use turbo_kernels::{Cpu, CpuOptions, Isa};

use super::{Agreement, Ceilings, Precision, Stage, TURBO, ceilings::peak_turn, turn::PAUSE};
use crate::{
    figures::{
        agree,
        numbers::{quantile, rounded},
        order::order,
    },
    progress::Timeline,
    rival::{Linear, Rival, products},
};

/// Seconds of a turn.
const TURN: f64 = 0.05;

/// The smallest cosine of a row with turbo's in f32 that counts as the same. Sums of f32 in another order stay within
/// 1e-11. The other precisions round both factors once, which costs about 1e-6 with these values.
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
    /// Time over that of turbo, with bias: the median of the rounds. `None` for turbo itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_turbo: Option<f64>,
    /// 10⁹ operations per second, with bias.
    pub giga_ops: f64,
    /// Share of the peak of these threads.
    pub of_peak: f64,
    /// Share of the memory bandwidth at which the weight is read.
    pub of_memory: f64,
    /// Share of the floor, which is what both ceilings allow together.
    pub of_floor: f64,
}

/// The rival of products in older records.
fn turbo() -> String {
    TURBO.to_owned()
}

/// Milliseconds of a rival at one number of rows: the median of each round's turn. Rivals are compared with each other
/// and with the peak within a round, because cores may be moved from round to round.
#[derive(Clone, Default)]
struct Turns {
    bias: Vec<f64>,
    gelu: Vec<f64>,
}

/// All rounds of a group at one number of rows.
struct Turned {
    /// The turns of each rival.
    rivals: Vec<Turns>,
    /// Peaks of the machine, in 10⁹ operations per second.
    peaks: Vec<f64>,
}

/// The rivals that multiply with the same number of threads, turbo first, and a device to measure the ceilings of so
/// many threads.
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
    /// The precision.
    pub precision: Precision,
    /// The other engines that multiply.
    pub others: &'a [String],
}

/// Measures all shapes at all row counts, with one thread and with `threads`. Also returns the ceilings with `threads`,
/// and how close all engines are to turbo in f32.
///
/// # Errors
/// When there is no memory or no thread, or a rival does not start, ends, or computes something else.
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
        let none =
            |group: &Group| Turned { rivals: vec![Turns::default(); group.rivals.len()], peaks: Vec::new() };
        let mut turned: Vec<Vec<Turned>> =
            groups.iter().map(|group| plan.rows.iter().map(|_| none(group)).collect()).collect();
        for round in 0..rounds {
            for ((group, looks), turned) in groups.iter_mut().zip(&mut looks).zip(&mut turned) {
                looks.push(Ceilings::measure(&group.device)?);
                group.round(plan, shape, round, turned)?;
            }
            timeline.done(1.0 / (rounds * plan.shapes.len()) as f64);
        }
        for ((group, looks), turned) in groups.iter().zip(&looks).zip(&turned) {
            let ceilings = Ceilings::median(looks);
            for (who, rival) in group.rivals.iter().enumerate() {
                for (&rows, turned) in plan.rows.iter().zip(turned) {
                    let name = (rival.name(), group.threads);
                    products.push(product(
                        name,
                        linear(rows, shape),
                        (turned, who),
                        &ceilings,
                        plan.precision,
                    ));
                }
            }
        }
        of_all.extend(looks.pop().into_iter().flatten());
    }
    Ok((products, Ceilings::median(&of_all), agreement))
}

/// A product with the bias only.
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

    /// One round: at each number of rows, a turn of each rival (with bias, and with bias and GELU) and one of the peak.
    /// The order is drawn anew for every number of rows.
    fn round(
        &mut self,
        plan: Plan<'_>,
        shape: (usize, usize),
        round: usize,
        turned: &mut [Turned],
    ) -> Result<()> {
        for (place, (&rows, turned)) in plan.rows.iter().zip(turned).enumerate() {
            for who in order(self.rivals.len() + 1, round, place) {
                let Some(rival) = self.rivals.get_mut(who) else {
                    let peak = peak_turn(&self.device, plan.precision, Duration::from_secs_f64(TURN))?;
                    turned.peaks.push(peak);
                    continue;
                };
                let (bias, turns) = (linear(rows, shape), &mut turned.rivals[who]);
                sleep(PAUSE);
                turns.bias.push(quantile(&rival.product(bias, TURN)?, 0.5));
                turns.gelu.push(quantile(&rival.product(Linear { gelu: true, ..bias }, TURN)?, 0.5));
            }
        }
        Ok(())
    }
}

/// Checks that all compute the same at a shape, with each number of rows, with and without GELU: an engine may have
/// another kernel, and another layout of the weight, for each. The largest number of rows comes first, so that a rival
/// that allocates room for rows does so once.
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

/// The result of rival number `who`; `ceilings` are those of its group.
fn product(
    (rival, threads): (&str, usize),
    Linear { rows, in_features: k, out_features: n, .. }: Linear,
    (turned, who): (&Turned, usize),
    ceilings: &Ceilings,
    precision: Precision,
) -> Product {
    let (turns, of_turbo) = (&turned.rivals[who], &turned.rivals[0]);
    let seconds = quantile(&turns.bias, 0.5) / 1e3;
    let beside: Vec<f64> = turns.bias.iter().zip(&of_turbo.bias).map(|(ms, turbo)| ms / turbo).collect();
    let (operations, weights) = (2.0 * (rows * k * n) as f64, (k * n) as f64);
    // each round beside its own peak
    let share = |operations: f64, weights: f64| {
        let rounds = turns.bias.iter().zip(&turned.peaks).map(|(ms, &peak)| {
            ceilings.with_peak(precision, peak).floor(precision, operations, weights) / (ms / 1e3)
        });
        rounded(quantile(&rounds.collect::<Vec<_>>(), 0.5))
    };
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
        of_peak: share(operations, 0.0),
        of_memory: share(0.0, weights),
        of_floor: share(operations, weights),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_set_against_its_own_peak() {
        let turns = Turns { bias: vec![1.0, 2.0, 4.0], gelu: vec![1.0; 3] };
        let ceilings = Ceilings { f32: 1e9, bf16: 1e9, int8: 1e9, memory: 1e9, round_trip_ns: None };
        let turned = Turned { rivals: vec![turns], peaks: vec![40.0, 15.0, 10.0] };
        // 20 million operations: rates of 20, 10 and 5 times 10⁹ per second, in two rounds half of the machine's peak
        // in that round; the median rate is two thirds of the median peak
        let product = product((TURBO, 1), linear(10, (1000, 1000)), (&turned, 0), &ceilings, Precision::F32);
        assert_eq!((product.of_peak, product.giga_ops), (0.5, 10.0));
    }
}
