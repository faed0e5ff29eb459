//! turbo on an NVIDIA GPU: kernels beside what the GPU can do, and all of it beside PyTorch.
//!
//! ```text
//! cargo xtask gpu pack ─▶ a bundle ─▶ gpu.sh where the GPU is ─▶ a Section of each step ─▶ what came back
//!                                      cargo xtask gpu record: is it whole, is it right? ─▶ gpu.json · gpu.md · pictures
//! ```
//!
//! The GPU is on another machine, which has neither Rust nor a network, and for minutes only. So what is measured there is
//! apart from what is made of it here, and everything but the times is tested without a GPU.
//!
//! All contestants compute the same on the same inputs, which is checked first; then they take turns, in an order that
//! is drawn anew for each round. A turn is many runs, enqueued at once, and ends when the last is done. Launches of an
//! operation are replayed, on both sides, so that neither host counts. In an encoder turbo replays small batches and
//! PyTorch what it has compiled; eager PyTorch launches each kernel from Python, and its host counts.
//!
//! | module | what it is about |
//! |---|---|
//! | [`operation`], [`rows`], [`attention`], [`encoder`] | what is timed, as data |
//! | [`overlap`] | batches one behind the other, and when what happened |
//! | [`suite`], [`sanitizer`] | whether it is right |
//! | [`ceilings`] | what the GPU can do at most |
//! | [`contest`], [`measured`] | turns, and what they come to |
//! | [`torch`] | the other side of an operation |
//! | `on_gpu` (feature `cuda`) | the steps themselves |
//! | [`returned`] | what came back, and whether it is to be believed |
//! | [`goals`], [`page`], `picture` | what is wanted of it, and how it is shown |
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

/// The GPU, and what drives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// As its maker calls it.
    pub gpu: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// How many of them it has.
    pub multiprocessors: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Version of the driver.
    pub driver: String,
}

/// What one step found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Where and when.
    pub provenance: Provenance,
    /// On what.
    pub machine: Machine,
    /// Name and version of the libraries that operations were compared with.
    pub libraries: Vec<String>,
    /// What the GPU can do at most, measured in the same process; none where nothing was timed.
    pub ceilings: Option<Ceilings>,
    /// What it took, s.
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

/// All that was found, as the record keeps it: of a bundle, by step.
pub type Findings = Record<Manifest, Section, Vec<Ended>>;

impl Found {
    /// The step that finds such things, and the name of its file.
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
