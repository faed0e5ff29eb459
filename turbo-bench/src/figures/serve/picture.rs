//! The record as pictures.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::{
    Report, TURBO,
    contest::{Contest, Point, Standing},
    goals::{TRACES, contest},
    page::title,
    regime::POLICIES,
};
use crate::{
    figures::{
        chart::{Chart, Line, SIZE, Scale},
        svg::{Svg, colour},
    },
    record::write_whole,
};

/// A picture of the record.
pub(super) struct Picture {
    /// Name of its file.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// The picture; `None` if nothing of it was measured.
    pub svg: Option<String>,
}

/// All pictures.
pub(super) fn all(report: &Report) -> [Picture; 3] {
    let padded = ["padded-short", "padded-long"];
    let policies = || TRACES.into_iter().chain(padded);
    let others = ["paper-long", "others-short", "others-long"].into_iter();
    [
        Picture {
            name: "serve-latency.svg",
            about: "times of answers against load, for every policy",
            svg: rows(report, policies(), [Panel::Median, Panel::Tail]),
        },
        Picture {
            name: "serve-goodput.svg",
            about: "answers in time against what was offered, for every policy",
            svg: rows(report, policies(), [Panel::Goodput, Panel::Answered]),
        },
        Picture {
            name: "serve-others.svg",
            about: "answers in time and their times against what was offered, turbo beside other servers",
            svg: rows(report, others, [Panel::Goodput, Panel::Tail]),
        },
    ]
}

/// Draws them into the folder `out`. If nothing of a picture was measured, it is not drawn, and an older one is
/// removed.
///
/// # Errors
/// When a file cannot be written or removed.
pub(super) fn draw(report: &Report, out: &Path) -> Result<()> {
    for Picture { name, svg, .. } in all(report) {
        let file = out.join(name);
        match svg {
            Some(svg) => write_whole(&file, &svg)?,
            None if file.exists() => {
                fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
            }
            None => {}
        }
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

/// A row of charts for each regime that was measured; `None` if none was.
fn rows<'a>(report: &Report, names: impl Iterator<Item = &'a str>, panels: [Panel; 2]) -> Option<String> {
    let found: Vec<(&str, &Contest)> =
        names.filter_map(|name| Some((name, contest(report, name)?))).collect();
    if found.is_empty() {
        return None;
    }
    let (width, height) = SIZE;
    let mut svg = Svg::new(panels.len() as f64 * width, height * found.len() as f64);
    for (row, (name, contest)) in found.into_iter().enumerate() {
        for (column, panel) in panels.into_iter().enumerate() {
            let heading = format!("{name}: {}", panel.title());
            panel.chart(contest, &heading).draw(&mut svg, (column as f64 * width, row as f64 * height));
        }
    }
    Some(svg.finish())
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
        let points = |standing: &Standing| {
            let drawn = standing.points.iter().filter(|point| !is_time || point.served.count > 0);
            let mut points: Vec<_> = drawn.map(|point| (point.offered_rate, self.value(point))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let lines = contest.standings.iter().map(|standing| Line {
            name: title(&standing.name),
            colour: colour(&standing.name),
            bold: [TURBO, POLICIES[0]].contains(&standing.name.as_str()),
            points: points(standing),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::serve::{page::page, report};

    #[test]
    fn what_was_not_measured_is_neither_drawn_nor_linked() {
        let (report, folder) = (report(Vec::new()), tempfile::tempdir().unwrap());
        let old = folder.path().join("serve-latency.svg");
        fs::write(&old, "of an earlier run").unwrap();
        draw(&report, folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!page(&report, "").contains(".svg"));
    }
}
