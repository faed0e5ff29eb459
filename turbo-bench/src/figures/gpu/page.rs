//! The record as a Markdown page.

use std::fmt::Write;

use super::{
    Ceilings, Dtype, Findings, Found, Measured, Section, attention,
    contest::{self, TURBO, Timed},
    encoder::{self, Encoders},
    goals,
    overlap::{AFTER, BEHIND, Overlap},
    returned, rows,
    sanitizer::Finding,
    suite::Check,
};
use crate::figures::{
    numbers::digits,
    verdict::{self, Kind},
};

/// A file beside the record, written by hand: what stands between a number and its goal, as profiles show.
pub const NOTES: &str = "gpu-notes.md";

/// How it is measured.
const HOW: &str = "\
Whoever is timed computed the same on the same inputs before, in the same type; the others are PyTorch as written, and
compiled. All take turns, in an order that is drawn anew for each round; a turn is many runs that are enqueued at once,
and ends when the last is done. Numbers are medians of turns. Launches of an operation are replayed from CUDA graphs,
turbo's and PyTorch's, so that neither host counts; where PyTorch's could not be captured, the table says so. Those of an
encoder are as in use: turbo replays those of small batches, and PyTorch what it has compiled;
eager PyTorch launches each kernel from Python, and its host counts. An encoder's time is from ids to the last hidden
state: turbo's has the upload of the ids and the pooling of the rows in it, PyTorch's has neither. turbo packs requests
in order of arrival; PyTorch gets them in order of length, which pads least.
";

/// The page of a record; `notes` say what stands between numbers and their goals.
#[must_use]
pub fn page(findings: &Findings, notes: &str) -> String {
    let notes = match notes.trim() {
        "" => String::new(),
        notes => format!("\n## What stands between\n\n{notes}\n"),
    };
    let verdicts = goals::verdicts(findings);
    let (reached, looked) = verdict::score(&verdicts);
    let sections: String = findings.rows.iter().map(of_section).collect();
    format!(
        "# turbo on an NVIDIA GPU, beside PyTorch\n\nWritten by `cargo xtask gpu record` from `gpu.json`.\n\n{}\n{HOW}{}\n\
         ## What is wanted, and what was found\n\n{reached} of {looked} are reached.\n\n{}{notes}\n## Pictures\n\n{}{sections}{}",
        about(findings),
        remarks(findings),
        verdict::table(&verdicts, Kind::show),
        super::picture::ALL.iter().map(|(file, about)| format!("![{about}]({file})\n\n")).collect::<String>(),
        of_steps(findings),
    )
}

fn about(findings: &Findings) -> String {
    let Some(first) = findings.rows.first() else { return String::new() };
    let (machine, provenance) = (&first.machine, &findings.provenance);
    let (major, minor) = machine.compute_capability;
    let mut libraries: Vec<&str> =
        findings.rows.iter().flat_map(|section| &section.libraries).map(String::as_str).collect();
    libraries.extend(
        agreements(findings).map(|it| it.agreement.library.as_str()).filter(|it| !it.starts_with("turbo")),
    );
    libraries.sort_unstable();
    libraries.dedup();
    format!(
        "{} ({major}.{minor}, {} multiprocessors, {} GB), driver {}; host {} with {} cores. {}, commit {}.\n{}\n",
        machine.gpu,
        machine.multiprocessors,
        machine.memory_bytes / 1_000_000_000,
        machine.driver,
        provenance.processor,
        provenance.cores,
        provenance.date.split('T').next().unwrap_or_default(),
        provenance.commit,
        libraries.join(" · "),
    )
}

fn agreements(findings: &Findings) -> impl Iterator<Item = &encoder::Agreed> {
    findings.rows.iter().flat_map(|section| match &section.found {
        Found::Encoder(encoders) => &encoders.agreement[..],
        _ => &[],
    })
}

fn remarks(findings: &Findings) -> String {
    let remarks = returned::remarks(findings);
    let list: String = remarks.iter().map(|remark| format!("- {remark}\n")).collect();
    if list.is_empty() { list } else { format!("\nNot everything went well:\n\n{list}") }
}

fn of_section(section: &Section) -> String {
    match &section.found {
        Found::Suite(checks) => of_suite(checks),
        Found::Ceilings => section.ceilings.as_ref().map(of_ceilings).unwrap_or_default(),
        Found::Rows { wide, reductions } => {
            let Some(ceilings) = &section.ceilings else { return String::new() };
            of_wide(wide, ceilings) + &of_reductions(reductions, ceilings)
        }
        Found::Attention(all) => of_attention(all, section.ceilings.as_ref()),
        Found::Encoder(encoders) => of_encoders(encoders),
        Found::Sanitizer(tools) => {
            let line = |finding: &Finding| match finding {
                Finding::Clean => "nothing found".to_owned(),
                Finding::Errors(what) => format!("**errors**: {what}"),
                Finding::Unavailable(why) => format!("not available there: {why}"),
                Finding::Failed(why) => format!("not done: {why}"),
            };
            let tools: String =
                tools.iter().map(|it| format!("- {}: {}\n", it.tool, line(&it.finding))).collect();
            format!(
                "\n## compute-sanitizer\n\nSome families of kernels in bf16, beneath each tool:\n\n{tools}"
            )
        }
    }
}

fn of_suite(checks: &[Check]) -> String {
    let mut text = "\n## Is it right?\n\nEvery family of kernels against loops in f64, and every golden model against the hidden states \
                    of the reference: within 1e-4 in f32, in a narrower type within 2.5 times what PyTorch loses in it (1.5 times in the \
                    mean).\n\n| type | families | models | greatest difference |\n|---|---:|---:|---:|\n"
        .to_owned();
    for dtype in Dtype::ALL {
        let these = || checks.iter().filter(move |check| check.dtype == dtype);
        let passed = |kind: &str| {
            let all = these().filter(|check| check.what.starts_with(kind));
            let (all, good) =
                all.fold((0, 0), |(all, good), it| (all + 1, good + usize::from(it.failed.is_none())));
            format!("{good} of {all}")
        };
        let worst = these().filter_map(|check| check.worst).reduce(f64::max);
        let worst = worst.map_or("–".to_owned(), |worst| format!("{worst:.1e}"));
        _ = writeln!(
            text,
            "| {} | {} | {} | {worst} |",
            dtype.name(),
            passed("kernels: "),
            passed("model: ")
        );
    }
    text
}

fn of_ceilings(ceilings: &Ceilings) -> String {
    let mut text = "\n## What the GPU can do\n\nProducts of 8192 × 8192 × 8192, and a copy of half a gigabyte; what one of them reaches is the ceiling.\n\n\
                    | by | copy, TB/s | bf16, TFLOP/s | f16 | f32 |\n|---|---:|---:|---:|---:|\n"
        .to_owned();
    for rates in &ceilings.rates {
        let tera = |rate: f64| digits(rate / 1e12);
        let [copy, bf16, f16, f32] = [rates.copy, rates.bf16, rates.f16, rates.f32].map(tera);
        _ = writeln!(text, "| {} | {copy} | {bf16} | {f16} | {f32} |", rates.by);
    }
    let Ceilings { launch_us, enqueue_us, .. } = ceilings;
    text + &format!(
        "\nA kernel with next to nothing to do takes {} µs when it is replayed, and {} µs when the host enqueues it.\n",
        digits(*launch_us),
        digits(*enqueue_us)
    )
}

/// Headings, and the cells below them.
type Columns<'a> = (&'a [&'a str], &'a dyn Fn(&Measured) -> Vec<String>);

/// A table with a row for each measured operation: the cells of `before`, a time for each of `who`, and the cells of
/// `after`.
struct Grid<'a> {
    before: Columns<'a>,
    who: &'a [&'a str],
    after: Columns<'a>,
}

impl Grid<'_> {
    fn markdown(&self, measured: &[Measured]) -> String {
        let heads = [self.before.0, self.who, self.after.0].concat();
        let (words, numbers) = (self.before.0.len(), self.who.len() + self.after.0.len());
        let rule = "---|".repeat(words) + &"---:|".repeat(numbers);
        let mut text = format!("| {} |\n|{rule}\n", heads.join(" | "));
        for of in measured {
            let times = self.who.iter().map(|who| time(of, who));
            let cells: Vec<String> =
                self.before.1(of).into_iter().chain(times).chain(self.after.1(of)).collect();
            _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text + &absent(measured)
    }
}

/// Marks times of operations that were launched one by one.
const MARK: &str = " \\*";

fn time(measured: &Measured, who: &str) -> String {
    let mark = if measured.launched.iter().any(|it| it == who) { MARK } else { "" };
    contest::of(&measured.times, who).map_or("–".to_owned(), |timed| digits(timed.median_us) + mark)
}

/// Which contestants are missing and why, each once.
fn absent(measured: &[Measured]) -> String {
    let mut lines: Vec<String> = Vec::new();
    if measured.iter().any(|it| !it.launched.is_empty()) {
        lines.push("\\* Launched one by one: it could not be captured.".to_owned());
    }
    for absent in measured.iter().flat_map(|it| &it.absent) {
        let line = format!("No {}: {}.", absent.who, absent.why.trim_end_matches('.'));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join("\n\n")) }
}

fn times_of_best(times: &[Timed], others: &[&str]) -> String {
    goals::ratio(times, contest::best(times, others))
        .map_or("–".to_owned(), |ratio| Kind::Ratio.show(ratio))
}

fn of_wide(wide: &[Measured], ceilings: &Ceilings) -> String {
    const OTHERS: [&str; 2] = [rows::EAGER, rows::AUTOTUNED];
    let before = |it: &Measured| {
        let megabytes = it.operation.bytes(it.dtype) / 1_000_000;
        vec![
            it.operation.name().to_owned(),
            it.operation.sizes(),
            it.dtype.name().to_owned(),
            megabytes.to_string(),
        ]
    };
    let after = |it: &Measured| {
        let share = contest::of(&it.times, TURBO)
            .map(|turbo| ceilings.of_copy(&it.operation, it.dtype, turbo.median_us));
        let share = share.map_or("–".to_owned(), |share| Kind::Limit.show(share));
        vec![share, times_of_best(&it.times, &OTHERS)]
    };
    let grid = Grid {
        before: (&["operation", "rows × columns", "type", "MB"], &before),
        who: &[TURBO, rows::EAGER, rows::AUTOTUNED],
        after: (&["of a copy", "best other / turbo"], &after),
    };
    format!(
        "\n## Operations on rows that no cache holds, microseconds\n\n*Of a copy*: everything read once and written once, at the bandwidth of a copy.\n\n{}",
        grid.markdown(wide)
    )
}

fn of_reductions(reductions: &[Measured], ceilings: &Ceilings) -> String {
    let before = |it: &Measured| vec![it.operation.sizes()];
    let after = |it: &Measured| {
        let of = goals::batched(&it.times, ceilings);
        let mark = |is_long| if is_long { "" } else { " (short)" };
        vec![of.map_or("–".to_owned(), |(ratio, is_long)| Kind::Ratio.show(ratio) + mark(is_long))]
    };
    let [one, two, four] = rows::BATCHED.map(|(who, _)| who);
    let grid = Grid {
        before: (&["rows × columns"], &before),
        who: &[TURBO, rows::CLASSICAL, one, two, four, rows::EAGER, rows::COMPILED],
        after: (&["classical / turbo"], &after),
    };
    let mut text = "\n## Reductions, as in Figure 5 of TurboTransformers, microseconds\n\n*Classical*: a row to a block, a thread to a value. *1, 2, 4 rows*: so many to a warp, \
                    reduced together. turbo is what it chose of these. *Short*: less than three launches.\n"
        .to_owned();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for name in ["softmax", "layer norm"] {
            let these: Vec<Measured> = reductions
                .iter()
                .filter(|it| (it.dtype, it.operation.name()) == (dtype, name))
                .cloned()
                .collect();
            if !these.is_empty() {
                _ = write!(text, "\n{name}, {}:\n\n{}", dtype.name(), grid.markdown(&these));
            }
        }
    }
    text
}

fn of_attention(all: &[Measured], ceilings: Option<&Ceilings>) -> String {
    let before = |it: &Measured| vec![it.operation.sizes(), it.dtype.name().to_owned()];
    let after = |it: &Measured| {
        let turbo = contest::of(&it.times, TURBO);
        let rate = turbo.map(|turbo| it.operation.flops() as f64 / (turbo.median_us * 1e-6));
        let share =
            rate.zip(ceilings).map(|(rate, ceilings)| Kind::Limit.show(rate / ceilings.product(it.dtype)));
        let rate = rate.map_or("–".to_owned(), |rate| digits(rate / 1e12));
        vec![rate, share.unwrap_or("–".to_owned()), times_of_best(&it.times, &attention::OTHERS)]
    };
    let grid = Grid {
        before: (&["sequences × tokens", "type"], &before),
        who: &[&[TURBO][..], &attention::OTHERS].concat(),
        after: (&["TFLOP/s", "of a product", "best other / turbo"], &after),
    };
    format!(
        "\n## Attention of 12 heads of 64 values, microseconds\n\nturbo's rows are packed. *sdpa*: PyTorch's choice, padded, with a mask where there is padding. \
         *cudnn*: the same by cuDNN. *nested*, *varlen*: PyTorch's ways without padding.\n\n{}",
        grid.markdown(all)
    )
}

fn of_encoders(encoders: &Encoders) -> String {
    let mut text = "\n## BERT-base\n\n| requests | type | turbo, ms | M tokens/s | eager, ms | compiled, ms | eager / turbo | compiled / turbo |\n\
                    |---|---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for case in &encoders.cases {
        let of = |who| contest::of(&case.times, who);
        let ms = |who| of(who).map_or("–".to_owned(), |timed| digits(timed.median_us / 1e3));
        let ratio = |who| {
            goals::ratio(&case.times, of(who)).map_or("–".to_owned(), |ratio| Kind::Ratio.show(ratio))
        };
        let tokens =
            of(TURBO).map_or("–".to_owned(), |timed| digits(case.tokens_per_s(timed.median_us) / 1e6));
        let (eager, compiled) = (encoder::EAGER, encoder::COMPILED);
        _ = writeln!(
            text,
            "| {} | {} | {} | {tokens} | {} | {} | {} | {} |",
            case.workload,
            case.dtype.name(),
            ms(TURBO),
            ms(eager),
            ms(compiled),
            ratio(eager),
            ratio(compiled)
        );
    }
    if let Some(planned) = &encoders.planning {
        _ = writeln!(
            text,
            "\nPlanning memory anew for each request of 5 to 500 tokens takes {:.2} % of running it ({:.2} to {:.2} %).",
            planned.percent, planned.least_percent, planned.most_percent
        );
    }
    text += &encoders.overlap.as_ref().map(of_overlap).unwrap_or_default();
    text += "\nFirst and last vectors, beside those of turbo in f32 on the same GPU:\n\n\
             | type | who | least cosine | at least | largest difference |\n|---|---|---:|---:|---:|\n";
    for encoder::Agreed { dtype, agreement } in &encoders.agreement {
        let (library, bound) = (&agreement.library, dtype.least_cosine());
        let (cosine, difference) = (agreement.cosine, agreement.difference);
        _ = writeln!(text, "| {} | {library} | {cosine:.6} | {bound} | {difference:.1e} |", dtype.name());
    }
    text
}

fn of_overlap(overlap: &Overlap) -> String {
    let speed = |who| overlap.tokens_per_s(who).map_or("–".to_owned(), |speed| digits(speed / 1e6));
    let or_none = |kind: Kind, found: Option<f64>| found.map_or("–".to_owned(), |found| kind.show(found));
    format!(
        "\nThe batches of {}, in bf16, from ids to pooled rows on the host: {} M tokens/s {AFTER}, {} M {BEHIND}, which is {}. \
         {} of packing, planning and launching lay in the time in which another batch was seen to run; the first batch \
         does not count.\n",
        encoder::RAGGED,
        speed(AFTER),
        speed(BEHIND),
        or_none(Kind::Ratio, overlap.gain()),
        or_none(Kind::Share, overlap.timeline.hidden()),
    )
}

fn of_steps(findings: &Findings) -> String {
    let mut text = "\n## Steps\n\n| step | seconds | exit code |\n|---|---:|---:|\n".to_owned();
    for step in &findings.summary {
        _ = writeln!(text, "| {} | {} | {} |", step.step, step.seconds, step.rc);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::gpu::{Absent, sample};

    #[test]
    fn a_page_has_everything() {
        let findings = sample::findings();
        let page = super::page(&findings, "A note.");
        for line in [
            "a GPU (9.0, 132 multiprocessors, 150 GB), driver 580.0; host a processor with 16 cores. 2000-01-01, commit 0123456789ab.",
            "torch 2.0 (operations)",
            "eager PyTorch launches each kernel from Python",
            "## What stands between\n\nA note.\n",
            "| bf16 | 1 of 1 | 1 of 1 | 1.0e-5 |",
            "| turbo | 9.00 | 800 | 790 | 50.0 |",
            "| softmax | 196608 × 512 | bf16 | 402 | 100 | 120 | 110 | 44.7 % | 1.10 × |",
            "| 120000 × 500 | 100 | 120 | 110 | 120 | 140 | 150 | 160 | 1.20 × |",
            "| 32 × 512 | bf16 | 100 | 110 | 120 | 130 | 140 | 258 | 32.2 % | 1.10 × |",
            "| 1 × 128 | bf16 | 0.100 | 1.28 | 0.120 | 0.110 | 1.20 × | 1.10 × |",
            "takes 0.50 % of running it (0.10 to 2.00 %)",
            "1.60 M tokens/s one after the other, 2.00 M one behind the other, which is 1.25 ×. 90.0 % of packing",
            "| bf16 | turbo 0.1.0 | 0.999900 | 0.9995 | 1.0e-2 |",
            "- memcheck: nothing found",
            "| encoder | 30 | 0 |",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("Not everything went well"), "{page}");
        for (file, _) in super::super::picture::ALL {
            assert!(page.contains(&format!("]({file})")), "{file}");
        }
    }

    #[test]
    fn who_is_missing_is_told_why_once() {
        let mut findings = sample::findings();
        for section in &mut findings.rows {
            if let Found::Attention(all) = &mut section.found {
                for measured in all {
                    measured.times.retain(|timed| timed.who != "nested");
                    measured.launched.push("varlen".to_owned());
                    measured
                        .absent
                        .push(Absent { who: "nested".to_owned(), why: "no such thing".to_owned() });
                }
            }
        }
        findings.summary[2].rc = 124;
        let page = super::page(&findings, "");
        assert_eq!(page.matches("No nested: no such thing.").count(), 1);
        assert!(page.contains("| 32 × 512 | bf16 | 100 | 110 | 120 | – | 140 \\* |"), "{page}");
        assert!(page.contains("- rows: ended with 124: done\n"), "{page}");
    }

    /// The repository's page is that of its record; without a record there is no page.
    #[test]
    fn the_page_shows_the_record() {
        let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let (record, shown) =
            (results.join("gpu.json"), std::fs::read_to_string(results.join("gpu.md")).ok());
        let notes = std::fs::read_to_string(results.join(NOTES)).unwrap_or_default();
        let expected =
            record.exists().then(|| super::page(&crate::record::Record::read(&record).unwrap(), &notes));
        assert_eq!(shown, expected);
    }
}
