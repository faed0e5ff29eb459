//! `cargo xtask bench`: runs a figure of turbo-bench in release, from the workspace root.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// Run a figure of the papers and write its record and plot to turbo-bench/results
///
/// `cargo xtask bench -- --help` lists the figures and what can be set.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The figure and its flags, passed to turbo-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    figure: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// When it does not build, or fails.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    process::run(turbo_bench(workspace).args(&arguments.figure))
}

/// `turbo-bench`, built in release if need be, run from the workspace root.
pub(crate) fn turbo_bench(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--quiet", "--release", "--package", "turbo-bench", "--"]);
    cargo
}
