//! A build without GPUs: it can look at what others found.

use anyhow::{Result, bail};

use super::Step;

/// There is none.
///
/// # Errors
/// Always.
pub(super) fn run(_: &Step) -> Result<()> {
    bail!("this build has no GPU support (cargo feature `cuda`)")
}
