//! The share of the machine's peak that products reach, by rows, at each precision.

use super::super::{Comparison, Precision, Product, Rows, TURBO, goals::section, page::title};
use crate::figures::{
    numbers::geometric_mean,
    svg::{Anchor, FLOOR, Font, GRID, Pen, QUIET, Svg, colour, spread},
};

const PLOT: (f64, f64) = (240.0, 260.0);
const LEFT: f64 = 52.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 52.0;

/// Draws a panel for each precision.
pub(super) fn draw(comparison: &Comparison) -> String {
    let width = LEFT + PLOT.0 + RIGHT;
    let mut svg = Svg::new(3.0 * width, TOP + PLOT.1 + BOTTOM);
    for (column, precision) in Precision::ALL.into_iter().enumerate() {
        let origin = (column as f64 * width + LEFT, TOP);
        let heading = format!("{} products, share of the peak", precision.name());
        svg.text((origin.0 - 30.0, TOP - 26.0), Anchor::Start, Font::TITLE, &heading);
        let of_precision = section(comparison, "products", "bert-base", precision);
        if let Some(Rows::Products(products)) = of_precision.map(|section| &section.rows) {
            panel(&mut svg, origin, products);
        }
    }
    svg.finish()
}

fn panel(svg: &mut Svg, (left, top): (f64, f64), products: &[Product]) {
    let bottom = top + PLOT.1;
    let mut rows: Vec<usize> = products.iter().map(|it| it.rows).collect();
    rows.sort_unstable();
    rows.dedup();
    let most = rows.last().map_or(2.0, |&rows| rows.max(2) as f64);
    let x = |rows: usize| left + PLOT.0 * (rows as f64).ln() / most.ln();
    let y = |share: f64| bottom - PLOT.1 * share.clamp(0.0, 1.0);
    let mut threads: Vec<usize> = products.iter().map(|it| it.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let mean = |(rival, threads): (&str, usize), rows: usize, value: fn(&Product) -> f64| {
        let is_asked = |it: &&Product| (it.rival.as_str(), it.threads, it.rows) == (rival, threads, rows);
        geometric_mean(products.iter().filter(is_asked).map(value)).unwrap_or(0.0)
    };
    // Memory allows what lies under this line, with all threads.
    let all = threads.last().copied().unwrap_or(1);
    let allowed: Vec<(f64, f64)> = rows
        .iter()
        .map(|&rows| (x(rows), y(mean((TURBO, all), rows, |it| it.of_peak / it.of_floor))))
        .collect();
    let mut area = allowed.clone();
    area.extend([(left + PLOT.0, top), (left, top)]);
    svg.area(&area, GRID);
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line((left, y(tick)), (left + PLOT.0, y(tick)), Pen { colour: FLOOR, width: 0.6, dashed: false });
        svg.text((left - 8.0, y(tick) + 4.0), Anchor::End, Font::SMALL, &format!("{:.0} %", tick * 100.0));
    }
    for &rows in &rows {
        svg.text((x(rows), bottom + 18.0), Anchor::Middle, Font::SMALL, &rows.to_string());
    }
    svg.text((left + PLOT.0 / 2.0, bottom + 38.0), Anchor::Middle, Font::SMALL, "rows");
    svg.line((left, bottom), (left + PLOT.0, bottom), Pen { colour: QUIET, ..Pen::GRID });
    svg.text((left + 8.0, top + 16.0), Anchor::Start, Font::SMALL, "more than memory allows");
    let lines = lines(products, &threads);
    let mut ends = Vec::new();
    for &(who, _, pen) in &lines {
        let points: Vec<(f64, f64)> =
            rows.iter().map(|&rows| (x(rows), y(mean(who, rows, |it| it.of_peak)))).collect();
        svg.path(&points, pen);
        points.iter().for_each(|&point| svg.dot(point, 3.0, pen.colour));
        ends.push(points.last().map_or(top, |end| end.1));
    }
    let places = spread(&ends, 16.0, (top + 4.0, bottom - 4.0));
    for ((_, words, pen), place) in lines.iter().zip(places) {
        let font = Font { colour: pen.colour, bold: true, ..Font::PLAIN };
        svg.text((left + PLOT.0 + 9.0, place + 4.0), Anchor::Start, font, words);
    }
}

/// The engines that are drawn, with their threads and labels: turbo with one thread and with all, the others with all.
fn lines<'a>(products: &'a [Product], threads: &[usize]) -> Vec<((&'a str, usize), String, Pen<'a>)> {
    let count =
        |threads: usize| if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let mut lines = Vec::new();
    for (&threads, shade) in threads.iter().zip(["ov", TURBO]) {
        let pen = Pen { colour: colour(shade), width: 2.5, dashed: false };
        lines.push(((TURBO, threads), count(threads), pen));
    }
    let all = threads.last().copied().unwrap_or(1);
    for it in products.iter().filter(|it| it.rival != TURBO && it.threads == all) {
        if lines.iter().all(|((rival, _), ..)| *rival != it.rival) {
            let pen = Pen { colour: colour(&it.rival), width: 1.5, dashed: true };
            lines.push(((&it.rival, all), format!("{}, {all}", title(&it.rival)), pen));
        }
    }
    lines
}
