//! Batches that panic among concurrent requests: each fails alone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use serde_json::json;
use turbo_sched::Candidate;
use turbo_serve::engine::{Capacity, Model, Progress, Rows, RunError, Runner, Sequence};

use crate::{
    fake::{assert_tei, wait_until},
    tiny,
};

const CLIENTS: usize = 8;
/// Requests per client.
const REQUESTS: usize = 150;
/// One batch in this many panics.
const EVERY: usize = 10;

/// When batches panic, and what was in those that did.
#[derive(Default)]
struct Poison {
    is_armed: AtomicBool,
    batches: AtomicUsize,
    poisoned: AtomicUsize,
    lost: AtomicUsize,
}

/// The real model, which panics between two of its layers where it is told to.
struct Poisoned {
    model: Box<dyn Runner>,
    poison: Arc<Poison>,
}

impl Runner for Poisoned {
    fn capacity(&self) -> Capacity {
        self.model.capacity()
    }

    fn depth(&self) -> usize {
        self.model.depth()
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        self.model.reserve(capacity)
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        self.model.footprint(batch)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.model.free_bytes()
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        let poison = &self.poison;
        if !poison.is_armed.load(SeqCst) || !poison.batches.fetch_add(1, SeqCst).is_multiple_of(EVERY) {
            return self.model.submit(batch, keep_going);
        }
        poison.poisoned.fetch_add(1, SeqCst);
        let mut counted = batch.inspect(|_| _ = poison.lost.fetch_add(1, SeqCst));
        self.model.submit(&mut counted, &mut || panic!("an invariant of a kernel broke"))
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        self.model.poll()
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        self.model.read(sequence, rows, to)
    }

    fn release(&mut self) {
        self.model.release();
    }
}

#[test]
fn a_poisoned_batch_fails_alone_under_load() {
    let poison = Arc::new(Poison::default());
    let poisons = Arc::clone(&poison);
    let (server, sentences) = tiny::start_with(|mut model: Model| {
        let mut build = model.build;
        model.build = Box::new(move |capacity| {
            Ok(Box::new(Poisoned { model: build(capacity)?, poison: Arc::clone(&poisons) }))
        });
        model
    });
    let asked: Vec<String> =
        sentences.iter().map(|sentence| json!({ "inputs": sentence.text }).to_string()).collect();
    let expected: Vec<_> = asked.iter().map(|body| server.post("/embed", body).json()).collect();
    poison.is_armed.store(true, SeqCst);
    let failed = std::thread::scope(|scope| {
        let client = |client: usize| {
            let (server, asked, expected) = (&server, &asked, &expected);
            scope.spawn(move || {
                let numbers = (0..REQUESTS).map(|number| (client + number) % asked.len());
                let failed = numbers.filter(|&number| {
                    let reply = server.post("/embed", &asked[number]);
                    if reply.status == 200 {
                        // Equal bit for bit, whatever has become of other batches.
                        assert_eq!(reply.json(), expected[number], "{}", asked[number]);
                    } else {
                        assert_tei(&asked[number], &reply, 424, "Backend", "an invariant of a kernel broke");
                    }
                    reply.status != 200
                });
                failed.count()
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    let (poisoned, lost) = (poison.poisoned.load(SeqCst), poison.lost.load(SeqCst));
    assert!(poisoned >= 3, "{poisoned} batches panicked");
    assert_eq!(failed, lost, "who was in one of the {poisoned} batches has failed, and nobody else");
    // The last answer may go before the model is built anew.
    wait_until("the model", || server.get("/health").status == 200);
}
