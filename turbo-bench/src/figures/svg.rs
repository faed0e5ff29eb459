//! Just enough SVG: lines, areas, bars and text, and labels that do not overlap.

use std::fmt::Write;

/// Colour of text.
pub(super) const INK: &str = "#24292f";
/// Colour of secondary text.
pub(super) const QUIET: &str = "#6e7781";
/// Colour of the lines of a grid.
pub(super) const GRID: &str = "#e6e9ec";
/// Colour of the least possible time.
pub(super) const FLOOR: &str = "#c9ced4";

/// The colour of an engine or a policy, the same in every picture.
pub(super) fn colour(rival: &str) -> &'static str {
    match rival {
        "turbo" | "dp" => "#0b62c4",
        "ov" | "compiled" | "autotuned" | "naive" => "#d97a1e",
        "ort" | "token-budget" => "#2f9e62",
        "ct2" | "sorted-window" | "paper" => "#9a4fb5",
        _ => "#8a929b",
    }
}

/// How text is aligned with its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How text looks.
#[derive(Clone, Copy)]
pub(super) struct Font<'a> {
    pub size: f64,
    pub colour: &'a str,
    pub bold: bool,
}

impl Font<'_> {
    pub(super) const PLAIN: Font<'static> = Font { size: 12.0, colour: INK, bold: false };
    pub(super) const SMALL: Font<'static> = Font { size: 11.0, colour: QUIET, bold: false };
    pub(super) const TITLE: Font<'static> = Font { size: 15.0, colour: INK, bold: true };
}

/// How a line looks.
#[derive(Clone, Copy)]
pub(super) struct Pen<'a> {
    pub colour: &'a str,
    pub width: f64,
    pub dashed: bool,
}

impl Pen<'_> {
    pub(super) const GRID: Pen<'static> = Pen { colour: GRID, width: 1.0, dashed: false };
}

/// An unfinished picture. Lengths are pixels, and y grows downwards.
pub(super) struct Svg {
    size: (f64, f64),
    body: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { size: (width, height), body: String::new() }
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), pen: Pen<'_>) {
        self.path(&[from, to], pen);
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], Pen { colour, width, dashed }: Pen<'_>) {
        let dash = if dashed { r#" stroke-dasharray="5 4""# } else { "" };
        _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>"#,
            list(points)
        );
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], fill: &str) {
        _ = writeln!(self.body, r#"<polygon points="{}" fill="{fill}"/>"#, list(points));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{fill}"/>"#);
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, font: Font<'_>, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if font.bold { r#" font-weight="600""# } else { "" };
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{}" fill="{}"{weight}>{words}</text>"#,
            font.size, font.colour
        );
    }

    pub(super) fn finish(self) -> String {
        let (width, height) = self.size;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn list(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// Places labels near `wanted`, at least `gap` apart, and all within `bounds` if they fit. Groups that would overlap
/// are spread around their middle.
pub(super) fn spread(wanted: &[f64], gap: f64, (top, bottom): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    // Each group has its members in order, and the place of the first.
    let mut groups: Vec<(Vec<usize>, f64)> = Vec::new();
    for index in order {
        groups.push((vec![index], wanted[index].clamp(top, bottom)));
        while let [.., (above, first), (below, second)] = &groups[..] {
            if *second - *first >= gap * above.len() as f64 {
                break;
            }
            let members = [above.clone(), below.clone()].concat();
            let middle = members.iter().map(|&it| wanted[it]).sum::<f64>() / members.len() as f64;
            let extent = gap * (members.len() - 1) as f64;
            let start = (middle - extent / 2.0).min(bottom - extent).max(top);
            groups.truncate(groups.len() - 2);
            groups.push((members, start));
        }
    }
    let mut places = vec![0.0; wanted.len()];
    for (members, first) in groups {
        members.iter().enumerate().for_each(|(rank, &index)| places[index] = first + gap * rank as f64);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance() {
        let bounds = (0.0, 100.0);
        assert_eq!(spread(&[10.0, 50.0], 10.0, bounds), [10.0, 50.0]);
        assert_eq!(spread(&[52.0, 50.0, 48.0], 10.0, bounds), [60.0, 50.0, 40.0]);
        assert_eq!(spread(&[99.0, 100.0], 10.0, bounds), [90.0, 100.0]);
        let places = spread(&[1.0, 2.0, 3.0, 30.0, 33.0, 36.0], 10.0, bounds);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 10.0 - 1e-9), "{places:?}");
    }

    #[test]
    fn words_are_escaped() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((1.0, 2.0), Anchor::Middle, Font::PLAIN, "a < b & c");
        assert!(svg.finish().contains(">a &lt; b &amp; c</text>"));
    }
}
