//! The record as pictures.

mod bars;
mod encoder;
mod reductions;
mod timeline;
mod wide;

use std::path::Path;

use anyhow::Result;

use super::Findings;
use crate::record::write_whole;

/// Every picture: its file, and what it shows.
pub(super) const ALL: [(&str, &str); 4] = [
    ("gpu-rows.svg", "share of the bandwidth of a copy that operations on rows reach"),
    ("gpu-reductions.svg", "how much faster rows are reduced together than one by one, by their length"),
    ("gpu-encoder.svg", "tokens a second of BERT-base"),
    ("gpu-timeline.svg", "what the host does for the next batch while the GPU computes one"),
];

/// Draws the pictures into the folder `out`. What was not measured is not drawn.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw(findings: &Findings, out: &Path) -> Result<()> {
    let texts = [wide::draw, reductions::draw, encoder::draw, timeline::draw].map(|draw| draw(findings));
    for ((name, _), text) in ALL.iter().zip(texts) {
        write_whole(&out.join(name), &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::gpu::sample;

    #[test]
    fn everything_is_drawn_that_was_measured_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut findings = sample::findings();
        let drawn = |findings: &Findings| {
            draw(findings, folder.path()).unwrap();
            ALL.map(|(file, _)| std::fs::read_to_string(folder.path().join(file)).unwrap())
        };
        let [wide, reductions, encoder, timeline] = drawn(&findings);
        for words in ["softmax, bf16", "turbo 44.7 %", "autotuned", "eager"] {
            assert!(wide.contains(words), "{words}: {wide}");
        }
        assert_eq!(wide.matches("turbo ").count(), 4 * 3, "{wide}");
        // the points, and two in the legend of each panel
        let points = crate::figures::gpu::rows::reductions().len();
        assert_eq!(reductions.matches("<circle").count(), points + 2 * 2, "{reductions}");
        assert!(encoder.contains("5 to 500 tokens, bf16") && encoder.contains("compiled"), "{encoder}");
        assert!(timeline.contains("one behind the other"), "{timeline}");
        findings.rows.clear();
        assert!(
            drawn(&findings).iter().all(|picture| picture.starts_with("<svg") && !picture.contains("turbo"))
        );
    }
}
