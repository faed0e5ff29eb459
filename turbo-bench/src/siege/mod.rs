//! Clients that a server has to survive: too many of them, and clients that dawdle, leave, send nonsense, or send
//! requests while the server stops.
//!
//! ```text
//! Stage (starts a server) + Size (how many) ──▶ one trial after the other ──▶ Trial (what came back, what was broken)
//! ```
//!
//! After each trial the server has to answer the same as before, and must not have panicked. Whatever the server does
//! wrong is recorded as a broken promise. Only a failure of the generator itself ends the run.
//!
//! | module | clients |
//! |---|---|
//! | [`crowd`] | two thousand connections, all at once |
//! | [`dawdlers`] | clients that send a byte now and then (slow loris), or read nothing |
//! | [`leavers`] | clients that close a half or all of their connection before the answer |
//! | [`hostile`] | bodies and heads that are too long, cut off, or not a request at all |
//! | [`memory`] | ten thousand requests of all lengths: what does the server keep of them? |
//! | [`endings`] | requests while the server gets a signal to stop, or is killed |

pub mod crowd;
pub mod dawdlers;
pub mod endings;
pub mod hostile;
pub mod leavers;
pub mod memory;

mod raw;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};

use crate::fire::{Connections, Server, Texts, on_this_thread};

/// The size of each trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Connections at a time.
    pub crowd: usize,
    /// Clients that dawdle.
    pub dawdlers: usize,
    /// How long they dawdle.
    pub dawdling: Duration,
    /// Clients that leave.
    pub leavers: usize,
    /// Invalid requests.
    pub hostile: usize,
    /// Requests before memory is first measured.
    pub warm_up: usize,
    /// Requests until it is measured again.
    pub requests: usize,
    /// Requests to a server that keeps answers: more than it may keep.
    pub kept: usize,
    /// Clients while the server gets a signal to stop.
    pub asking: usize,
    /// Tokens of the longest text.
    pub longest: u32,
}

impl Size {
    /// The size that the figure uses: some minutes.
    pub const WHOLE: Self = Self {
        crowd: 2000,
        dawdlers: 300,
        // The server's patience for the head of a request is 75 s.
        dawdling: Duration::from_secs(90),
        leavers: 3000,
        hostile: 5000,
        warm_up: 3000,
        requests: 10_000,
        kept: 2500,
        asking: 200,
        longest: 96,
    };

    /// The size that a test has time for, on a tiny model.
    pub const PART: Self = Self {
        crowd: 2000,
        dawdlers: 100,
        dawdling: Duration::from_secs(3),
        leavers: 400,
        hostile: 1500,
        warm_up: 2000,
        requests: 10_000,
        kept: 2500,
        asking: 200,
        longest: 48,
    };

    /// The estimated seconds of all trials, with a small model on two threads, without the starts of servers.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        Who::ALL.iter().map(|who| who.seconds(self)).sum()
    }
}

/// The number of servers that a run starts.
pub const STARTS: usize = 5;

/// Kinds of clients, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// More of them than there are slots.
    Crowd,
    /// Those that send or read slowly.
    Dawdlers,
    /// Those that leave.
    Leavers,
    /// Those that send nonsense.
    Hostile,
    /// Those that send many requests, to a server that keeps no answers,
    Memory,
    /// and to one that does.
    Cache,
    /// Those that send requests while the server gets a signal to stop,
    Stop,
    /// or is killed.
    Kill,
}

/// Tokens per second that a small model computes on two threads, with the clients on the same cores.
const RATE: f64 = 11_000.0;
/// The share of invalid requests, and of those whose clients leave, that are computed nevertheless.
const COMPUTED: f64 = 0.25;

impl Who {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Crowd,
        Self::Dawdlers,
        Self::Leavers,
        Self::Hostile,
        Self::Memory,
        Self::Cache,
        Self::Stop,
        Self::Kill,
    ];

    /// The name of the trial.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crowd => "crowd",
            Self::Dawdlers => "dawdlers",
            Self::Leavers => "leavers",
            Self::Hostile => "hostile",
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Stop => "stop",
            Self::Kill => "kill",
        }
    }

    /// The estimated seconds of the trial: waiting, and computing.
    #[must_use]
    pub fn seconds(self, size: &Size) -> f64 {
        let (longest, mixed) = (f64::from(size.longest), memory::Mixed::of_all_lengths(size));
        let (waited, tokens) = match self {
            Self::Crowd => (2.0, 2.0 * size.crowd as f64 * 7.0),
            Self::Dawdlers => (size.dawdling.as_secs_f64() + 2.0, 0.0),
            Self::Leavers => (0.0, COMPUTED * size.leavers as f64 * 8.0 * longest),
            Self::Hostile => (2.0, COMPUTED * size.hostile as f64 * 2.5 * longest / 2.0),
            Self::Memory => (0.0, (size.warm_up + size.requests) as f64 * mixed.mean()),
            Self::Cache => (0.0, 1.1 * size.kept as f64 * memory::Mixed::DISTINCT.mean()),
            Self::Stop => (2.0, 0.0),
            Self::Kill => (4.0, 0.0),
        };
        waited + tokens / RATE
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A trial begins.
    Begins(Who),
    /// A trial ended with this result.
    Ended(Who, &'a Trial),
}

/// Starts servers and makes texts for them.
pub trait Stage {
    /// The command that starts turbo. Arguments that say what it keeps, and where, are appended to it.
    fn command(&self) -> Command;

    /// Texts of words that its model knows.
    fn texts(&self) -> &Texts;
}

/// What became of one kind of client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Name of the clients.
    pub name: String,
    /// Statuses and other outcomes, and how often each came.
    pub answers: BTreeMap<String, u64>,
    /// Millions of bytes by which the server grew; `None` if it was not measured.
    pub grown_mb: Option<f64>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Promises that were not kept.
    pub broken: Vec<String>,
}

/// How long to wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of a trial; none takes half of it.
const LIMIT: Duration = Duration::from_secs(600);
/// The most broken promises that are recorded of a trial, as many clients meet with the same.
const MOST_BROKEN: usize = 8;
/// The argument for a server that is to compute everything.
const NO_ANSWERS: &str = "--cache-bytes=0";

/// Runs all trials. Calls `heard` at the beginning and the end of each.
///
/// # Errors
/// When the server does not start, or the generator lacks what it needs. Whatever the server does wrong is in the
/// trials.
pub fn run(stage: &impl Stage, size: Size, mut heard: impl FnMut(Event<'_>)) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    let mut add = |who: Who, run: &dyn Fn() -> Result<Trial>| -> Result<()> {
        heard(Event::Begins(who));
        let begin = Instant::now();
        let trial = run().with_context(|| format!("trial {}", who.name()))?;
        let seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let trial = Trial { name: who.name().to_owned(), seconds, ..trial };
        heard(Event::Ended(who, &trial));
        trials.push(trial);
        Ok(())
    };
    {
        let costs = folder()?;
        let server = start(stage, costs.path(), &[NO_ANSWERS])?;
        let siege = Siege::lay(&server, stage.texts(), size)?;
        add(Who::Crowd, &|| siege.trial(crowd::come))?;
        add(Who::Dawdlers, &|| siege.trial(dawdlers::come))?;
        add(Who::Leavers, &|| siege.trial(leavers::come))?;
        add(Who::Hostile, &|| siege.trial(hostile::come))?;
        add(Who::Memory, &|| siege.trial(memory::look))?;
    }
    add(Who::Cache, &|| memory::fill(stage, size))?;
    add(Who::Stop, &|| endings::stop(stage, size))?;
    add(Who::Kill, &|| endings::kill(stage, size))?;
    Ok(trials)
}

fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().context("cannot make a temporary folder")
}

/// Starts a server with its costs in the folder `costs`; the arguments `kept` say what it keeps of its answers.
fn start(stage: &impl Stage, costs: &Path, kept: &[impl AsRef<OsStr>]) -> Result<Server> {
    Server::start("turbo", stage.command().arg("--cost-cache").arg(costs).args(kept), PATIENCE)
}

/// A server under siege, and what is known of it.
pub(crate) struct Siege<'a> {
    server: &'a Server,
    texts: &'a Texts,
    size: Size,
    /// Its answer to [`Siege::question`].
    expected: Bytes,
}

impl<'a> Siege<'a> {
    fn lay(server: &'a Server, texts: &'a Texts, size: Size) -> Result<Self> {
        let mut siege = Self { server, texts, size, expected: Bytes::new() };
        siege.expected = siege.ask()?;
        Ok(siege)
    }

    /// The request that is sent before and after each trial. If the server keeps no answers, it is computed each time.
    fn question(&self) -> Bytes {
        self.texts.body(&[7, 19, 4], 99)
    }

    /// Gets the answer to [`Siege::question`].
    fn ask(&self) -> Result<Bytes> {
        let asked = async { Connections::to(self.server.address())?.ask(self.question(), None).await };
        let answer = on_this_thread(async { Ok(tokio::time::timeout(PATIENCE, asked).await) })?;
        let answer = answer.with_context(|| format!("no answer within {PATIENCE:?}"))??;
        anyhow::ensure!(answer.status.as_u16() == 200, "{}, instead of an answer", answer.status);
        Ok(answer.body)
    }

    /// The value of a metric; `name` includes its labels. Zero if it was never counted.
    async fn metric(&self, name: &str) -> Result<f64> {
        let metrics = raw::get(self.server.address(), "/metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// Runs a trial.
    fn trial(&self, come: impl AsyncFnOnce(&Self, &mut Trial) -> Result<()>) -> Result<Trial> {
        let mut trial = Trial::default();
        self.hold(&mut trial, come)?;
        Ok(trial)
    }

    /// Runs a trial, and then checks the server.
    fn hold(&self, trial: &mut Trial, come: impl AsyncFnOnce(&Self, &mut Trial) -> Result<()>) -> Result<()> {
        self.within_limit(trial, come)?;
        match self.ask() {
            Ok(answer) if answer == self.expected => {}
            Ok(_) => trial.breaks("afterwards the same text has another vector".into()),
            Err(error) => trial.breaks(format!("afterwards: {error:#}")),
        }
        trial.judge(self.server, &[504]);
        Ok(())
    }

    /// Runs a trial within [`LIMIT`].
    fn within_limit(
        &self,
        trial: &mut Trial,
        come: impl AsyncFnOnce(&Self, &mut Trial) -> Result<()>,
    ) -> Result<()> {
        on_this_thread(async {
            match tokio::time::timeout(LIMIT, come(self, trial)).await {
                Ok(came) => came,
                Err(_) => {
                    trial.breaks(format!("it was not over after {LIMIT:?}"));
                    Ok(())
                }
            }
        })
    }
}

impl Trial {
    /// Counts an answer of this kind.
    fn note(&mut self, kind: impl ToString) {
        self.note_many(kind, 1);
    }

    /// Counts so many answers of this kind.
    fn note_many(&mut self, kind: impl ToString, count: u64) {
        *self.answers.entry(kind.to_string()).or_default() += count;
    }

    /// Records a broken promise; only the first ones are kept.
    fn breaks(&mut self, how: String) {
        if self.broken.len() < MOST_BROKEN {
            self.broken.push(how);
        }
    }

    /// Checks what must never happen: a panic, and any 5xx status that is not in `may_be`.
    fn judge(&mut self, server: &Server, may_be: &[u16]) {
        let statuses = self.answers.keys().filter_map(|kind| kind.split(' ').next()?.parse::<u16>().ok());
        let faults: Vec<u16> = statuses.filter(|status| *status >= 500 && !may_be.contains(status)).collect();
        faults.iter().for_each(|status| self.breaks(format!("a client was answered with {status}")));
        let log = server.log();
        if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
            self.breaks(format!("a panic: {line}"));
        }
    }
}

/// In one line.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, answers, grown_mb, seconds, broken } = self;
        let answers: Vec<String> = answers.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        write!(f, "{name}: {}; {seconds} s", answers.join(", "))?;
        if let Some(grown) = grown_mb {
            write!(f, "; it grew by {grown} MB")?;
        }
        if broken.is_empty() { Ok(()) } else { write!(f, "; BROKEN: {}", broken.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_takes_some_minutes() {
        let minutes = Size::WHOLE.seconds() / 60.0;
        assert!((3.0..6.0).contains(&minutes), "{minutes:.1} min");
        let memory = Who::Memory.seconds(&Size { warm_up: 0, ..Size::WHOLE });
        assert!((45.0..90.0).contains(&memory), "{memory:.0} s");
    }

    #[test]
    fn a_trial_tells_what_was_broken_and_not_all_of_it() {
        let mut trial = Trial { name: "crowd".into(), seconds: 1.5, ..Trial::default() };
        trial.note(200);
        trial.note_many(200, 2);
        assert_eq!(trial.to_string(), "crowd: 3 × 200; 1.5 s");
        (0..20).for_each(|_| trial.breaks("a word".into()));
        assert_eq!(trial.broken.len(), MOST_BROKEN);
        assert!(trial.to_string().contains("; BROKEN: a word; a word"), "{trial}");
    }
}
