//! turbo on an NVIDIA GPU: kernels compared with what the GPU can do, and everything compared with PyTorch.
//!
//! ```text
//! cargo xtask gpu pack ─▶ a bundle ─▶ gpu.sh where the GPU is ─▶ a Section of each step ─▶ what came back
//!                                      cargo xtask gpu record: is it whole, is it right? ─▶ gpu.json · gpu.md · pictures
//! ```
//!
//! The GPU is in another machine, which has neither Rust nor a network, and is available for minutes only. So measuring
//! there is separate from evaluating here, and everything except the times is tested without a GPU.
//!
//! All contestants compute the same on the same inputs, which is checked first. Then they take turns, in an order that
//! is drawn anew for each round. A turn is many runs, enqueued at once, and ends when the last is done. Launches of an
//! operation are replayed on both sides, so that neither host's time counts. In an encoder, turbo replays small
//! batches, and PyTorch replays what it has compiled. Eager PyTorch launches each kernel from Python, and its host's
//! time counts.
//!
//! | module | what it is about |
//! |---|---|
//! | [`operation`], [`rows`], [`attention`], [`encoder`] | what is timed, as data |
//! | [`overlap`] | batches one behind the other, and the times of their stages |
//! | [`suite`], [`sanitizer`] | whether the results are right |
//! | [`ceilings`] | what the GPU can do at most |
//! | [`contest`], [`measured`] | turns, and their results |
//! | [`torch`] | PyTorch's side of an operation |
//! | `on_gpu` (feature `cuda`) | the steps themselves |
//! | [`returned`] | what came back, and whether it can be believed |
//! | [`goals`], [`page`], `picture` | the goals, and how it is shown |
//!

pub mod attention;
pub mod ceilings;
pub mod contest;
pub mod encoder;
pub mod goals;
pub mod measured;
#[cfg(any(feature = "cuda", test))]
pub mod on_gpu;
pub mod operation;
pub mod overlap;
pub mod page;
pub mod returned;
pub mod rows;
pub mod sanitizer;
pub mod suite;
pub mod torch;

mod picture;
#[cfg(test)]
mod sample;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::record::{Provenance, Record, write_whole};
use returned::{Ended, Manifest};

pub use ceilings::Ceilings;
pub use measured::{Absent, Measured};
pub use operation::{Dtype, Operation};
pub use torch::Torch;

/// The GPU, and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The maker's name for it.
    pub gpu: String,
    /// Major and minor version.
    pub compute_capability: (u32, u32),
    /// Number of its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Version of the driver.
    pub driver: String,
}

/// What one step found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Where and when it was measured.
    pub provenance: Provenance,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// Name and version of the libraries that operations were compared with.
    pub libraries: Vec<String>,
    /// What the GPU can do at most, measured in the same process; `None` if nothing was timed.
    pub ceilings: Option<Ceilings>,
    /// Seconds that it took.
    pub seconds: f64,
    /// What was found.
    pub found: Found,
}

/// What was found, by step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Of every family of kernels and every golden model.
    Suite(Vec<suite::Check>),
    /// The ceilings of the section.
    Ceilings,
    /// Of operations on rows.
    Rows {
        /// [`rows::wide`].
        wide: Vec<Measured>,
        /// [`rows::reductions`].
        reductions: Vec<Measured>,
    },
    /// Of [`attention::cases`].
    Attention(Vec<Measured>),
    /// Of [`encoder::Workload::all`].
    Encoder(encoder::Encoders),
    /// Of [`sanitizer::TOOLS`].
    Sanitizer(Vec<sanitizer::Sanitized>),
}

/// The record of all that was found with a bundle, by step.
pub type Findings = Record<Manifest, Section, Vec<Ended>>;

impl Found {
    /// The step that finds this, which is also the name of its file.
    #[must_use]
    pub fn step(&self) -> &'static str {
        match self {
            Self::Suite(_) => "suite",
            Self::Ceilings => "ceilings",
            Self::Rows { .. } => "rows",
            Self::Attention(_) => "attention",
            Self::Encoder(_) => "encoder",
            Self::Sanitizer(_) => "sanitizer",
        }
    }
}

impl Section {
    /// Writes `STEP.json` to the folder `out`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let file = out.join(format!("{}.json", self.found.step()));
        let text = serde_json::to_string(self)? + "\n";
        write_whole(&file, &text)
    }
}

/// Writes the record, the page and the pictures to `out`.
///
/// # Errors
/// When they cannot be written.
pub fn write(findings: &Findings, out: &Path) -> Result<()> {
    findings.write(out)?;
    let notes = fs::read_to_string(out.join(page::NOTES)).unwrap_or_default();
    let file = out.join("gpu.md");
    write_whole(&file, &page::page(findings, &notes))?;
    picture::draw(findings, out)
}
