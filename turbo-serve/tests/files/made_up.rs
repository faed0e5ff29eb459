//! A model that is made up: the answer of a text is its length and the sum of its bytes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use turbo_models::Encoded;
use turbo_serve::files::{
    FileError, InputFormat, OutputFormat,
    pipeline::{self, Compute, Prepared, Sizes, Summary, Watch},
    read::{Cell, Rows},
    write::{Answer, Existing, Kind, MadeFrom, Opened, Output, Target},
};

/// Refuses texts with an exclamation mark, panics over one with a bomb in it, and counts the rows that are under way.
#[derive(Default)]
pub(crate) struct Sums {
    under_way: AtomicUsize,
    pub(crate) most_under_way: AtomicUsize,
}

pub(crate) const BOMB: char = '💣';

impl pipeline::Job for Sums {
    type Kept = usize;

    fn prepare(&self, cells: Vec<Cell>) -> Result<Prepared<usize>, String> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(now, Ordering::SeqCst);
        let [Cell::Text(text)] = &cells[..] else { return Err("no text".into()) };
        assert!(!text.contains(BOMB), "a tokenizer's mistake");
        if text.contains('!') {
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            return Err("too loud".into());
        }
        let input_ids = text.bytes().map(u32::from).collect();
        Ok(Prepared { inputs: vec![Encoded { input_ids, token_type_ids: Vec::new() }], kept: text.len() })
    }

    fn answer(&self, kept: usize, outputs: Vec<Vec<f32>>) -> Result<Answer, String> {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Ok(Answer::Embedding(vec![kept as f32, outputs[0][0]]))
    }
}

/// Sums, and stops after this many batches.
pub(crate) struct Adder {
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) batches_left: usize,
    pub(crate) takes: Duration,
    /// Tokens of each batch.
    pub(crate) batches: Vec<usize>,
}

impl Default for Adder {
    fn default() -> Self {
        let (stop, batches) = (Arc::default(), Vec::new());
        Self { stop, batches_left: usize::MAX, takes: Duration::ZERO, batches }
    }
}

impl Compute for Adder {
    fn run(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, String> {
        std::thread::sleep(self.takes);
        self.batches.push(batch.iter().map(|input| input.input_ids.len()).sum());
        self.batches_left -= 1;
        if self.batches_left == 0 {
            self.stop.store(true, Ordering::SeqCst);
        }
        Ok(batch.iter().map(|input| vec![input.input_ids.iter().sum::<u32>() as f32]).collect())
    }
}

/// What a watcher was told.
#[derive(Clone, Default)]
pub(crate) struct Told(pub(crate) Arc<std::sync::Mutex<Vec<String>>>);

impl Watch for Told {
    fn written(&mut self, _: u64, _: u64) {}

    fn bad_row(&mut self, number: u64, why: &str) {
        self.0.lock().unwrap().push(format!("{number}: {why}"));
    }
}

/// One run from `input` to `output`.
pub(crate) struct Run<'a> {
    pub(crate) input: &'a Path,
    pub(crate) output: &'a Path,
    pub(crate) existing: Existing,
    pub(crate) sizes: Sizes,
}

pub(crate) const SIZES: Sizes = Sizes { batch_tokens: 200, window_tokens: 1000, tokenizer_threads: 3 };

impl<'a> Run<'a> {
    pub(crate) fn new(input: &'a Path, output: &'a Path) -> Self {
        Self { input, output, existing: Existing::Keep, sizes: SIZES }
    }

    pub(crate) fn open(&self) -> Result<Opened, FileError> {
        let file = self.output.to_str().unwrap();
        let made_from = MadeFrom::from([("model".to_owned(), "sums".to_owned())]);
        Output::open(&Target {
            file,
            format: OutputFormat::of(file, "--format")?,
            kind: Kind::Embedding { dimensions: 2 },
            made_from: &made_from,
            existing: self.existing,
            best: None,
        })
    }

    pub(crate) fn rows(&self) -> Result<Rows, FileError> {
        let file = self.input.to_str().unwrap();
        Rows::open(file, InputFormat::of(file, "--input-format")?, &["text".to_owned()])
    }

    pub(crate) fn run(&self, adder: &mut Adder) -> Result<Summary, FileError> {
        self.run_told(adder, &Arc::default(), Told::default())
    }

    pub(crate) fn run_told(
        &self,
        adder: &mut Adder,
        job: &Arc<Sums>,
        told: Told,
    ) -> Result<Summary, FileError> {
        let Opened::Ready(output) = self.open()? else { panic!("it is complete") };
        let stop = Arc::clone(&adder.stop);
        pipeline::run(self.rows()?, job, adder, output, self.sizes, told, &stop)
    }
}
