//! The batcher under any sequence of calls: no request is lost, served twice, passed over for ever or squeezed into a
//! full batch.

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
    /// Cancels all ids that this number divides.
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
            prop_assert!(candidate.batch_size > 0 && config.limits.admits(layout, &candidate));
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

    /// The bound of [`BatcherConfig::overdue_after`].
    #[test]
    fn nobody_is_passed_over_for_ever(
        config in config(), layout in prop_oneof![Just(Layout::Padded), Just(Layout::Packed)],
        steps in vec(vec((1_u32..500, proptest::option::of(0_u64..20), 0_u8..3), 0..6), 1..60), classes in 1_u8..=3,
    ) {
        let config = BatcherConfig { dispatch: Dispatch::Hungry, ..config };
        let batch_time = millis(10); // whatever runs
        let mut batcher = Batcher::new(config, cost_model(layout));
        let (mut now, mut latest_start, mut id) = (Duration::ZERO, BTreeMap::new(), 0);
        let mut steps = steps.into_iter();
        loop {
            for (seq_len, deadline, priority) in steps.next().unwrap_or_default() {
                let older = u32::try_from(latest_start.len()).unwrap();
                let batches = if classes == 1 { older } else { 2 * older + 1 };
                latest_start.insert(RequestId(id), now + config.overdue_after + batch_time * (batches + 1));
                let deadline = deadline.map(|deadline| now + millis(deadline));
                let request = Request::new(RequestId(id), seq_len, now);
                batcher.push(Request { deadline, priority: Priority(priority % classes), ..request });
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
    assert!((0..200).all(|_| batcher.observe(&batch, before * 3).is_ok()));
    assert!(batcher.backlog() > before * 29 / 10, "{before:?}, then {:?}", batcher.backlog());
    assert!(batcher.observe(&batch, Duration::ZERO).is_err());
}

/// Requests of one class arrive as fast as they are served, and others of lower classes among them.
#[test]
fn lower_classes_are_served_in_time_under_a_steady_stream_of_higher_ones() {
    for (layout, overdue_after) in [(Layout::Packed, 50), (Layout::Padded, 50), (Layout::Packed, 200)] {
        let overdue_after = millis(overdue_after);
        let config = BatcherConfig { overdue_after, ..BatcherConfig::with_limits(limits(4, 10_000)) };
        let mut batcher = Batcher::new(config, cost_model(layout));
        let batch_time = millis(10);
        let (mut now, mut low, mut waits) = (Duration::ZERO, BTreeMap::new(), Vec::new());
        for step in 0..400_u64 {
            // Four of the highest class in each batch's time, as many as a batch holds, and now and then room for one more.
            let room = u64::from(step % 20 == 19);
            (0..4 - room).for_each(|n| {
                let request = Request::new(RequestId(step * 10 + n), 20 + n as u32, now);
                batcher.push(Request { priority: Priority(2), deadline: Some(now + millis(30)), ..request });
            });
            if step % 20 == 0 {
                let id = RequestId(step * 10 + 9);
                let priority = Priority((step / 20 % 2) as u8);
                batcher.push(Request { priority, ..Request::new(id, 30, now) });
                low.insert(id, now);
            }
            let Decision::Run(run) = batcher.poll(now) else { panic!("requests wait") };
            waits.extend(run.ids.iter().filter_map(|id| Some(now - low.remove(id)?)));
            now += batch_time;
        }
        // The older requests that are also overdue are those of the high class that did not fit: few.
        let most = waits.iter().max().copied().unwrap_or_default();
        assert!(waits.len() >= 18 && most <= overdue_after + batch_time * 6, "{layout:?}: {waits:?}");
        assert!(
            waits.iter().min().is_some_and(|&wait| wait >= millis(20)),
            "the high class goes first: {waits:?}"
        );
    }
}

/// However many requests of a low class are overdue because they arrive faster than they are served.
#[test]
fn a_high_class_goes_soon_though_lower_ones_are_overdue() {
    for layout in [Layout::Packed, Layout::Padded] {
        let config =
            BatcherConfig { overdue_after: millis(50), ..BatcherConfig::with_limits(limits(4, 10_000)) };
        let mut batcher = Batcher::new(config, cost_model(layout));
        let (mut now, mut id, mut came, mut waits) = (Duration::ZERO, 0, None, Vec::new());
        let mut come = |batcher: &mut Batcher, priority, now| {
            id += 1;
            let request = Request::new(RequestId(id), 20 + (id % 4) as u32, now);
            batcher.push(Request { priority: Priority(priority), ..request });
            RequestId(id)
        };
        for step in 0..400 {
            while batcher.len() < 64 {
                come(&mut batcher, 0, now);
            }
            if step % 20 == 10 {
                came = Some((come(&mut batcher, 2, now), step));
            }
            let Decision::Run(run) = batcher.poll(now) else { panic!("requests wait") };
            if let Some((_, came)) = came.take_if(|(high, _)| run.ids.contains(high)) {
                waits.push(step - came);
            }
            now += millis(10);
        }
        let most = waits.iter().max().copied().unwrap_or_default();
        assert!(waits.len() == 20 && most <= 2, "{layout:?}: starts after {waits:?} batches");
    }
}

#[test]
fn a_batch_ends_before_the_deadline_of_its_most_urgent_request() {
    // 10 µs per token and 1 ms to start, which four requests of 400 tokens share at little cost.
    let run = |deadlines: [Option<u64>; 4], lens: [u32; 4]| {
        let mut batcher =
            Batcher::new(BatcherConfig::with_limits(limits(8, 10_000)), cost_model(Layout::Packed));
        for (id, (deadline, seq_len)) in (0..).zip(deadlines.into_iter().zip(lens)) {
            let request = Request::new(RequestId(id), seq_len, millis(id));
            batcher.push(Request { deadline: deadline.map(millis), ..request });
        }
        match batcher.poll(millis(10)) {
            Decision::Run(run) => run.ids.iter().map(|id| id.0).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    let (long, first_short) = ([1000; 4], [10, 1000, 1000, 1000]);
    for (why, deadlines, lens, expected) in [
        ("nobody is urgent", [None; 4], long, &[0, 1, 2, 3][..]),
        ("all can be met", [Some(60); 4], long, &[0, 1, 2, 3]),
        ("two end in time for the first", [Some(35), None, None, None], long, &[0, 1]),
        ("the most urgent goes first", [None, None, Some(35), None], long, &[2, 0]),
        ("what cannot be met costs nobody else", [Some(15), None, None, None], long, &[0, 1, 2, 3]),
        ("nor does it hold up who can be met", [Some(15), Some(35), Some(45), None], long, &[0, 1]),
        ("a token would become too dear", [Some(12), None, None, None], [10; 4], &[0, 1, 2, 3]),
        ("nor is it cut where it is too late", [Some(12), None, None, None], first_short, &[0, 1, 2, 3]),
        ("but for who can still be met", [Some(12), Some(35), None, None], first_short, &[0, 1, 2]),
    ] {
        assert_eq!(run(deadlines, lens), expected, "{why}");
    }
}

#[test]
fn a_packed_batch_is_no_larger_than_makes_its_start_cheap() {
    // 10 µs per token and 1 ms to start, which is 2 % of the time of 5000 tokens.
    let sizes = |policy, layout, lens: &[u32]| {
        let config = BatcherConfig { policy, ..BatcherConfig::with_limits(limits(100, 20_000)) };
        let mut batcher = Batcher::new(config, cost_model(layout));
        for (id, &seq_len) in (0..).zip(lens) {
            batcher.push(Request::new(RequestId(id), seq_len, millis(id)));
        }
        let mut sizes = vec![];
        while let Decision::Run(run) = batcher.poll(millis(100)) {
            sizes.push(run.ids.len());
        }
        sizes
    };
    let (split, packed) = (Policy::OptimalSplit, Layout::Packed);
    assert_eq!(sizes(split, packed, &[500; 24]), [10, 10, 4]);
    assert_eq!(sizes(split, packed, &[100; 30]), [30], "all there are");
    assert_eq!(sizes(split, packed, &[9000, 10, 10]), [1, 2], "one may be enough");
    assert_eq!(sizes(split, Layout::Padded, &[500; 24]), [24], "padding is what cuts are there for");
    assert_eq!(sizes(Policy::TokenBudget, packed, &[500; 24]), [24], "others fill their limits");
}

#[test]
fn a_batch_is_as_large_as_its_limits_allow() {
    for policy in [Policy::OptimalSplit, Policy::TokenBudget, Policy::WholeQueue, Policy::SortedWindow] {
        for layout in [Layout::Packed, Layout::Padded] {
            let config = BatcherConfig { policy, ..BatcherConfig::with_limits(limits(600, 1000)) };
            let mut batcher = Batcher::new(config, cost_model(layout));
            (0..700).for_each(|id| batcher.push(Request::new(RequestId(id), 1, millis(0))));
            let Decision::Run(run) = batcher.poll(millis(0)) else { panic!("requests wait") };
            assert_eq!(run.ids.len(), 600, "{policy:?} {layout:?}");
        }
    }
}

#[test]
fn requests_without_tokens_run_and_teach_nothing() {
    for layout in [Layout::Packed, Layout::Padded] {
        let mut batcher = Batcher::new(BatcherConfig::with_limits(limits(4, 1000)), cost_model(layout));
        let cost_of = |batcher: &Batcher| batcher.cost_model().cost(&[7, 9].into_iter().collect());
        let before = cost_of(&batcher);
        batcher.push(Request::new(RequestId(1), 0, millis(0)));
        let Decision::Run(run) = batcher.poll(millis(0)) else { panic!("a request waits") };
        let ran = run.candidate;
        batcher.observe(&ran, millis(5)).expect("it took time");
        assert_eq!((cost_of(&batcher), batcher.drift().median()), (before, None));
        assert!(batcher.observe(&ran, millis(0)).is_err(), "it took none");
    }
}
