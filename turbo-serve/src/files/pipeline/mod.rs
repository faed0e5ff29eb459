//! The way from rows to answers: threads, windows, batches.
//!
//! ```text
//! reader thread ─chunks─▶ tokenizer threads ─▶ this thread: window, batches, model ─▶ writer thread
//!                 in turn                 in turn                             whole windows, in order
//! ```
//!
//! Chunks go to the tokenizer threads in turn and are received in turn, which keeps their order without sorting; a slow
//! chunk holds back the others. Every queue is bounded, so faster stages wait.
//!
//! The end of the input is an explicit message, and not inferred from a closed channel: a thread that panicked closes
//! its channel, too, and half an output would pass for complete.

mod window;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The input of a model, from the crate below.
pub use turbo_models::Encoded;

use super::{
    FileError,
    read::{Cell, Row, Rows},
    write::{Answer, Output},
};
use window::Window;

/// How each row becomes inputs of the model, and the model's outputs an answer. The same row must always give the same
/// answer.
pub trait Job: Send + Sync + 'static {
    /// What is kept of a row until its answer is made.
    type Kept: Send + 'static;

    /// Makes the inputs of a row; called on a tokenizer thread.
    ///
    /// # Errors
    /// What is wrong with the row, in one line.
    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<Self::Kept>, String>;

    /// Makes the answer of a row from the model's outputs for its inputs; called on the writer thread.
    ///
    /// # Errors
    /// What is wrong with the row, in one line.
    fn answer(&self, kept: Self::Kept, outputs: Vec<Vec<f32>>) -> Result<Answer, String>;
}

/// A tokenized row.
pub struct Prepared<K> {
    /// The inputs of the model: one, or as many as the row has documents.
    pub inputs: Vec<Encoded>,
    /// What [`Job::answer`] needs besides the model's outputs.
    pub kept: K,
}

/// The model.
pub trait Compute {
    /// The model's output for each input of a batch, in their order.
    ///
    /// # Errors
    /// Why the model failed; it is not called again.
    fn run(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, String>;
}

/// Sizes of batches and windows, and the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most tokens of a batch; an input that has more is a batch of its own.
    pub batch_tokens: usize,
    /// Tokens that fill a window, whose inputs are sorted by length.
    pub window_tokens: usize,
    /// Threads that tokenize.
    pub tokenizer_threads: usize,
}

/// Reports progress; called on the writer thread.
pub trait Watch: Send + 'static {
    /// The output now has `rows` rows; the last of them reaches to `end` in the input.
    fn written(&mut self, rows: u64, end: u64);
    /// The row that begins in line `number` of the input has no answer.
    fn bad_row(&mut self, number: u64, why: &str);
}

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every row has its answer.
    Finished,
    /// It was told to stop; the output is sound and can be continued.
    Interrupted,
}

/// What a run has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How the run ended.
    pub ending: Ending,
    /// Rows of the output, earlier runs included.
    pub rows: u64,
    /// Rows of the output without an answer.
    pub bad_rows: u64,
}

/// Most rows of a window, however short they are.
const WINDOW_ROWS: usize = 4096;

/// Most rows of a chunk.
const CHUNK_ROWS: usize = 64;

/// Most bytes of text in a chunk, unless one row has more.
const CHUNK_BYTES: usize = 1 << 18;

/// Answers every row of `rows` that `output` does not have yet, until done or until `stop` is true.
///
/// # Errors
/// [`FileError`]. The output then holds what was answered before, and can be continued.
pub fn run<J: Job>(
    rows: Rows,
    job: &Arc<J>,
    compute: &mut dyn Compute,
    output: Output,
    sizes: Sizes,
    watch: impl Watch,
    stop: &AtomicBool,
) -> Result<Summary, FileError> {
    let skip = output.rows();
    let chunks = tokenizers(at_least(skip, rows), skip, job, sizes.tokenizer_threads)?;
    let writer = Writer::start(job, output, watch)?;
    let computed = compute_all(chunks, compute, sizes, &writer.windows, stop);
    let (output, written) = writer.join();
    let (rows, bad_rows) = (output.rows(), output.bad_rows());
    let ending = match (&computed, &written) {
        (Ok(ending), Ok(())) => *ending,
        _ => Ending::Interrupted,
    };
    let closed = match ending {
        Ending::Finished => output.finish(),
        Ending::Interrupted => output.interrupt(),
    };
    // A failed write is what ended the computation, so its error is returned first.
    written?;
    computed?;
    closed?;
    Ok(Summary { ending, rows, bad_rows })
}

/// A row on its way to the model.
struct Item<K> {
    number: u64,
    end: u64,
    row: Result<Prepared<K>, String>,
}

type Chunk<T> = Result<Vec<T>, FileError>;

/// A message from a tokenizer thread.
enum Passed<T> {
    Chunk(Chunk<T>),
    /// There are no more.
    End,
}

/// Receives chunks from the tokenizer threads, in turn.
struct Chunks<K> {
    lanes: Vec<Receiver<Passed<Item<K>>>>,
    turn: usize,
}

/// What the next lane yields.
enum Turn<T> {
    Chunk(Chunk<T>),
    /// There are no more.
    End,
    /// It was told to stop while waiting.
    Stopped,
}

/// How long a stop may go unnoticed while the input is silent.
const GLANCE: Duration = Duration::from_millis(50);

impl<K> Chunks<K> {
    /// The next chunk. The end arrives in the lane whose turn it is, in place of a chunk; a lane that closes without it
    /// has panicked, or the reader has.
    fn next(&mut self, stop: &AtomicBool) -> Turn<Item<K>> {
        loop {
            match self.lanes[self.turn].recv_timeout(GLANCE) {
                Ok(Passed::Chunk(chunk)) => {
                    self.turn = (self.turn + 1) % self.lanes.len();
                    return Turn::Chunk(chunk);
                }
                Ok(Passed::End) => return Turn::End,
                Err(RecvTimeoutError::Disconnected) => return Turn::Chunk(Err(FileError::Panicked)),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Turn::Stopped,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Starts the reader and the tokenizer threads. They end when the input does, or when their chunks are no longer
/// received. They are not joined, since the reader may wait for input that never arrives.
fn tokenizers<J: Job>(
    rows: impl Iterator<Item = Result<Row, FileError>> + Send + 'static,
    skip: u64,
    job: &Arc<J>,
    threads: usize,
) -> Result<Chunks<J::Kept>, FileError> {
    let mut read = Vec::new();
    let mut lanes = Vec::new();
    for _ in 0..threads.max(1) {
        let (to_worker, from_reader) = sync_channel::<Passed<Row>>(1);
        let (to_window, from_worker) = sync_channel(1);
        let job = Arc::clone(job);
        start("tokenizes", move || {
            for passed in from_reader {
                let prepare = |rows: Vec<Row>| rows.into_iter().map(|row| prepare(&*job, row)).collect();
                let prepared = match passed {
                    Passed::Chunk(chunk) => Passed::Chunk(chunk.map(prepare)),
                    Passed::End => Passed::End,
                };
                if to_window.send(prepared).is_err() {
                    return;
                }
            }
        })?;
        read.push(to_worker);
        lanes.push(from_worker);
    }
    start("reads", move || {
        let ends = read.iter().map(|_| Passed::End);
        for (passed, lane) in chunks_of(rows, skip).map(Passed::Chunk).chain(ends).zip(read.iter().cycle()) {
            if lane.send(passed).is_err() {
                return;
            }
        }
    })?;
    Ok(Chunks { lanes, turn: 0 })
}

/// Starts a thread. If the system has none left, that is an error, where `thread::spawn` would panic.
fn start<T: Send + 'static>(
    does: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, FileError> {
    thread::Builder::new().spawn(work).map_err(|why| FileError::Thread { does, why })
}

/// The same rows, then an error if there are fewer than `least`: that many were answered already, from another input.
fn at_least(least: u64, mut rows: Rows) -> impl Iterator<Item = Result<Row, FileError>> {
    let mut missing = least;
    std::iter::from_fn(move || match rows.next() {
        None if missing > 0 => {
            let (file, seen) = (rows.name.clone(), least - std::mem::take(&mut missing));
            Some(Err(FileError::Short { file, rows: seen, written: least }))
        }
        row => {
            missing = missing.saturating_sub(1);
            row
        }
    })
}

fn prepare<J: Job>(job: &J, Row { number, end, cells }: Row) -> Item<J::Kept> {
    Item { number, end, row: cells.and_then(|cells| job.prepare(cells)) }
}

/// Rows in chunks, without the first `skip`. An error is a chunk of its own, after the rows before it.
fn chunks_of(
    rows: impl Iterator<Item = Result<Row, FileError>>,
    skip: u64,
) -> impl Iterator<Item = Chunk<Row>> {
    let mut rows = rows.enumerate().filter(move |(index, row)| *index as u64 >= skip || row.is_err());
    let mut error = None;
    std::iter::from_fn(move || {
        if let Some(error) = error.take() {
            return Some(Err(error));
        }
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            match rows.next() {
                Some((_, Ok(row))) => {
                    bytes += row.cells.as_ref().map_or(0, |cells| cells.iter().map(bytes_of).sum());
                    chunk.push(row);
                }
                Some((_, Err(failed))) => {
                    error = Some(failed);
                    break;
                }
                None => break,
            }
        }
        if chunk.is_empty() { error.take().map(Err) } else { Some(Ok(chunk)) }
    })
}

fn bytes_of(cell: &Cell) -> usize {
    match cell {
        Cell::Text(text) => text.len(),
        Cell::List(texts) => texts.iter().map(String::len).sum(),
    }
}

/// Fills windows, computes them and hands them on.
fn compute_all<K>(
    mut chunks: Chunks<K>,
    compute: &mut dyn Compute,
    sizes: Sizes,
    windows: &SyncSender<Answered<K>>,
    stop: &AtomicBool,
) -> Result<Ending, FileError> {
    let mut window = Window::default();
    loop {
        let chunk = match chunks.next(stop) {
            Turn::Chunk(Ok(chunk)) => chunk,
            Turn::Chunk(Err(error)) => {
                // Rows that were read before the error are answered.
                hand_on(&mut window, compute, sizes, windows, stop)?;
                return Err(error);
            }
            Turn::End => return hand_on(&mut window, compute, sizes, windows, stop),
            Turn::Stopped => return Ok(Ending::Interrupted),
        };
        for item in chunk {
            window.push(item);
            if window.tokens() >= sizes.window_tokens || window.rows() >= WINDOW_ROWS {
                match hand_on(&mut window, compute, sizes, windows, stop)? {
                    Ending::Finished => {}
                    Ending::Interrupted => return Ok(Ending::Interrupted),
                }
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Ending::Interrupted);
        }
    }
}

/// Computes the window and sends it to the writer. If the writer does not receive it, the writer has failed and reports
/// the error itself.
fn hand_on<K>(
    window: &mut Window<K>,
    compute: &mut dyn Compute,
    sizes: Sizes,
    windows: &SyncSender<Answered<K>>,
    stop: &AtomicBool,
) -> Result<Ending, FileError> {
    let go_on = || !stop.load(Ordering::Relaxed);
    let answered = window.compute(compute, sizes.batch_tokens, go_on);
    let answered = answered.map_err(|why| FileError::Model { why })?;
    let taken = answered.is_some_and(|answered| windows.send(answered).is_ok());
    Ok(if taken { Ending::Finished } else { Ending::Interrupted })
}

/// A row, and what the model gave for its inputs.
struct AnsweredRow<K> {
    number: u64,
    end: u64,
    row: Result<(K, Vec<Vec<f32>>), String>,
}

type Answered<K> = Vec<AnsweredRow<K>>;

/// The thread that writes.
struct Writer<K> {
    windows: SyncSender<Answered<K>>,
    thread: JoinHandle<(Output, Result<(), FileError>)>,
}

impl<K: Send + 'static> Writer<K> {
    fn start<J: Job<Kept = K>>(
        job: &Arc<J>,
        mut output: Output,
        mut watch: impl Watch,
    ) -> Result<Self, FileError> {
        let (windows, answered) = sync_channel::<Answered<K>>(1);
        let job = Arc::clone(job);
        let thread = start("writes", move || {
            let written =
                answered.into_iter().try_for_each(|rows| write(&*job, rows, &mut output, &mut watch));
            (output, written)
        })?;
        Ok(Self { windows, thread })
    }

    /// Waits until everything is written.
    fn join(self) -> (Output, Result<(), FileError>) {
        drop(self.windows);
        match self.thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn write<J: Job>(
    job: &J,
    rows: Answered<J::Kept>,
    output: &mut Output,
    watch: &mut impl Watch,
) -> Result<(), FileError> {
    for AnsweredRow { number, end, row } in rows {
        let answer = row.and_then(|(kept, outputs)| job.answer(kept, outputs));
        if let Err(why) = &answer {
            watch.bad_row(number, why);
        }
        output.write(answer.as_ref().map_err(String::as_str))?;
        watch.written(output.rows(), end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Job for Nothing {
        type Kept = ();

        fn prepare(&self, _: Vec<Cell>) -> Result<Prepared<()>, String> {
            Ok(Prepared { inputs: Vec::new(), kept: () })
        }

        fn answer(&self, (): (), _: Vec<Vec<f32>>) -> Result<Answer, String> {
            Err("nobody asks".into())
        }
    }

    /// Rows that came before the end, and whether it was said.
    fn read(
        rows: impl Iterator<Item = Result<Row, FileError>> + Send + 'static,
        threads: usize,
    ) -> (usize, bool) {
        let mut chunks = tokenizers(rows, 0, &Arc::new(Nothing), threads).unwrap();
        let mut before = 0;
        loop {
            match chunks.next(&AtomicBool::new(false)) {
                Turn::Chunk(Ok(chunk)) => before += chunk.len(),
                Turn::Chunk(Err(FileError::Panicked)) => return (before, false),
                Turn::End => return (before, true),
                Turn::Chunk(Err(_)) | Turn::Stopped => panic!("nobody failed or said stop"),
            }
        }
    }

    #[test]
    fn a_reader_that_panics_has_not_reached_the_end() {
        let row = |number| Ok(Row { number, end: number, cells: Ok(Vec::new()) });
        for threads in [1, 3] {
            for rows in [0, 1, 640, 1000] {
                assert_eq!(read((0..rows).map(row), threads), (rows as usize, true));
                let (before, ended) = read(
                    (0..).map(move |at| if at == rows { panic!("a reader's mistake") } else { row(at) }),
                    threads,
                );
                assert!(!ended && before <= rows as usize, "{before} of {rows}");
            }
        }
    }
}
