//! Tokens per second of the encoder.

use super::{
    super::{Findings, Found, Section, goals::section},
    bars::{self, Panel},
};
use crate::figures::numbers::digits;

/// Draws a panel for each workload and type.
pub(super) fn draw(findings: &Findings) -> String {
    let panels = match section(findings, "encoder") {
        Some(Section { found: Found::Encoder(encoders), .. }) => encoders
            .cases
            .iter()
            .map(|case| Panel {
                heading: format!("{}, {}", case.workload, case.dtype.name()),
                bars: case
                    .times
                    .iter()
                    .map(|timed| {
                        let tokens = case.tokens_per_s(timed.median_us) / 1e6;
                        (timed.who.clone(), tokens, format!("{} M", digits(tokens)))
                    })
                    .collect(),
                limit: None,
            })
            .collect(),
        _ => Vec::new(),
    };
    bars::draw("BERT-base, tokens a second", &panels)
}
