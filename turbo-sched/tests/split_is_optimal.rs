//! The split against trying everything.

use std::num::{NonZeroU64, NonZeroUsize};

use proptest::collection::vec;
use proptest::prelude::*;
use turbo_sched::{BatchTotal, Candidate, CostRows, CostTable, Layout, Limits, Planner, Policy, split};

/// The padded cost as its documentation describes it, from rows that need not be monotone: running maximum over length,
/// linear between rows, flat below, last slope beyond. Shares no code with the table.
fn padded_cost(rows: &[(u32, Vec<f64>)], len: u32, batch_size: usize) -> f64 {
    let mut highest = 0.0_f64;
    let knots: Vec<(f64, f64)> = rows
        .iter()
        .map(|(len, costs)| {
            highest = highest.max(costs[batch_size - 1]);
            (f64::from(*len), highest)
        })
        .collect();
    let x = f64::from(len);
    match knots.iter().position(|knot| knot.0 >= x) {
        Some(0) => knots[0].1,
        None if knots.len() == 1 => knots[0].1,
        above => {
            let above = above.unwrap_or(knots.len() - 1);
            let ((x0, y0), (x1, y1)) = (knots[above - 1], knots[above]);
            y0 + (x - x0) / (x1 - x0) * (y1 - y0)
        }
    }
}

/// Least cost over all partitions of `lens` into sets: each request joins an open set or opens one.
fn best_partition(lens: &[u32], sets: &mut Vec<Candidate>, cost: &dyn Fn(&Candidate) -> f64) -> f64 {
    let Some((&len, rest)) = lens.split_first() else { return sets.iter().map(cost).sum() };
    let mut best = f64::INFINITY;
    for set in 0..sets.len() {
        let old = sets[set];
        sets[set].add(len);
        best = best.min(best_partition(rest, sets, cost));
        sets[set] = old;
    }
    sets.push([len].into_iter().collect());
    best = best.min(best_partition(rest, sets, cost));
    sets.pop();
    best
}

/// Least cost over all ways to cut `lens` into consecutive batches.
fn best_cuts(lens: &[u32], cost: &dyn Fn(&Candidate) -> f64) -> f64 {
    let cuts = 1..=lens.len();
    let first = |size: usize| cost(&lens[..size].iter().copied().collect()) + best_cuts(&lens[size..], cost);
    cuts.map(first).min_by(f64::total_cmp).unwrap_or(0.0)
}

/// Whether two sums of at most eight costs differ by no more than their rounding.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

fn limits(size: usize, tokens: u64) -> Limits {
    Limits {
        max_batch_size: NonZeroUsize::new(size).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(tokens).expect("above 0"),
    }
}

/// One to five rows of `width` costs each, at random ascending lengths, monotone in nothing.
fn rows(width: usize) -> impl Strategy<Value = Vec<(u32, Vec<f64>)>> {
    let lens = proptest::collection::btree_set(1_u32..120, 1..=5);
    lens.prop_flat_map(move |lens| {
        let costs = vec(vec(0.1_f64..20.0, width), lens.len());
        costs.prop_map(move |costs| lens.iter().copied().zip(costs).collect())
    })
}

/// Costs as of a machine: a start, padded tokens, and noise that makes some entries fall with length.
fn machine_rows(width: usize) -> impl Strategy<Value = Vec<(u32, Vec<f64>)>> {
    (rows(width), 0.0_f64..200.0, 0.0_f64..2.0).prop_map(|(mut rows, start, per_token)| {
        for (len, costs) in &mut rows {
            for (cost, size) in costs.iter_mut().zip(1..) {
                *cost += start + per_token * f64::from(*len * size);
            }
        }
        rows
    })
}

fn check_padded(rows: Vec<(u32, Vec<f64>)>, lens: &[u32], limits: Limits) -> Result<(), TestCaseError> {
    let cost = |batch: &Candidate| match limits.admits(Layout::Padded, batch) {
        true => padded_cost(&rows, batch.max_seq_len, batch.batch_size),
        false => f64::INFINITY,
    };
    let expected = best_partition(lens, &mut Vec::new(), &cost);

    let totals = rows.iter().map(|(len, costs)| (*len, costs.iter().copied().map(BatchTotal).collect()));
    let table = CostTable::try_from(CostRows::BatchTotal(totals.collect())).expect("valid rows");
    let mut planner = Planner::new(Policy::OptimalSplit, limits, Layout::Padded);
    let batches = planner.plan(lens, |batch| table.cost(batch));
    prop_assert!(same(batches.total_cost().0, expected), "{} instead of {expected}", batches.total_cost().0);

    let mut members: Vec<usize> = batches.iter().flat_map(|batch| batch.members.to_vec()).collect();
    members.sort_unstable();
    prop_assert_eq!(members, (0..lens.len()).collect::<Vec<_>>());
    for batch in batches.iter() {
        let held: Candidate = batch.members.iter().map(|&member| lens[member]).collect();
        prop_assert_eq!(batch.candidate, held);
        prop_assert!(limits.admits(Layout::Padded, &held));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_partition_of_a_padded_queue_is_cheaper(
        rows in rows(7), lens in vec(1_u32..130, 0..=7), max_batch_size in 1..=7_usize,
    ) {
        check_padded(rows, &lens, limits(max_batch_size, u64::MAX))?;
    }

    #[test]
    fn nor_with_a_token_budget_on_a_plausible_machine(
        rows in machine_rows(7), lens in vec(1_u32..130, 0..=7), max_batch_size in 1..=7_usize, budget in 1_u64..600,
    ) {
        check_padded(rows, &lens, limits(max_batch_size, budget))?;
    }

    #[test]
    fn no_cuts_of_a_packed_queue_are_cheaper(
        lens in vec(1_u32..130, 0..=9), max_batch_size in 1..=9_usize, budget in 1_u64..600, salt in any::<u64>(),
    ) {
        let limits = limits(max_batch_size, budget);
        // Any function will do: this one is arbitrary, except for the limits.
        let cost = |batch: &Candidate| match limits.admits(Layout::Packed, batch) {
            true => {
                let mixed = (batch.total_tokens ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                (mixed + 50 * batch.total_tokens + batch.sum_len_sq) as f64
            }
            false => f64::INFINITY,
        };
        let sizes = split(&lens, &limits, Layout::Packed, |batch| BatchTotal(cost(batch)));
        prop_assert_eq!(sizes.iter().sum::<usize>(), lens.len());
        let mut rest = lens.as_slice();
        let mut total = 0.0;
        for &size in &sizes {
            prop_assert!(size > 0);
            total += cost(&rest[..size].iter().copied().collect());
            rest = &rest[size..];
        }
        prop_assert!(same(total, best_cuts(&lens, &cost)));
    }

    /// Hence an outlook on packed batches, whose cost is such a line, fills them.
    #[test]
    fn under_a_line_no_cuts_are_cheaper_than_batches_filled_from_the_front(
        lens in vec(0_u32..130, 0..=40), max_batch_size in 1..=9_usize, budget in 1_u64..600,
        [fixed, per_token, per_len_sq, per_request] in proptest::array::uniform4(0.0_f64..10.0),
    ) {
        let cost = |batch: &Candidate| {
            let (tokens, squares) = (batch.total_tokens as f64, batch.sum_len_sq as f64);
            let requests = batch.batch_size as f64;
            BatchTotal(fixed + per_token * tokens + per_len_sq * squares + per_request * requests)
        };
        let [filled, cut] = [Policy::TokenBudget, Policy::OptimalSplit].map(|policy| {
            let mut planner = Planner::new(policy, limits(max_batch_size, budget), Layout::Packed);
            planner.plan(&lens, cost).total_cost().0
        });
        // forty sums of four products each
        prop_assert!((filled - cut).abs() <= 1e-12 * filled, "{filled} filled, {cut} cut");
    }

    #[test]
    fn the_walk_back_loses_nobody(lens in vec(0_u32..5000, 0..200), max_batch_size in 1..=40_usize, start in 0.0..1e5) {
        let limits = limits(max_batch_size, u64::MAX);
        let cost = |batch: &Candidate| BatchTotal(start + batch.padded_tokens() as f64);
        let mut planner = Planner::new(Policy::OptimalSplit, limits, Layout::Padded);
        let batches = planner.plan(&lens, cost);
        let mut members: Vec<usize> = batches.iter().flat_map(|batch| batch.members.to_vec()).collect();
        members.sort_unstable();
        prop_assert_eq!(members, (0..lens.len()).collect::<Vec<_>>());
        prop_assert!(batches.iter().all(|batch| (1..=max_batch_size).contains(&batch.members.len())));
    }
}

/// Why the running maximum comes first: where a cost falls with length, consecutive cuts are not the best.
#[test]
fn without_the_running_maximum_a_partition_can_be_cheaper() {
    let lens = [10, 20, 30];
    let falling = |batch: &Candidate| match (batch.max_seq_len, batch.batch_size) {
        (20, 1) => 1.0,
        (30, 2) => 2.0,
        _ => 100.0,
    };
    let sizes = split(&lens, &limits(3, u64::MAX), Layout::Padded, |batch| BatchTotal(falling(batch)));
    let cut = best_cuts(&lens, &falling);
    assert_eq!((sizes.len(), cut), (1, 100.0));
    assert_eq!(best_partition(&lens, &mut Vec::new(), &falling), 3.0);
}
