//! A build without GPU support: it can only make records from what others measured.

use anyhow::{Result, bail};

use super::Step;

/// Fails: there is no GPU support.
///
/// # Errors
/// Always.
pub(super) fn run(_: &Step) -> Result<()> {
    bail!("this build has no GPU support (cargo feature `cuda`)")
}
