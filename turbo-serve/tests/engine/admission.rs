//! Which requests are admitted, and how others are refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use turbo_serve::{
    engine::{
        BatchTokens, Engine, EngineConfig, EngineError, Infer, InferRequest, Input, OutputKind, RowLens,
        StartError, Task, Truncation,
    },
    tasks::{IfFull, infer_in_parts},
};

use crate::{
    fake::{Control, begin, config, embed, firsts, model, request, start, try_start, wait},
    paced,
};

#[test]
fn a_request_takes_a_slot_per_input_or_none() {
    let (engine, control) = start(&EngineConfig { max_concurrent_requests: 3, ..config() });
    control.close();
    let first = begin(&engine, request([&[1], &[2]]));
    assert!(matches!(embed(&engine, [&[3], &[4]]), Err(EngineError::Overloaded { .. })));
    let second = begin(&engine, request([&[5]]));
    assert!(matches!(embed(&engine, [&[6]]), Err(EngineError::Overloaded { .. })));
    control.open();
    assert_eq!(firsts(&wait(first).unwrap()), [1, 2]);
    assert_eq!(firsts(&wait(second).unwrap()), [5]);
    assert_eq!(firsts(&embed(&engine, [&[7], &[8], &[9]]).unwrap()), [7, 8, 9]);
}

#[test]
fn slots_are_free_when_the_answer_arrives() {
    let (engine, _control) = start(&EngineConfig { max_concurrent_requests: 1, ..config() });
    for id in 0..200 {
        assert_eq!(firsts(&embed(&engine, [&[id]]).unwrap()), [id]);
        assert!(matches!(embed(&engine, [&[]]), Err(EngineError::EmptyInput { input: 0 })));
    }
}

/// Eight clients that retry at once take each free slot, so without priority for waiting parts four would never be free
/// at once.
#[test]
fn newcomers_do_not_keep_the_rest_of_a_request_out() {
    let limits = EngineConfig { max_concurrent_requests: 4, max_client_batch_size: 4, ..config() };
    let (engine, control) = start(&limits);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
    control.close();
    let whole = engine.clone();
    let in_parts = runtime.spawn(async move {
        let inputs = (101..=108).map(|id| Input::Ids(vec![id]));
        let request = InferRequest::new(Vec::new(), OutputKind::RAW);
        infer_in_parts(&whole, request, inputs, IfFull::Fails).await
    });
    control.wait_for_batches(1); // the first part has all slots
    let done = Arc::new(AtomicBool::new(false));
    let newcomers: Vec<_> = (0..8)
        .map(|id| {
            let (engine, done) = (engine.clone(), Arc::clone(&done));
            runtime.spawn(async move {
                while !done.load(SeqCst) {
                    match engine.infer(request([&[id]])).await {
                        Ok(_) | Err(EngineError::Overloaded { .. }) => tokio::task::yield_now().await,
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    control.open();
    let answer = wait(in_parts).unwrap().unwrap();
    done.store(true, SeqCst);
    assert_eq!(firsts(&answer), (101..=108).collect::<Vec<_>>());
    newcomers.into_iter().for_each(|newcomer| wait(newcomer).unwrap());
    let asked = control.batches().iter().position(|batch| batch.contains(&105)).unwrap();
    assert!(asked < 50, "{asked} batches went before the second part");
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let (engine, _ran) = paced::start(&EngineConfig { max_concurrent_requests: 32, ..config() }, 0.0);
    // 2 ms a token: half a second
    let waiting = begin(&engine, request([&[1; 8]; 32]));
    let Err(EngineError::Overloaded { retry_after }) = embed(&engine, [&[5]]) else { panic!("admitted") };
    assert!((Duration::from_millis(100)..Duration::from_secs(30)).contains(&retry_after), "{retry_after:?}");
    wait(waiting).unwrap();
}

#[test]
fn bad_requests_are_told_why_and_compute_nothing() {
    let (engine, control) =
        start(&EngineConfig { max_client_batch_size: 2, auto_truncate: false, ..config() });
    let long = [1; 9];
    let dimensions = |got| InferRequest {
        output: OutputKind::Pooled { normalize: true, dimensions: Some(got) },
        ..request([&[1]])
    };
    for (request, expected) in [
        (request([]), EngineError::Empty),
        (request([&[1], &[2], &[3]]), EngineError::TooManyInputs { got: 3, limit: 2 }),
        (request([&[1], &long]), EngineError::TooLong { input: 1, tokens: 9, limit: 8 }),
        (request([&[1], &[1000]]), EngineError::InvalidId { input: 1, id: 1000, vocab_size: 1000 }),
        (request([&[], &[1]]), EngineError::EmptyInput { input: 0 }),
        (dimensions(0), EngineError::InvalidDimensions { got: 0, limit: 3 }),
        (dimensions(4), EngineError::InvalidDimensions { got: 4, limit: 3 }),
    ] {
        assert_eq!(wait(engine.infer(request)), Err(expected));
    }
    assert_eq!(firsts(&embed(&engine, [&[5]]).unwrap()), [5]);
    assert_eq!(control.batches(), [[5]]);
}

#[test]
fn a_request_larger_than_all_slots_is_not_told_to_come_back() {
    let (engine, _control) = start(&EngineConfig { max_concurrent_requests: 2, ..config() });
    assert_eq!(embed(&engine, [&[1], &[2], &[3]]), Err(EngineError::TooManyInputs { got: 3, limit: 2 }));
    assert_eq!(engine.info().max_client_batch_size, 2);
}

#[test]
fn limits_that_contradict_each_other_are_refused_at_start() {
    let start_error = |config| try_start(&config).0.expect_err("started");
    assert!(matches!(
        start_error(EngineConfig {
            max_batch_tokens: BatchTokens::AtMost(7),
            auto_truncate: false,
            ..config()
        }),
        StartError::BatchTokens { max_batch_tokens: 7, max_input_length: 8 }
    ));
    assert!(matches!(
        start_error(EngineConfig { max_batch_requests: Some(0), ..config() }),
        StartError::Zero { name: "max_batch_requests" }
    ));
    for (name, config) in [
        ("max_concurrent_requests", EngineConfig { max_concurrent_requests: usize::MAX, ..config() }),
        ("tokenization_workers", EngineConfig { tokenization_workers: usize::MAX, ..config() }),
    ] {
        let error = start_error(config);
        assert!(matches!(&error, StartError::TooMany { name: said, .. } if *said == name), "{error}");
    }
}

#[test]
fn a_batch_that_memory_has_no_room_for_is_refused_at_start() {
    // the fake plans three values of four bytes for each token; its longest input has 8
    let start = |max_batch_tokens, free| {
        let control = Arc::new(Control::default());
        control.has_free(free);
        let config = EngineConfig { max_batch_tokens, ..config() };
        (Engine::start(model(&control), &config).map(drop), control.reserved())
    };
    let (asked, within) = (BatchTokens::AtMost(64), BatchTokens::default());
    for (max_batch_tokens, free, expected) in [
        (asked, 64 * 12 - 1, (64, Some(63))),
        (asked, 30, (64, Some(2))),
        (asked, 11, (64, None)),
        (within, 8 * 12 - 1, (8, Some(7))),
    ] {
        let (started, reserved) = start(max_batch_tokens, free);
        let Err(StartError::Memory { tokens, needed, free: told, fits }) = started else {
            panic!("{started:?}")
        };
        assert_eq!((tokens, fits), expected, "{max_batch_tokens:?} in {free} bytes");
        assert_eq!((needed, told, reserved), (tokens as u64 * 12, free, 1), "nothing was taken before");
    }
    assert!(matches!(start(asked, 64 * 12), (Ok(()), 64)));
    let said = StartError::Memory { tokens: 64, needed: 41_234_567_890, free: 7_000_000, fits: Some(9) };
    assert_eq!(
        said.to_string(),
        "a batch of 64 tokens needs 41234.6 MB of memory, but 7.0 MB are free: set max_batch_tokens \
         to 9 or less, or free some memory"
    );
}

#[test]
fn models_that_start_at_once_do_not_count_on_the_same_memory() {
    // a batch of 64 tokens takes 768 bytes: there is room for one of the two
    let free = Arc::new(AtomicU64::new(1000));
    let start = || {
        let control = Arc::new(Control::default());
        control.shares(&free);
        Engine::start(model(&control), &config()).map(drop)
    };
    let (one, other) = std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(start), scope.spawn(start));
        (one.join().unwrap(), other.join().unwrap())
    });
    let ((Ok(()), Err(refused)) | (Err(refused), Ok(()))) = (one, other) else {
        panic!("not one of the two")
    };
    assert!(matches!(refused, StartError::Memory { tokens: 64, free: 244, .. }), "{refused}");
}

#[test]
fn inputs_are_cut_to_what_fits_into_a_batch() {
    let (engine, _control) = start(&EngineConfig { max_batch_tokens: BatchTokens::AtMost(7), ..config() });
    assert_eq!((engine.info().max_input_length, engine.info().model.max_input_length), (7, 8));
    assert_eq!(embed(&engine, [&[1; 8]]).unwrap().usage.tokens, 7);
    let whole = InferRequest { truncation: Some(Truncation::Off), ..request([&[1; 8]]) };
    assert_eq!(wait(engine.infer(whole)), Err(EngineError::TooLong { input: 0, tokens: 8, limit: 7 }));
}

#[test]
fn one_input_alone_may_be_as_long_as_the_model_takes() {
    let control = Arc::new(Control::default());
    let mut model = model(&control);
    model.info.max_input_length = 32_768;
    let max_batch_tokens = BatchTokens::default();
    let config = EngineConfig { max_batch_tokens, auto_truncate: false, ..config() };
    let engine = Engine::start(model, &config).unwrap();
    assert_eq!((engine.info().max_input_length, engine.info().max_batch_tokens), (32_768, 32_768));
    assert_eq!(embed(&engine, [&[1; 32_768]]).unwrap().usage.tokens, 32_768);
    let longer = Err(EngineError::TooLong { input: 0, tokens: 32_769, limit: 32_768 });
    assert_eq!(embed(&engine, [&[1; 32_769]]), longer);
}

#[test]
fn rows_as_wide_as_the_vocabulary_bound_the_batches() {
    let limit = |task, pooled, selected, config: EngineConfig| {
        let control = Arc::new(Control::default());
        let mut model = model(&control);
        model.info.task = task;
        model.info.rows = RowLens { pooled, tokens: None, selected };
        Engine::start(model, &config).unwrap().info().max_batch_requests
    };
    // 256 MiB of rows of 30522 values: 2198 of them
    let many = EngineConfig {
        max_concurrent_requests: 4096,
        max_batch_tokens: BatchTokens::AtMost(4096),
        ..config()
    };
    assert_eq!(limit(Task::SparseEmbedding, Some(30_522), None, many), Some(2198));
    assert_eq!(limit(Task::SparseEmbedding, Some(30_522), None, config()), None, "no more are admitted");
    assert_eq!(limit(Task::MaskedLm, None, Some(30_522), config()), Some(17));
    assert_eq!(limit(Task::MaskedLm, None, Some(1 << 30), config()), Some(1));
    let asked = EngineConfig { max_batch_requests: Some(9), ..config() };
    assert_eq!(limit(Task::MaskedLm, None, Some(30_522), asked), Some(9));
    assert_eq!(limit(Task::SequenceClassification, Some(2), None, config()), None);
}
