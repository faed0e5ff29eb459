//! The options of every comparison: regimes, rounds, and where its record goes.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;
use serde::de::DeserializeOwned;
use turbo_bench::{figures::rounds::Rounds, record::Record};

/// The folder of the published records.
const RESULTS: &str = "turbo-bench/results";

#[derive(Args)]
pub(crate) struct Choice {
    /// Words that name models or regimes, or precisions where there are several: of each kind that is named, one must fit
    /// (`minilm,batch1`); see --list
    #[arg(long, value_delimiter = ',', value_name = "WORD,…")]
    pub(crate) only: Vec<String>,
    /// Only what the record lacks, lacks for some engine, or has measured in an earlier way
    #[arg(long)]
    pub(crate) missing: bool,
    /// Print the regimes, and measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// So many rounds of turns everywhere, whatever it takes
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// Threads that every engine computes with; a record has one number of them
    #[arg(long, default_value = "2")]
    pub(crate) threads: NonZeroUsize,
    /// Where the record, the page and the pictures go, instead of turbo-bench/results; README.md stays as it is then
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write the page and the pictures of the record anew, and measure nothing
    #[arg(long)]
    pub(crate) render: bool,
}

impl Choice {
    /// The folder of the record.
    pub(crate) fn folder(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new(RESULTS))
    }

    /// The record of `figure` that an earlier run left in `folder`, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or there is none to render.
    pub(crate) fn record<D, R, S>(&self, folder: &Path, figure: &str) -> Result<Option<Record<D, R, S>>>
    where
        D: DeserializeOwned,
        R: DeserializeOwned,
        S: DeserializeOwned,
    {
        let file = folder.join(format!("{figure}.json"));
        if self.render && !file.exists() {
            anyhow::bail!("{}: there is no record", file.display());
        }
        file.exists().then(|| Record::read(&file)).transpose()
    }

    /// The rounds: the given number, or as many as fit into so many minutes.
    pub(crate) fn rounds(&self, minutes: f64) -> Rounds {
        self.rounds.map_or(Rounds::Budget(60.0 * minutes), |rounds| Rounds::Fixed(rounds.get()))
    }

    /// Prints titles, one a line.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn print(titles: impl IntoIterator<Item = String>) -> Result<()> {
        let mut out = io::stdout().lock();
        // a reader that has seen enough is not an error
        match titles.into_iter().try_for_each(|title| writeln!(out, "{title}")) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
            _ => Ok(()),
        }
    }
}
