//! The whole server under load: its policies, other servers, and its own engine in comparison, and clients that it has
//! to survive.
//!
//! ```text
//! regimes ─▶ rounds that the budget buys ─▶ a process per server ─▶ rounds of capacities and loads, in turns ─▶ Section
//!                                           Sections of this and of earlier runs ─▶ serve.json · serve.md · pictures
//! ```
//!
//! Servers are processes that get requests over loopback, from a generator in this process on the same cores
//! ([`crate::fire`]). In each round every server first gets enough clients to keep it busy. That gives its capacity,
//! minus what the generator takes. Then requests come at rates that are shares of a capacity, whether the server keeps
//! up or not. Within a round all servers get the same requests; they take turns in an order that is drawn anew each
//! time, and sleep meanwhile. Each round has requests of its own. So a pair of turns differs only in its servers, and
//! differences and ratios of pairs are judged by Student's interval.
//!
//! | module | what it is about |
//! |---|---|
//! | [`regime`] | what is measured, as data |
//! | [`contest`] | servers under the same requests |
//! | [`paired`] | ratios of numbers from the same rounds |
//! | [`host_path`] | the server beside its bare engine |
//! | [`goals`] | the goals, and whether they were reached |
//! | [`page`], `picture` | how it is shown |

pub mod contest;
pub mod goals;
pub mod host_path;
pub mod page;
pub mod paired;
pub mod regime;

mod picture;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    figures::{
        agree::Agreement,
        rounds::{self, Cost, Rounds},
    },
    fire::{Server, Texts, raise_file_limit},
    load,
    progress::{Timeline, minutes},
    record::{self, Provenance, Record},
    rival::Rival,
    siege::{self, Event, Size, Trial},
};
use contest::{Contest, Present, Terms};
use host_path::HostPath;

pub use regime::{Arrivals, Kind, Regime, Shares, Work};

/// Name of the server that the others are compared with.
pub const TURBO: &str = "turbo";

/// How the record was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data {
    /// Threads that each engine computes with.
    pub threads: usize,
}

/// The state of the machine during the last run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// How busy it was.
    pub load: load::Load,
}

/// What one regime found, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Name of the regime.
    pub name: String,
    /// The model.
    pub model: String,
    /// RFC 3339, UTC.
    pub date: String,
    /// Commit of the working tree when the run began.
    pub commit: String,
    /// Name of the processor, as the system gives it.
    pub processor: String,
    /// Threads that each engine computes with.
    pub threads: usize,
    /// The method of measurement: [`Rows::method`] at that time.
    pub method: u32,
    /// Rounds of turns.
    pub rounds: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// How closely each server computes the same as the first.
    pub agreement: Vec<Agreement>,
    /// What was measured.
    pub rows: Rows,
}

/// What was measured, by kind of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Of [`Work::Contest`].
    Contest(Contest),
    /// Of [`Work::HostPath`].
    HostPath(HostPath),
    /// Of [`Work::Endurance`].
    Endurance(Vec<Trial>),
}

impl Rows {
    /// The number of the present method of measurement. It is raised when the method changes, so that `--missing`
    /// measures anew.
    #[must_use]
    pub fn method(&self) -> u32 {
        match self {
            Self::Contest(_) => 4,
            Self::HostPath(_) | Self::Endurance(_) => 3,
        }
    }
}

/// The record of all that was measured.
pub type Report = Record<Data, Section, Summary>;

/// How long the parts of a measurement last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Clients that keep a server busy.
    pub clients: usize,
    /// Time until queues are as full as they get; answers in it do not count.
    pub ramp: Duration,
    /// Length of a capacity's measurement.
    pub capacity: Duration,
    /// Length of a load's measurement.
    pub turn: Duration,
    /// How much a server has to survive.
    pub siege: Size,
}

impl Pace {
    /// The pace of the record. A turn has a thousand requests where most come, and batches run for a second before any
    /// request counts. Three rounds of all regimes take about seventy minutes. If more time is available, more rounds
    /// tell more than longer ones.
    pub const WHOLE: Self = Self {
        clients: 64,
        ramp: Duration::from_secs(1),
        capacity: Duration::from_secs(3),
        turn: Duration::from_secs(5),
        siege: Size::WHOLE,
    };
}

/// Starts the processes.
pub trait Stage: siege::Stage {
    /// The folder of a model's checkpoint, with a tokenizer.
    fn checkpoint(&self, model: &str) -> PathBuf;

    /// Starts a server that has loaded its model.
    ///
    /// # Errors
    /// When it does not start, or ends.
    fn serve(&self, name: &str, kind: &Kind, model: &str) -> Result<Server>;

    /// Starts the bare engine.
    ///
    /// # Errors
    /// When it does not start, or ends.
    fn engine(&self, model: &str) -> Result<Rival>;
}

/// Runs the regimes. Each finished section is handed to `keep`, so that it survives a later failure.
///
/// # Errors
/// When a server does not start, ends, or computes something else than the first one does, or when `keep` fails.
pub fn run(
    regimes: &[Regime],
    rounds: Rounds,
    threads: usize,
    pace: &Pace,
    stage: &impl Stage,
    mut keep: impl FnMut(Section, &Provenance, &Summary) -> Result<()>,
) -> Result<()> {
    let mut timeline = Timeline::new()?;
    raise_file_limit();
    // Taken before anything is written: otherwise the run would find that it had changed the working tree itself.
    let begin = Provenance::here(format!("cpu, {threads} threads"));
    let before = load::average();
    let costs: Vec<Cost> = regimes.iter().map(|regime| cost(regime, pace)).collect();
    eprintln!(
        "{} regimes, about {}",
        regimes.len(),
        minutes(rounds::seconds(&costs, &rounds.of(&costs, timeline.elapsed())))
    );
    for (index, regime) in regimes.iter().enumerate() {
        let costs = &costs[index..];
        let times = rounds.of(costs, timeline.elapsed());
        let seconds = rounds::seconds(&costs[..1], &times[..1]);
        let rest = rounds::seconds(&costs[1..], &times[1..]);
        // The clients to survive come only once.
        let rounds = if regime.work == Work::Endurance { 1 } else { times[0] };
        let what = if rounds == 1 { regime.title() } else { format!("{}, {rounds} rounds", regime.title()) };
        timeline.begin(&what, seconds, rest);
        let started = timeline.elapsed();
        let (agreement, rows) = measure(regime, rounds, pace, stage, &mut timeline)
            .with_context(|| format!("{}: not measured", regime.title()))?;
        let section = Section {
            name: regime.name.to_owned(),
            model: regime.model.clone(),
            date: record::now(),
            commit: begin.commit.clone(),
            processor: begin.processor.clone(),
            threads,
            method: rows.method(),
            rounds,
            seconds: (timeline.elapsed() - started).round(),
            agreement,
            rows,
        };
        let summary = Summary { load: load::Load { before, after: load::average() } };
        let provenance = Provenance { date: section.date.clone(), ..begin.clone() };
        keep(section, &provenance, &summary)?;
    }
    timeline.finish();
    Ok(())
}

/// Seconds until a server has loaded its model and measured its costs.
const START: f64 = 5.0;
/// Seconds of a turn without requests: the pause before it, making the requests, connecting.
const BETWEEN: f64 = 0.3;

/// The estimated time of a regime.
fn cost(regime: &Regime, pace: &Pace) -> Cost {
    let [ramp, capacity, turn] = [pace.ramp, pace.capacity, pace.turn].map(|it| it.as_secs_f64());
    match &regime.work {
        Work::Contest { servers, shares, .. } => {
            let count = servers.len() as f64;
            // A server that refuses nothing needs the length of a turn again at twice its capacity, and half of it at
            // one and a half times.
            let patient = servers.iter().filter(|it| !matches!(it, Kind::Turbo { .. })).count() as f64;
            let excess: f64 = shares.loads().iter().map(|load| (load - 1.0).max(0.0)).sum();
            let turns = count * shares.loads().len() as f64 + patient * excess;
            let [capacity, turn] = [capacity, turn].map(|it| BETWEEN + ramp + it);
            Cost { fixed: count * START, round: count * capacity + turns * turn }
        }
        Work::HostPath(_) => Cost { fixed: 2.0 * START, round: ramp + capacity + 8.0 },
        Work::Endurance => Cost { fixed: siege::STARTS as f64 * START + pace.siege.seconds(), round: 0.0 },
    }
}

/// Measures a regime.
fn measure(
    regime: &Regime,
    rounds: usize,
    pace: &Pace,
    stage: &impl Stage,
    timeline: &mut Timeline,
) -> Result<(Vec<Agreement>, Rows)> {
    let open = || Texts::open(&stage.checkpoint(&regime.model));
    match &regime.work {
        Work::Contest { servers, arrivals, promised, shares } => {
            let texts = open()?;
            let mut present: Vec<Present> = Vec::new();
            let mut agreement = Vec::new();
            let mut expected = None;
            for kind in servers {
                let name = kind.name(servers);
                let server = stage.serve(&name, kind, &regime.model)?;
                let expected = match &expected {
                    Some(expected) => expected,
                    None => expected.insert(contest::vectors(&server, &texts)?),
                };
                agreement.push(contest::agree(expected, &server, &texts)?);
                present.push(Present { name, server, is_told: *kind != Kind::Paper });
            }
            let terms = Terms { arrivals, promised: *promised, shares: *shares, texts: &texts, pace };
            Ok((agreement, Rows::Contest(contest::run(&present, &terms, rounds, timeline)?)))
        }
        Work::HostPath(lens) => {
            let kind = Kind::Turbo { batching: "dp".to_owned(), layout: "packed".to_owned() };
            let server = stage.serve(TURBO, &kind, &regime.model)?;
            let mut engine = stage.engine(&regime.model)?;
            let found = host_path::run((&mut engine, &server), (&open()?, lens), pace, rounds, timeline)?;
            Ok((Vec::new(), Rows::HostPath(found)))
        }
        Work::Endurance => {
            let all = pace.siege.seconds();
            let trials = siege::run(stage, pace.siege, |event| match event {
                Event::Begins(who) => {
                    let seconds = who.seconds(&pace.siege);
                    timeline.say(&format!("{}: about {seconds:.0} s", who.name()));
                }
                Event::Ended(who, trial) => {
                    timeline.say(&trial.to_string());
                    timeline.done(who.seconds(&pace.siege) / all);
                }
            })?;
            Ok((Vec::new(), Rows::Endurance(trials)))
        }
    }
}

/// Whether sections with so many threads may join a record.
///
/// # Errors
/// When the record was measured with another number, because its tables would compare what cannot be compared.
pub fn fits(record: &Report, threads: usize) -> Result<()> {
    match record.rows.iter().find(|section| section.threads != threads) {
        Some(other) => bail!("the record was measured with {} threads, got {threads}", other.threads),
        None => Ok(()),
    }
}

/// Puts a section of a new run into the record, in place of the one that measured the same before.
///
/// # Errors
/// As [`fits`].
pub fn merge(
    before: Option<Report>,
    section: Section,
    (provenance, summary): (Provenance, Summary),
) -> Result<Report> {
    before.as_ref().map_or(Ok(()), |before| fits(before, section.threads))?;
    let data = Data { threads: section.threads };
    let mut rows = before.map(|before| before.rows).unwrap_or_default();
    record::replace(&mut rows, section, |it| (it.name.clone(), it.model.clone()));
    let known = regime::all()?;
    rows.sort_by_key(|it| {
        known.iter().position(|regime| regime.words() == [it.model.as_str(), it.name.as_str()])
    });
    Ok(Record { figure: "serve".to_owned(), provenance, data, summary, rows })
}

/// Writes the record, the page and the pictures to `out`.
///
/// # Errors
/// When they cannot be written.
pub fn write(report: &Report, out: &Path) -> Result<()> {
    report.write(out)?;
    let notes = std::fs::read_to_string(out.join(page::NOTES)).unwrap_or_default();
    let file = out.join("serve.md");
    record::write_whole(&file, &page::page(report, &notes))?;
    picture::draw(report, out)
}

/// A record of these sections, for tests.
#[cfg(test)]
fn report(sections: Vec<(&str, Rows)>) -> Report {
    let section = |(name, rows): (&str, Rows)| Section {
        name: name.to_owned(),
        model: "minilm".to_owned(),
        date: record::now(),
        commit: String::new(),
        processor: String::new(),
        threads: 2,
        method: rows.method(),
        rounds: 3,
        seconds: 1.0,
        agreement: Vec::new(),
        rows,
    };
    let (data, load) = (Data { threads: 2 }, load::Load { before: None, after: None });
    let (figure, provenance, summary) =
        ("serve".to_owned(), Provenance::here(String::new()), Summary { load });
    Record { figure, provenance, data, summary, rows: sections.into_iter().map(section).collect() }
}
