//! Clients that a server has to survive: too many of them, those that dawdle, leave, send nonsense, or send requests
//! while it stops.
//!
//! ```text
//! Stage (starts a server) + Size (how many) ──▶ one trial after the other ──▶ Trial (what came back, what was broken)
//! ```
//!
//! After each trial the server has to answer the same as before, and must not have panicked. What the server does wrong
//! is written down as a broken promise; only what the generator itself cannot do ends the run.
//!
//! | module | clients |
//! |---|---|
//! | [`crowd`] | two thousand connections, all at once |
//! | [`dawdlers`] | clients that send a byte now and then (slow loris), or read nothing |
//! | [`leavers`] | clients that close a half or all of their connection before the answer |
//! | [`hostile`] | bodies and heads that are too long, cut off, or no request at all |
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

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Connections at a time.
    pub crowd: usize,
    /// Clients that dawdle.
    pub dawdlers: usize,
    /// And for how long.
    pub dawdling: Duration,
    /// Clients that leave.
    pub leavers: usize,
    /// Requests that are none.
    pub hostile: usize,
    /// Requests before memory is looked at.
    pub warm_up: usize,
    /// Requests until it is looked at again.
    pub requests: usize,
    /// Requests to a server that keeps its answers: more than it may keep.
    pub kept: usize,
    /// Clients while the server gets a signal to stop.
    pub asking: usize,
    /// Tokens of the longest text.
    pub longest: u32,
}

impl Size {
    /// What the figure records: some minutes.
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

    /// What a test has time for, on a tiny model.
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

    /// What all of it takes of a small model on two threads, s, by estimate; starts of servers besides.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        Who::ALL.iter().map(|who| who.seconds(self)).sum()
    }
}

/// Servers that are started for it.
pub const STARTS: usize = 5;

/// Kinds of clients, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// More of them than there are slots.
    Crowd,
    /// Those that take their time.
    Dawdlers,
    /// Those that go.
    Leavers,
    /// Those that send nonsense.
    Hostile,
    /// Those that ask for a long time, of a server that keeps no answers,
    Memory,
    /// and of one that does.
    Cache,
    /// Those that send requests while it gets a signal to stop,
    Stop,
    /// or killed.
    Kill,
}

/// Tokens a second that a small model makes of on two threads, with the clients on the same cores.
const RATE: f64 = 11_000.0;
/// The share of requests that are computed for all that is wrong with them, or though their clients go.
const COMPUTED: f64 = 0.25;

impl Who {
    /// All of them.
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

    /// What a trial is called.
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

    /// What a trial takes, s, by estimate: what has to be waited for, and what has to be computed.
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
    /// This became of it.
    Ended(Who, &'a Trial),
}

/// Where servers come from.
pub trait Stage {
    /// How turbo is started; what it keeps, and where, is said behind that.
    fn command(&self) -> Command;

    /// Texts that its model knows.
    fn texts(&self) -> &Texts;
}

/// What became of one kind of client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Name of the clients.
    pub name: String,
    /// Statuses, or what else came back, and how often.
    pub answers: BTreeMap<String, u64>,
    /// What the server grew by, millions of bytes; `None` where it was not measured.
    pub grown_mb: Option<f64>,
    /// What it took, s.
    pub seconds: f64,
    /// Promises that were not kept.
    pub broken: Vec<String>,
}

/// What a server has to keep its word for before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a trial may take: none takes half of it.
const LIMIT: Duration = Duration::from_secs(600);
/// Broken promises of a trial that are written down: the same happens to many clients.
const MOST_BROKEN: usize = 8;
/// Said of a server that is to compute everything.
const NO_ANSWERS: &str = "--cache-bytes=0";

/// All trials; `heard` is called at the begin and the end of each.
///
/// # Errors
/// When the server does not start, or the generator lacks what it needs: what the server does wrong is in the trials.
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

/// A server with costs in a folder, and what is `kept` of its answers.
fn start(stage: &impl Stage, costs: &Path, kept: &[impl AsRef<OsStr>]) -> Result<Server> {
    Server::start("turbo", stage.command().arg("--cost-cache").arg(costs).args(kept), PATIENCE)
}

/// A server and what is known of it.
pub(crate) struct Siege<'a> {
    server: &'a Server,
    texts: &'a Texts,
    size: Size,
    /// What it answers to [`Siege::question`].
    expected: Bytes,
}

impl<'a> Siege<'a> {
    fn lay(server: &'a Server, texts: &'a Texts, size: Size) -> Result<Self> {
        let mut siege = Self { server, texts, size, expected: Bytes::new() };
        siege.expected = siege.ask()?;
        Ok(siege)
    }

    /// The request before and after everything: where no answer is kept, it is computed each time.
    fn question(&self) -> Bytes {
        self.texts.body(&[7, 19, 4], 99)
    }

    /// The answer to it.
    fn ask(&self) -> Result<Bytes> {
        let asked = async { Connections::to(self.server.address())?.ask(self.question(), None).await };
        let answer = on_this_thread(async { Ok(tokio::time::timeout(PATIENCE, asked).await) })?;
        let answer = answer.with_context(|| format!("no answer within {PATIENCE:?}"))??;
        anyhow::ensure!(answer.status.as_u16() == 200, "{}, instead of an answer", answer.status);
        Ok(answer.body)
    }

    /// What the server says of a metric, with its labels; none where it was never counted.
    async fn metric(&self, name: &str) -> Result<f64> {
        let metrics = raw::get(self.server.address(), "/metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// Runs one.
    fn trial(&self, come: impl AsyncFnOnce(&Self, &mut Trial) -> Result<()>) -> Result<Trial> {
        let mut trial = Trial::default();
        self.hold(&mut trial, come)?;
        Ok(trial)
    }

    /// Runs one, and sees what is left of the server.
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

    /// Runs one that may not go on for ever.
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
    /// One more answer of this kind.
    fn note(&mut self, kind: impl ToString) {
        self.note_many(kind, 1);
    }

    /// So many more.
    fn note_many(&mut self, kind: impl ToString, count: u64) {
        *self.answers.entry(kind.to_string()).or_default() += count;
    }

    /// A promise that was not kept; the first of them are written down.
    fn breaks(&mut self, how: String) {
        if self.broken.len() < MOST_BROKEN {
            self.broken.push(how);
        }
    }

    /// What must never be: a panic, and of all statuses that are the server's own fault any but those that may be now.
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
