//! What was found as pictures.

use std::path::Path;

use anyhow::{Context, Result};

use super::{
    Report, TURBO,
    contest::{Contest, Point},
    goals::{TRACES, contest},
    page::title,
    regime::POLICIES,
};
use crate::figures::{
    chart::{Chart, Line, SIZE, Scale},
    svg::{Svg, colour},
};

/// Every picture: its file, and what it shows.
pub(super) const ALL: [(&str, &str); 3] = [
    ("serve-latency.svg", "times of answers against load, for every policy"),
    ("serve-goodput.svg", "answers in time against what was offered, for every policy"),
    (
        "serve-others.svg",
        "answers in time and their times against what was offered, turbo beside other servers",
    ),
];

/// Draws them into the folder `out`; what was not measured is not drawn.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw(report: &Report, out: &Path) -> Result<()> {
    let padded = ["padded-short", "padded-long"];
    let policies = || TRACES.into_iter().chain(padded);
    let pictures = [
        rows(report, policies(), [Panel::Median, Panel::Tail]),
        rows(report, policies(), [Panel::Goodput, Panel::Answered]),
        rows(report, ["others-short", "others-long"].into_iter(), [Panel::Goodput, Panel::Tail]),
    ];
    for ((name, _), text) in ALL.iter().zip(pictures) {
        let file = out.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// What a chart shows.
#[derive(Clone, Copy)]
enum Panel {
    Median,
    Tail,
    Goodput,
    Answered,
}

/// A row of charts for each regime that was measured.
fn rows<'a>(report: &Report, names: impl Iterator<Item = &'a str>, panels: [Panel; 2]) -> String {
    let found: Vec<(&str, &Contest)> =
        names.filter_map(|name| Some((name, contest(report, name)?))).collect();
    let (width, height) = SIZE;
    let mut svg = Svg::new(panels.len() as f64 * width, height * found.len().max(1) as f64);
    for (row, (name, contest)) in found.into_iter().enumerate() {
        for (column, panel) in panels.into_iter().enumerate() {
            let heading = format!("{name}: {}", panel.title());
            panel.chart(contest, &heading).draw(&mut svg, (column as f64 * width, row as f64 * height));
        }
    }
    svg.finish()
}

impl Panel {
    fn title(self) -> &'static str {
        match self {
            Self::Median => "median, ms",
            Self::Tail => "99th percentile, ms",
            Self::Goodput => "answered in time, 1/s",
            Self::Answered => "answered, 1/s",
        }
    }

    fn chart<'a>(self, contest: &'a Contest, heading: &'a str) -> Chart<'a> {
        let is_time = matches!(self, Self::Median | Self::Tail);
        let lines = contest.standings.iter().map(|standing| Line {
            name: title(&standing.name),
            colour: colour(&standing.name),
            bold: [TURBO, POLICIES[0]].contains(&standing.name.as_str()),
            points: standing
                .points
                .iter()
                .filter(|point| !is_time || point.served.count > 0)
                .map(|point| (point.offered_rate, self.value(point)))
                .collect(),
        });
        Chart {
            heading,
            x_title: "requests offered a second",
            scale: if is_time { Scale::Log } else { Scale::Linear },
            bound: is_time.then_some((contest.promised_ms, "promised")),
            lines: lines.collect(),
        }
    }

    fn value(self, point: &Point) -> f64 {
        match self {
            Self::Median => point.served.p50_ms,
            Self::Tail => point.served.p99_ms,
            Self::Goodput => point.goodput,
            Self::Answered => point.achieved_rate,
        }
    }
}
