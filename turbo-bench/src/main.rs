//! `turbo-bench FIGURE`: runs a figure and writes its record and plot.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};
use turbo_bench::figures::planning;
use turbo_kernels::{Cpu, CpuOptions, Isa};

/// The figures and tables of the papers, as data.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    figure: Figure,

    /// Where records and plots go
    #[arg(long, global = true, default_value = "turbo-bench/results")]
    out: PathBuf,

    /// Compute threads; all cores when not given
    #[arg(long, global = true)]
    threads: Option<NonZeroUsize>,
}

#[derive(Subcommand)]
enum Figure {
    /// What planning costs beside running (TurboTransformers, Figure 13): BERT-base, lengths uniform 5 to 500
    Planning {
        /// Requests, one at a time
        #[arg(long, default_value_t = 150)]
        requests: usize,
    },
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
    let device = Cpu::new(CpuOptions { threads: cli.threads, isa: Some(Isa::from_env()?) })?;
    match cli.figure {
        Figure::Planning { requests } => {
            let data = planning::Data { requests, ..planning::Data::default() };
            println!("{}", planning::run(&data, device, &cli.out)?);
        }
    }
    println!("written to {}", cli.out.display());
    Ok(())
}
