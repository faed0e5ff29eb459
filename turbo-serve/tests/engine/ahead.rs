//! An asynchronous device gets the next batch before it has finished the last one.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use turbo_sched::Candidate;
use turbo_serve::engine::{
    Capacity, Engine, EngineError, Health, Infer, InferResponse, Model, Progress, Rows, RunError, Runner,
    Sequence,
};

use crate::fake::{BREAKS, Control, FAILS, PANICS, begin, config, embed, firsts, model, request, wait};

/// An event of the device, with the first id of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Submitted(u32),
    Done(u32),
    Released(u32),
}
use Event::{Done, Released, Submitted};

#[derive(Default)]
struct Timeline {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// Batches that the device computes from now on; `None`: all.
    may_compute: Option<usize>,
    builds: usize,
}

impl Timeline {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Lets the device compute this many batches more.
    fn compute(&self, batches: usize) {
        self.change(|state| state.may_compute = Some(state.may_compute.unwrap_or(0) + batches));
    }

    fn events(&self) -> Vec<Event> {
        self.state.lock().unwrap().events.clone()
    }

    fn wait_for(&self, event: Event) {
        let state = self.state.lock().unwrap();
        let patience = Duration::from_secs(20);
        let waited =
            self.changed.wait_timeout_while(state, patience, |state| !state.events.contains(&event)).unwrap();
        assert!(!waited.1.timed_out(), "{event:?} never came: {:?}", waited.0.events);
    }
}

/// A device that computes asynchronously, when the test allows it.
struct Ahead {
    timeline: Arc<Timeline>,
    capacity: Capacity,
    batches: VecDeque<Vec<Vec<u32>>>,
    is_done: bool,
}

impl Ahead {
    fn oldest(&self) -> u32 {
        self.batches[0][0][0]
    }

    fn has(&self, id: u32) -> bool {
        self.batches[0].iter().flatten().any(|&x| x == id)
    }
}

impl Runner for Ahead {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn depth(&self) -> usize {
        2
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        self.capacity = capacity;
        Ok(())
    }

    fn footprint(&mut self, _: &Candidate) -> usize {
        0
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        assert!(self.batches.len() < self.depth(), "one batch too many");
        let batch: Vec<Vec<u32>> = batch.map(|sequence| sequence.input_ids.to_vec()).collect();
        if batch.iter().flatten().any(|&id| id == BREAKS) {
            return Err("no memory left".into());
        }
        self.timeline.change(|state| state.events.push(Submitted(batch[0][0])));
        self.batches.push_back(batch);
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        let oldest = self.oldest();
        let mut goes_on = self.is_done;
        self.timeline.change(|state| {
            if goes_on || state.may_compute == Some(0) {
                return;
            }
            goes_on = true;
            state.may_compute = state.may_compute.map(|batches| batches - 1);
            state.events.push(Done(oldest));
        });
        self.is_done = goes_on;
        if goes_on && self.has(FAILS) {
            return Err("the device fell off the bus".into());
        }
        assert!(!(goes_on && self.has(PANICS)), "an invariant broke");
        Ok(if goes_on { Progress::Done } else { Progress::Running })
    }

    fn read(&mut self, sequence: usize, _: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        assert!(self.is_done);
        to.extend([self.batches[0][sequence][0] as f32, 0.0, 0.0]);
        Ok(())
    }

    fn release(&mut self) {
        let oldest = self.oldest();
        self.timeline.change(|state| state.events.push(Released(oldest)));
        self.batches.pop_front();
        self.is_done = false;
    }
}

/// An engine whose device computes nothing yet.
fn start() -> (Engine, Arc<Timeline>) {
    let timeline = Arc::new(Timeline::default());
    let device = Arc::clone(&timeline);
    let build = Box::new(move |capacity| -> Result<Box<dyn Runner>, RunError> {
        device.change(|state| state.builds += 1);
        let (timeline, batches) = (Arc::clone(&device), VecDeque::new());
        Ok(Box::new(Ahead { timeline, capacity, batches, is_done: false }))
    });
    let model = Model { build, ..model(&Arc::new(Control::default())) };
    let engine = Engine::start(model, &config()).unwrap();
    timeline.change(|state| *state = State { may_compute: Some(0), ..State::default() });
    (engine, timeline)
}

fn backend(result: Result<InferResponse, EngineError>) -> String {
    match result {
        Err(EngineError::Backend(why)) => why,
        other => panic!("expected a backend error, got {other:?}"),
    }
}

#[test]
fn the_next_batch_is_submitted_while_one_runs() {
    let (engine, timeline) = start();
    let mut pending = Vec::new();
    for id in [1, 2] {
        pending.push(begin(&engine, request([&[id]])));
        timeline.wait_for(Submitted(id));
    }
    // these two arrive while the device has work enough
    pending.extend([3, 4].map(|id| begin(&engine, request([&[id]]))));
    timeline.compute(1);
    timeline.wait_for(Submitted(3));
    timeline.compute(2);
    let answers: Vec<u32> = pending.into_iter().flat_map(|pending| firsts(&wait(pending).unwrap())).collect();
    assert_eq!(answers, [1, 2, 3, 4]);
    timeline.wait_for(Released(3));
    assert_eq!(
        timeline.events(),
        [
            Submitted(1),
            Submitted(2),
            Done(1),
            Released(1),
            Submitted(3), // and 4, which waited with it
            Done(2),
            Released(2),
            Done(3),
            Released(3),
        ]
    );
}

/// A client that waits.
type Asked = std::thread::JoinHandle<Result<InferResponse, EngineError>>;

/// An engine whose device has two batches, which begin with 1 and with `second`, and computes nothing yet; and the
/// clients that wait for them.
fn with_two(first: [&[u32]; 1], second: u32) -> (Arc<Timeline>, Engine, [Asked; 2]) {
    let (engine, timeline) = start();
    let ask = |ids: Vec<u32>| {
        let engine = engine.clone();
        std::thread::spawn(move || embed(&engine, [&ids]))
    };
    let asked = [first[0].to_vec(), vec![second]].map(|ids| {
        let begins = Submitted(ids[0]);
        let asked = ask(ids);
        timeline.wait_for(begins);
        asked
    });
    (timeline, engine, asked)
}

#[test]
fn a_batch_that_fails_leaves_the_one_behind_it_alone() {
    let (timeline, engine, [first, second]) = with_two([&[1, FAILS]], 2);
    timeline.compute(3);
    assert_eq!(backend(first.join().unwrap()), "the device fell off the bus");
    assert_eq!(firsts(&second.join().unwrap().unwrap()), [2]);
    assert_eq!(firsts(&embed(&engine, [&[3]]).unwrap()), [3]);
    assert_eq!(timeline.state.lock().unwrap().builds, 0);
}

#[test]
fn a_batch_that_is_refused_leaves_the_one_that_runs_alone() {
    let (engine, timeline) = start();
    let runs = begin(&engine, request([&[1]]));
    timeline.wait_for(Submitted(1));
    assert_eq!(backend(embed(&engine, [&[BREAKS]])), "no memory left");
    timeline.compute(2);
    assert_eq!(firsts(&wait(runs).unwrap()), [1]);
    assert_eq!(firsts(&embed(&engine, [&[2]]).unwrap()), [2]);
}

#[test]
fn a_panic_fails_all_that_the_runner_had() {
    let (timeline, engine, both) = with_two([&[1, PANICS]], 2);
    timeline.compute(2);
    for asked in both {
        assert_eq!(backend(asked.join().unwrap()), "the batch panicked: an invariant broke");
    }
    assert_eq!(firsts(&embed(&engine, [&[3]]).unwrap()), [3]);
    assert_eq!(timeline.state.lock().unwrap().builds, 1);
    assert_eq!(engine.health(), Health::Ready);
}

#[test]
fn who_stops_gets_all_that_was_submitted() {
    let (timeline, engine, asked) = with_two([&[1]], 2);
    let stopping = std::thread::spawn(move || wait(engine.stop()));
    timeline.compute(2);
    for (asked, id) in asked.into_iter().zip([1, 2]) {
        assert_eq!(firsts(&asked.join().unwrap().unwrap()), [id]);
    }
    stopping.join().unwrap();
}
