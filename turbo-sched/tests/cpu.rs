//! The effect on a CPU of bounding a batch by its time, and of the order of batches: there a product of some forty rows
//! is as fast per row as it gets, so larger batches carry no more, and only delay what comes next.
//!
//! The machine is BERT-base on two cores: all weights once from memory, 11 ms, or 0.75 ms for each token and a little
//! for attention, whichever takes longer. The cost model fits a line to it, as a server's does.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use turbo_sched::sim::{self, Arrival, Report};
use turbo_sched::{BatchOrder, BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, Limits, PackedCost};

const HORIZON: Duration = Duration::from_secs(100);
/// Tokens that this machine computes in 100 ms.
const BOUNDED: u64 = 120;
/// The default of servers that do not bound batches by time.
const UNBOUNDED: u64 = 16_384;

fn machine(batch: &Candidate) -> Duration {
    let computed = 0.5e-3 + 0.75e-3 * batch.total_tokens as f64 + 0.16e-6 * batch.sum_len_sq as f64;
    Duration::from_secs_f64(computed.max(11e-3))
}

fn costs() -> CostModel {
    let sizes =
        [1_u32, 4, 16, 64, 256, 512].into_iter().flat_map(|len| [1, 4, 16, 64].map(|size| (len, size)));
    let measured = sizes.filter(|&(len, size)| len as usize * size <= 512).map(|(len, size)| {
        let batch: Candidate = std::iter::repeat_n(len, size).collect();
        (batch, BatchTotal::from_duration(machine(&batch)))
    });
    CostModel::Packed(Box::new(PackedCost::fit(measured).expect("valid batches")))
}

fn serve(arrivals: &[Arrival], max_batch_tokens: u64, order: BatchOrder) -> Report {
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(512).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(max_batch_tokens).expect("above 0"),
    };
    let config = BatcherConfig { order, ..BatcherConfig::with_limits(limits) };
    let mut batcher = Batcher::new(config, costs());
    sim::run(&mut batcher, arrivals, machine, HORIZON).expect("a batch takes time")
}

/// Nineteen requests of 5 to 20 tokens for each one of 300 to 500, which takes a third of a second.
fn mixed(load: f64) -> Vec<Arrival> {
    let mean = (19.0 * 10e-3 + 0.326) / 20.0;
    let mut arrivals = sim::poisson(0.95 * load / mean, 5..=20, HORIZON, 1);
    arrivals.extend(sim::poisson(0.05 * load / mean, 300..=500, HORIZON, 2));
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

fn seconds(report: &Report, lens: std::ops::RangeInclusive<u32>) -> f64 {
    report.mean_latency_of(lens).as_secs_f64()
}

const SHORT: std::ops::RangeInclusive<u32> = 5..=20;
const LONG: std::ops::RangeInclusive<u32> = 300..=500;

#[test]
fn larger_batches_carry_no_more_and_hold_up_who_comes_next() {
    let arrivals = mixed(0.8);
    let [bounded, unbounded] =
        [BOUNDED, UNBOUNDED].map(|tokens| serve(&arrivals, tokens, BatchOrder::OldestFirst));
    assert!(bounded.throughput() > 0.99 * unbounded.throughput());
    let (bounded_tail, unbounded_tail) = (bounded.latency_at(0.99), unbounded.latency_at(0.99));
    assert!(bounded_tail.mul_f64(1.2) < unbounded_tail, "{bounded_tail:?} and {unbounded_tail:?}");
    assert!(1.25 * seconds(&bounded, SHORT) < seconds(&unbounded, SHORT));
}

#[test]
fn long_requests_let_short_ones_pass_at_little_cost() {
    let arrivals = mixed(0.8);
    let [default, oldest] =
        [BatchOrder::AgeAndCost, BatchOrder::OldestFirst].map(|order| serve(&arrivals, BOUNDED, order));
    assert!(seconds(&default, SHORT) < 0.6 * seconds(&oldest, SHORT));
    assert!(seconds(&default, LONG) < 1.14 * seconds(&oldest, LONG));
    assert!(default.latency_at(0.99) < oldest.latency_at(0.99).mul_f64(1.02));
}

#[test]
fn bound_and_order_together_halve_the_latency_of_short_requests() {
    let arrivals = mixed(0.8);
    let together = serve(&arrivals, BOUNDED, BatchOrder::AgeAndCost);
    let neither = serve(&arrivals, UNBOUNDED, BatchOrder::OldestFirst);
    assert!(2.0 * seconds(&together, SHORT) < seconds(&neither, SHORT));
    assert!(seconds(&together, LONG) < 1.14 * seconds(&neither, LONG));
}

#[test]
fn among_alike_requests_the_oldest_goes_first() {
    let arrivals = sim::poisson(96.0, 5..=20, HORIZON, 1);
    let [default, oldest] =
        [BatchOrder::AgeAndCost, BatchOrder::OldestFirst].map(|order| serve(&arrivals, BOUNDED, order));
    for share in [0.5, 0.99, 1.0] {
        let (default, oldest) = (default.latency_at(share), oldest.latency_at(share));
        assert!(default < oldest.mul_f64(1.1), "{share}: {default:?} and {oldest:?}");
    }
}
