//! Known inputs are not computed again, and an input of several concurrent requests is computed once. The answers are
//! those without a cache.

use std::{
    collections::HashMap,
    path::Path,
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::prelude::*;
use turbo_serve::{
    cache::{CacheOptions, FolderOptions, ResponseCache},
    engine::{
        Encoded, Engine, EngineConfig, EngineError, Infer, InferRequest, InferResponse, Input, OutputKind,
        Pending, Priority, Urgency,
    },
};

use crate::fake::{
    self, BREAKS, Control, FAILS, PANICS, begin, config, embed, firsts, hold, is_ready, request, wait,
};

fn caching() -> EngineConfig {
    EngineConfig { cache: Some(ResponseCache::in_memory(1 << 20).unwrap()), ..config() }
}

fn start() -> (Engine, std::sync::Arc<Control>) {
    fake::start(&caching())
}

fn encoded(input_ids: &[u32], token_type_ids: &[u32], selected: &[u32]) -> Input {
    let (input_ids, token_type_ids) = (input_ids.to_vec(), token_type_ids.to_vec());
    Input::Encoded(Encoded { input_ids, token_type_ids, selected: selected.to_vec() })
}

#[test]
fn of_a_request_what_is_known_is_not_computed() {
    let (engine, control) = start();
    embed(&engine, [&[1], &[2, 2]]).unwrap();
    let response = embed(&engine, [&[3], &[1], &[2, 2], &[4]]).unwrap();
    assert_eq!(firsts(&response), [3, 1, 2, 4]);
    assert_eq!(response.usage.tokens, 5);
    assert_eq!(control.batches().concat(), [1, 2, 3, 4]);
}

#[test]
fn what_is_known_waits_for_nothing_and_says_so() {
    let (engine, control) = start();
    embed(&engine, [&[1]]).unwrap();
    let held = hold(&engine, &control, 2);
    let response = embed(&engine, [&[1], &[1]]).unwrap();
    let timings = response.usage.timings;
    assert_eq!(firsts(&response), [1, 1]);
    assert!(timings.queue.is_zero() && timings.inference.is_zero(), "{timings:?}");
    assert!(timings.tokenization <= timings.total);
    control.open();
    wait(held).unwrap();
}

#[test]
fn without_a_cache_all_is_computed() {
    let (engine, control) = fake::start(&config());
    embed(&engine, [&[1], &[1]]).unwrap();
    embed(&engine, [&[1]]).unwrap();
    assert_eq!(control.batches().concat(), [1, 1, 1]);
    assert_eq!(engine.info().cache_bytes, None);
    assert_eq!(start().0.info().cache_bytes, Some(1 << 20));
}

#[test]
fn what_is_done_with_rows_afterwards_needs_no_other_rows() {
    let (engine, control) = start();
    let ask = |normalize, dimensions| {
        let output = OutputKind::Pooled { normalize, dimensions };
        wait(engine.infer(InferRequest { output, ..request([&[8, 1, 3, 2, 2, 2]]) })).unwrap().rows.remove(0)
    };
    assert_eq!(ask(true, Some(2)).values, [0.8, 0.6]);
    assert_eq!(ask(false, Some(2)).values, [8.0, 6.0]);
    assert_eq!(ask(false, None).values, [8.0, 6.0, 18.0]);
    assert_eq!(ask(true, Some(2)).values, [0.8, 0.6]);
    assert_eq!(control.batches(), [[8]]);
}

#[test]
fn all_that_rows_depend_on_tells_them_apart() {
    let (engine, control) = start();
    let ask = |output, input: &Input| wait(engine.infer(InferRequest::new(vec![input.clone()], output)));
    let inputs = [
        (OutputKind::RAW, encoded(&[5, 6], &[], &[])),
        (OutputKind::RAW, encoded(&[5, 6], &[0, 1], &[])),
        (OutputKind::RAW, encoded(&[5, 6], &[1, 0], &[])),
        (OutputKind::RAW, encoded(&[5], &[], &[])),
        (OutputKind::Tokens, encoded(&[5, 6], &[], &[])),
        (OutputKind::Selected, encoded(&[5, 6], &[], &[0])),
        (OutputKind::Selected, encoded(&[5, 6], &[], &[1])),
        (OutputKind::Selected, encoded(&[5, 6], &[], &[0, 1])),
    ];
    let first: Vec<_> = inputs.iter().map(|(output, input)| ask(*output, input).unwrap().rows).collect();
    assert_eq!(control.batches().len(), inputs.len());
    let second: Vec<_> = inputs.iter().map(|(output, input)| ask(*output, input).unwrap().rows).collect();
    assert_eq!(first, second);
    // These make no difference: types that are all 0, selected tokens for rows that do not use them, and the form of
    // the input.
    for (output, input) in [
        (OutputKind::RAW, encoded(&[5, 6], &[0, 0], &[])),
        (OutputKind::RAW, encoded(&[5, 6], &[], &[1])),
        (OutputKind::RAW, Input::Ids(vec![5, 6])),
        (OutputKind::Tokens, encoded(&[5, 6], &[], &[0])),
    ] {
        ask(output, &input).unwrap();
    }
    assert_eq!(control.batches().len(), inputs.len());
}

#[test]
fn models_that_share_a_cache_do_not_share_answers() {
    let config = caching();
    let ((one, of_one), (other, of_other)) = (fake::start(&config), fake::start(&config));
    for engine in [&one, &other, &one, &other] {
        assert_eq!(firsts(&embed(engine, [&[1]]).unwrap()), [1]);
    }
    assert_eq!([of_one.batches(), of_other.batches()], [[[1]], [[1]]]);
}

#[test]
fn the_same_at_the_same_time_is_computed_once() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 9);
    let first = begin(&engine, request([&[1], &[2], &[1]]));
    let second = begin(&engine, request([&[2], &[3], &[9]]));
    control.open();
    assert_eq!(firsts(&wait(held).unwrap()), [9]);
    assert_eq!(firsts(&wait(first).unwrap()), [1, 2, 1]);
    let second = wait(second).unwrap();
    assert_eq!(firsts(&second), [2, 3, 9]);
    let mut computed = control.batches().concat();
    computed.sort_unstable();
    assert_eq!(computed, [1, 2, 3, 9]);
    let timings = second.usage.timings;
    assert!(timings.queue + timings.inference <= timings.total, "{timings:?}");
    assert!(!timings.inference.is_zero(), "who waited for a batch says so");
}

#[test]
fn who_waits_for_somebody_elses_input_is_answered_when_that_one_goes() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 9);
    // Of the two requests that go, one waits for its batch, and the other one is running.
    let (gone, stays) = (begin(&engine, request([&[1]])), begin(&engine, request([&[1], &[9]])));
    drop((gone, held));
    std::thread::sleep(Duration::from_millis(20)); // many layers
    control.open();
    assert_eq!(firsts(&wait(stays).unwrap()), [1, 9]);
    assert_eq!(control.batches(), [[9], [1]], "neither was begun again");
}

#[test]
fn when_all_have_gone_it_is_given_up() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 1);
    let other = begin(&engine, request([&[1], &[2]]));
    drop((held, other));
    // The control stays closed: the worker gets to the next batch only by cancelling the first one.
    let next = begin(&engine, request([&[3]]));
    control.wait_for_batches(2);
    control.open();
    assert_eq!(firsts(&wait(next).unwrap()), [3]);
    assert_eq!(firsts(&embed(&engine, [&[1], &[2]]).unwrap()), [1, 2]);
    assert_eq!(control.batches().concat(), [1, 3, 1, 2]);
}

#[test]
fn who_no_longer_waits_for_somebody_elses_input_takes_no_slot() {
    let slots = EngineConfig { max_concurrent_requests: 8, max_batch_requests: Some(1), ..caching() };
    let (engine, control) = fake::start(&slots);
    let held = hold(&engine, &control, 9);
    let (before, first) = (begin(&engine, request([&[1]])), begin(&engine, request([&[2]])));
    let others: Vec<_> = (0..5).map(|_| begin(&engine, request([&[2]]))).collect();
    assert!(!engine.has_room(1));
    drop(others);
    control.let_through(1);
    wait(held).unwrap();
    control.wait_for_batches(2);
    fake::eventually(|| engine.has_room(6));
    assert_eq!(control.batches(), [[9], [1]], "what they waited for was not computed");
    control.open();
    assert_eq!([before, first].map(|one| firsts(&wait(one).unwrap())), [[1], [2]]);
}

#[test]
fn when_a_batch_fails_those_who_waited_for_it_are_computed() {
    for bad in [FAILS, PANICS, BREAKS] {
        let config = EngineConfig { max_batch_requests: Some(2), ..caching() };
        let (engine, control) = fake::start(&config);
        let held = hold(&engine, &control, 9);
        // The first request's two inputs share a batch, which has the input that the second request waits for.
        let first = begin(&engine, request([&[1], &[bad]]));
        let second = begin(&engine, request([&[1]]));
        control.open();
        wait(held).unwrap();
        assert!(matches!(wait(first), Err(EngineError::Backend(_))), "{bad}");
        assert_eq!(firsts(&wait(second).unwrap()), [1], "{bad}");
        assert_eq!(control.batches(), [vec![9], vec![1, bad], vec![1]]);
        assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
    }
}

#[test]
fn who_is_more_urgent_than_the_first_is_computed_in_his_own_turn() {
    let (engine, control) = fake::start(&EngineConfig { max_batch_requests: Some(1), ..caching() });
    let held = hold(&engine, &control, 9);
    let of_class = |priority| {
        let urgency = Urgency { priority, ..Urgency::default() };
        begin(&engine, InferRequest { urgency, ..request([&[1]]) })
    };
    let asked = [
        of_class(Priority::Low),
        begin(&engine, request([&[2]])),
        of_class(Priority::High),
        of_class(Priority::High), // no more urgent than the one before
    ];
    control.let_through(2);
    wait(held).unwrap();
    let [low, normal, high, another] = asked;
    assert_eq!([high, another].map(|one| firsts(&wait(one).unwrap())), [[1], [1]]);
    assert_eq!(control.batches()[..2], [[9], [1]]);
    control.open();
    assert_eq!([normal, low].map(|one| firsts(&wait(one).unwrap())), [[2], [1]]);
}

#[test]
fn who_waits_for_others_waits_no_longer_than_is_promised() {
    let slo = Duration::from_secs(1);
    let (engine, control) = fake::start(&EngineConfig { slo: Some(slo), ..caching() });
    let held = hold(&engine, &control, 9);
    let (gone, stays) = (begin(&engine, request([&[1]])), begin(&engine, request([&[1]])));
    drop(gone);
    std::thread::sleep(slo + Duration::from_millis(10));
    control.open();
    assert_eq!(wait(stays), Err(EngineError::Expired { within: slo }));
    wait(held).unwrap();
    assert_eq!(control.batches(), [[9]]);
}

#[test]
fn what_cannot_be_computed_is_an_error_for_all_who_want_it() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 9);
    let all: Vec<_> = (0..5).map(|_| begin(&engine, request([&[FAILS]]))).collect();
    control.open();
    wait(held).unwrap();
    for one in all {
        assert!(matches!(wait(one), Err(EngineError::Backend(_))));
    }
    assert!(matches!(embed(&engine, [&[FAILS]]), Err(EngineError::Backend(_))), "an error is not kept");
}

#[test]
fn a_stopping_engine_answers_those_who_wait_for_others() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 1);
    let waiting = begin(&engine, request([&[1], &[2]]));
    let mut stop = Box::pin(engine.stop());
    assert!(!is_ready(&mut stop));
    drop(held);
    control.open();
    assert_eq!(firsts(&wait(waiting).unwrap()), [1, 2]);
    wait(stop);
    assert_eq!(embed(&engine, [&[1]]), Err(EngineError::Stopping));
}

#[test]
fn who_waits_for_others_is_told_when_all_is_abandoned() {
    let (engine, control) = start();
    let held = hold(&engine, &control, 1);
    let waiting = begin(&engine, request([&[1], &[2]]));
    engine.abandon();
    for pending in [held, waiting] {
        assert_eq!(wait(pending), Err(EngineError::Stopping));
    }
    wait(engine.stop());
}

#[test]
fn dropping_the_last_handle_ends_the_worker() {
    let config = caching();
    let (engine, control) = fake::start(&config);
    embed(&engine, [&[1]]).unwrap();
    control.close(); // the request is dropped before it is answered
    drop(begin(&engine, request([&[2]])));
    drop(engine);
    fake::eventually(|| std::sync::Arc::strong_count(&control) == 1);
}

/// A cache of this many bytes of memory, and a folder behind it.
fn in_folder(bytes: usize, dir: &Path) -> ResponseCache {
    let folder = FolderOptions { dir: dir.to_owned(), bytes: ResponseCache::LEAST_FOLDER_BYTES };
    ResponseCache::open(&CacheOptions { bytes, folder: Some(folder), redis: None }).unwrap()
}

/// Runs one request on an engine of this fingerprint with a cache in `dir`, from start to stop; returns what was
/// computed for it.
fn ask_once<const N: usize>(fingerprint: &str, dir: &Path, inputs: [&[u32]; N]) -> Vec<u32> {
    let cache = in_folder(1 << 20, dir);
    let (engine, control) =
        fake::start_as(fingerprint, &EngineConfig { cache: Some(cache.clone()), ..config() });
    assert_eq!(firsts(&embed(&engine, inputs).unwrap()), inputs.map(|ids| ids[0]));
    wait(engine.stop());
    cache.close();
    control.batches().concat()
}

#[test]
fn answers_in_a_folder_outlive_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(ask_once("one", dir.path(), [&[1], &[2, 2]]), [1, 2]);
    assert_eq!(ask_once("one", dir.path(), [&[1], &[3], &[1], &[2, 2]]), [3]);
    assert_eq!(ask_once("other", dir.path(), [&[1]]), [1]);
    assert!(ask_once("one", dir.path(), [&[3], &[3]]).is_empty());
}

#[test]
fn what_is_found_in_a_folder_is_not_predicted_to_be_computed() {
    let dir = tempfile::tempdir().unwrap();
    ask_once("one", dir.path(), [&[1]]);
    let cache = Some(in_folder(1 << 20, dir.path()));
    let (engine, control) = fake::start_as("one", &EngineConfig { cache, ..config() });
    let held = hold(&engine, &control, 9);
    let is_idle_then = || engine.observed().unwrap().until_empty.is_zero();
    fake::eventually(is_idle_then); // its batch was predicted to take less time than it does
    let waits = begin(&engine, request([&[1], &[9]]));
    fake::eventually(|| engine.observed().unwrap().totals.origins.folder == 1);
    fake::eventually(is_idle_then);
    control.open();
    assert_eq!(firsts(&wait(waits).unwrap()), [1, 9]);
    wait(held).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_no_memory_holds_is_refused() {
    let error = ResponseCache::in_memory(usize::MAX).err().unwrap();
    assert!(error.to_string().contains("is too large"), "{error}");
}

#[test]
fn answers_of_a_model_that_nothing_tells_from_others_stay_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let cache = in_folder(1 << 20, dir.path());
        let (engine, control) = fake::start(&EngineConfig { cache: Some(cache.clone()), ..config() });
        assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
        assert_eq!(firsts(&embed(&engine, [&[1]]).unwrap()), [1]);
        assert_eq!(control.batches(), [[1]]);
        wait(engine.stop());
        cache.close();
    }
}

#[test]
fn a_closed_cache_is_one_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let cache = in_folder(1 << 20, dir.path());
    cache.close();
    let (engine, control) = fake::start_as("one", &EngineConfig { cache: Some(cache), ..config() });
    embed(&engine, [&[1]]).unwrap();
    assert_eq!(firsts(&embed(&engine, [&[1], &[2]]).unwrap()), [1, 2]);
    assert_eq!(control.batches().concat(), [1, 2]);
}

/// Steps of a test.
#[derive(Clone, Debug)]
enum Step {
    /// A request for these inputs, by number, and rows of this kind.
    Ask(Vec<u32>, Kind),
    /// One of the waiting requests is dropped.
    Leave(prop::sample::Index),
    /// This many batches are let through.
    Compute(usize),
    /// One of the requests is awaited, with all batches let through.
    Await(prop::sample::Index),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Pooled,
    Normalized,
    Tokens,
    Selected,
}

impl Kind {
    fn output(self) -> OutputKind {
        match self {
            Self::Pooled => OutputKind::RAW,
            Self::Normalized => OutputKind::Pooled { normalize: true, dimensions: Some(2) },
            Self::Tokens => OutputKind::Tokens,
            Self::Selected => OutputKind::Selected,
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A few inputs of many requests, many of few requests (so that the small cache evicts), and some that fail.
    let input = prop_oneof![6 => 1_u32..6, 3 => 6_u32..600, 1 => Just(FAILS)];
    let kind = prop_oneof![
        4 => Just(Kind::Pooled),
        1 => Just(Kind::Normalized),
        1 => Just(Kind::Tokens),
        1 => Just(Kind::Selected),
    ];
    let step = prop_oneof![
        6 => (prop::collection::vec(input, 1..24), kind).prop_map(|(inputs, kind)| Step::Ask(inputs, kind)),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
        2 => (1_usize..8).prop_map(Step::Compute),
        1 => any::<prop::sample::Index>().prop_map(Step::Await),
    ];
    prop::collection::vec(step, 1..40)
}

/// Number `n` as an input: of one to eight tokens.
fn input(n: u32) -> Input {
    let input_ids: Vec<u32> = (0..=n % 8).map(|at| if at == 0 { n } else { at }).collect();
    let selected = (0..input_ids.len() as u32).step_by(2).collect();
    Input::Encoded(Encoded { input_ids, token_type_ids: Vec::new(), selected })
}

/// Inputs by their number, and the rows that are wanted of them.
type Question = (Vec<u32>, Kind);

/// The answers of an engine without a cache to each input alone.
struct Computed {
    engine: Engine,
    known: HashMap<(u32, Kind), Option<Vec<f32>>>,
}

impl Computed {
    fn of(&mut self, n: u32, kind: Kind) -> Option<Vec<f32>> {
        let engine = &self.engine;
        let compute = || {
            let answer = wait(engine.infer(InferRequest::new(vec![input(n)], kind.output())));
            answer.ok().map(|mut response| response.rows.remove(0).values)
        };
        self.known.entry((n, kind)).or_insert_with(compute).clone()
    }

    /// Checks that an answer is what computing gives: all rows, or an error if one of the inputs cannot be computed.
    fn check(&mut self, asked: &Question, answer: Result<InferResponse, EngineError>) {
        let expected: Option<Vec<_>> = asked.0.iter().map(|&n| self.of(n, asked.1)).collect();
        match (answer, expected) {
            (Ok(response), Some(expected)) => {
                let rows: Vec<_> = response.rows.into_iter().map(|row| row.values).collect();
                assert_eq!(rows, expected, "{asked:?}");
            }
            (Err(EngineError::Backend(_)), None) => {}
            (got, expected) => panic!("{asked:?}: got {got:?}, expected {expected:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whichever requests run concurrently, are dropped, fail or lose cached answers: the others are answered as if
    /// alone. One input per batch, for a failing batch fails all of its inputs.
    #[test]
    fn nobody_can_tell_that_there_is_a_cache(steps in steps(), folder in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let cache = match folder {
            false => ResponseCache::in_memory(ResponseCache::LEAST_BYTES).unwrap(),
            true => in_folder(ResponseCache::LEAST_BYTES, dir.path()),
        };
        let one_by_one = EngineConfig { max_batch_requests: Some(1), ..config() };
        let (engine, control) = fake::start_as("fake", &EngineConfig { cache: Some(cache), ..one_by_one.clone() });
        let mut computed = Computed { engine: fake::start(&one_by_one).0, known: HashMap::new() };
        control.close();
        let mut waiting: Vec<(Question, Pending<'_, InferResponse>)> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(inputs, kind) => {
                    let asked = inputs.iter().map(|&n| input(n)).collect();
                    let mut pending = engine.infer(InferRequest::new(asked, kind.output()));
                    // The first poll submits it.
                    let first = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    let pending = match first {
                        Poll::Ready(answer) => Box::pin(std::future::ready(answer)),
                        Poll::Pending => pending,
                    };
                    waiting.push(((inputs, kind), pending));
                }
                Step::Leave(which) if !waiting.is_empty() => {
                    drop(waiting.swap_remove(which.index(waiting.len())));
                }
                Step::Compute(batches) => control.let_through(batches),
                Step::Await(which) if !waiting.is_empty() => {
                    let (asked, pending) = waiting.swap_remove(which.index(waiting.len()));
                    control.open();
                    computed.check(&asked, wait(pending));
                    control.close();
                }
                Step::Leave(_) | Step::Await(_) => {}
            }
        }
        control.open();
        for (asked, pending) in waiting {
            computed.check(&asked, wait(pending));
        }
        wait(engine.stop());
    }
}
