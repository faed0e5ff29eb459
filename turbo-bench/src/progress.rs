//! How far a figure is, on standard error.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `steps`; where standard error is no terminal, a line that says what has begun.
///
/// # Errors
/// None in practice: the template is fixed.
pub fn bar(what: &str, steps: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len}, {eta} left")?;
    let bar = ProgressBar::new(steps as u64).with_style(style).with_message(what.to_owned());
    if bar.is_hidden() {
        eprintln!("{what}");
    }
    Ok(bar)
}
