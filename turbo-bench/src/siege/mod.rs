//! Clients that a server has to survive: too many of them, those that dawdle, leave, send nonsense, or ask while it
//! stops.
//!
//! ```text
//! Stage (starts a server) + Size (how many) ──▶ one trial after the other ──▶ Trial (what came back, what was broken)
//! ```
//!
//! After each trial the server has to answer the same as before, and must not have panicked.
//!
//! | module | who comes |
//! |---|---|
//! | [`crowd`] | as many connections as the system allows, all at once |
//! | [`dawdlers`] | clients that send or read a byte now and then (slow loris) |
//! | [`leavers`] | clients that close a half or all of their connection before the answer |
//! | [`hostile`] | bodies and heads that are too long, cut off, or no request at all |
//! | [`memory`] | ten thousand requests of all lengths: what does the server keep of them? |
//! | [`endings`] | whoever asks while the server is told to stop, or killed |

pub mod crowd;
pub mod dawdlers;
pub mod endings;
pub mod hostile;
pub mod leavers;
pub mod memory;

mod raw;

use std::{
    collections::BTreeMap,
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
    /// Clients while the server is told to stop.
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
        warm_up: 5000,
        requests: 10_000,
        asking: 200,
        longest: 128,
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
        asking: 200,
        longest: 48,
    };
}

/// Where servers come from.
pub trait Stage {
    /// How turbo is started: its costs are kept in the folder, and it keeps no answers.
    fn command(&self, costs: &Path) -> Command;

    /// Texts that its model knows.
    fn texts(&self) -> &Texts;
}

/// What became of one kind of client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Who came.
    pub name: String,
    /// Statuses, or what else came back, and how often.
    pub answers: BTreeMap<String, u64>,
    /// What the server grew by, millions of bytes; `None` where nobody looked.
    pub grown_mb: Option<f64>,
    /// What it took, s.
    pub seconds: f64,
    /// Promises that were not kept.
    pub broken: Vec<String>,
}

/// How many there are.
pub const TRIALS: usize = 7;

/// What a server has to keep its word for before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// All trials; `done` is told of each.
///
/// # Errors
/// When the server does not start, or the generator lacks what it needs: what the server does wrong is in the trials.
pub fn run(stage: &impl Stage, size: Size, mut done: impl FnMut(&Trial)) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    let mut add = |trial: Trial| {
        done(&trial);
        trials.push(trial);
    };
    {
        let costs = folder()?;
        let server = Server::start("turbo", &mut stage.command(costs.path()), PATIENCE)?;
        let siege = Siege::lay(&server, stage.texts(), size)?;
        add(siege.trial("crowd", crowd::come)?);
        add(siege.trial("dawdlers", dawdlers::come)?);
        add(siege.trial("leavers", leavers::come)?);
        add(siege.trial("hostile", hostile::come)?);
        add(siege.trial("memory", memory::look)?);
    }
    add(endings::stop(stage, size)?);
    add(endings::kill(stage, size)?);
    Ok(trials)
}

fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().context("cannot make a temporary folder")
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

    /// What is asked before and after everything: no answer is kept, so it is computed each time.
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

    /// Runs one, and sees what is left of the server.
    fn trial(&self, name: &str, come: impl AsyncFnOnce(&Self, &mut Trial) -> Result<()>) -> Result<Trial> {
        let begin = Instant::now();
        let mut trial = Trial { name: name.to_owned(), ..Trial::default() };
        on_this_thread(come(self, &mut trial))?;
        match self.ask() {
            Ok(answer) if answer == self.expected => {}
            Ok(_) => trial.broken.push("afterwards the same text has another vector".into()),
            Err(error) => trial.broken.push(format!("afterwards: {error:#}")),
        }
        trial.judge(self.server);
        trial.seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        Ok(trial)
    }
}

impl Trial {
    /// One more answer of this kind.
    fn note(&mut self, kind: impl ToString) {
        *self.answers.entry(kind.to_string()).or_default() += 1;
    }

    /// What must never be: a panic, and of all statuses that are the server's own fault any but 503 and 504.
    fn judge(&mut self, server: &Server) {
        let statuses = self.answers.keys().filter_map(|kind| kind.split(' ').next()?.parse::<u16>().ok());
        let faults = statuses.filter(|status| *status >= 500 && ![503, 504].contains(status));
        let faults: Vec<String> =
            faults.map(|status| format!("a client was answered with {status}")).collect();
        self.broken.extend(faults);
        let log = server.log();
        if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
            self.broken.push(format!("a panic: {line}"));
        }
    }
}
