//! `turbo-bench FIGURE`: runs a figure and writes its record and plot. `turbo-bench random NAME`: a model to time.

#[cfg(unix)]
mod bound;
mod choice;
mod cpu;
mod engines;
mod gpu;
mod random;
#[cfg(unix)]
mod serve;

#[cfg(target_os = "linux")]
use std::ffi::OsString;
use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::{self, ExitCode},
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use turbo_bench::{
    disturb,
    figures::{cpu::Precision, planning},
    rival::{products, turbo},
};
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
        /// Requests, one at a time; with another number than in the record, it goes elsewhere (--out)
        #[arg(long, value_name = "N", default_value = "150", requires = "out")]
        requests: NonZeroUsize,
        #[command(flatten)]
        common: Common,
    },
    #[command(visible_alias = "encoder")]
    Cpu(cpu::Arguments),
    Gpu(gpu::Arguments),
    #[cfg(unix)]
    Serve(serve::Arguments),
    Random(random::Arguments),
    /// Time batches of a model, or products, when told to on standard input, as JSON lines; how turbo takes part in `cpu`
    Peer {
        /// A model folder
        #[arg(required_unless_present = "products")]
        model: Option<PathBuf>,
        /// Products with packed weights alone, without a model
        #[arg(long, conflicts_with = "model")]
        products: bool,
        /// Compute threads; all cores when not given
        #[arg(long)]
        threads: Option<NonZeroUsize>,
        /// What the products of the layers are computed in
        #[arg(long, value_enum, default_value = "f32")]
        dtype: Precision,
    },
    /// Become another program, which is killed when its parent ends; how `serve` starts servers
    #[cfg(target_os = "linux")]
    Bound {
        /// The program, and what it is called with
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        command: Vec<OsString>,
    },
    /// Take a share of one core until standard input ends; the neighbour in `cpu`
    Disturb {
        /// Of the core's time
        #[arg(long)]
        share: f64,
    },
}

/// What every figure lets one choose.
#[derive(Args)]
struct Common {
    /// Where records and plots go
    #[arg(long, default_value = "turbo-bench/results")]
    out: PathBuf,

    /// Compute threads, all cores when not given; with a number, the record goes elsewhere (--out)
    #[arg(long, requires = "out")]
    threads: Option<NonZeroUsize>,
}

/// Runs the program, and prints an error if it fails.
pub(crate) fn main() -> ExitCode {
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
            let data = planning::Data { requests: requests.get(), ..planning::Data::default() };
            println!("{}", planning::run(&data, device, &common.out)?);
            println!("written to {}", common.out.display());
        }
        Command::Cpu(arguments) => cpu::run(&arguments)?,
        Command::Gpu(arguments) => gpu::run(&arguments)?,
        #[cfg(unix)]
        Command::Serve(arguments) => serve::run(&arguments)?,
        Command::Random(arguments) => random::run(&arguments)?,
        Command::Peer { model, threads, dtype, .. } => {
            let device = Cpu::new(CpuOptions { threads, isa: Some(Isa::from_env()?) })?;
            let (requests, answers) = (std::io::stdin().lock(), std::io::stdout().lock());
            match model {
                Some(model) => turbo::serve(&model, device, dtype, requests, answers)?,
                None => products::serve(device, dtype, requests, answers)?,
            }
        }
        #[cfg(target_os = "linux")]
        Command::Bound { command } => return Err(bound::turn_into(&command)),
        Command::Disturb { share } => disturb::until_the_end_of(std::io::stdin(), share),
    }
    Ok(())
}

/// A command that starts this program.
fn own() -> Result<process::Command> {
    Ok(process::Command::new(std::env::current_exe().context("cannot tell where this program is")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_look_at_planning_leaves_the_record() {
        let refused = |line: &str| {
            Cli::try_parse_from(line.split(' ')).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refused("turbo-bench planning"), "");
        assert_eq!(refused("turbo-bench planning --requests 3 --out elsewhere"), "");
        let error = refused("turbo-bench planning --requests 3");
        assert!(error.contains("required") && error.contains("--out <OUT>"), "{error}");
        assert_eq!(refused("turbo-bench planning --threads 1 --out elsewhere"), "");
        let error = refused("turbo-bench planning --threads 1");
        assert!(error.contains("required") && error.contains("--out <OUT>"), "{error}");
        let error = refused("turbo-bench planning --requests 0 --out elsewhere");
        assert!(error.contains("invalid value '0' for '--requests <N>'"), "{error}");
    }
}
