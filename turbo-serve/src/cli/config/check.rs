//! `turbo check-config`: what is wrong with a file, or what it says.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Command};

use super::Config;
use crate::cli::output;

/// Check a configuration file without starting a server
///
/// Checks keys, types, values, names, folders and the files of TLS, and opens no model. If there are mistakes, each is
/// printed with its line, and the exit code is 1. Otherwise one line says what would be served, and from where.
#[derive(Args)]
pub(in crate::cli) struct Arguments {
    /// The file, as `turbo serve --config` takes it
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Checks the file for the command `serve`.
///
/// # Errors
/// What is wrong with it.
pub(in crate::cli) fn run(arguments: &Arguments, serve: &Command) -> Result<()> {
    let config = Config::alone(&arguments.file, serve)?;
    let model = |model: &super::ModelConfig| format!("{} ({})", model.name.value, model.versions);
    let ensembles = config.ensembles.iter().map(|ensemble| format!("{} (ensemble)", ensemble.name.value));
    let models: Vec<String> = config.models.iter().map(model).chain(ensembles).collect();
    output::line(&format!("{}: sound: {}", arguments.file.display(), models.join(", ")))
}
