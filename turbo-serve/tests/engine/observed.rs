//! What an engine tells of itself is what happened.

use std::time::{Duration, Instant};

use turbo_serve::{
    cache::ResponseCache,
    engine::{
        DecodeRequest, EngineConfig, EngineError, HeldBytes, Infer, InferRequest, Priority, SpecialTokens,
        Urgency,
        observed::{Misses, Observed, Origins, SECONDS, Totals},
    },
    http::Metrics,
};

use crate::fake::{FAILS, begin, config, embed, eventually, hold, request, start, wait};

/// What the engine reports once `batches` are recorded, which happens after their answers are sent.
fn observed(engine: &impl Infer, batches: usize) -> Observed {
    eventually(|| engine.observed().is_some_and(|observed| observed.batches.len() >= batches));
    engine.observed().unwrap()
}

#[test]
fn batches_are_told_as_they_were() {
    let (engine, control) = start(&config());
    let first = hold(&engine, &control, 100);
    let waiting: Vec<_> = [&[1_u32, 2, 3, 4][..], &[5], &[6, 7]]
        .into_iter()
        .map(|ids| begin(&engine, request([ids])))
        .collect();
    eventually(|| engine.observed().unwrap().totals.batches == 1);
    std::thread::sleep(Duration::from_millis(20));
    control.open();
    wait(first).unwrap();
    waiting.into_iter().for_each(|pending| drop(wait(pending).unwrap()));

    let told = observed(&engine, 2);
    let totals =
        Totals { batches: 2, inputs: 4, tokens: 8, padded_tokens: 1 + 12, answered: 4, ..Totals::default() };
    assert_eq!((told.totals, told.waiting, told.oldest_wait, told.unseen), (totals, 0, None, 0));
    assert_eq!(told.batches[0].seq_lens, [1]);
    let batch = &told.batches[1];
    let mut seq_lens = batch.seq_lens.clone();
    seq_lens.sort_unstable();
    assert_eq!((batch.number, seq_lens), (1, vec![1, 2, 4]));
    assert_eq!((batch.candidate.total_tokens, batch.candidate.padded_tokens(), batch.waiting), (7, 12, 3));
    assert!(batch.longest_wait >= Duration::from_millis(20), "{batch:?}");
    assert!(batch.mean_wait <= batch.longest_wait && batch.took > Duration::ZERO, "{batch:?}");
    assert!(batch.predicted > Duration::ZERO && batch.done <= told.now, "{batch:?}");

    let of_seconds = |of: fn(&turbo_serve::engine::observed::BatchSecond) -> u64| {
        told.batch_seconds.iter().map(|(_, second)| of(second)).sum::<u64>()
    };
    assert_eq!(of_seconds(|second| second.batches), 2);
    assert_eq!(of_seconds(|second| second.tokens), 8);
    assert_eq!(of_seconds(|second| second.padded_tokens), 13);
    assert_eq!(told.request_seconds.iter().map(|(_, second)| second.answered).sum::<u64>(), 4);
    assert_eq!(told.latencies.inputs, 4);
    assert!(told.latencies.minute.unwrap().p99 >= Duration::from_millis(20));
}

#[test]
fn memory_and_costs_are_told_to_who_looks() {
    let (engine, _) = start(&config());
    let told = engine.observed().unwrap();
    // the fake plans three values of four bytes for each token, and holds twice that
    assert_eq!((told.memory.largest_planned, told.memory.last_planned), (64 * 12, 0));
    assert_eq!(told.memory.held, HeldBytes { weights: 5, activations: 2 * 64 * 12 });
    assert_eq!((told.costs.seq_lens.last(), told.costs.batch_sizes.last()), (Some(&8), Some(&64)));
    assert!(!told.costs.measured.is_empty());
    embed(&engine, [&[1, 2, 3], &[4]]).unwrap();
    eventually(|| {
        engine.observed().unwrap().batch_seconds.iter().any(|(_, sum)| sum.planned_bytes.is_some())
    });
    let told = observed(&engine, 1);
    let (_, second) = told.batch_seconds[0];
    assert_eq!((second.largest.total_tokens, second.planned_bytes), (4, Some(48)));
    assert_eq!(told.memory.last_planned, 48);
    assert!(told.costs.cells.iter().flatten().all(|cell| cell.seconds > 0.0), "{:?}", told.costs);
}

#[test]
fn what_nobody_looks_at_is_not_computed() {
    let (engine, control) = start(&config());
    embed(&engine, [&[1, 2, 3]]).unwrap();
    let held = hold(&engine, &control, 7); // the first is written down before the next one begins
    let told = engine.observed().unwrap();
    assert_eq!((told.batches.len(), told.batch_seconds[0].1.planned_bytes), (1, None), "nobody had looked");
    control.open();
    wait(held).unwrap();
    eventually(|| {
        engine.observed().unwrap().batch_seconds.iter().all(|(_, sum)| sum.planned_bytes.is_some())
    });
}

#[test]
fn a_batch_that_failed_is_not_among_those_that_ran() {
    let (engine, _) = start(&config());
    embed(&engine, [&[FAILS]]).unwrap_err();
    embed(&engine, [&[1, 2]]).unwrap();
    let told = observed(&engine, 1);
    assert_eq!((told.totals.batches, told.totals.answered), (2, 1));
    assert_eq!(told.batches.iter().map(|batch| batch.candidate.total_tokens).collect::<Vec<_>>(), [2]);
}

/// The value of this metric of a label.
pub(crate) fn value(metrics: &Metrics, name: &str) -> f64 {
    let text = metrics.render();
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    number.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn who_waits_is_counted_while_the_worker_is_busy() {
    let metrics = Metrics::install().unwrap();
    let (engine, control) = start(&EngineConfig { label: Some("waits".into()), ..config() });
    let held = hold(&engine, &control, 1);
    let of_class =
        |priority, request| InferRequest { urgency: Urgency { priority, ..Urgency::default() }, ..request };
    let (high, low) = (Priority::High, Priority::Low);
    let waiting = [
        begin(&engine, of_class(high, request([&[2]]))),
        begin(&engine, of_class(low, request([&[3], &[4]]))),
    ];
    eventually(|| engine.observed().unwrap().waiting == 3);
    std::thread::sleep(Duration::from_millis(30));
    let told = engine.observed().unwrap();
    let classes: Vec<_> = told.classes.iter().map(|class| (class.priority, class.waiting)).collect();
    assert_eq!(classes, [(high, 1), (Priority::Normal, 0), (low, 2)]);
    assert!(told.oldest_wait >= Some(Duration::from_millis(30)), "{:?}", told.oldest_wait);
    assert!(told.until_empty > Duration::ZERO);
    for (name, expected) in [
        ("te_queue_size{model=\"waits\"}", 3.0),
        ("turbo_priority_queue_size{priority=\"high\",model=\"waits\"}", 1.0),
        ("turbo_priority_queue_size{priority=\"low\",model=\"waits\"}", 2.0),
    ] {
        assert_eq!(value(&metrics, name), expected, "{name}");
    }
    control.open();
    wait(held).unwrap();
    waiting.into_iter().for_each(|pending| drop(wait(pending).unwrap()));
    let told = engine.observed().unwrap();
    assert_eq!((told.waiting, told.oldest_wait), (0, None));
    let answered: Vec<_> = told.classes.iter().map(|class| (class.answered, class.inputs)).collect();
    assert_eq!(answered, [(1, 1), (1, 1), (2, 2)], "the one that was held is of the class in between");
    assert!(told.classes.iter().all(|class| class.minute.is_some_and(|minute| minute.p50 > Duration::ZERO)));
    assert_eq!(value(&metrics, "turbo_priority_duration_count{priority=\"low\",model=\"waits\"}"), 2.0);
    assert_eq!(value(&metrics, "te_queue_size{model=\"waits\"}"), 0.0);
}

#[test]
fn who_had_no_answer_in_time_is_counted() {
    let metrics = Metrics::install().unwrap();
    let slo = Duration::from_secs(1);
    let label = Some("misses".into());
    let config = EngineConfig { label, max_concurrent_requests: 3, slo: Some(slo), ..config() };
    let (engine, control) = start(&config);
    let held = hold(&engine, &control, 1);
    let expires = begin(&engine, request([&[2]]));
    assert!(matches!(embed(&engine, [&[3], &[4]]), Err(EngineError::Overloaded { .. })));
    let ids = DecodeRequest::new(vec![vec![1]; 2], SpecialTokens::Without);
    assert!(matches!(wait(engine.decode(ids)), Err(EngineError::Overloaded { .. })));
    std::thread::sleep(slo + Duration::from_millis(10));
    control.open();
    wait(held).unwrap();
    assert!(matches!(wait(expires), Err(EngineError::Expired { .. })));
    let misses = engine.observed().unwrap().totals.misses;
    assert_eq!(misses, Misses { slots: 2, deadline: 0, expired: 1, late: 1 });
    let told = engine.observed().unwrap();
    assert_eq!(told.request_seconds.iter().map(|(_, second)| second.misses.late).sum::<u64>(), 1);
    for (name, expected) in [
        ("turbo_admission_refusals{reason=\"slots\",model=\"misses\"}", 2.0),
        ("turbo_admission_refusals{reason=\"deadline\",model=\"misses\"}", 0.0),
        ("turbo_deadline_misses{outcome=\"expired\",model=\"misses\"}", 1.0),
        ("turbo_deadline_misses{outcome=\"late\",model=\"misses\"}", 1.0),
    ] {
        assert_eq!(value(&metrics, name), expected, "{name}");
    }
}

#[test]
fn an_answer_that_is_taken_late_was_not_given_late() {
    let slo = Duration::from_secs(3);
    let config = EngineConfig { max_concurrent_requests: 1, slo: Some(slo), ..config() };
    let (engine, control) = start(&config);
    let held = hold(&engine, &control, 1);
    control.open();
    eventually(|| engine.has_room(1)); // its slot is free when its answer is sent
    std::thread::sleep(slo + Duration::from_millis(100));
    let total = wait(held).unwrap().usage.timings.total;
    let told = engine.observed().unwrap();
    assert_eq!(told.totals.misses, Misses::default());
    let p99 = told.latencies.minute.unwrap().p99;
    assert!(p99 < slo && total < slo, "{p99:?}, {total:?}");
}

#[test]
fn who_comes_again_is_refused_once_or_not_at_all() {
    let slo = Some(Duration::from_secs(1));
    let (engine, control) = start(&EngineConfig { max_concurrent_requests: 2, slo, ..config() });
    let held = hold(&engine, &control, 1);
    let refused = |retries, deadline| {
        let urgency = Urgency { deadline, ..Urgency::default() };
        let request = InferRequest { retries, urgency, ..request([&[2], &[3]]) };
        let told = wait(engine.infer(request));
        assert!(matches!(told, Err(EngineError::Overloaded { .. })), "{told:?}");
        engine.observed().unwrap().totals.misses.slots
    };
    assert_eq!([refused(true, None), refused(true, None), refused(false, None)], [0, 0, 1]);
    let soon = Some(Instant::now() + Duration::from_secs(60));
    assert_eq!(refused(true, soon), 1);
    control.open();
    wait(held).unwrap();
}

#[test]
fn bytes_are_told_as_long_as_there_is_a_model() {
    let metrics = Metrics::install().unwrap();
    let (engine, _control) = start(&EngineConfig { label: Some("bytes".into()), ..config() });
    embed(&engine, [&[1, 2, 3], &[4]]).unwrap();
    eventually(|| engine.observed().unwrap().memory.last_planned == 48);
    let names = [
        "turbo_planned_bytes{batch=\"largest\",model=\"bytes\"}",
        "turbo_planned_bytes{batch=\"last\",model=\"bytes\"}",
        "turbo_used_bytes{of=\"weights\",model=\"bytes\"}",
        "turbo_used_bytes{of=\"activations\",model=\"bytes\"}",
    ];
    let told = || names.map(|name| value(&metrics, name));
    assert_eq!(told(), [64.0 * 12.0, 48.0, 5.0, 2.0 * 64.0 * 12.0]);
    wait(engine.stop());
    assert_eq!(told(), [0.0; 4]);
}

#[test]
fn answers_that_are_kept_are_counted() {
    let cache = Some(ResponseCache::in_memory(1 << 20).unwrap());
    let (engine, control) = start(&EngineConfig { cache, ..config() });
    let held = hold(&engine, &control, 7);
    let same = begin(&engine, request([&[7]]));
    control.open();
    wait(held).unwrap();
    wait(same).unwrap();
    embed(&engine, [&[7], &[8]]).unwrap();
    let told = observed(&engine, 2);
    let Totals { origins, answered, batches, .. } = told.totals;
    assert_eq!(origins, Origins { memory: 1, folder: 0, redis: 0, shared: 1, misses: 2 });
    assert_eq!((answered, batches), (4, 2));
    let of_seconds = told.request_seconds.iter().fold(Origins::default(), |sum, (_, of)| Origins {
        memory: sum.memory + of.origins.memory,
        folder: 0,
        redis: 0,
        shared: sum.shared + of.origins.shared,
        misses: sum.misses + of.origins.misses,
    });
    assert_eq!(of_seconds, origins);
    assert!(told.batch_seconds.iter().all(|(second, _)| second + SECONDS > told.now.as_secs()));
}
