//! `turbo-bench gpu`: the steps that run where a GPU is, and the record made from what they found.

#[cfg(feature = "cuda")]
mod steps;
#[cfg(not(feature = "cuda"))]
#[path = "no_steps.rs"]
mod steps;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use turbo_bench::{
    figures::gpu::{self, returned},
    record::Record,
};

/// turbo on an NVIDIA GPU, step by step; `cargo xtask gpu --help` says how they reach a GPU and come back
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    #[command(flatten)]
    Step(Step),
    /// Check what came back, and write the record, the page and the pictures
    Record {
        /// The folders that gpu.sh filled; of a step that is in several the last counts
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Where the record goes
        #[arg(long, value_name = "DIR", default_value = "turbo-bench/results")]
        out: PathBuf,
    },
    /// Write the page and the pictures of the record anew
    Render {
        /// Where the record is
        #[arg(long, value_name = "DIR", default_value = "turbo-bench/results")]
        out: PathBuf,
    },
}

/// What is measured where the GPU is.
#[derive(Subcommand)]
enum Step {
    /// Does it compute what it should? Every family of kernels and every golden model, in bf16, f16 and f32
    Suite {
        #[command(flatten)]
        site: Site,
        /// The golden models
        #[arg(long, value_name = "DIR", default_value = "turbo-models/tests/data")]
        models: PathBuf,
        /// Some families in bf16 alone: what can be had beneath compute-sanitizer
        #[arg(long)]
        reduced: bool,
    },
    /// What the GPU can do at most: copies, products, launches
    Ceilings(Site),
    /// Softmax, layer norm, GELU and embedding beside the bandwidth; reductions as in TurboTransformers, Figure 5
    Rows(Site),
    /// Attention of packed sequences, beside PyTorch's
    Attention(Site),
    /// BERT-base with random weights, beside PyTorch's, eager and compiled; and its batches one behind the other
    Encoder {
        #[command(flatten)]
        site: Site,
        /// Where the checkpoint is made, unless it is there
        #[arg(long, value_name = "DIR", default_value = "models/random/bert-base")]
        model: PathBuf,
    },
    /// The reduced suite beneath compute-sanitizer, where the machine has one
    Sanitizer(Site),
}

/// Where a step runs, and with whom.
#[derive(Args)]
struct Site {
    /// Where STEP.json goes
    #[arg(long, value_name = "DIR", default_value = "gpu-results")]
    out: PathBuf,
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// A Python that has PyTorch; without one turbo is timed alone
    #[arg(long, env = "TURBO_PEERS_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// The scripts of the other side
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers")]
    peers: PathBuf,
}

/// Runs a step, or makes or renders the record.
///
/// # Errors
/// When there is no GPU, or something is wrong with it or with what came back.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.what {
        What::Step(step) => steps::run(step),
        What::Record { dirs, out } => record(dirs, out),
        What::Render { out } => render(out),
    }
}

fn record(dirs: &[PathBuf], out: &Path) -> Result<()> {
    let findings = returned::read(dirs)?.findings()?;
    gpu::write(&findings, out)?;
    for remark in returned::remarks(&findings) {
        println!("{remark}");
    }
    println!("written to {}", out.display());
    Ok(())
}

fn render(out: &Path) -> Result<()> {
    gpu::write(&Record::read(&out.join("gpu.json"))?, out)
}
