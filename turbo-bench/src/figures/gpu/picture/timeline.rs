//! Batches one behind the other: what the host does while the GPU computes.

use super::super::{Findings, Found, Section, goals::section, overlap::Timeline};
use crate::figures::svg::{Anchor, Font, Pen, Svg};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 32.0;
/// Tops of the two lanes, and the place of the axis.
const HOST: f64 = 88.0;
const GPU: f64 = 136.0;
const AXIS: f64 = 180.0;
const LANE: f64 = 30.0;
const BOTTOM: f64 = 44.0;
/// The most steps of the axis.
const STEPS: u64 = 12;

/// Colours, which alternate from batch to batch; uncertain times are pale.
const COLOURS: [(&str, &str); 2] = [("#0b62c4", "#9dc1e8"), ("#d97a1e", "#f2cba6")];

/// Draws a lane for the host and one for the GPU.
pub(super) fn draw(findings: &Findings) -> String {
    let mut svg = Svg::new(WIDTH, AXIS + BOTTOM);
    if let Some(Section { found: Found::Encoder(encoders), .. }) = section(findings, "encoder")
        && let Some(overlap) = &encoders.overlap
    {
        lanes(&mut svg, &overlap.timeline);
    }
    svg.finish()
}

fn lanes(svg: &mut Svg, timeline: &Timeline) {
    let end = timeline.0.last().map_or(0, |last| last.read_us).max(1);
    let x = |us: u64| LEFT + (WIDTH - LEFT - RIGHT) * us as f64 / end as f64;
    let title = "BERT-base, bf16: batches one behind the other";
    svg.text((LEFT, 26.0), Anchor::Start, Font::TITLE, title);
    let legend = "Host: packing, planning and launching; half as high: reading. GPU: from launched, and the one before done, \
                  until seen to be done; pale: nobody saw whether it still ran.";
    svg.text((LEFT, 48.0), Anchor::Start, Font::SMALL, legend);
    for us in (0..=end).step_by(step(end)) {
        svg.line((x(us), HOST - 6.0), (x(us), AXIS), Pen::GRID);
        svg.text((x(us), AXIS + 18.0), Anchor::Middle, Font::SMALL, &format!("{} ms", us as f64 / 1e3));
    }
    for (top, lane) in [(HOST, "host"), (GPU, "GPU")] {
        svg.text((LEFT - 10.0, top + 20.0), Anchor::End, Font::PLAIN, lane);
    }
    let mut bar = |(from, to): (u64, u64), (top, height), fill| {
        svg.rect((x(from), top), (x(to) - x(from), height), fill);
    };
    for (number, (flight, run)) in timeline.0.iter().zip(timeline.runs()).enumerate() {
        let (colour, pale) = COLOURS[number % COLOURS.len()];
        bar((flight.begun_us, flight.launched_us), (HOST, LANE), colour);
        bar((flight.done_us, flight.read_us), (HOST + LANE / 2.0, LANE / 2.0), colour);
        bar((run.start, run.end), (GPU, LANE), colour);
        bar((run.end, flight.done_us), (GPU, LANE), pale);
    }
    for (number, (flight, run)) in timeline.0.iter().zip(timeline.runs()).enumerate() {
        let (number, white) = (number.to_string(), Font { colour: "white", ..Font::PLAIN });
        svg.text((x(flight.begun_us), HOST - 9.0), Anchor::Start, Font::SMALL, &number);
        svg.text(((x(run.start) + x(run.end)) / 2.0, GPU + 20.0), Anchor::Middle, white, &number);
    }
}

/// Microseconds between two marks of the axis: 1, 2 or 5 times a power of ten, such that there are at most [`STEPS`].
fn step(end: u64) -> usize {
    let mut steps = (0..).flat_map(|power| [1, 2, 5].map(|it| it * 10_u64.pow(power)));
    steps.find(|step| end / step <= STEPS).expect("they grow beyond everything") as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::gpu::sample;

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!([1, 12, 13, 900, 13_000, 65_000].map(step), [1, 1, 2, 100, 2000, 10_000]);
    }

    /// The sample's 3 batches end at 300 µs, and the axis has 1104 pixels.
    #[test]
    fn bars_are_where_the_times_are() {
        let picture = draw(&sample::findings());
        for bar in [
            // the second batch is packed, planned and launched from 10 to 20, and read from 200 to 205
            r##"<rect x="100.8" y="88.0" width="36.8" height="30.0" fill="#d97a1e"/>"##,
            r##"<rect x="800.0" y="103.0" width="18.4" height="15.0" fill="#d97a1e"/>"##,
            // the GPU computes it from 100 to 198, or to 200
            r##"<rect x="432.0" y="136.0" width="360.6" height="30.0" fill="#d97a1e"/>"##,
            r##"<rect x="792.6" y="136.0" width="7.4" height="30.0" fill="#f2cba6"/>"##,
        ] {
            assert!(picture.contains(bar), "{bar} is not in\n{picture}");
        }
        // four for each batch, and the background
        assert_eq!(picture.matches("<rect").count(), 4 * 3 + 1, "{picture}");
        assert!(picture.contains(">0.1 ms</text>") && !picture.contains(">0.4 ms</text>"), "{picture}");
    }
}
