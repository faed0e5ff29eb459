//! Deadlines: a request that cannot meet its own is rejected at once, and an expired one is not computed.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use turbo_serve::{
    cache::ResponseCache,
    engine::{
        AnswerRoom, DeviceTurns, Engine, EngineConfig, EngineError, HoldAnswers, Infer, InferRequest,
        InferResponse, Input, OutputKind, Priority, Urgency, observed::Totals,
    },
    http::Metrics,
};

use crate::{
    fake::{begin, config, embed, eventually, firsts, hold, request, start, wait},
    observed::value,
    paced,
};

/// More time than a busy machine takes away from a thread; a crowd takes longer by about as much.
const SOON: Duration = millis(300);
/// More time than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The same request, wanted within this time from now.
fn within(time: Duration, request: InferRequest) -> InferRequest {
    let urgency = Urgency { deadline: Some(Instant::now() + time), ..request.urgency };
    InferRequest { urgency, ..request }
}

fn of_class(priority: Priority, request: InferRequest) -> InferRequest {
    InferRequest { urgency: Urgency { priority, ..request.urgency }, ..request }
}

/// Starts asking on a thread's runtime, whose clock deadlines need.
fn ask(
    runtime: &tokio::runtime::Runtime,
    engine: &Engine,
    request: InferRequest,
) -> impl Future<Output = Result<InferResponse, EngineError>> + use<> {
    let engine = engine.clone();
    let asked = runtime.spawn(async move { engine.infer(request).await });
    async { asked.await.unwrap() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

/// An engine that computes 2 ms a token, with 32 inputs of 8 tokens and of the highest class waiting: half a second.
fn busy(config: &EngineConfig) -> (Engine, paced::Ran, tokio::runtime::Runtime) {
    let (engine, ran) = paced::start(config, 0.0);
    ran.lock().unwrap().clear();
    let runtime = runtime();
    crowd(&engine, &runtime);
    (engine, ran, runtime)
}

/// Makes 32 inputs of 8 tokens and of the highest class wait.
fn crowd(engine: &Engine, runtime: &tokio::runtime::Runtime) {
    let arrived = || engine.observed().map_or(0, |told| told.totals.inputs + told.waiting as u64);
    let before = arrived();
    let patient = |id| of_class(Priority::High, within(LONG, request([&[id; 8]])));
    (0..32).for_each(|id| drop(ask(runtime, engine, patient(id))));
    eventually(|| arrived() >= before + 32);
}

#[test]
fn who_would_be_answered_too_late_is_told_at_once() {
    let (engine, ran, runtime) = busy(&config());
    let mut asked = engine.infer(within(SOON, request([&[7; 3]])));
    let refused = {
        let _clock = runtime.enter();
        asked.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    let Poll::Ready(Err(EngineError::TooLate { within: allowed, predicted, retry_after })) = refused else {
        panic!("{refused:?}")
    };
    assert!(allowed <= SOON && predicted > allowed && predicted < millis(3000), "{predicted:?}");
    assert_eq!(retry_after, predicted - allowed, "then it would be in time");

    let patient = wait(engine.infer(within(LONG, request([&[7; 3]])))).unwrap();
    assert_eq!(patient.rows[0].tokens, 3);
    let threes = ran.lock().unwrap().iter().flatten().filter(|&&len| len == 3).count();
    assert_eq!(threes, 1, "who was refused is not computed");
}

#[test]
fn its_own_batch_counts() {
    let (engine, _ran) = paced::start(&config(), 0.0);
    // 32 inputs of 8 tokens are four batches of 130 ms; no other request is there, so a retry is of no use.
    let all = || request([&[1; 8]; 32]);
    let (started, hurried) = (Instant::now(), wait(engine.infer(within(SOON, all()))));
    assert!(matches!(hurried, Err(EngineError::Expired { .. })), "{hurried:?}");
    assert!(started.elapsed() < SOON, "it is told at once");
    assert_eq!(wait(engine.infer(within(LONG, all()))).unwrap().rows.len(), 32);
    assert!(wait(engine.infer(within(SOON, request([&[1]])))).is_ok());
}

#[test]
fn who_else_has_the_device_counts() {
    let config = EngineConfig { turns: DeviceTurns::default(), ..config() };
    let [(one, _one_ran), (other, _other_ran)] = [(); 2].map(|()| paced::start(&config, 0.0));
    let runtime = runtime();
    crowd(&one, &runtime);
    // Nobody else uses this engine, but a batch of the other one's crowd takes 130 ms.
    let ask = |time| wait(other.infer(within(time, request([&[7; 3]]))));
    eventually(|| matches!(ask(millis(60)), Err(EngineError::TooLate { .. })));
    assert!(ask(Duration::from_secs(5)).is_ok());
}

#[test]
fn what_is_over_is_neither_computed_nor_waited_for() {
    let (engine, control) = start(&config());
    let runtime = runtime();
    let running = hold(&engine, &control, 1);
    let started = Instant::now();
    let waits = ask(&runtime, &engine, within(millis(50), request([&[2]])));
    let expired = wait(waits);
    assert!(matches!(expired, Err(EngineError::Expired { within }) if within <= millis(50)), "{expired:?}");
    assert!((millis(50)..millis(1000)).contains(&started.elapsed()), "{:?}", started.elapsed());
    control.open();
    wait(running).unwrap();
    assert_eq!(firsts(&embed(&engine, [&[3]]).unwrap()), [3]);
    assert_eq!(control.batches(), [[1], [3]]);
    let over = InferRequest {
        urgency: Urgency { deadline: Some(Instant::now()), ..Urgency::default() },
        ..request([&[4]])
    };
    assert!(matches!(wait(engine.infer(over)), Err(EngineError::Expired { .. })));
    assert_eq!(control.batches().len(), 2);
}

#[test]
fn what_is_over_is_told_where_there_is_no_room_too() {
    let (engine, control) = start(&EngineConfig { max_concurrent_requests: 1, ..config() });
    let running = hold(&engine, &control, 1);
    assert!(!engine.has_room(1));
    let over = wait(engine.infer(within(Duration::ZERO, request([&[2]]))));
    assert!(matches!(over, Err(EngineError::Expired { .. })), "{over:?}");
    control.open();
    wait(running).unwrap();
    assert!(engine.has_room(1));
}

#[test]
fn what_is_promised_to_all_is_a_deadline_in_the_queue() {
    let slo = millis(1000);
    let (engine, control) = start(&EngineConfig { slo: Some(slo), ..config() });
    let running = hold(&engine, &control, 1);
    let waiting = begin(&engine, request([&[2]]));
    std::thread::sleep(slo + millis(10));
    control.open();
    // Its batch had begun, so it is answered, if late.
    assert_eq!(firsts(&wait(running).unwrap()), [1]);
    assert_eq!(wait(waiting), Err(EngineError::Expired { within: slo }));
    // After a slow batch the worker expects slow ones for a while, but not for ever.
    eventually(|| embed(&engine, [&[3]]).is_ok());
    assert!(!control.batches().contains(&vec![2]));
}

#[test]
fn nothing_is_promised_to_who_takes_longer_by_himself() {
    let (engine, _ran) = paced::start(&EngineConfig { slo: Some(SOON), ..config() }, 0.0);
    assert!(embed(&engine, [&[1; 8]; 32]).is_ok(), "half a second");
    assert_eq!(engine.observed().unwrap().totals.misses.late, 0, "he was promised nothing");
    let (engine, _ran, _runtime) = busy(&EngineConfig { slo: Some(millis(700)), ..config() });
    let refused = (0..64).map(|id| wait(engine.infer(within(SOON, request([&[id; 8]])))));
    assert!(refused.into_iter().all(|answer| matches!(answer, Err(EngineError::TooLate { .. }))));
}

#[test]
fn nothing_is_promised_to_who_waits_for_an_answer_that_takes_longer() {
    let cache = Some(ResponseCache::in_memory(1 << 20).unwrap());
    let (engine, _ran) = paced::start(&EngineConfig { cache, slo: Some(millis(200)), ..config() }, 0.0);
    let runtime = runtime();
    let texts = |ids: std::ops::Range<u32>| {
        let inputs = ids.map(|id| Input::Ids(vec![id; 8])).collect();
        InferRequest::new(inputs, OutputKind::RAW)
    };
    // Four batches of 130 ms each. In the second case the deadline is the client's, and no promise of the server's.
    for (first, second) in [
        (texts(0..32), texts(0..32)),
        (within(LONG, texts(100..132)), texts(100..132)),
        (
            texts(200..232),
            InferRequest::new(
                [texts(200..201), texts(231..232)].map(|it| it.inputs).concat(),
                OutputKind::RAW,
            ),
        ),
    ] {
        let first = ask(&runtime, &engine, first);
        eventually(|| engine.observed().unwrap().waiting > 0);
        let inputs = second.inputs.len();
        assert_eq!(wait(engine.infer(second)).map(|answer| answer.rows.len()), Ok(inputs));
        assert!(wait(first).is_ok());
    }
}

#[test]
fn what_is_known_is_never_too_late() {
    let cache = Some(ResponseCache::in_memory(1 << 20).unwrap());
    let (engine, _ran) = paced::start(&EngineConfig { cache, ..config() }, 0.0);
    embed(&engine, [&[7; 3]]).unwrap();
    let runtime = runtime();
    crowd(&engine, &runtime);
    assert!(wait(engine.infer(within(SOON, request([&[7; 3]])))).is_ok());
    let both = wait(engine.infer(within(SOON, request([&[7; 3], &[9; 3]]))));
    assert!(matches!(both, Err(EngineError::TooLate { .. })), "{both:?}");
}

/// Counts the values that are held.
#[derive(Debug, Default)]
struct Room(AtomicUsize);

impl HoldAnswers for Room {
    fn hold(&self, values: usize) -> Result<(), EngineError> {
        self.0.fetch_add(values, SeqCst);
        Ok(())
    }

    fn let_go(&self, values: usize) {
        self.0.fetch_sub(values, SeqCst);
    }
}

/// A request that waits for room asks again and again, each time for the same.
#[test]
fn nothing_is_held_of_an_answer_that_would_be_too_late() {
    let cache = Some(ResponseCache::in_memory(1 << 20).unwrap());
    let (engine, _ran) = paced::start(&EngineConfig { cache, ..config() }, 0.0);
    embed(&engine, [&[7; 3]]).unwrap();
    let runtime = runtime();
    crowd(&engine, &runtime);
    let room = Arc::new(Room::default());
    // That one input is known turns out only after tokenization, and the answer is held by then.
    let both = || InferRequest { room: AnswerRoom::of(room.clone()), ..request([&[7; 3], &[9; 3]]) };
    let refused = wait(engine.infer(within(SOON, both())));
    assert!(matches!(refused, Err(EngineError::TooLate { .. })), "{refused:?}");
    assert_eq!(room.0.load(SeqCst), 0);
    wait(engine.infer(both())).unwrap();
    assert_eq!(Some(room.0.load(SeqCst) / 2), engine.info().model.rows.pooled, "until it is written");
}

#[test]
fn whose_time_is_over_while_his_batch_runs_was_let_in_and_has_not_gone() {
    let metrics = Metrics::install().unwrap();
    for (retries, label) in [(false, "over"), (true, "over-again")] {
        let (engine, control) = start(&EngineConfig { label: Some(label.into()), ..config() });
        let runtime = runtime();
        control.close();
        let hurried = within(millis(1000), request([&[1]]));
        let running = ask(&runtime, &engine, InferRequest { retries, ..hurried });
        control.wait_for_batches(1);
        assert!(matches!(wait(running), Err(EngineError::Expired { .. })));
        let count = || value(&metrics, &format!("te_embed_count{{model=\"{label}\"}}"));
        assert_eq!(count(), 1.0);
        // The worker reaches the next batch only by cancelling that one.
        let next = begin(&engine, request([&[2]]));
        control.wait_for_batches(2);
        control.open();
        wait(next).unwrap();
        let dropped = value(&metrics, &format!("te_request_failure{{err=\"dropped\",model=\"{label}\"}}"));
        assert_eq!((dropped, count()), (0.0, 2.0));
    }
}

/// With a cache, nothing is known of a request before it is tokenized; it is refused then.
#[test]
fn who_comes_again_is_counted_once_he_is_let_in() {
    let metrics = Metrics::install().unwrap();
    let config = EngineConfig {
        cache: Some(ResponseCache::in_memory(1 << 20).unwrap()),
        slo: Some(SOON),
        label: Some("again".into()),
        ..config()
    };
    let (engine, _ran) = paced::start(&config, 0.0);
    let runtime = runtime();
    crowd(&engine, &runtime);
    let counted = || {
        let Totals { origins, misses, .. } = engine.observed().unwrap().totals;
        let [count, lengths] = ["te_embed_count", "te_request_input_length_count"]
            .map(|name| value(&metrics, &format!("{name}{{model=\"again\"}}")));
        (origins.misses, misses.deadline, count, lengths)
    };
    let come = || wait(engine.infer(InferRequest { retries: true, ..request([&[7; 3]]) }));
    assert_eq!(counted(), (32, 0, 32.0, 32.0));
    for _ in 0..3 {
        let told = come();
        assert!(matches!(told, Err(EngineError::TooLate { .. })), "{told:?}");
    }
    assert_eq!(counted(), (32, 0, 32.0, 32.0));
    eventually(|| engine.observed().unwrap().totals.answered == 32);
    come().unwrap();
    assert_eq!(counted(), (33, 0, 33.0, 33.0));
}

#[test]
fn higher_classes_and_earlier_deadlines_go_first() {
    let (engine, control) = start(&EngineConfig { max_batch_requests: Some(1), ..config() });
    let runtime = runtime();
    let running = hold(&engine, &control, 9);
    let waiting: Vec<_> = [
        of_class(Priority::Low, request([&[1]])),
        request([&[2]]),
        within(LONG * 2, request([&[3]])),
        within(LONG, request([&[4]])),
        of_class(Priority::High, request([&[5]])),
        of_class(Priority::High, within(LONG, request([&[6]]))),
    ]
    .into_iter()
    .map(|request| ask(&runtime, &engine, request))
    .collect();
    eventually(|| engine.observed().unwrap().waiting == 6);
    control.open();
    wait(running).unwrap();
    waiting.into_iter().for_each(|answer| drop(wait(answer).unwrap()));
    assert_eq!(control.batches(), [[9], [6], [5], [4], [3], [2], [1]]);
}

#[test]
fn a_low_class_is_served_under_a_steady_stream_of_a_higher_one() {
    let (engine, ran) = paced::start(&EngineConfig { max_batch_requests: Some(2), ..config() }, 0.0);
    let runtime = runtime();
    ran.lock().unwrap().clear();
    // Two requests at a time, 18 ms each batch, and twenty of the high class always waiting.
    let flood: Vec<_> = (0..20)
        .map(|id| {
            let engine = engine.clone();
            runtime.spawn(async move {
                let ends = Instant::now() + Duration::from_secs(3);
                while Instant::now() < ends {
                    let urgent = of_class(Priority::High, request([&[id; 4]]));
                    engine.infer(urgent).await.unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(millis(100));
    let started = Instant::now();
    wait(ask(&runtime, &engine, of_class(Priority::Low, request([&[1; 3]])))).unwrap();
    // The request is overdue after a second, and then only behind those that came before it: twenty at most, two at a
    // time.
    let waited = started.elapsed();
    assert!((millis(500)..millis(2500)).contains(&waited), "{waited:?}");
    flood.into_iter().for_each(|client| runtime.block_on(client).unwrap());
}
