//! `cargo xtask bench`: runs a figure of turbo-bench in release, from the workspace root.

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
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--release", "--package", "turbo-bench", "--"]);
    process::run(cargo.args(&arguments.figure))
}
