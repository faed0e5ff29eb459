//! What an engine tells of itself is what happened.

use std::time::Duration;

use turbo_serve::{
    cache::ResponseCache,
    engine::{
        EngineConfig, Infer,
        observed::{Observed, Origins, SECONDS, Totals},
    },
};

use crate::fake::{FAILS, begin, config, embed, eventually, hold, request, start, wait};

/// What is told once `batches` are written down: that is done after their answers are sent.
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
    assert_eq!((told.totals, told.waiting, told.unseen), (totals, 0, 0));
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
    // the fake plans three values of four bytes for each token
    assert_eq!(told.reserved_bytes, 64 * 12);
    assert_eq!((told.costs.seq_lens.last(), told.costs.batch_sizes.last()), (Some(&8), Some(&64)));
    assert!(!told.costs.measured.is_empty());
    embed(&engine, [&[1, 2, 3], &[4]]).unwrap();
    eventually(|| {
        engine.observed().unwrap().batch_seconds.iter().any(|(_, sum)| sum.planned_bytes.is_some())
    });
    let told = observed(&engine, 1);
    let (_, second) = told.batch_seconds[0];
    assert_eq!((second.largest.total_tokens, second.planned_bytes), (4, Some(48)));
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
