//! A batch that fails costs its own requests and nothing else.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use turbo_serve::engine::{
    BatchTokens, DeviceTurns, Engine, EngineConfig, EngineError, Health, Infer, InferRequest, RunError,
    StartError, Urgency,
};

use crate::fake::{
    BREAKS, Control, FAILS, HIDDEN_SIZE, LOSES, MAX_INPUT_LENGTH, ONE_FEWER, ONE_MORE, PANICS, begin, config,
    embed, eventually, firsts, hold, model, request, start, wait, warm,
};

fn backend(result: Result<turbo_serve::engine::InferResponse, EngineError>) -> String {
    match result {
        Err(EngineError::Backend(why)) => why,
        other => panic!("expected a backend error, got {other:?}"),
    }
}

#[test]
fn a_failed_batch_says_why_and_the_next_one_works() {
    let (engine, control) = start(&config());
    assert_eq!(backend(embed(&engine, [&[FAILS]])), "the device fell off the bus");
    assert_eq!(engine.health(), Health::Ready);
    assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
    assert_eq!(control.builds(), 1, "an error is no reason to build the model anew");
}

#[test]
fn rows_of_another_length_are_no_answer() {
    let (engine, _control) = start(&config());
    for (id, got) in [(ONE_FEWER, HIDDEN_SIZE - 1), (ONE_MORE, HIDDEN_SIZE + 1)] {
        let why = format!("the model gave {got} values for an input, expected {HIDDEN_SIZE}");
        assert_eq!(backend(embed(&engine, [&[id]])), why);
        assert_eq!(engine.health(), Health::Ready);
        assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
    }
}

#[test]
fn who_has_lost_the_device_fails_for_good() {
    let (engine, control) = start(&config());
    for id in [LOSES, 1, PANICS] {
        assert_eq!(backend(embed(&engine, [&[id]])), "not computed: the device is gone");
        assert_eq!(engine.health(), Health::Failing);
    }
    assert_eq!((control.batches(), control.builds()), (vec![vec![LOSES]], 1), "the others were not tried");
}

#[test]
fn a_panic_fails_its_batch_alone() {
    let (engine, control) = start(&config());
    let first = hold(&engine, &control, 1);
    let panics = begin(&engine, request([&[2], &[PANICS]]));
    control.open();
    assert_eq!(firsts(&wait(first).unwrap()), [1]);
    assert_eq!(backend(wait(panics)), "the batch panicked: an invariant broke");
    assert_eq!(firsts(&embed(&engine, [&[3], &[4]]).unwrap()), [3, 4]);
    assert_eq!(control.builds(), 2, "what a panic leaves behind is not trusted");
    assert_eq!(engine.health(), Health::Ready);
}

#[test]
fn a_panic_while_memory_is_planned_is_as_any_other() {
    let (engine, control) = start(&config());
    control.plans_panic();
    for id in [2, 3, 4] {
        assert_eq!(firsts(&embed(&engine, [&[id]]).unwrap()), [id]);
    }
    engine.observed();
    assert_eq!(firsts(&embed(&engine, [&[5]]).unwrap()), [5]);
    assert_eq!(control.builds(), 2, "it is not asked for again");
    assert_eq!(engine.health(), Health::Ready);
}

#[test]
fn who_comes_while_the_model_is_built_anew_is_told_how_long_that_takes() {
    const LONG: Duration = Duration::from_millis(500);
    let within = BatchTokens::Within(Duration::from_secs(1));
    // The weights are slow, or reserving memory, which is part of building: for the configured largest batch, or for
    // the one that was found to fit.
    for (building, (reserving, beyond), max_batch_tokens) in [
        (LONG, (Duration::ZERO, 0), config().max_batch_tokens),
        (Duration::ZERO, (LONG, 1), config().max_batch_tokens),
        (Duration::ZERO, (LONG, MAX_INPUT_LENGTH), within),
    ] {
        let control = Arc::new(Control::default());
        control.takes_to_reserve(reserving, beyond);
        let mut model = model(&control);
        let mut build = model.build;
        model.build = Box::new(move |capacity| {
            std::thread::sleep(building);
            build(capacity)
        });
        let engine = Engine::start(model, &EngineConfig { max_batch_tokens, ..config() }).unwrap();
        warm(&control);
        backend(embed(&engine, [&[PANICS]]));
        eventually(|| engine.health() == Health::Starting);
        let deadline = Some(Instant::now() + LONG / 4);
        let hurried = InferRequest { urgency: Urgency { deadline, ..Urgency::default() }, ..request([&[1]]) };
        let told = wait(engine.infer(hurried));
        assert!(
            matches!(told, Err(EngineError::TooLate { .. })),
            "{building:?}, {reserving:?} beyond {beyond}: {told:?}"
        );
        assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
    }
}

#[test]
fn a_model_that_cannot_be_built_anew_is_tried_again() {
    let (engine, control) = start(&config());
    backend(embed(&engine, [&[BREAKS]]));
    // The client has its answer before or after the attempt to build the model; the next batch tries again.
    assert_eq!(firsts(&embed(&engine, [&[5]]).unwrap()), [5]);
    assert_eq!(control.builds(), 3);
    assert_eq!(engine.health(), Health::Ready);
}

/// A load balancer sends no requests to an unhealthy server, so recovery must not need one.
#[test]
fn a_model_that_cannot_be_built_anew_is_tried_again_though_nobody_asks() {
    let (engine, control) = start(&config());
    backend(embed(&engine, [&[BREAKS]]));
    eventually(|| engine.health() == Health::Failing);
    let failed = Instant::now();
    // `observed` wakes the worker, but neither hurries nor delays the attempt.
    eventually(|| engine.observed().is_some() && engine.health() == Health::Ready);
    assert!(failed.elapsed() > Duration::from_secs(3), "after {:?}", failed.elapsed());
    assert_eq!(control.builds(), 3);
}

/// Building a model takes long, but computes nothing.
#[test]
fn others_have_the_device_while_a_model_is_tried_again() {
    let config = EngineConfig { turns: DeviceTurns::default(), ..config() };
    let (other, _other) = start(&config);
    let control = Arc::new(Control::default());
    let (go_on, may_go_on) = mpsc::channel();
    let (mut model, builds) = (model(&control), Arc::clone(&control));
    let mut build = model.build;
    model.build = Box::new(move |capacity| {
        if builds.builds() == 2 {
            let _ = may_go_on.recv(); // an error says that the test has failed
        }
        build(capacity)
    });
    let engine = Engine::start(model, &config).unwrap();
    warm(&control);
    backend(embed(&engine, [&[BREAKS]]));
    eventually(|| engine.health() == Health::Failing);
    let waits = begin(&engine, request([&[1]]));
    eventually(|| engine.health() == Health::Starting);
    assert_eq!(firsts(&embed(&other, [&[2]]).unwrap()), [2]);
    go_on.send(()).unwrap();
    assert_eq!(firsts(&wait(waits).unwrap()), [1]);
}

#[test]
fn a_model_that_cannot_be_built_does_not_start() {
    let control = Arc::new(Control::default());
    let build = |error: fn() -> RunError| {
        let mut model = model(&control);
        model.build = Box::new(move |_| Err(error()));
        Engine::start(model, &config()).expect_err("started")
    };
    let error = build(|| "tensor `x` is missing".into());
    assert!(matches!(&error, StartError::Runner(why) if why.to_string() == "tensor `x` is missing"));
    let error = build(|| panic!("out of luck"));
    assert!(matches!(&error, StartError::Panicked(why) if why == "out of luck"), "{error}");
}
