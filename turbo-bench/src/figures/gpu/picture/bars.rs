//! Panels of bars, one bar for each contestant.

use crate::figures::svg::{Anchor, FLOOR, Font, Pen, Svg, colour};

const WIDTH: f64 = 400.0;
const LEFT: f64 = 16.0;
/// Length of the longest bar; its label stands behind it.
const BARS: f64 = 220.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 16.0;
/// Number of panels side by side.
const COLUMNS: usize = 3;

/// A panel: bars that are compared with each other.
pub(super) struct Panel {
    pub(super) heading: String,
    /// Each contestant, its number, and that number as written.
    pub(super) bars: Vec<(String, f64, String)>,
    /// The number that the longest possible bar stands for, if there is a limit.
    pub(super) limit: Option<f64>,
}

/// Draws all panels, row by row.
pub(super) fn draw(title: &str, panels: &[Panel]) -> String {
    const HEAD: f64 = 40.0;
    let most = panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(0);
    let height = TOP + STEP * most as f64 + BOTTOM;
    let rows = panels.len().div_ceil(COLUMNS);
    let mut svg = Svg::new(COLUMNS as f64 * WIDTH, HEAD + rows as f64 * height);
    svg.text((LEFT, 26.0), Anchor::Start, Font::TITLE, title);
    for (index, panel) in panels.iter().enumerate() {
        let corner = ((index % COLUMNS) as f64 * WIDTH + LEFT, HEAD + (index / COLUMNS) as f64 * height);
        panel.draw(&mut svg, corner);
    }
    svg.finish()
}

impl Panel {
    fn draw(&self, svg: &mut Svg, (left, top): (f64, f64)) {
        svg.text((left, top + 20.0), Anchor::Start, Font { bold: true, ..Font::PLAIN }, &self.heading);
        let longest = self.bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
        let scale = BARS / self.limit.unwrap_or(longest).max(longest).max(f64::MIN_POSITIVE);
        if let Some(limit) = self.limit {
            let (x, bottom) = (left + scale * limit, top + TOP + STEP * self.bars.len() as f64);
            svg.line((x, top + TOP - 4.0), (x, bottom), Pen { colour: FLOOR, width: 1.0, dashed: true });
        }
        for (rank, (who, value, words)) in self.bars.iter().enumerate() {
            let y = top + TOP + STEP * rank as f64;
            svg.rect((left, y), (scale * value, BAR), colour(who));
            let words = format!("{who} {words}");
            svg.text((left + scale * value + 7.0, y + 12.5), Anchor::Start, Font::SMALL, &words);
        }
    }
}
