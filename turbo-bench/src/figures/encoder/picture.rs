//! The comparison as a picture: how many times the machine's floor each rival takes, by length.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::{coord::Shift, prelude::*};

use super::{Case, Comparison, table};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const COLOURS: [RGBColor; 5] = [
    RGBColor(30, 100, 180),
    RGBColor(214, 120, 40),
    RGBColor(80, 150, 80),
    RGBColor(160, 80, 150),
    RGBColor(120, 120, 120),
];
/// Slower than this is not drawn to scale: short inputs cost some engines ten times the floor.
const MOST: f64 = 6.0;

/// Draws single requests of all models side by side.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn draw(comparison: &Comparison, file: &Path) -> Result<()> {
    let models = &comparison.data.models;
    let area = SVGBackend::new(file, (460 * models.len().max(1) as u32, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, subject) in area.split_evenly((1, models.len().max(1))).iter().zip(models) {
        let single = |case: &&Case| case.model == subject.model && case.batch_size == 1;
        let cases: Vec<&Case> = table::cases(comparison).filter(single).collect();
        draw_model(panel, &subject.model, &cases, &comparison.summary.rivals)?;
    }
    area.present().with_context(|| format!("cannot write {}", file.display()))
}

fn draw_model(panel: &Area<'_>, model: &str, cases: &[&Case], rivals: &[(String, String)]) -> Result<()> {
    let lens = cases.iter().map(|case| f64::from(case.seq_len));
    let (shortest, longest) = lens.fold((f64::INFINITY, 1.0_f64), |(a, b), len| (a.min(len), b.max(len)));
    let ratio = |case: &Case| (case.median_ms / case.floor_ms).min(MOST);
    let most = cases.iter().map(|case| ratio(case)).fold(1.5, f64::max);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{}, one request at a time", table::title(model)), ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(54)
        .build_cartesian_2d((shortest.min(longest) * 0.9..longest * 1.1).log_scale(), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .x_desc("tokens")
        .y_label_formatter(&|times| format!("{times:.1}"))
        .y_desc("time / the machine's floor")
        .light_line_style(WHITE)
        .draw()?;
    for ((rival, _), colour) in rivals.iter().zip(COLOURS) {
        let of_rival = cases.iter().filter(|case| case.rival == *rival);
        let points: Vec<(f64, f64)> = of_rival.map(|case| (f64::from(case.seq_len), ratio(case))).collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(table::title(rival))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}
