//! `turbo-bench random NAME`: a checkpoint of a named shape as a folder.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use turbo_bench::checkpoint::Model;

/// Write a checkpoint with random weights, to be timed: models/random/NAME
///
/// The folder has config.json and model.safetensors under the published names, so the reference implementation's
/// from_pretrained loads it too. It is written as a stream, so memory stays small, and it appears complete or not at
/// all; a folder that is there already and the same is left alone.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Which shape
    #[arg(value_enum)]
    name: Model,
    /// Other weights for another seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder to write, instead of random/NAME among the models
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Where models are kept
    #[arg(long, env = "TURBO_MODELS_DIR", value_name = "DIR", default_value = "models")]
    models: PathBuf,
}

/// Writes the checkpoint, and prints where it is.
///
/// # Errors
/// When it cannot be written, or something else is there.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { name, seed, to, models } = arguments;
    let dir = to.clone().unwrap_or_else(|| models.join("random").join(name.name()));
    let shape = name.shape();
    let bar = ProgressBar::new(shape.bytes()).with_style(ProgressStyle::with_template(
        "writing {msg} {bar:40} {bytes}/{total_bytes}, {eta} left",
    )?);
    bar.set_message(name.name());
    let written = shape.ensure(&dir, *seed, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    println!("{}{}", if written { "" } else { "there already: " }, dir.display());
    Ok(())
}
