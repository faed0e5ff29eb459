//! A plan as a picture: operators to the right, bytes upward, a rectangle for every tensor.
//!
//! As Figure 6 of PPoPP'21: each chunk is a panel as tall as it is large, and a tensor fills its bytes during its life.
//! Several plans stand side by side on the same scales, which shows what a longer request moved; tensors of one name
//! have one colour in all of them. The picture is written as plain text, because rectangles and labels need no library.

mod canvas;

use self::canvas::Canvas;
use crate::{Chunk, MemoryPlan, Placement, UsageRecord};

/// One plan and the words around it.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// Above the plan.
    pub title: &'a str,
    /// What was planned.
    pub records: &'a [UsageRecord],
    /// Its answer, from the same records.
    pub plan: &'a MemoryPlan,
    /// What each record is called; beyond the end of the slice its position is its name.
    pub names: &'a [&'a str],
}

/// Pixels; all but the data area is fixed.
const MARGIN: f64 = 16.0;
const TITLE: f64 = 28.0;
const AXIS_LEFT: f64 = 76.0;
const AXIS_BELOW: f64 = 44.0;
const PANEL_WIDTH: f64 = 460.0;
const PANELS_HEIGHT: f64 = 430.0; // of all chunks of the largest plan together, without the gaps
const PANEL_GAP: f64 = 34.0;
const COLUMN_GAP: f64 = 36.0;
const UPWARD_LABEL: f64 = 100.0; // room that "bytes in the chunk" needs
const LEGEND_LINE: f64 = 20.0;
const LEGEND_COLUMN: f64 = 150.0; // at least
const LETTER: f64 = 6.4; // widest that names come to on average

/// Draws the plans side by side; SVG text.
///
/// What is drawn is what the plan says, sound or not: [`check`](crate::check()) tells which.
pub fn draw(pictures: &[Picture]) -> String {
    let scale = Scale::of(pictures);
    let n = pictures.len() as f64;
    let width = 2.0 * MARGIN + n * (AXIS_LEFT + PANEL_WIDTH) + (n - 1.0).max(0.0) * COLUMN_GAP;
    let legend = Legend::of(&scale, width - 2.0 * MARGIN);
    let panels_height = pictures.iter().map(|p| scale.column_height(p.plan)).fold(0.0, f64::max);
    let bottom = MARGIN + TITLE + panels_height;
    let height = bottom + AXIS_BELOW + legend.height() + MARGIN;

    let mut canvas = Canvas::new(width, height);
    for (i, picture) in pictures.iter().enumerate() {
        let left = MARGIN + i as f64 * (AXIS_LEFT + PANEL_WIDTH + COLUMN_GAP) + AXIS_LEFT;
        draw_plan(&mut canvas, picture, &scale, left, bottom);
    }
    legend.draw(&mut canvas, bottom + AXIS_BELOW);
    canvas.finish()
}

/// What is common to all plans, so that they can be compared by eye.
struct Scale {
    /// The names of all records, each once; the position of a name gives its colour.
    names: Vec<String>,
    /// Operators on the axis: 0 to `ops - 1`.
    ops: u32,
    bytes_per_pixel: f64,
    /// Between labels; powers of two, as chunks are counted in them.
    byte_step: usize,
    op_step: u32,
}

impl Scale {
    fn of(pictures: &[Picture]) -> Self {
        let last_ops = pictures.iter().flat_map(|p| p.records).map(|record| record.last_op);
        let ops = last_ops.max().map_or(1, |last| last.saturating_add(1));
        let footprint = pictures.iter().map(|p| p.plan.footprint()).max().unwrap_or(0).max(1);
        let mut names = Vec::new();
        for name in pictures.iter().flat_map(|p| (0..p.records.len()).map(move |i| name(p, i))) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Self {
            names,
            ops,
            bytes_per_pixel: footprint as f64 / PANELS_HEIGHT,
            byte_step: footprint.div_ceil(12).next_power_of_two(),
            op_step: ops.div_ceil(16).next_power_of_two(),
        }
    }

    fn height(&self, bytes: usize) -> f64 {
        bytes as f64 / self.bytes_per_pixel
    }

    fn column_height(&self, plan: &MemoryPlan) -> f64 {
        plan.chunks.iter().map(|chunk| self.height(chunk.bytes) + PANEL_GAP).sum()
    }

    /// The colour of every tensor of this name.
    fn colour(&self, name: &str) -> &'static str {
        let place = self.names.iter().position(|known| known == name);
        COLOURS[place.expect("the names of all records are listed") % COLOURS.len()]
    }

    /// Pixels from the left edge of a panel to the start of an operator.
    fn x(&self, op: u32) -> f64 {
        f64::from(op) / f64::from(self.ops) * PANEL_WIDTH
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn human(bytes: usize) -> String {
    let (value, unit) = if bytes < KIB {
        (bytes as f64, "B")
    } else if bytes < MIB {
        (bytes as f64 / KIB as f64, "KiB")
    } else {
        (bytes as f64 / MIB as f64, "MiB")
    };
    let digits = if value.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}")
}

/// Chunks from the bottom up, in the order in which they were appended, over one axis of operators.
fn draw_plan(canvas: &mut Canvas, picture: &Picture, scale: &Scale, left: f64, bottom: f64) {
    let plan = picture.plan;
    let heading = format!("{}: footprint {}", picture.title, human(plan.footprint()));
    canvas.text(left, MARGIN + 12.0, "title", &heading);
    let mut base = bottom;
    for chunk in &plan.chunks {
        let top = base - scale.height(chunk.bytes);
        canvas.rect([left, top, PANEL_WIDTH, base - top], "panel", "#f6f6f4", "");
        draw_grid(canvas, scale, chunk, left, base);
        let placed = picture.records.iter().zip(&plan.placements).enumerate();
        for (i, (record, place)) in placed.filter(|(_, (record, at))| at.chunk == chunk.id && record.size > 0)
        {
            draw_tensor(canvas, picture, scale, i, record, place, (left, base));
        }
        if base - top >= UPWARD_LABEL {
            let middle = (top + base) / 2.0;
            canvas.upward_text(left - AXIS_LEFT + 10.0, middle, "axis middle", "bytes in the chunk");
        }
        let news = if plan.grow.contains(chunk) { ", new" } else { "" };
        canvas.text(left, top - 6.0, "chunk", &format!("{}: {}{news}", chunk.id, human(chunk.bytes)));
        base = top - PANEL_GAP;
    }
    draw_operators(canvas, scale, left, bottom);
}

/// Labelled lines at round addresses.
fn draw_grid(canvas: &mut Canvas, scale: &Scale, chunk: &Chunk, left: f64, base: f64) {
    for address in (0..=chunk.bytes).step_by(scale.byte_step) {
        let y = base - scale.height(address);
        canvas.line(left - 4.0, y, left + PANEL_WIDTH, y, "grid");
        canvas.text(left - 8.0, y + 3.5, "tick end", &human(address));
    }
}

/// Ticks in the middle of operators, since a tensor fills whole ones.
fn draw_operators(canvas: &mut Canvas, scale: &Scale, left: f64, bottom: f64) {
    for op in (0..scale.ops).step_by(scale.op_step as usize) {
        let x = left + (scale.x(op) + scale.x(op + 1)) / 2.0;
        canvas.line(x, bottom, x, bottom + 4.0, "mark");
        canvas.text(x, bottom + 16.0, "tick middle", &op.to_string());
    }
    canvas.text(left + PANEL_WIDTH / 2.0, bottom + 33.0, "axis middle", "operator, in order of execution");
}

fn draw_tensor(
    canvas: &mut Canvas,
    picture: &Picture,
    scale: &Scale,
    i: usize,
    record: &UsageRecord,
    place: &Placement,
    (left, base): (f64, f64),
) {
    let (from, to) = (left + scale.x(record.first_op), left + scale.x(record.last_op.saturating_add(1)));
    let (y, height) =
        (base - scale.height(place.offset.saturating_add(record.size)), scale.height(record.size));
    let name = name(picture, i);
    let tooltip = format!(
        "{name}: operators {} to {}, {} bytes at {}",
        record.first_op, record.last_op, record.size, place.offset
    );
    canvas.rect([from, y, to - from, height], "tensor", scale.colour(&name), &tooltip);
    let fits = name.chars().count() as f64 * LETTER + 6.0 <= to - from && height >= 13.0;
    if fits {
        canvas.text((from + to) / 2.0, y + height / 2.0 + 4.0, "name middle", &name);
    }
}

fn name(picture: &Picture, i: usize) -> String {
    picture.names.get(i).map_or_else(|| i.to_string(), |name| (*name).to_string())
}

/// Sixteen light colours that stay apart in print and for most colour-blind readers; further names reuse them, and each
/// is written on its tensor where there is room.
const COLOURS: [&str; 16] = [
    "#8ecae6", "#ffb703", "#a7c957", "#f4978e", "#cdb4db", "#90be6d", "#f9c74f", "#bde0fe", "#e5989b",
    "#80cbc4", "#d4a373", "#b8c0ff", "#ffc8dd", "#d8e2a8", "#c9ada7", "#a3b1c6",
];

/// Names and their colours: narrow tensors have no room for theirs.
struct Legend {
    entries: Vec<(String, &'static str)>,
    per_line: usize,
    column: f64,
}

impl Legend {
    /// Beyond this many names a legend explains nothing.
    const MOST: usize = 36;

    fn of(scale: &Scale, width: f64) -> Self {
        if scale.names.len() > Self::MOST {
            return Self { entries: Vec::new(), per_line: 1, column: LEGEND_COLUMN };
        }
        let entries: Vec<_> = scale.names.iter().map(|name| (name.clone(), scale.colour(name))).collect();
        let longest = entries.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let column = LEGEND_COLUMN.max(longest as f64 * LETTER + 36.0);
        Self { entries, per_line: ((width / column) as usize).max(1), column }
    }

    fn height(&self) -> f64 {
        self.entries.len().div_ceil(self.per_line) as f64 * LEGEND_LINE
    }

    fn draw(&self, canvas: &mut Canvas, top: f64) {
        for (i, (name, colour)) in self.entries.iter().enumerate() {
            let x = MARGIN + (i % self.per_line) as f64 * self.column;
            let y = top + (i / self.per_line) as f64 * LEGEND_LINE;
            canvas.rect([x, y, 12.0, 12.0], "tensor", colour, "");
            canvas.text(x + 18.0, y + 10.5, "name", name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkId, Planner, PlannerConfig};

    fn planned(records: &[UsageRecord]) -> MemoryPlan {
        Planner::new(PlannerConfig::default()).unwrap().plan(records).unwrap()
    }

    fn record(first_op: u32, last_op: u32, size: usize) -> UsageRecord {
        UsageRecord { first_op, last_op, size }
    }

    #[test]
    fn a_tensor_fills_its_bytes_during_its_life() {
        // one chunk of 2 MiB over four operators; the tensor is the lower half of the last two
        let records = [record(2, 3, 1 << 20)];
        let plan = planned(&records);
        let svg = draw(&[Picture { title: "one", records: &records, plan: &plan, names: &["q"] }]);
        let (left, bottom) = (MARGIN + AXIS_LEFT, MARGIN + TITLE + PANELS_HEIGHT + PANEL_GAP);
        let expected = format!(
            "x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"",
            left + PANEL_WIDTH / 2.0,
            bottom - PANELS_HEIGHT / 2.0,
            PANEL_WIDTH / 2.0,
            PANELS_HEIGHT / 2.0
        );
        assert!(svg.contains(&expected), "{expected} is not in\n{svg}");
        for text in [
            ">chunk 0: 2 MiB, new<",
            ">one: footprint 2 MiB<",
            ">bytes in the chunk<",
            ">operator, in order of execution<",
            ">q<",
            ">256 KiB<",
        ] {
            assert!(svg.contains(text), "{text} is not in\n{svg}");
        }
    }

    #[test]
    fn labels_are_escaped() {
        let records = [record(0, 9, 1 << 20)];
        let plan = planned(&records);
        let svg = draw(&[Picture { title: "a<b & \"c\"", records: &records, plan: &plan, names: &["<q>"] }]);
        assert!(svg.contains("a&lt;b &amp; &quot;c&quot;"));
        assert!(svg.contains("&lt;q&gt;") && !svg.contains("<q>"));
    }

    #[test]
    fn tensors_of_one_name_share_a_colour_and_a_line_of_the_legend() {
        let records = [record(0, 0, 1 << 20), record(1, 1, 1 << 20), record(2, 2, 1 << 20)];
        let plan = planned(&records);
        let svg = draw(&[Picture { title: "", records: &records, plan: &plan, names: &["q", "k", "q"] }]);
        let tensors_and_legend = |colour| svg.matches(&format!("fill=\"{colour}\"")).count();
        assert_eq!((tensors_and_legend(COLOURS[0]), tensors_and_legend(COLOURS[1])), (2 + 1, 1 + 1));
        assert_eq!(tensors_and_legend(COLOURS[2]), 0);
    }

    #[test]
    fn a_name_has_one_colour_in_all_pictures() {
        let records = [record(0, 0, 1 << 20), record(1, 1, 1 << 20)];
        let plan = planned(&records);
        let names = [["q", "k"], ["k", "v"]];
        let pictures =
            names.each_ref().map(|names| Picture { title: "", records: &records, plan: &plan, names });
        let svg = draw(&pictures);
        // on its tensors, and in the legend
        let counts = [0, 1, 2, 3].map(|i| svg.matches(&format!("fill=\"{}\"", COLOURS[i])).count());
        assert_eq!(counts, [1 + 1, 2 + 1, 1 + 1, 0]);
    }

    #[test]
    fn nothing_can_be_drawn() {
        let plan = planned(&[]);
        let empty = draw(&[Picture { title: "", records: &[], plan: &plan, names: &[] }]);
        for svg in [empty, draw(&[])] {
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn chunks_of_more_bytes_than_can_be_counted_are_drawn() {
        let chunks = [(0, usize::MAX), (1, 2)].map(|(id, bytes)| Chunk { id: ChunkId(id), bytes });
        let plan = MemoryPlan { chunks: chunks.to_vec(), grow: chunks.to_vec(), ..MemoryPlan::default() };
        assert_eq!((plan.footprint(), plan.grown_bytes()), (usize::MAX, usize::MAX));
        let svg = draw(&[Picture { title: "", records: &[], plan: &plan, names: &[] }]);
        assert!(svg.ends_with("</svg>\n") && svg.contains(">chunk 1: 2 B, new<"), "{svg}");
    }

    #[test]
    fn bytes_are_printed_in_the_largest_unit_they_fill() {
        let cases = [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (1536, "1.50 KiB"), (2 << 20, "2 MiB")];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }
}
