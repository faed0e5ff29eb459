//! The tokenizer threads: short texts share one queue, long ones another, so that a short text never waits for a long
//! one.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use super::gather::Parts;
use crate::engine::{EngineError, causes::panic_message};

/// Bytes from which a text counts as long. Tokenizing a long text may take seconds where the tokenizer finds no place
/// to cut it (2 MB of punctuation: three seconds). Shorter texts take 30 ms at most, and mostly microseconds.
const LONG_TEXT: usize = 16 << 10;
/// Most threads for long texts. Each may take a gigabyte of memory for the worst text, and two tokenize ordinary long
/// texts faster than a model computes them.
const LONG_TEXT_WORKERS: usize = 2;

/// Threads that work on the parts of requests.
pub(super) struct Lanes {
    short: Lane,
    long: Lane,
}

impl Lanes {
    /// Starts `workers` threads for short texts, and a few for long ones.
    pub(in crate::engine) fn start(workers: usize) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (short, mut threads) = Lane::start("tokens", workers)?;
        let (long, more) = Lane::start("long-texts", workers.min(LONG_TEXT_WORKERS))?;
        threads.extend(more);
        Ok((Self { short, long }, threads))
    }

    /// Queues part number `part`, of about `bytes` bytes of text. The parts fail if the threads have ended.
    pub(in crate::engine) fn send(&self, parts: &Arc<dyn Parts>, part: usize, bytes: usize) {
        let lane = if bytes >= LONG_TEXT { &self.long } else { &self.short };
        if lane.tasks.send(Message::Work(Arc::clone(parts), part)).is_err() {
            parts.fail(EngineError::Stopping);
        }
    }

    /// Tells the threads to end when all earlier parts are done.
    pub(in crate::engine) fn stop(&self) {
        for lane in [&self.short, &self.long] {
            for _ in 0..lane.workers {
                // Fails only if all threads have ended already.
                drop(lane.tasks.send(Message::Stop));
            }
        }
    }
}

/// Threads that share a queue.
struct Lane {
    /// Unbounded as a channel; the slots of admitted inputs bound it.
    tasks: Sender<Message>,
    workers: usize,
}

enum Message {
    Work(Arc<dyn Parts>, usize),
    Stop,
}

impl Lane {
    fn start(name: &str, workers: usize) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (tasks, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let spawn = |worker| {
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name(format!("turbo-{name}-{worker}"));
            thread.spawn(move || work(&receiver))
        };
        let threads = (0..workers).map(spawn).collect::<io::Result<Vec<_>>>()?;
        Ok((Self { tasks, workers }, threads))
    }
}

fn work(tasks: &Mutex<Receiver<Message>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match task {
            Ok(Message::Work(parts, part)) => work_on(&*parts, part),
            Ok(Message::Stop) | Err(_) => return,
        }
    }
}

/// Works on a part. A panic is caught and fails its request only: the thread would not be replaced.
pub(super) fn work_on(parts: &dyn Parts, part: usize) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| parts.work(part))) {
        let why = panic_message(&*panic);
        tracing::error!(why, "a thread panicked while it tokenized, and goes on");
        parts.fail(EngineError::Backend(format!("tokenizing panicked: {why}")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// Reports each part that was worked on, and panics on part 0.
    struct Told(Sender<Result<usize, EngineError>>);

    impl Parts for Told {
        fn work(&self, part: usize) {
            assert_ne!(part, 0, "no part");
            self.0.send(Ok(part)).unwrap();
        }

        fn fail(&self, error: EngineError) {
            self.0.send(Err(error)).unwrap();
        }
    }

    #[test]
    fn a_panic_costs_one_request_and_no_thread() {
        let (lanes, threads) = Lanes::start(1).unwrap();
        let (sender, told) = channel();
        let parts: Arc<dyn Parts> = Arc::new(Told(sender));
        for bytes in [1, LONG_TEXT] {
            (0..2).for_each(|part| lanes.send(&parts, part, bytes));
            let Err(EngineError::Backend(why)) = told.recv().unwrap() else { panic!("it did not fail") };
            assert!(why.contains("no part"), "{why}");
            assert_eq!(told.recv().unwrap(), Ok(1));
        }
        lanes.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
