//! `turbo-bench FIGURE`: runs a figure and writes its record and plot. `turbo-bench random NAME`: a model to time.

mod encoder;
mod random;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use turbo_bench::{figures::planning, rival::turbo};
use turbo_kernels::{Cpu, CpuOptions, Isa};

/// The figures and tables of the papers, as data.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What planning costs beside running (TurboTransformers, Figure 13): BERT-base, lengths uniform 5 to 500
    Planning {
        /// Requests, one at a time
        #[arg(long, default_value_t = 150)]
        requests: usize,
        #[command(flatten)]
        common: Common,
    },
    Encoder(encoder::Arguments),
    Random(random::Arguments),
    /// Time batches of a model when told to on standard input, as JSON lines; how turbo takes part in `encoder`
    Peer {
        /// A model folder
        model: PathBuf,
        /// Compute threads; all cores when not given
        #[arg(long)]
        threads: Option<NonZeroUsize>,
    },
}

/// What every figure lets one choose.
#[derive(Args)]
struct Common {
    /// Where records and plots go
    #[arg(long, default_value = "turbo-bench/results")]
    out: PathBuf,

    /// Compute threads; all cores when not given
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Planning { requests, common } => {
            let device = Cpu::new(CpuOptions { threads: common.threads, isa: Some(Isa::from_env()?) })?;
            let data = planning::Data { requests, ..planning::Data::default() };
            println!("{}", planning::run(&data, device, &common.out)?);
            println!("written to {}", common.out.display());
        }
        Command::Encoder(arguments) => encoder::run(&arguments)?,
        Command::Random(arguments) => random::run(&arguments)?,
        Command::Peer { model, threads } => {
            let device = Cpu::new(CpuOptions { threads, isa: Some(Isa::from_env()?) })?;
            turbo::serve(&model, device, std::io::stdin().lock(), std::io::stdout().lock())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
