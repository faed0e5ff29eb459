//! The record as pictures.

mod latency;
mod share;
mod streams;

use std::path::Path;

use anyhow::Result;

use super::Comparison;
use crate::record::write_whole;

/// Every picture: its file, and what it shows.
pub(super) const ALL: [(&str, &str); 3] = [
    ("cpu-latency.svg", "time of one request by its length, for every engine, above the machine's floor"),
    ("cpu-products.svg", "share of the machine's peak that products reach, by rows"),
    ("cpu-streams.svg", "time of a stream of requests, for every engine under its best policy"),
];

/// Draws the pictures into the folder `out`. What was not measured is not drawn.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw(comparison: &Comparison, out: &Path) -> Result<()> {
    let texts = [latency::draw(comparison), share::draw(comparison), streams::draw(comparison)];
    for ((name, _), text) in ALL.iter().zip(texts) {
        write_whole(&out.join(name), &text)?;
    }
    Ok(())
}
