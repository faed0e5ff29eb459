//! When a lazy batcher starts a batch.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use turbo_sched::{
    BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Decision, Dispatch, Limits,
    PackedCost, Policy, Request, RequestId,
};

/// What a lazy batcher decides at `now` about `(seq_len, arrived, deadline)`: `None` to run, or when to ask again.
/// Batches of at most 4 requests and 100 padded tokens take 10 ms whatever they hold; times are in ms.
fn waits(timeout: u64, slo: u64, now: u64, requests: &[(u32, u64, Option<u64>)]) -> Option<u64> {
    let flat = [(1, 1), (1, 4), (100, 1), (100, 4)].map(|(len, size)| (len, size, BatchTotal(0.01)));
    let table = CostTable::from_measurements(flat).expect("four valid points");
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(4).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(100).expect("above 0"),
    };
    let millis = Duration::from_millis;
    let dispatch = Dispatch::Lazy { timeout: millis(timeout), slo: millis(slo) };
    let config = BatcherConfig { dispatch, ..BatcherConfig::with_limits(limits) };
    let mut batcher = Batcher::new(config, CostModel::Padded(table));
    for (id, &(seq_len, arrived, deadline)) in (0..).zip(requests) {
        let request = Request::new(RequestId(id), seq_len, millis(arrived));
        batcher.push(Request { deadline: deadline.map(millis), ..request });
    }
    let decided = match batcher.poll(millis(now)) {
        Decision::Run(_) => None,
        Decision::WaitUntil(moment) => Some(u64::try_from(moment.as_millis()).expect("small")),
        Decision::Idle => panic!("requests wait"),
    };
    batcher.hurry();
    assert!(decided.is_none() || matches!(batcher.poll(millis(now)), Decision::Run(_)), "told to hurry");
    decided
}

#[test]
fn the_first_of_four_reasons_starts_a_batch() {
    let one = &[(5, 100, None)][..];
    let two = &[(5, 100, None), (6, 120, None)][..];
    for (why, timeout, slo, now, requests, expected) in [
        ("the timeout of the oldest", 50, 1000, 100, one, Some(150)),
        ("the timeout has come", 50, 1000, 150, one, None),
        ("the timeout is counted from the oldest", 50, 1000, 130, two, Some(150)),
        ("half of the SLO less 10 ms of execution", 500, 200, 100, one, Some(190)),
        ("wait and execution make half of the SLO", 500, 200, 190, one, None),
        ("a millisecond before", 500, 200, 189, one, Some(190)),
        ("an SLO that execution alone exceeds", 500, 10, 100, one, None),
        ("half of the time to a deadline", 500, 1000, 100, &[(5, 100, None), (5, 100, Some(160))], Some(120)),
        ("wait and execution make half of that", 500, 1000, 120, &[(5, 100, Some(160))], None),
        ("a deadline that execution alone exceeds", 500, 1000, 100, &[(5, 100, Some(105))], None),
        ("a deadline that has passed", 500, 1000, 100, &[(5, 100, Some(90))], None),
        ("as many requests as a batch holds", 500, 1000, 100, &[(5, 100, None); 4], None),
        ("one request fewer", 500, 1000, 100, &[(5, 100, None); 3], Some(590)),
        ("as many padded tokens as a batch holds", 500, 1000, 100, &[(5, 100, None), (50, 100, None)], None),
        ("a request longer than that", 500, 1000, 100, &[(300, 100, None)], None),
    ] {
        assert_eq!(waits(timeout, slo, now, requests), expected, "{why}");
    }
}

/// What a lazy batcher with 50 ms to wait and a second to answer decides at once about requests of these lengths, on a
/// packed machine that takes 1 ms per batch and 10 us per token.
fn waits_packed(policy: Policy, lens: &[u32]) -> (bool, Duration) {
    let batches = [&[1_u32][..], &[500], &[100; 8], &[1; 8]].map(|lens| {
        let batch: Candidate = lens.iter().copied().collect();
        (batch, BatchTotal(1e-3 + 1e-5 * batch.total_tokens as f64))
    });
    let cost = CostModel::Packed(Box::new(PackedCost::fit(batches).expect("four valid batches")));
    let limits = Limits {
        max_batch_size: NonZeroUsize::new(100).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(20_000).expect("above 0"),
    };
    let dispatch = Dispatch::Lazy { timeout: Duration::from_millis(50), slo: Duration::from_secs(1) };
    let mut batcher =
        Batcher::new(BatcherConfig { policy, dispatch, ..BatcherConfig::with_limits(limits) }, cost);
    for (id, &seq_len) in (0..).zip(lens) {
        batcher.push(Request::new(RequestId(id), seq_len, Duration::ZERO));
    }
    let backlog = batcher.backlog();
    (matches!(batcher.poll(Duration::ZERO), Decision::WaitUntil(_)), backlog)
}

#[test]
fn nobody_waits_for_company_that_its_batch_cannot_have() {
    for (why, policy, lens, expected) in [
        ("10 of them are as many as make a start cheap", Policy::OptimalSplit, &[500; 30][..], false),
        ("8 are not", Policy::OptimalSplit, &[500; 8], true),
        ("nor under a policy that fills", Policy::TokenBudget, &[500; 30], true),
        ("one alone", Policy::OneByOne, &[500], false),
        ("padded to the longest it is too much", Policy::WholeQueue, &[&[1; 49][..], &[410]].concat(), false),
        ("packed it is not", Policy::TokenBudget, &[&[1; 49][..], &[410]].concat(), true),
    ] {
        assert_eq!(waits_packed(policy, lens).0, expected, "{why}");
    }
}

#[test]
fn what_waits_is_counted_in_the_batches_that_will_be() {
    let millis = |policy| waits_packed(policy, &[100; 16]).1.as_secs_f64() * 1e3;
    assert!((millis(Policy::OneByOne) - 32.0).abs() < 0.1, "sixteen starts");
    assert!((millis(Policy::TokenBudget) - 17.0).abs() < 0.1, "one start");
    let uneven = |policy| waits_packed(policy, &[&[410][..], &[1; 49]].concat()).1.as_secs_f64() * 1e3;
    assert!((uneven(Policy::WholeQueue) - 6.59).abs() < 0.1, "48 are padded to the longest, two are left");
}
