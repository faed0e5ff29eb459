//! Shares of a copy's bandwidth that operations reach.

use super::{
    super::{Findings, Found, Section, goals::section},
    bars::{self, Panel},
};
use crate::figures::verdict::Kind;

/// Draws a panel for each operation and type.
pub(super) fn draw(findings: &Findings) -> String {
    let panels = match section(findings, "rows") {
        Some(Section { found: Found::Rows { wide, .. }, ceilings: Some(ceilings), .. }) => wide
            .iter()
            .map(|measured| Panel {
                heading: format!("{}, {}", measured.operation.name(), measured.dtype.name()),
                bars: measured
                    .times
                    .iter()
                    .map(|timed| {
                        let share = ceilings.of_copy(&measured.operation, measured.dtype, timed.median_us);
                        (timed.who.clone(), share, Kind::Limit.show(share))
                    })
                    .collect(),
                limit: Some(1.0),
            })
            .collect(),
        _ => Vec::new(),
    };
    bars::draw("Share of the bandwidth of a copy", &panels)
}
