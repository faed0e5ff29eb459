//! How much faster rows are when they are reduced together: Figure 5.

use super::super::{Dtype, Findings, Found, Operation, Section, goals};
use crate::figures::svg::{Anchor, Font, Pen, QUIET, Svg};

const PLOT: (f64, f64) = (360.0, 260.0);
const LEFT: f64 = 64.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 52.0;

/// Types, and their colours.
const DTYPES: [(Dtype, &str); 2] = [(Dtype::F32, "#d97a1e"), (Dtype::Bf16, "#0b62c4")];

/// A point: the values of all rows, and how many times longer the classical reduction takes than turbo.
type Point = (f64, f64);

/// Draws a panel for softmax and one for layer norm.
pub(super) fn draw(findings: &Findings) -> String {
    let width = LEFT + PLOT.0 + RIGHT;
    let mut svg = Svg::new(2.0 * width, TOP + PLOT.1 + BOTTOM);
    for (column, name) in ["softmax", "layer norm"].into_iter().enumerate() {
        let of_types = DTYPES.map(|(dtype, _)| points(findings, name, dtype));
        if !of_types.concat().is_empty() {
            panel(&mut svg, column as f64 * width + LEFT, name, &of_types);
        }
    }
    svg.finish()
}

fn points(findings: &Findings, name: &str, dtype: Dtype) -> Vec<Point> {
    let Some(Section { found: Found::Rows { reductions, .. }, ceilings: Some(ceilings), .. }) =
        goals::section(findings, "rows")
    else {
        return Vec::new();
    };
    let these = reductions.iter().filter(|it| it.operation.name() == name && it.dtype == dtype);
    let point =
        |operation: &Operation, times| Some((operation.results() as f64, goals::batched(times, ceilings)?.0));
    these.filter_map(|it| point(&it.operation, &it.times)).collect()
}

fn panel(svg: &mut Svg, left: f64, name: &str, of_types: &[Vec<Point>]) {
    let all = of_types.concat();
    let least = all.iter().map(|point| point.0).fold(f64::INFINITY, f64::min).ln();
    let most = all.iter().map(|point| point.0).fold(0.0, f64::max).ln().max(least + 1.0);
    let top_ratio = all.iter().map(|point| point.1).fold(1.0, f64::max).ceil();
    let bottom = TOP + PLOT.1;
    let x = |values: f64| left + PLOT.0 * (values.ln() - least) / (most - least);
    let y = |ratio: f64| bottom - PLOT.1 * ratio / top_ratio;
    svg.text(
        (left - 30.0, 26.0),
        Anchor::Start,
        Font::TITLE,
        &format!("{name}: times as fast as a row to a block"),
    );
    for (rank, (dtype, colour)) in DTYPES.iter().enumerate() {
        let at = left + 70.0 * rank as f64;
        svg.dot((at, 46.0), 4.0, colour);
        svg.text((at + 10.0, 50.0), Anchor::Start, Font::PLAIN, dtype.name());
    }
    for tick in 0..=top_ratio as usize {
        svg.line((left, y(tick as f64)), (left + PLOT.0, y(tick as f64)), Pen::GRID);
        svg.text((left - 8.0, y(tick as f64) + 4.0), Anchor::End, Font::SMALL, &format!("{tick} ×"));
    }
    svg.line((left, y(1.0)), (left + PLOT.0, y(1.0)), Pen { colour: QUIET, width: 1.0, dashed: true });
    for power in (least / 10f64.ln()).ceil() as i32..=(most / 10f64.ln()).floor() as i32 {
        svg.text((x(10f64.powi(power)), bottom + 18.0), Anchor::Middle, Font::SMALL, &power_of_ten(power));
    }
    svg.text((left + PLOT.0 / 2.0, bottom + 38.0), Anchor::Middle, Font::SMALL, "values of all rows");
    for (points, (_, colour)) in of_types.iter().zip(DTYPES) {
        points.iter().for_each(|&(values, ratio)| svg.dot((x(values), y(ratio)), 3.5, colour));
    }
}

/// `100`, `1 k`, `10 M`.
fn power_of_ten(power: i32) -> String {
    let unit = ["", " k", " M", " G"].get(power as usize / 3).unwrap_or(&" T");
    format!("{}{unit}", 10_i32.pow(power as u32 % 3))
}
