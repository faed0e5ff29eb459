//! Predictions stay near the cost of batches, on machines that follow no line and no table; where they do not, the
//! drift says so.

use std::cell::Cell;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use turbo_sched::sim;
use turbo_sched::{
    BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Layout, Limits, PackedCost, Policy,
};

const HORIZON: Duration = Duration::from_secs(60);

/// The time that a machine takes for a batch, in seconds.
type Law = fn(Layout, &Candidate) -> f64;

/// Two cores with BERT-base: weights once from memory, or its products and a little for attention.
fn cpu(layout: Layout, batch: &Candidate) -> f64 {
    let squares = match layout {
        Layout::Packed => batch.sum_len_sq as f64,
        Layout::Padded => batch.padded_tokens() as f64 * f64::from(batch.max_seq_len),
    };
    (0.5e-3 + 0.75e-3 * layout.tokens(batch) as f64 + 0.16e-6 * squares).max(11e-3)
}

/// A GPU that works in tiles of 128 rows.
fn tiles(layout: Layout, batch: &Candidate) -> f64 {
    1e-3 + 1.5e-3 * layout.tokens(batch).div_ceil(128) as f64
}

fn warm(layout: Layout, law: Law) -> CostModel {
    let sizes = [1_u32, 4, 16, 64, 256, 512].map(|len| [1_usize, 4, 16, 64].map(|size| (len, size)));
    let measured = sizes.into_iter().flatten().filter(|&(len, size)| len as usize * size <= 512);
    let cost = |(len, size): (u32, usize)| {
        let batch: Candidate = std::iter::repeat_n(len, size).collect();
        (batch, BatchTotal(law(layout, &batch)))
    };
    let measured = measured.map(cost);
    match layout {
        Layout::Packed => CostModel::Packed(Box::new(PackedCost::fit(measured).expect("valid batches"))),
        Layout::Padded => {
            let points = measured.map(|(batch, cost)| (batch.max_seq_len, batch.batch_size, cost));
            CostModel::Padded(CostTable::from_measurements(points).expect("valid points"))
        }
    }
}

/// Half of its width is at most a tenth: the effect of other processes, caches and clocks on a batch.
fn noise(state: &Cell<u64>) -> f64 {
    state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    0.9 + 0.2 * (state.get() >> 11) as f64 / (1_u64 << 53) as f64
}

/// The batcher after a minute of traffic; the machine is `slowdown` times as slow as it was in its warm-up.
fn served(layout: Layout, law: Law, policy: Policy, slowdown: f64) -> Batcher {
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(64).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(512).expect("above 0"),
    };
    let config = BatcherConfig { policy, ..BatcherConfig::with_limits(limits) };
    let mut batcher = Batcher::new(config, warm(layout, law));
    let arrivals = sim::poisson(20.0, 5..=100, HORIZON, 3);
    let state = Cell::new(7);
    let machine = |batch: &Candidate| Duration::from_secs_f64(slowdown * law(layout, batch) * noise(&state));
    sim::run(&mut batcher, &arrivals, machine, HORIZON).expect("a batch takes time");
    batcher
}

#[test]
fn the_median_error_is_below_fifteen_percent() {
    for (name, law) in [("cpu", cpu as Law), ("tiles", tiles)] {
        for layout in [Layout::Packed, Layout::Padded] {
            for policy in [Policy::OptimalSplit, Policy::TokenBudget, Policy::OneByOne] {
                for slowdown in [1.0, 2.5] {
                    let median = served(layout, law, policy, slowdown).drift().median().expect("batches ran");
                    assert!(median < 0.15, "{name} {layout:?} {policy:?} {slowdown}: {median}");
                }
            }
        }
    }
}

#[test]
fn a_machine_that_changes_is_seen_and_learnt() {
    let mut batcher = served(Layout::Packed, cpu, Policy::OptimalSplit, 1.0);
    let batch: Candidate = [40, 50].into_iter().collect();
    let slow = Duration::from_secs_f64(3.0 * cpu(Layout::Packed, &batch));
    let mut median = || {
        batcher.observe(&batch, slow).expect("a batch takes time");
        batcher.drift().median().expect("batches ran")
    };
    let first: Vec<f64> = (0..60).map(|_| median()).collect();
    assert!(first.iter().any(|&median| median > 0.15), "{first:?}");
    let last = (0..400).map(|_| median()).last();
    assert!(last.is_some_and(|median| median < 0.01), "{last:?}");
}

/// The machine stands still during one batch, the first of its size, which was never measured: later batches are no
/// smaller for it.
#[test]
fn a_first_batch_that_takes_six_times_as_long_spoils_no_size() {
    let law = |batch: &Candidate| 5e-3 + 10e-6 * batch.padded_tokens() as f64;
    let measured = [(10, 1), (10, 4), (10, 16), (50, 1), (50, 4), (100, 1), (100, 4)];
    let points = measured.map(|(len, size): (u32, usize)| {
        (len, size, BatchTotal(law(&std::iter::repeat_n(len, size).collect())))
    });
    let table = CostTable::from_measurements(points).expect("valid points");
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(16).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(1600).expect("above 0"),
    };
    let served = |stall: f64| {
        let config = BatcherConfig::with_limits(limits);
        let mut batcher = Batcher::new(config, CostModel::Padded(table.clone()));
        let horizon = Duration::from_secs(15);
        let arrivals = sim::poisson(900.0, 10..=100, horizon, 3);
        let (state, stalls) = (Cell::new(7), Cell::new(1));
        let machine = |batch: &Candidate| {
            let is_first = batch.batch_size >= 13 && batch.max_seq_len > 80 && stalls.replace(0) == 1;
            let factor = noise(&state) * if is_first { stall } else { 1.0 };
            Duration::from_secs_f64(law(batch) * factor)
        };
        sim::run(&mut batcher, &arrivals, machine, horizon).expect("a batch takes time").latencies.len()
    };
    let (calm, stalled) = (served(1.0), served(6.0));
    assert!(stalled as f64 > 0.95 * calm as f64, "{stalled} of {calm}");
}

/// A quiet minute, whose batches are of one request, and a busy one.
#[test]
fn batches_fill_after_a_quiet_time() {
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(64).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(120).expect("above 0"),
    };
    let sizes = [(16, 1), (16, 4), (16, 16), (64, 1), (64, 4), (256, 1), (512, 1)];
    let measured = sizes.map(|(len, size): (u32, usize)| {
        let batch: Candidate = std::iter::repeat_n(len, size).collect();
        (batch, BatchTotal(cpu(Layout::Packed, &batch)))
    });
    let cost = CostModel::Packed(Box::new(PackedCost::fit(measured).expect("valid batches")));
    let mut batcher = Batcher::new(BatcherConfig::with_limits(limits), cost);
    let machine = |batch: &Candidate| Duration::from_secs_f64(cpu(Layout::Packed, batch));
    let quiet = sim::poisson(10.0, 5..=20, HORIZON, 3);
    sim::run(&mut batcher, &quiet, machine, HORIZON).expect("a batch takes time");
    let busy = sim::poisson(200.0, 5..=20, HORIZON, 4);
    let report = sim::run(&mut batcher, &busy, machine, HORIZON).expect("a batch takes time");
    let (batches, answers) = (report.batches, report.latencies.len());
    assert!(answers > 4 * batches, "{answers} requests in {batches} batches");
}
