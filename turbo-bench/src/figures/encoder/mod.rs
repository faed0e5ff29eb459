//! turbo beside other engines: one forward pass of an encoder, from token ids to the last hidden state.
//!
//! ```text
//! Data ─▶ one process per rival ─▶ all compute the same? ─▶ rounds: case by case, rival by rival ─▶ Comparison
//!                                                                      record.json · picture.svg · README's tables
//! ```
//!
//! All rivals load the same random weights, get the same ids and use the same number of threads. They take turns of a
//! fraction of a second, in another order each round, so that whatever else the machine does hits all alike; while one
//! runs the others sleep. Beside each time stands the machine's floor: all operations at its measured peak, or all
//! weights once from memory, whichever takes longer.

mod agree;
mod cases;
mod picture;
mod streams;
mod table;

use std::{ops::RangeInclusive, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use turbo_graph::{LayoutKind, Program, dim::Extents, passes};
use turbo_kernels::{Cpu, Device, limits::Limits};
use turbo_models::{Checkpoint, Pooling};

use crate::{
    load::{self, Load},
    record::{Provenance, Record},
    rival::Rival,
};

pub use cases::Case;
pub use streams::{Policy, Stream};
pub use table::tables;

/// Name of the rival that may choose its batches by measured costs, and that the others are compared with.
pub const TURBO: &str = "turbo";

/// What is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data {
    /// The models, and what each is given.
    pub models: Vec<Subject>,
    /// Threads of every rival.
    pub threads: usize,
    /// How often each rival has its turn at each case.
    pub rounds: usize,
    /// What a turn lasts at least, ms, unless one run takes longer.
    pub turn_ms: u64,
}

/// One model and what it is given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subject {
    /// What people call it; weights are random.
    pub model: String,
    /// `(batch_size, seq_len)`.
    pub batches: Vec<(usize, u32)>,
    /// Lengths of a stream of requests, uniform.
    pub stream_lens: RangeInclusive<usize>,
    /// Requests of the stream.
    pub stream_requests: usize,
    /// How often the stream is run.
    pub stream_rounds: usize,
    /// How the stream is cut into batches.
    pub policies: Vec<Policy>,
}

impl Data {
    /// BERT-base and MiniLM at two threads, as long as it takes for medians that hold.
    #[must_use]
    pub fn new(threads: usize, rounds: usize) -> Self {
        let single = [10, 20, 40, 80, 128, 200, 300, 400, 500].map(|len| (1, len));
        let batches = [&single[..], &[(8, 128), (32, 40)]].concat();
        let subject = |model: &str, stream_rounds, policies: &[Policy]| Subject {
            model: model.to_owned(),
            batches: batches.clone(),
            stream_lens: 5..=500,
            stream_requests: 200,
            stream_rounds,
            policies: policies.to_vec(),
        };
        let all = [Policy::Single, Policy::Naive(20), Policy::Sorted(20), Policy::Dp];
        // The stream takes twelve times as long with BERT-base; for most engines one at a time is the best they have.
        let models = vec![
            subject("bert-base", 1, &[Policy::Single, Policy::Dp]),
            subject("minilm", rounds.div_ceil(2), &all),
        ];
        Self { models, threads, rounds, turn_ms: 200 }
    }
}

/// The machine, the rivals, and that they are worth comparing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Name, version and variant of each rival.
    pub rivals: Vec<(String, String)>,
    /// Largest difference between a rival's vectors and turbo's, over both models.
    pub largest_difference: f32,
    /// What the machine can do at most with these threads, GFLOP/s.
    pub peak_gflops: f64,
    /// The same for reading memory, GB/s.
    pub peak_gb_per_s: f64,
    /// How busy it was.
    pub load: Load,
}

/// One line of the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Row {
    /// A batch of sequences of one length.
    Case(Case),
    /// A stream of requests under one policy.
    Stream(Stream),
}

/// All that was measured, as the record keeps it.
pub type Comparison = Record<Data, Row, Summary>;

/// A model as one process per rival.
pub struct Field {
    /// What people call the model.
    pub model: String,
    /// turbo and the others, in the order of the tables.
    pub rivals: Vec<Rival>,
}

/// Runs the comparison. `start` starts the rivals of a model, whose checkpoint is in the folder that `folder` gives.
///
/// # Errors
/// When a rival does not start, ends, or computes something else than turbo.
pub fn run(
    data: &Data,
    device: &Cpu,
    folder: impl Fn(&str) -> std::path::PathBuf,
    mut start: impl FnMut(&str) -> Result<Field>,
) -> Result<Comparison> {
    let before = load::average();
    let limits = limits(device)?;
    let (mut rows, mut rivals, mut largest_difference) = (Vec::new(), Vec::new(), 0.0_f32);
    for subject in &data.models {
        let floor = Floor::new(&folder(&subject.model), limits)?;
        let mut field = start(&subject.model)?;
        rivals = field.rivals.iter().map(|it| (it.name().to_owned(), it.library().to_owned())).collect();
        largest_difference = largest_difference.max(agree::largest_difference(&mut field)?);
        let cases = cases::run(data, subject, &mut field, &floor)?;
        let streams = streams::run(subject, &mut field, &floor, &cases)?;
        rows.extend(cases.into_iter().map(Row::Case).chain(streams.into_iter().map(Row::Stream)));
    }
    let summary = Summary {
        rivals,
        largest_difference,
        peak_gflops: limits.flops / 1e9,
        peak_gb_per_s: limits.memory_bytes / 1e9,
        load: Load { before, after: load::average() },
    };
    let provenance = Provenance::here(device.name());
    Ok(Record { figure: "encoder".to_owned(), provenance, data: data.clone(), summary, rows })
}

/// The machine's limits, the best of several looks: one second in which a core does something else would halve them.
fn limits(device: &Cpu) -> Result<Limits> {
    let mut best = Limits::measure(device)?;
    for _ in 1..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        let Limits { flops, memory_bytes, .. } = Limits::measure(device)?;
        best.flops = best.flops.max(flops);
        best.memory_bytes = best.memory_bytes.max(memory_bytes);
    }
    Ok(best)
}

/// How often the limits are measured.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Writes the record and the picture to `out`.
///
/// # Errors
/// When they cannot be written.
pub fn write(comparison: &Comparison, out: &Path) -> Result<()> {
    comparison.write(out)?;
    picture::draw(comparison, &out.join("encoder.svg"))
}

/// Puts the tables into the file `readme`, between the two comments that mark their place.
///
/// # Errors
/// When the file cannot be read or written, or has no such place.
pub fn write_into(readme: &Path, comparison: &Comparison) -> Result<()> {
    const MARKS: (&str, &str) = ("<!-- written by `cargo xtask bench encoder` -->\n", "<!-- until here -->");
    let cannot = |what: &str| format!("cannot {what} {}", readme.display());
    let text = std::fs::read_to_string(readme).with_context(|| cannot("read"))?;
    let place = || format!("{}: there is no `{}` before `{}`", readme.display(), MARKS.0.trim(), MARKS.1);
    let (head, rest) = text.split_once(MARKS.0).with_context(place)?;
    let (_, tail) = rest.split_once(MARKS.1).with_context(place)?;
    let text = format!("{head}{}{}{}{tail}", MARKS.0, tables(comparison), MARKS.1);
    std::fs::write(readme, text).with_context(|| cannot("write"))
}

/// How fast a model could run here.
struct Floor {
    program: Program,
    limits: Limits,
}

impl Floor {
    fn new(model: &Path, limits: Limits) -> Result<Self> {
        let graph = Checkpoint::open(model)?.graph(Pooling::Mean)?;
        Ok(Self { program: Program::compile(&graph, LayoutKind::Packed, passes::ALL)?, limits })
    }

    /// Milliseconds that a batch takes at least, without padding.
    fn ms(&self, lens: &[u32]) -> f64 {
        self.program.graph().floor(&extents(lens), &self.limits).as_secs_f64() * 1e3
    }
}

fn extents(lens: &[u32]) -> Extents {
    Extents::of(&lens.iter().map(|&len| len as usize).collect::<Vec<_>>())
}

/// The value at share `q` of `values`.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((q * sorted.len() as f64) as usize).min(sorted.len() - 1)]
}

/// Four significant digits: what a clock on a shared machine can tell.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        assert_eq!([0.0, 0.5, 0.9, 1.0].map(|q| quantile(&[3.0, 1.0, 2.0, 4.0], q)), [1.0, 3.0, 4.0, 4.0]);
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.0, 0.012_345_6, 12.345_6, 98_765.0].map(rounded), [0.0, 0.012_35, 12.35, 98_770.0]);
    }

    #[test]
    fn the_standard_data_is_what_the_record_says() {
        let data = Data::new(2, 5);
        let text = serde_json::to_string(&data).unwrap();
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Data>(&text).unwrap()).unwrap(), text);
        assert!(data.models.iter().all(|subject| subject.batches.contains(&(1, 10))));
    }
}
