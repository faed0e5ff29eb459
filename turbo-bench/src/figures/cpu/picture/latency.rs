//! Time of one request by its length: in milliseconds, and as a multiple of the floor.

use super::super::{Case, Comparison, Precision, Rows, TURBO, goals::section, page::title};
use crate::figures::svg::{Anchor, FLOOR, Font, GRID, Pen, QUIET, Svg, colour, spread};

/// Size of a panel's plot, and of the margins around it.
const PLOT: (f64, f64) = (340.0, 280.0);
const LEFT: f64 = 64.0;
const RIGHT: f64 = 116.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 52.0;
/// The largest multiple of the floor that is drawn to scale.
const MOST: f64 = 4.0;

/// Draws both panels of every model.
pub(super) fn draw(comparison: &Comparison) -> String {
    let models: Vec<(&str, &Vec<Case>)> = ["bert-base", "minilm"]
        .into_iter()
        .chain(
            comparison
                .rows
                .iter()
                .map(|it| it.model.as_str())
                .filter(|it| !["bert-base", "minilm"].contains(it))
                .take(1),
        )
        .filter_map(|model| match &section(comparison, "batch1", model, Precision::F32)?.rows {
            Rows::Batches(cases) => Some((model, cases)),
            _ => None,
        })
        .collect();
    let (width, height) = (LEFT + PLOT.0 + RIGHT, TOP + PLOT.1 + BOTTOM);
    let mut svg = Svg::new(2.0 * width, height * models.len().max(1) as f64);
    for (row, (model, cases)) in models.into_iter().enumerate() {
        let y = row as f64 * height;
        let ms = |case: &Case| case.median_ms;
        let heading = format!("{}, one request, f32: milliseconds", title(model));
        Panel::new((0.0, y), cases, Scale::Log, &ms).draw(&mut svg, &heading);
        let times = |case: &Case| case.median_ms / case.floor_ms;
        let heading = format!("{}: times the machine's floor", title(model));
        Panel::new((width, y), cases, Scale::Linear, &times).draw(&mut svg, &heading);
    }
    svg.finish()
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Log,
    Linear,
}

/// One plot: a value of every case, by its length.
struct Panel<'a> {
    /// Upper left corner of the plot itself.
    origin: (f64, f64),
    cases: &'a [Case],
    scale: Scale,
    value: &'a dyn Fn(&Case) -> f64,
    /// Ends of both axes.
    lens: (f64, f64),
    values: (f64, f64),
}

impl<'a> Panel<'a> {
    fn new((x, y): (f64, f64), cases: &'a [Case], scale: Scale, value: &'a dyn Fn(&Case) -> f64) -> Self {
        let lens = cases.iter().map(|case| f64::from(case.max_seq_len));
        let lens = lens.fold((f64::INFINITY, 1.0), |(a, b): (f64, f64), len| (a.min(len), b.max(len)));
        let all =
            cases.iter().map(value).chain(cases.iter().filter(|_| scale == Scale::Log).map(|it| it.floor_ms));
        let (low, high) = all.fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), it| (a.min(it), b.max(it)));
        let values = match scale {
            Scale::Log => (low * 0.85, high * 1.15),
            Scale::Linear => (low.min(1.0) * 0.9, high.min(MOST)),
        };
        Self { origin: (x + LEFT, y + TOP), cases, scale, value, lens, values }
    }

    fn x(&self, len: f64) -> f64 {
        let (low, high) = self.lens;
        self.origin.0 + PLOT.0 * (len / low).ln() / (high / low).ln().max(1e-9)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = value.clamp(low, high);
        let share = match self.scale {
            Scale::Log => (value / low).ln() / (high / low).ln(),
            Scale::Linear => (value - low) / (high - low),
        };
        self.origin.1 + PLOT.1 * (1.0 - share)
    }

    fn draw(&self, svg: &mut Svg, heading: &str) {
        let (left, top) = self.origin;
        svg.text((left - 40.0, top - 28.0), Anchor::Start, Font::TITLE, heading);
        self.grid(svg);
        self.floor(svg);
        let mut rivals: Vec<&str> = Vec::new();
        self.cases.iter().for_each(|case| {
            if !rivals.contains(&case.rival.as_str()) {
                rivals.push(&case.rival);
            }
        });
        // turbo is drawn last, above the others.
        rivals.sort_by_key(|&rival| rival == TURBO);
        let mut ends = Vec::new();
        for &rival in &rivals {
            let of_rival = self.cases.iter().filter(|case| case.rival == rival);
            let points: Vec<(f64, f64)> = of_rival
                .map(|case| (self.x(f64::from(case.max_seq_len)), self.y((self.value)(case))))
                .collect();
            let width = if rival == TURBO { 3.0 } else { 1.7 };
            svg.path(&points, Pen { colour: colour(rival), width, dashed: false });
            points.iter().for_each(|&point| svg.dot(point, width, colour(rival)));
            ends.push(points.last().map_or(top, |end| end.1));
        }
        let places = spread(&ends, 16.0, (top + 4.0, top + PLOT.1 - 4.0));
        for ((rival, end), place) in rivals.iter().zip(&ends).zip(places) {
            let edge = left + PLOT.0;
            svg.line(
                (edge + 5.0, *end),
                (edge + 16.0, place),
                Pen { colour: colour(rival), width: 1.0, dashed: false },
            );
            let font = Font { colour: colour(rival), bold: *rival == TURBO, ..Font::PLAIN };
            svg.text((edge + 20.0, place + 4.0), Anchor::Start, font, title(rival));
        }
    }

    fn grid(&self, svg: &mut Svg) {
        let ((left, top), bottom) = (self.origin, self.origin.1 + PLOT.1);
        for tick in self.ticks() {
            let y = self.y(tick);
            svg.line((left, y), (left + PLOT.0, y), Pen::GRID);
            svg.text((left - 8.0, y + 4.0), Anchor::End, Font::SMALL, &label(self.scale, tick));
        }
        let mut lens: Vec<u32> = self.cases.iter().map(|case| case.max_seq_len).collect();
        lens.sort_unstable();
        lens.dedup();
        let mut last = f64::NEG_INFINITY;
        for len in lens.iter().rev().copied().collect::<Vec<_>>() {
            let x = self.x(f64::from(len));
            svg.line((x, top), (x, bottom), Pen::GRID);
            if last == f64::NEG_INFINITY || last - x >= 26.0 {
                svg.text((x, bottom + 18.0), Anchor::Middle, Font::SMALL, &len.to_string());
                last = x;
            }
        }
        svg.line((left, bottom), (left + PLOT.0, bottom), Pen { colour: QUIET, ..Pen::GRID });
        svg.text((left + PLOT.0 / 2.0, bottom + 38.0), Anchor::Middle, Font::SMALL, "tokens");
    }

    fn ticks(&self) -> Vec<f64> {
        let (low, high) = self.values;
        match self.scale {
            Scale::Log => (-3..5)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
                .filter(|tick| (low..=high).contains(tick))
                .collect(),
            Scale::Linear => {
                (1..=8).map(|half| f64::from(half) / 2.0).filter(|it| (low..=high).contains(it)).collect()
            }
        }
    }

    /// Draws the least possible time as an area.
    fn floor(&self, svg: &mut Svg) {
        let (left, bottom) = (self.origin.0, self.origin.1 + PLOT.1);
        let height = |case: &Case| if self.scale == Scale::Log { case.floor_ms } else { 1.0 };
        let turbo = self.cases.iter().filter(|case| case.rival == TURBO);
        let mut points: Vec<(f64, f64)> =
            turbo.map(|case| (self.x(f64::from(case.max_seq_len)), self.y(height(case)))).collect();
        let (Some(&first), Some(&last)) = (points.first(), points.last()) else { return };
        let line = points.clone();
        points.extend([(last.0, bottom), (first.0, bottom)]);
        svg.area(&points, GRID);
        svg.path(&line, Pen { colour: FLOOR, width: 2.0, dashed: false });
        svg.text((left + PLOT.0 - 8.0, bottom - 8.0), Anchor::End, Font::SMALL, "floor");
    }
}

/// The label of a line of the grid. The highest line stands for everything above it, too.
fn label(scale: Scale, tick: f64) -> String {
    if scale == Scale::Linear && tick >= MOST { format!("≥ {tick}") } else { tick.to_string() }
}
