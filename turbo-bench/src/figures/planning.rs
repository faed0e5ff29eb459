//! What planning memory costs compared with running: TurboTransformers (PPoPP'21), Figure 13.
//!
//! Every request is planned anew for its own length, as in the paper, and then run. The paper reports 1.8 % on average
//! (0.07–5.77 %) on an RTX 2060, with layers planned once. This figure measures the same with the layers folded, and
//! also the cost of planning every activation of every layer.

use std::{
    collections::BTreeSet,
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use turbo_alloc::{MemoryPlan, Planner, PlannerConfig, UsageRecord};
use turbo_graph::{Executor, ExecutorConfig, LayoutKind, Program, Staging, dim::Extents, passes};
use turbo_kernels::{Cpu, Device, EncoderKernels};
use turbo_models::{Checkpoint, Pooling};

use crate::{
    checkpoint::Model,
    progress,
    record::{self, Provenance, Record},
    workload,
};

/// What is run.
#[derive(Clone, Debug, Serialize)]
pub struct Data {
    /// The model; weights are random.
    pub model: Model,
    /// Lengths of requests, uniform.
    pub lens: RangeInclusive<usize>,
    /// Number of requests, one at a time.
    pub requests: usize,
    /// Seed of the lengths.
    pub seed: u64,
}

impl Default for Data {
    fn default() -> Self {
        Data { model: Model::BertBase, lens: 5..=500, requests: 150, seed: 0 }
    }
}

/// One request.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its tokens.
    pub seq_len: usize,
    /// Planning with layers folded, µs.
    pub plan_us: f64,
    /// Planning every activation, µs.
    pub unfolded_plan_us: f64,
    /// Running, ms, including the run's own planning.
    pub run_ms: f64,
    /// Bytes of all chunks after the request.
    pub footprint_bytes: usize,
}

/// The rows in short.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// All planning over all running, percent.
    pub percent: f64,
    /// The smallest share of planning in one request, percent.
    pub least_percent: f64,
    /// The largest share of planning in one request, percent.
    pub most_percent: f64,
    /// All unfolded planning over all running, percent.
    pub unfolded_percent: f64,
    /// Whether each length had run before. Otherwise running includes what a device does once for a new length, and the
    /// shares are understated.
    #[serde(default)]
    pub lens_ran_before: bool,
}

/// Runs the figure on `device` and writes `planning.json` and `planning.svg` to `out`.
///
/// # Errors
/// When the model cannot be written, loaded or run, or the results cannot be written.
pub fn run(data: &Data, device: Cpu, out: &Path) -> Result<Summary> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    data.model.shape().write(folder.path(), 0, drop)?;
    let provenance = Provenance::here(device.name());
    let rows = measure(data, device, folder.path())?;
    let summary = Summary::of(&rows);
    let (figure, data, of_rows) = ("planning".to_owned(), data.clone(), summary.clone());
    let record = Record { figure, provenance, data, summary: of_rows, rows };
    record.write(out)?;
    record::whole(&out.join("planning.svg"), |place| plot(&record.rows, place))?;
    Ok(summary)
}

/// Plans and runs every request of `data` with the checkpoint in the folder `model`.
pub(super) fn measure<D: EncoderKernels>(data: &Data, device: D, model: &Path) -> Result<Vec<Row>> {
    let checkpoint = Checkpoint::open(model)?;
    let vocab_size = checkpoint.limits().vocab_size;
    let program = Program::compile(&checkpoint.graph(Pooling::Mean)?, LayoutKind::Packed, passes::ALL)?
        .with_element_bytes(size_of::<D::Float>());
    let config = ExecutorConfig { cached_bindings: 0, ..ExecutorConfig::default() };
    let mut executor = Executor::new(device, program.clone(), &checkpoint, config)?;
    let mut planning = Planning::new(&program)?;
    executor.run(&request(*data.lens.end(), vocab_size)?)?; // first touch of weights and chunks
    executor.finish()?;

    let plan = |seq_len: usize| -> Result<(Duration, Duration)> {
        let extents = Extents::of(&[seq_len]);
        Ok((planning.folded(&extents)?, planning.unfolded(&extents)?))
    };
    let run = |seq_len: usize| -> Result<(Duration, usize)> {
        let staging = request(seq_len, vocab_size)?;
        let start = Instant::now();
        executor.run(&staging)?;
        executor.finish()?;
        Ok((start.elapsed(), executor.footprint_bytes()))
    };
    time(&workload::uniform(&data.lens, data.requests, data.seed), plan, run)
}

/// Plans and runs each of `lens`, in this order. Before that, each length runs once without counting: a device may
/// search for its best way when it first sees a shape, which would make planning seem cheap.
///
/// * `plan`: how long planning takes, with layers folded and of every activation.
/// * `run`: how long a run takes, and the bytes of all chunks after it.
fn time(
    lens: &[usize],
    mut plan: impl FnMut(usize) -> Result<(Duration, Duration)>,
    mut run: impl FnMut(usize) -> Result<(Duration, usize)>,
) -> Result<Vec<Row>> {
    let distinct: BTreeSet<usize> = lens.iter().copied().collect();
    let bar = progress::bar("planning", distinct.len() + lens.len())?;
    for seq_len in distinct {
        run(seq_len)?;
        bar.inc(1);
    }
    let mut rows = Vec::new();
    for &seq_len in lens {
        let (folded, unfolded) = plan(seq_len)?;
        let (took, footprint_bytes) = run(seq_len)?;
        rows.push(Row {
            seq_len,
            plan_us: folded.as_secs_f64() * 1e6,
            unfolded_plan_us: unfolded.as_secs_f64() * 1e6,
            run_ms: took.as_secs_f64() * 1e3,
            footprint_bytes,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// One request of `seq_len` tokens.
fn request(seq_len: usize, vocab_size: usize) -> Result<Staging> {
    let ids: Vec<u32> = (0..seq_len).map(|token| (token * 7919 % vocab_size) as u32).collect();
    let mut staging = Staging::new();
    staging.push(&ids, &[])?;
    Ok(staging)
}

/// Planners apart from the executor's own, so that planning alone is timed.
struct Planning<'a> {
    program: &'a Program,
    folded: Planner,
    unfolded: Planner,
    records: Vec<UsageRecord>,
    plan: MemoryPlan,
}

impl<'a> Planning<'a> {
    fn new(program: &'a Program) -> Result<Self> {
        let planner = || Planner::new(PlannerConfig::default());
        let (records, plan) = (Vec::new(), MemoryPlan::default());
        Ok(Planning { program, folded: planner()?, unfolded: planner()?, records, plan })
    }

    fn folded(&mut self, extents: &Extents) -> Result<Duration> {
        let start = Instant::now();
        self.program.slots().usage_records_into(extents, &mut self.records);
        self.folded.plan_into(&self.records, &mut self.plan)?;
        Ok(start.elapsed())
    }

    fn unfolded(&mut self, extents: &Extents) -> Result<Duration> {
        self.records = self.program.usage_records(extents).into_iter().map(|(_, record)| record).collect();
        let start = Instant::now(); // deriving the records anew is not what the planner costs
        self.unfolded.plan_into(&self.records, &mut self.plan)?;
        Ok(start.elapsed())
    }
}

impl Row {
    fn percent(&self) -> f64 {
        self.plan_us / (self.run_ms * 1e3) * 100.0
    }
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        let run: f64 = rows.iter().map(|row| row.run_ms * 1e3).sum();
        let share = |planning: f64| planning / run * 100.0;
        Summary {
            percent: share(rows.iter().map(|row| row.plan_us).sum()),
            unfolded_percent: share(rows.iter().map(|row| row.unfolded_plan_us).sum()),
            least_percent: rows.iter().map(Row::percent).fold(f64::INFINITY, f64::min),
            most_percent: rows.iter().map(Row::percent).fold(0.0, f64::max),
            lens_ran_before: true,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "planning costs {:.4} % of running", self.percent)?;
        writeln!(f, "  request by request {:.4} to {:.4} %", self.least_percent, self.most_percent)?;
        writeln!(f, "  every layer planned for itself: {:.4} %", self.unfolded_percent)?;
        write!(f, "  (the paper, on its GPU: 1.8 %, 0.07 to 5.77 %)")
    }
}

fn plot(rows: &[Row], file: &Path) -> Result<()> {
    let most =
        rows.iter().map(|row| row.unfolded_plan_us.max(row.plan_us) / row.run_ms / 10.0).fold(0.0, f64::max);
    let longest = rows.iter().map(|row| row.seq_len).max().unwrap_or(1) as f64;
    let area = SVGBackend::new(file, (820, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Planning beside running, BERT-base, one request at a time", ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..longest * 1.02, 0.0..most * 1.1)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .x_desc("tokens")
        .y_desc("planning / running, %")
        .light_line_style(WHITE)
        .draw()?;
    let (orange, blue) = (RGBColor(214, 120, 40), RGBColor(30, 100, 180));
    for (label, colour, folded) in [("every layer planned", orange, false), ("layers folded", blue, true)] {
        let planning = |row: &Row| if folded { row.plan_us } else { row.unfolded_plan_us };
        let points = rows.iter().map(|row| (row.seq_len as f64, planning(row) / row.run_ms / 10.0));
        chart
            .draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?
            .label(label)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    area.present().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde::de::IgnoredAny;

    use super::*;

    #[test]
    fn lengths_of_the_record_ran_before() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/planning.json");
        let record: Record<IgnoredAny, IgnoredAny, Summary> = Record::read(&file).unwrap();
        assert!(record.summary.lens_ran_before, "its shares are understated: cargo xtask bench planning");
    }

    #[test]
    fn what_a_device_does_once_for_a_new_length_does_not_count() {
        let percent = |once: Duration| {
            let mut seen = HashSet::new();
            let plan = |_| Ok((Duration::from_micros(10), Duration::from_micros(20)));
            let run = |seq_len| {
                let first = if seen.insert(seq_len) { once } else { Duration::ZERO };
                Ok((Duration::from_millis(1) + first, 0))
            };
            Summary::of(&time(&[5, 7, 5, 9], plan, run).unwrap()).percent
        };
        assert!((percent(Duration::ZERO) - 1.0).abs() < 1e-9);
        assert_eq!(percent(Duration::ZERO), percent(Duration::from_secs(1)));
    }
}
