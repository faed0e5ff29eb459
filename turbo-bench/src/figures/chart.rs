//! Line charts with two axes, of which several pictures consist.

use super::{
    numbers::digits,
    svg::{Anchor, Font, Pen, QUIET, Svg, spread},
};

/// Size of the plot itself.
const PLOT: (f64, f64) = (340.0, 250.0);
/// Margins around it.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 56.0;

/// Size of a chart with its margins.
pub(super) const SIZE: (f64, f64) = (LEFT + PLOT.0 + RIGHT, TOP + PLOT.1 + BOTTOM);

/// How values lie along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// Linear, from zero on.
    Linear,
    /// Logarithmic.
    Log,
}

/// A line with a name.
pub(super) struct Line<'a> {
    pub name: &'a str,
    pub colour: &'a str,
    /// Whether it is drawn thick, above the others.
    pub bold: bool,
    pub points: Vec<(f64, f64)>,
}

/// A chart as data.
pub(super) struct Chart<'a> {
    pub heading: &'a str,
    pub x_title: &'a str,
    pub scale: Scale,
    /// A bound to compare with, and its name.
    pub bound: Option<(f64, &'a str)>,
    pub lines: Vec<Line<'a>>,
}

impl Chart<'_> {
    /// Draws it with its upper left corner at `origin`.
    pub(super) fn draw(&self, svg: &mut Svg, origin: (f64, f64)) {
        let plane = self.plane(origin);
        let (left, top) = plane.corner;
        svg.text((left - 40.0, top - 28.0), Anchor::Start, Font::TITLE, self.heading);
        self.grid(svg, &plane);
        if let Some((bound, name)) = self.bound {
            let y = plane.y(bound);
            let pen = Pen { colour: QUIET, width: 1.5, dashed: true };
            svg.line((left, y), (left + PLOT.0, y), pen);
            svg.text((left + 6.0, y - 5.0), Anchor::Start, Font::SMALL, name);
        }
        let mut lines: Vec<&Line<'_>> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        lines.sort_by_key(|line| line.bold);
        let mut ends = Vec::new();
        for line in &lines {
            let points: Vec<(f64, f64)> =
                line.points.iter().map(|&(x, y)| (plane.x(x), plane.y(y))).collect();
            let width = if line.bold { 3.0 } else { 1.7 };
            svg.path(&points, Pen { colour: line.colour, width, dashed: false });
            points.iter().for_each(|&point| svg.dot(point, width, line.colour));
            ends.push(points[points.len() - 1]);
        }
        let heights: Vec<f64> = ends.iter().map(|end| end.1).collect();
        let places = spread(&heights, 16.0, (top + 4.0, top + PLOT.1 - 4.0));
        for ((line, end), place) in lines.iter().zip(&ends).zip(places) {
            let edge = left + PLOT.0;
            svg.line(
                (end.0 + 5.0, end.1),
                (edge + 14.0, place),
                Pen { colour: line.colour, width: 1.0, dashed: false },
            );
            let font = Font { colour: line.colour, bold: line.bold, ..Font::PLAIN };
            svg.text((edge + 18.0, place + 4.0), Anchor::Start, font, line.name);
        }
    }

    fn plane(&self, (x, y): (f64, f64)) -> Plane {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bound = self.bound.map(|(bound, _)| bound);
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::MIN_POSITIVE), |(low, high), it| (low.min(it), high.max(it)))
        };
        let (_, right) = ends(&mut points().map(|point| point.0));
        let (low, high) = ends(&mut points().map(|point| point.1).filter(|it| *it > 0.0).chain(bound));
        let values = match self.scale {
            Scale::Linear => (0.0, 1.08 * high),
            Scale::Log => (0.8 * low.min(high), 1.25 * high),
        };
        Plane { corner: (x + LEFT, y + TOP), right: 1.04 * right, values, scale: self.scale }
    }

    fn grid(&self, svg: &mut Svg, plane: &Plane) {
        let ((left, top), bottom) = (plane.corner, plane.corner.1 + PLOT.1);
        for tick in ticks(plane.values, self.scale) {
            let y = plane.y(tick);
            svg.line((left, y), (left + PLOT.0, y), Pen::GRID);
            svg.text((left - 8.0, y + 4.0), Anchor::End, Font::SMALL, &shown(tick));
        }
        for tick in ticks((0.0, plane.right), Scale::Linear) {
            let x = plane.x(tick);
            svg.line((x, top), (x, bottom), Pen::GRID);
            svg.text((x, bottom + 18.0), Anchor::Middle, Font::SMALL, &shown(tick));
        }
        svg.line((left, bottom), (left + PLOT.0, bottom), Pen { colour: QUIET, ..Pen::GRID });
        svg.text((left + PLOT.0 / 2.0, bottom + 38.0), Anchor::Middle, Font::SMALL, self.x_title);
    }
}

/// The mapping of values to places in a picture.
struct Plane {
    /// Upper left corner.
    corner: (f64, f64),
    /// Value at the right edge; zero is at the left edge.
    right: f64,
    /// Values at the bottom and at the top.
    values: (f64, f64),
    scale: Scale,
}

impl Plane {
    fn x(&self, value: f64) -> f64 {
        self.corner.0 + PLOT.0 * (value / self.right).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = value.clamp(low, high);
        let share = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        };
        self.corner.1 + PLOT.1 * (1.0 - share)
    }
}

/// Round numbers from `low` to `high`, a handful of them.
fn ticks((low, high): (f64, f64), scale: Scale) -> Vec<f64> {
    let digits = [1.0, 2.0, 5.0];
    let rounds = (-6..9).flat_map(|power| digits.map(|digit| digit * 10f64.powi(power)));
    match scale {
        Scale::Log => rounds.filter(|tick| (low..=high).contains(tick)).collect(),
        Scale::Linear => {
            let step = rounds.into_iter().find(|step| (high - low) / step <= 6.0).unwrap_or(high);
            (0..=6).map(|count| f64::from(count) * step).filter(|tick| (low..=high).contains(tick)).collect()
        }
    }
}

/// A round number without superfluous digits.
fn shown(tick: f64) -> String {
    if tick >= 1.0 || tick == 0.0 {
        format!("{tick:.0}")
    } else {
        digits(tick).trim_end_matches('0').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks((0.0, 2.1), Scale::Linear), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(ticks((0.0, 470.0), Scale::Linear), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(ticks((4.0, 300.0), Scale::Log), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!([0.0, 0.5, 0.25, 20.0].map(shown), ["0", "0.5", "0.25", "20"]);
    }

    #[test]
    fn values_lie_between_the_edges() {
        let line = |points| Line { name: "a", colour: "red", bold: true, points };
        let chart = |scale| Chart {
            heading: "h",
            x_title: "x",
            scale,
            bound: Some((50.0, "promised")),
            lines: vec![line(vec![(0.5, 10.0), (2.0, 1000.0)]), line(vec![])],
        };
        for scale in [Scale::Linear, Scale::Log] {
            let plane = chart(scale).plane((0.0, 0.0));
            assert!(plane.y(10.0) > plane.y(1000.0) && plane.y(1000.0) > TOP, "{scale:?}");
            assert!(plane.y(10.0) < TOP + PLOT.1 && plane.x(2.0) < LEFT + PLOT.0, "{scale:?}");
            let mut svg = Svg::new(SIZE.0, SIZE.1);
            chart(scale).draw(&mut svg, (0.0, 0.0));
            let picture = svg.finish();
            assert!(picture.contains(">promised<") && !picture.contains("NaN"), "{picture}");
        }
    }
}
