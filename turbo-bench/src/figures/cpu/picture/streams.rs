//! Streams of requests as bars, the fastest first.

use super::super::{Comparison, Precision, Rows, Stream, TURBO, goals::section, page::title};
use crate::figures::{
    numbers::digits,
    svg::{Anchor, FLOOR, Font, Pen, QUIET, Svg, colour},
};

const WIDTH: f64 = 480.0;
const NAMES: f64 = 104.0;
/// Length of the longest bar; its label stands behind it.
const BARS: f64 = 160.0;
const BAR: f64 = 20.0;
const STEP: f64 = 30.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 40.0;

/// Draws a panel for each model and stream.
pub(super) fn draw(comparison: &Comparison) -> String {
    let panels = ["bert-base", "minilm"].into_iter().flat_map(|model| {
        ["stream-short", "stream-long"].into_iter().filter_map(move |name| {
            match &section(comparison, name, model, Precision::F32)?.rows {
                Rows::Stream(streams) if !streams.is_empty() => Some((model, streams)),
                _ => None,
            }
        })
    });
    let panels: Vec<(&str, &Vec<Stream>)> = panels.collect();
    let bars = panels.iter().map(|(_, streams)| streams.len()).max().unwrap_or(1);
    let height = TOP + STEP * bars as f64 + BOTTOM;
    let mut svg = Svg::new(2.0 * WIDTH, height * panels.len().div_ceil(2).max(1) as f64);
    for (index, (model, streams)) in panels.into_iter().enumerate() {
        let origin = ((index % 2) as f64 * WIDTH + 20.0, (index / 2) as f64 * height);
        panel(&mut svg, origin, model, streams);
    }
    svg.finish()
}

fn panel(svg: &mut Svg, (x, y): (f64, f64), model: &str, streams: &[Stream]) {
    let mut sorted: Vec<&Stream> = streams.iter().collect();
    sorted.sort_by(|a, b| a.median_s.total_cmp(&b.median_s));
    let Stream { lens, requests, floor_s, .. } = sorted[0];
    let heading =
        format!("{}: {requests} requests of {} to {} tokens", title(model), lens.start(), lens.end());
    svg.text((x, y + 28.0), Anchor::Start, Font::TITLE, &heading);
    let longest = sorted.iter().map(|it| it.median_s).fold(f64::MIN_POSITIVE, f64::max);
    let (left, scale) = (x + NAMES, BARS / longest);
    let bottom = y + TOP + STEP * sorted.len() as f64;
    for (rank, stream) in sorted.iter().enumerate() {
        let top = y + TOP + STEP * rank as f64;
        let (colour, width) = (colour(&stream.rival), stream.median_s * scale);
        let font = Font { colour, bold: stream.rival == TURBO, ..Font::PLAIN };
        svg.text((left - 8.0, top + 14.0), Anchor::End, font, title(&stream.rival));
        svg.rect((left, top), (width, BAR), colour);
        let about = if stream.rounds == 0 { "about " } else { "" };
        let words = format!("{about}{} s, {}", digits(stream.median_s), stream.policy);
        svg.text((left + width + 8.0, top + 14.0), Anchor::Start, Font::SMALL, &words);
    }
    let floor = left + floor_s * scale;
    svg.line((floor, y + TOP - 8.0), (floor, bottom), Pen { colour: FLOOR, width: 2.0, dashed: true });
    let font = Font { colour: QUIET, ..Font::SMALL };
    svg.text((floor, bottom + 12.0), Anchor::Middle, font, &format!("floor {} s", digits(*floor_s)));
}
