//! Stopping: no accepted request is lost, no new one is taken, and abandoned batches are not computed to their end.

use std::time::Duration;

use turbo_serve::engine::{Dispatch, EngineConfig, EngineError, Health, Infer};

use crate::fake::{begin, config, embed, eventually, firsts, hold, is_ready, request, start, wait};

#[test]
fn accepted_requests_are_answered_and_new_ones_refused() {
    let (engine, control) = start(&config());
    let running = hold(&engine, &control, 1);
    let waiting = begin(&engine, request([&[2], &[3]]));
    {
        let mut stop = Box::pin(engine.stop());
        assert!(!is_ready(&mut stop));
        assert_eq!(engine.health(), Health::Stopping);
        assert_eq!(embed(&engine, [&[4]]), Err(EngineError::Stopping));
        control.open();
        assert_eq!(firsts(&wait(running).unwrap()), [1]);
        assert_eq!(firsts(&wait(waiting).unwrap()), [2, 3]);
        wait(stop);
    }
    assert_eq!(embed(&engine, [&[5]]), Err(EngineError::Stopping));
    wait(engine.stop());
    assert_eq!(control.batches(), [vec![1], vec![2, 3]]);
}

#[test]
fn who_waits_for_company_is_answered_when_none_can_come() {
    let dispatch = Dispatch::Lazy { timeout: Duration::MAX, slo: Duration::MAX };
    let (engine, control) = start(&EngineConfig { dispatch, ..config() });
    let mut waiting = begin(&engine, request([&[1]]));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!is_ready(&mut waiting), "it waits for others");
    let mut stop = Box::pin(engine.stop());
    assert!(!is_ready(&mut stop));
    assert_eq!(firsts(&wait(waiting).unwrap()), [1]);
    wait(stop);
    assert_eq!(control.batches(), [vec![1]]);
}

#[test]
fn an_engine_stops_without_a_runtime() {
    let (engine, control) = start(&config());
    let stop = std::cell::RefCell::new(Box::pin(engine.stop()));
    eventually(|| is_ready(&mut *stop.borrow_mut()));
    assert_eq!(std::sync::Arc::strong_count(&control), 1, "the worker, which held the other, has ended");
}

#[test]
fn an_idle_engine_stops_at_once() {
    let (engine, control) = start(&config());
    wait(engine.stop());
    assert!(control.batches().is_empty());
}

#[test]
fn dropping_the_last_handle_ends_the_worker() {
    let (engine, control) = start(&config());
    embed(&engine, [&[1]]).unwrap();
    drop(engine);
    // the worker holds the runner, and with it the second handle on the control
    eventually(|| std::sync::Arc::strong_count(&control) == 1);
}

#[test]
fn a_batch_for_which_nobody_waits_ends_at_its_next_layer() {
    let (engine, control) = start(&config());
    let one = hold(&engine, &control, 1);
    let two = begin(&engine, request([&[2], &[3]]));
    drop(one);
    // The control stays closed: the worker gets to the second batch only by cancelling the first one.
    control.wait_for_batches(2);
    control.open();
    assert_eq!(firsts(&wait(two).unwrap()), [2, 3]);
    assert_eq!(control.batches(), [vec![1], vec![2, 3]]);
    assert_eq!(firsts(&embed(&engine, [&[4]]).unwrap()), [4], "the runner can be used on");
}

#[test]
fn a_batch_goes_on_for_the_one_who_still_waits() {
    let (engine, control) = start(&config());
    let first = hold(&engine, &control, 9);
    let (gone, mut stays) = (begin(&engine, request([&[1]])), begin(&engine, request([&[2]])));
    control.let_through(1);
    wait(first).unwrap();
    control.wait_for_batches(2); // both are in it, and it is held
    drop(gone);
    std::thread::sleep(Duration::from_millis(20)); // many layers
    assert!(!is_ready(&mut stays));
    control.open();
    assert_eq!(firsts(&wait(stays).unwrap()), [2]);
    assert_eq!(control.batches(), [vec![9], vec![1, 2]], "the batch was not begun again");
}

#[test]
fn who_waits_for_an_engine_that_is_abandoned_is_told() {
    let (engine, control) = start(&config());
    let running = hold(&engine, &control, 1);
    let waiting = begin(&engine, request([&[2], &[3]]));
    let mut stop = Box::pin(engine.stop());
    assert!(!is_ready(&mut stop));
    engine.abandon();
    for pending in [running, waiting] {
        assert_eq!(wait(pending), Err(EngineError::Stopping));
    }
    wait(stop);
    assert_eq!(embed(&engine, [&[4]]), Err(EngineError::Stopping));
    assert_eq!(control.batches(), [vec![1]], "what waited was not begun");
}

#[test]
fn an_idle_engine_can_be_abandoned() {
    let (engine, _control) = start(&config());
    engine.abandon();
    assert_eq!(embed(&engine, [&[1]]), Err(EngineError::Stopping));
    wait(engine.stop());
}
