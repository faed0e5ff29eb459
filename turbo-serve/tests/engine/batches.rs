//! What runs together, and what does not run at all.

use std::time::{Duration, Instant};

use turbo_sched::{Dispatch, Policy};
use turbo_serve::engine::{BatchTokens, DeviceTurns, EngineConfig};

use crate::fake::{begin, config, embed, eventually, firsts, hold, is_ready, request, start, wait};

/// Runs five requests that wait together, behind one that holds the worker; returns what ran after it.
fn batches_of_five(config: &EngineConfig) -> Vec<Vec<u32>> {
    let (engine, control) = start(config);
    let first = hold(&engine, &control, 100);
    let waiting: Vec<_> = (1..=5).map(|id| begin(&engine, request([&[id, id]]))).collect();
    control.open();
    wait(first).unwrap();
    waiting.into_iter().for_each(|pending| drop(wait(pending).unwrap()));
    control.batches().split_off(1)
}

#[test]
fn what_waits_together_runs_together() {
    assert_eq!(batches_of_five(&config()), [[1, 2, 3, 4, 5]]);
    for batching in [Policy::WholeQueue, Policy::TokenBudget, Policy::SortedWindow] {
        assert_eq!(batches_of_five(&EngineConfig { batching, ..config() }), [[1, 2, 3, 4, 5]]);
    }
}

#[test]
fn policies_cut_a_queue_each_in_its_way() {
    // Ten tokens per batch, and five inputs, each with as many tokens as its id says.
    let batches = |batching| {
        let max_batch_tokens = BatchTokens::AtMost(10);
        let (engine, control) = start(&EngineConfig { batching, max_batch_tokens, ..config() });
        let first = hold(&engine, &control, 100);
        let input = |id: u32| vec![id; id as usize];
        let waiting: Vec<_> = [3, 7, 1, 6, 2].map(|id| begin(&engine, request([&input(id)]))).into();
        control.open();
        wait(first).unwrap();
        waiting.into_iter().for_each(|pending| drop(wait(pending).unwrap()));
        control.batches().split_off(1)
    };
    assert_eq!(batches(Policy::TokenBudget), [vec![3, 7], vec![1, 6, 2]], "ten tokens");
    assert_eq!(
        batches(Policy::WholeQueue),
        [vec![3], vec![7], vec![1], vec![6], vec![2]],
        "ten with padding"
    );
    assert_eq!(
        batches(Policy::SortedWindow),
        [vec![1, 2, 3], vec![7], vec![6]],
        "by length, the first's first"
    );
}

#[test]
fn without_batching_each_input_runs_alone() {
    let none = EngineConfig { batching: Policy::OneByOne, ..config() };
    assert_eq!(batches_of_five(&none), [[1], [2], [3], [4], [5]]);
}

#[test]
fn limits_of_a_batch_are_kept() {
    let two = EngineConfig { max_batch_requests: Some(2), ..config() };
    assert!(batches_of_five(&two).iter().all(|batch| batch.len() <= 2));
    let tokens = EngineConfig { max_batch_tokens: BatchTokens::AtMost(8), ..config() };
    assert!(batches_of_five(&tokens).iter().all(|batch| batch.len() <= 4));
}

#[test]
fn others_have_the_device_while_the_rows_of_a_batch_are_read() {
    let config = EngineConfig { turns: DeviceTurns::default(), ..config() };
    let [(one, reads), (other, _other)] = [(); 2].map(|()| start(&config));
    reads.rows_wait(true);
    let answered = begin(&one, request([&[1]]));
    reads.wait_for_batches(1);
    assert_eq!(firsts(&embed(&other, [&[2]]).unwrap()), [2]);
    reads.rows_wait(false);
    assert_eq!(firsts(&wait(answered).unwrap()), [1]);
}

#[test]
fn the_inputs_of_a_request_arrive_together() {
    let (engine, control) = start(&config());
    embed(&engine, [&[1], &[2], &[3]]).unwrap();
    assert_eq!(control.batches(), [[1, 2, 3]]);
}

#[test]
fn a_lazy_engine_waits_for_company() {
    // longer than a loaded machine lets a thread wait between two requests
    let timeout = Duration::from_secs(2);
    let dispatch = Dispatch::Lazy { timeout, slo: Duration::from_secs(60) };
    let (engine, control) = start(&EngineConfig { dispatch, ..config() });
    let started = Instant::now();
    let mut first = begin(&engine, request([&[1]]));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!is_ready(&mut first));
    let second = begin(&engine, request([&[2]]));
    wait(first).unwrap();
    wait(second).unwrap();
    assert!(started.elapsed() >= timeout);
    assert_eq!(control.batches(), [[1, 2]]);
}

#[test]
fn a_client_that_has_gone_is_never_computed() {
    let (engine, control) = start(&EngineConfig { max_concurrent_requests: 4, ..config() });
    let running = hold(&engine, &control, 1);
    let gone = begin(&engine, request([&[2], &[3]]));
    let stays = begin(&engine, request([&[4]]));
    drop(gone);
    control.open();
    wait(running).unwrap();
    wait(stays).unwrap();
    assert_eq!(control.batches(), [[1], [4]]);
    // and its slots are free again
    eventually(|| embed(&engine, [&[5], &[6], &[7], &[8]]).is_ok());
}

#[test]
fn a_client_that_goes_while_its_batch_runs_harms_nobody() {
    let (engine, control) = start(&config());
    drop(hold(&engine, &control, 1));
    control.open();
    assert!(embed(&engine, [&[2]]).is_ok());
}

#[test]
fn engines_on_one_device_take_turns() {
    let config = EngineConfig::default();
    let (first, first_control) =
        start(&EngineConfig { turns: config.turns.clone(), ..crate::fake::config() });
    let (second, second_control) =
        start(&EngineConfig { turns: config.turns.clone(), ..crate::fake::config() });
    let runs = hold(&first, &first_control, 1);
    let waits = [2, 3].map(|id| begin(&second, request([&[id]])));
    std::thread::sleep(Duration::from_millis(50));
    assert!(second_control.batches().is_empty(), "the device is the first engine's");
    first_control.open();
    wait(runs).unwrap();
    waits.into_iter().for_each(|pending| drop(wait(pending).unwrap()));
    // what arrived while the other had the device runs together
    assert_eq!(second_control.batches(), [[2, 3]]);
}
