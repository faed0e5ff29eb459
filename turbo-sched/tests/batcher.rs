//! The batcher under any sequence of calls: nobody is lost, served twice, passed over for ever or squeezed in.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use turbo_sched::{
    BatchOrder, BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Decision, Dispatch,
    Layout, Limits, PackedCost, Policy, Priority, Request, RequestId,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// 1 ms per batch, 10 µs per token of the layout.
fn cost_model(layout: Layout) -> CostModel {
    let cost = |tokens: u32| BatchTotal(1e-3 + 1e-5 * f64::from(tokens));
    match layout {
        Layout::Padded => {
            let points = [(1, 1), (1, 8), (500, 1), (500, 8)];
            let points = points.map(|(len, size)| (len, size as usize, cost(len * size)));
            CostModel::Padded(CostTable::from_measurements(points).expect("four valid points"))
        }
        Layout::Packed => {
            let batches = [&[1_u32][..], &[500], &[100; 8], &[1; 8]];
            let batches =
                batches.map(|lens| (lens.iter().copied().collect::<Candidate>(), cost(lens.iter().sum())));
            CostModel::Packed(Box::new(PackedCost::fit(batches).expect("four valid batches")))
        }
    }
}

fn limits(size: usize, tokens: u64) -> Limits {
    Limits {
        max_batch_size: NonZeroUsize::new(size).expect("above 0"),
        max_batch_tokens: NonZeroU64::new(tokens).expect("above 0"),
    }
}

fn config() -> impl Strategy<Value = BatcherConfig> {
    let policy = prop_oneof![
        3 => Just(Policy::OptimalSplit),
        1 => Just(Policy::OneByOne),
        1 => Just(Policy::WholeQueue),
        1 => Just(Policy::TokenBudget),
        1 => Just(Policy::SortedWindow),
        1 => (1_u32..100).prop_map(|width| Policy::LengthBuckets { width: NonZeroU32::new(width).expect("above 0") }),
    ];
    let lazy = (0_u64..50, 0_u64..100)
        .prop_map(|(timeout, slo)| Dispatch::Lazy { timeout: millis(timeout), slo: millis(slo) });
    let dispatch = prop_oneof![Just(Dispatch::Hungry), lazy];
    let order = prop_oneof![
        Just(BatchOrder::AgeAndCost),
        Just(BatchOrder::OldestFirst),
        Just(BatchOrder::CheapestFirst)
    ];
    (policy, dispatch, order, 1..9_usize, 1_u64..1000, 1..20_usize, 0_u64..100).prop_map(
        |(policy, dispatch, order, size, tokens, window, overdue_after)| BatcherConfig {
            policy,
            dispatch,
            order,
            limits: limits(size, tokens),
            window: NonZeroUsize::new(window).expect("above 0"),
            overdue_after: millis(overdue_after),
        },
    )
}

#[derive(Debug, Clone)]
enum Call {
    Push {
        seq_len: u32,
        deadline: Option<u64>,
        priority: u8,
    },
    Cancel {
        id: u64,
    },
    /// Of all ids that leave no rest.
    CancelAll {
        every: u64,
    },
    Poll,
    Pass {
        millis: u64,
    },
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let push = (1_u32..500, proptest::option::of(0_u64..200), 0_u8..3)
        .prop_map(|(seq_len, deadline, priority)| Call::Push { seq_len, deadline, priority });
    let call = prop_oneof![
        4 => push,
        1 => (0_u64..60).prop_map(|id| Call::Cancel { id }),
        1 => (1_u64..9).prop_map(|every| Call::CancelAll { every }),
        2 => Just(Call::Poll),
        1 => (0_u64..30).prop_map(|millis| Call::Pass { millis }),
    ];
    vec(call, 0..120)
}

/// Polls once and checks the decision against what waits; returns whether a batch ran.
fn poll(
    batcher: &mut Batcher,
    config: &BatcherConfig,
    now: Duration,
    waiting: &mut BTreeMap<RequestId, u32>,
) -> Result<bool, TestCaseError> {
    let layout = batcher.cost_model().layout();
    let mut later = batcher.clone();
    match batcher.poll(now) {
        Decision::Idle => {
            prop_assert!(waiting.is_empty());
            Ok(false)
        }
        Decision::WaitUntil(moment) => {
            prop_assert!(!waiting.is_empty() && moment > now);
            prop_assert!(matches!(later.poll(moment), Decision::Run(_)), "not even at the moment it named");
            Ok(false)
        }
        Decision::Run(run) => {
            let (candidate, cost) = (run.candidate, run.cost);
            let held: Option<Candidate> = run.ids.iter().map(|id| waiting.remove(id)).collect();
            prop_assert_eq!(Some(candidate), held, "ran somebody who does not wait");
            prop_assert!(candidate.batch_size > 0 && config.limits.admit(layout, &candidate));
            prop_assert_eq!(batcher.len(), waiting.len());
            batcher.observe(&candidate, cost.as_duration()).expect("a batch takes time");
            Ok(true)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn everybody_is_served_once_or_cancelled(
        config in config(), layout in prop_oneof![Just(Layout::Padded), Just(Layout::Packed)], calls in calls(),
    ) {
        let mut batcher = Batcher::new(config, cost_model(layout));
        let (mut now, mut waiting) = (Duration::ZERO, BTreeMap::new());
        for (call, id) in calls.into_iter().zip(0_u64..) {
            match call {
                Call::Push { seq_len, deadline, priority } => {
                    let deadline = deadline.map(|deadline| now + millis(deadline));
                    let request = Request::new(RequestId(id), seq_len, now);
                    batcher.push(Request { deadline, priority: Priority(priority), ..request });
                    waiting.insert(RequestId(id), seq_len);
                }
                Call::Cancel { id } => {
                    prop_assert_eq!(batcher.cancel(RequestId(id)), waiting.remove(&RequestId(id)).is_some());
                }
                Call::CancelAll { every } => {
                    let (gone, before) = (|id: RequestId| id.0.is_multiple_of(every), waiting.len());
                    waiting.retain(|&id, _| !gone(id));
                    prop_assert_eq!(batcher.cancel_all(gone), before - waiting.len());
                }
                Call::Poll => {
                    poll(&mut batcher, &config, now, &mut waiting)?;
                }
                Call::Pass { millis: passed } => now += millis(passed),
            }
            prop_assert_eq!(batcher.len(), waiting.len());
            prop_assert_eq!(batcher.backlog().is_zero(), waiting.is_empty());
        }
        now += Duration::from_secs(3600); // lazy no longer
        while !waiting.is_empty() {
            prop_assert!(poll(&mut batcher, &config, now, &mut waiting)?);
        }
        prop_assert_eq!(batcher.poll(now), Decision::Idle);
    }

    /// A request waits at most `overdue_after`, the batch that runs then, and one batch for each older one.
    #[test]
    fn nobody_is_passed_over_for_ever(
        config in config(), layout in prop_oneof![Just(Layout::Padded), Just(Layout::Packed)],
        steps in vec(vec((1_u32..500, proptest::option::of(0_u64..20), 0_u8..3), 0..6), 1..60),
    ) {
        let config = BatcherConfig { dispatch: Dispatch::Hungry, ..config };
        let batch_time = millis(10); // whatever runs
        let mut batcher = Batcher::new(config, cost_model(layout));
        let (mut now, mut latest_start, mut id) = (Duration::ZERO, BTreeMap::new(), 0);
        let mut steps = steps.into_iter();
        loop {
            for (seq_len, deadline, priority) in steps.next().unwrap_or_default() {
                let older = u32::try_from(latest_start.len()).unwrap();
                latest_start.insert(RequestId(id), now + config.overdue_after + batch_time * (older + 1));
                let deadline = deadline.map(|deadline| now + millis(deadline));
                let request = Request::new(RequestId(id), seq_len, now);
                batcher.push(Request { deadline, priority: Priority(priority), ..request });
                id += 1;
            }
            match batcher.poll(now) {
                Decision::Run(run) => for id in run.ids {
                    prop_assert!(now <= latest_start.remove(id).unwrap(), "{id:?} starts only at {now:?}");
                },
                _ if steps.len() == 0 => break,
                _ => {}
            }
            now += batch_time;
        }
        prop_assert!(latest_start.is_empty());
    }
}

/// Ids of the batches that a hungry padded split runs one after the other, all polled at `now`.
fn runs(order: BatchOrder, now: u64, requests: &[Request]) -> Vec<BTreeSet<u64>> {
    let config =
        BatcherConfig { order, overdue_after: millis(100), ..BatcherConfig::with_limits(limits(8, 10_000)) };
    let mut batcher = Batcher::new(config, cost_model(Layout::Padded));
    requests.iter().for_each(|&request| batcher.push(request));
    let mut runs = Vec::new();
    while let Decision::Run(run) = batcher.poll(millis(now)) {
        runs.push(run.ids.iter().map(|id| id.0).collect());
    }
    runs
}

#[test]
fn the_sets_are_the_splits_and_the_order_is_ours() {
    // Three lengths that never share a batch: 300 pairs up, 100 pairs up, 10 pairs up.
    let base = [(1, 300), (2, 10), (3, 100), (4, 301), (5, 11), (6, 101)]
        .map(|(id, seq_len)| Request::new(RequestId(id), seq_len, millis(id)));
    let changed = |index: usize, change: fn(&mut Request)| {
        let mut requests = base;
        change(&mut requests[index]);
        requests
    };
    let oldest = BatchOrder::OldestFirst;
    for (why, order, now, requests, expected) in [
        ("oldest first", oldest, 50, base, [[1, 4], [2, 5], [3, 6]]),
        ("long ones let short ones pass", BatchOrder::AgeAndCost, 50, base, [[2, 5], [3, 6], [1, 4]]),
        ("least cost per request first", BatchOrder::CheapestFirst, 50, base, [[2, 5], [3, 6], [1, 4]]),
        (
            "a deadline first",
            oldest,
            50,
            changed(5, |r| r.deadline = Some(millis(999))),
            [[3, 6], [1, 4], [2, 5]],
        ),
        ("a priority first", oldest, 50, changed(4, |r| r.priority = Priority(1)), [[2, 5], [1, 4], [3, 6]]),
        (
            "the overdue before a priority",
            oldest,
            101,
            changed(4, |r| r.priority = Priority(255)),
            [[1, 4], [2, 5], [3, 6]],
        ),
    ] {
        assert_eq!(runs(order, now, &requests), expected.map(BTreeSet::from), "{why}");
    }
}

#[test]
fn packed_batches_are_cut_in_order_of_service() {
    let config = BatcherConfig::with_limits(limits(2, 10_000));
    let mut batcher = Batcher::new(config, cost_model(Layout::Packed));
    for (id, deadline) in [(1, None), (2, Some(900)), (3, None), (4, Some(800))] {
        let request = Request::new(RequestId(id), 10, millis(id));
        batcher.push(Request { deadline: deadline.map(millis), ..request });
    }
    let mut ids = || match batcher.poll(millis(10)) {
        Decision::Run(run) => run.ids.iter().map(|id| id.0).collect(),
        _ => vec![],
    };
    assert_eq!([ids(), ids(), ids()], [vec![4, 2], vec![1, 3], vec![]]);
}

#[test]
fn a_slow_machine_is_noticed() {
    let mut batcher = Batcher::new(BatcherConfig::with_limits(limits(8, 10_000)), cost_model(Layout::Packed));
    let batch: Candidate = [100].into_iter().collect();
    batcher.push(Request::new(RequestId(1), 100, Duration::ZERO));
    let before = batcher.backlog();
    (0..200).for_each(|_| batcher.observe(&batch, before * 3).unwrap());
    assert!(batcher.backlog() > before * 29 / 10, "{before:?}, then {:?}", batcher.backlog());
    assert!(batcher.observe(&batch, Duration::ZERO).is_err());
}
