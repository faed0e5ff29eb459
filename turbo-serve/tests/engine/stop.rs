//! Stopping: nothing accepted is lost, nothing new is taken.

use turbo_serve::engine::{EngineError, Health, Infer};

use crate::fake::{begin, config, embed, firsts, is_ready, request, start, wait};

#[test]
fn accepted_requests_are_answered_and_new_ones_refused() {
    let (engine, control) = start(&config());
    control.close();
    let running = begin(&engine, request([&[1]]));
    control.wait_for_batches(1);
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
    crate::fake::eventually(|| std::sync::Arc::strong_count(&control) == 1);
}
