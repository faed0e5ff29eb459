//! The comparison as Markdown: a page with everything, and a table for the README.

use std::fmt::Write;

use super::{
    Agreement, Case, Ceilings, Comparison, Precision, Product, Rows, Scale, Section, Stream, TURBO,
    goals::{self, section, shapes},
    place::Other,
    products,
    turn::DISTURBING,
};
use crate::figures::{
    numbers::{digits, geometric_mean, mean},
    verdict::{self, Kind, Verdict},
};

/// A file beside the record, written by hand: what stands between a number and its goal, as profiles show.
pub const NOTES: &str = "cpu-notes.md";

/// How the other engines are called, and which of them are missing where.
const HOW: &str = "\
The other engines are called through their Python bindings, with inputs that are prepared before the clock starts; what
such a call costs is in their times. There is no row in bf16 of CTranslate2, which refused it on the processor that it
was tried on (AMD EPYC with AVX-512), nor of ONNX Runtime, which was not tried; none in int8 of OpenVINO, whose models
NNCF would have to quantise, nor of PyTorch, which was not tried.
";

/// The present method of timing, and the earlier ones; see [`Section::is_current`].
const METHODS: [&str; 2] = [
    "A batch counts when its shape was run before, or when it takes a second; who comes after whom is drawn anew for every \
     turn. Among these is the peak, at each batch and product: chains of multiply-adds in registers, after the same pause, \
     and the median of a turn counts as it does for engines. What else the machine can do, and the peak for streams and \
     second threads, is measured once a round, and medians are set against medians. How a stream is best cut into batches \
     is told by a fifth of them, run at least twice.",
    "was timed in an earlier way: a stream was looked at once under each of fewer policies, or the peak was the best of \
     seven runs of a few milliseconds after a rest, once a round or once before everything else.",
];

/// Why one goal differs from the one that was wished for.
const STANDS_FOR: &str = "\
For products of 10 rows in f32 the wish is 55 % of the peak, oneDNN's best on a machine whose memory was twice as fast for
its arithmetic. There that was 81 % of the floor, which is asked here in its place: slower memory may allow less than 55 % of
the peak.
";

/// The name of a model or a rival as people write it.
#[must_use]
pub fn title(name: &str) -> &str {
    match name {
        "bert-base" => "BERT-base",
        "minilm" => "MiniLM",
        "torch" => "PyTorch",
        "ort" => "ONNX Runtime",
        "ov" => "OpenVINO",
        "ct2" => "CTranslate2",
        "onednn" => "oneDNN",
        other => other,
    }
}

/// The page of a record. `notes` say what stands between numbers and their goals; there are links to the pages of
/// `others`.
#[must_use]
pub fn page(comparison: &Comparison, notes: &str, others: &[Other]) -> String {
    let notes = match notes.trim() {
        "" => String::new(),
        notes => format!("\n## What stands between\n\n{notes}\n"),
    };
    let tables: String = models(comparison).into_iter().map(|model| of_model(comparison, model)).collect();
    let verdicts = goals::verdicts(comparison);
    let (reached, looked) = verdict::score(&verdicts);
    format!(
        "# turbo on a CPU, beside other engines\n\nWritten by `cargo xtask bench cpu` from `cpu.json`.\n\n{}{}\n{HOW}{}{}\n\
         ## What is wanted, and what was found\n\n{reached} of {looked} are reached. *Floor*: all operations at the \
         peak, or all weights once from memory, whichever takes longer.\n{STANDS_FOR}\n{}{notes}\n## Pictures\n\n{}\n{tables}{}{}",
        about(comparison),
        links(others),
        method(comparison),
        measured(comparison),
        of_verdicts(&verdicts),
        pictures(),
        of_products(comparison),
        of_agreement(comparison),
    )
}

/// A line with the pages of other processors, if there are any.
fn links(others: &[Other]) -> String {
    let link = |other: &Other| format!("[{}]({}/cpu.md)", other.processor, other.folder);
    match others {
        [] => String::new(),
        others => {
            format!("\nOther processors: {}.\n", others.iter().map(link).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The batches that a README shows, one column each: `batch_size`, `seq_len`.
const OVERVIEW: [(usize, u32); 5] = [(1, 10), (1, 40), (1, 128), (1, 500), (20, 40)];

/// A few lines and a table for a README: turbo's times, and how they compare with the best other engine's.
#[must_use]
pub fn short(comparison: &Comparison) -> String {
    let shapes = OVERVIEW.map(|(batch_size, seq_len)| format!(" {batch_size} × {seq_len} |")).concat();
    let lines: String = models(comparison).into_iter().map(|model| overview(comparison, model)).collect();
    format!(
        "{}.\nIn brackets: how many times as fast as the best other engine, which is named. All compute the same, beside turbo \
         in f32, within a cosine of {}. A stream is 200 requests of mixed lengths, each engine with its best batches.\n\n\
         | batch × tokens |{shapes} stream of 2 to 100 | stream of 5 to 500 |\n|---|{}\n{lines}",
        origin(comparison, "Milliseconds from ids to the last hidden state"),
        bounds(comparison),
        "---:|".repeat(OVERVIEW.len() + 2),
    )
}

/// The lines of one model, one for each precision.
fn overview(comparison: &Comparison, model: &str) -> String {
    let line = |precision: Precision| {
        let find = |name: &'static str| section(comparison, name, model, precision);
        let batches: Vec<&Section> = ["batch1", "batches", "points"].into_iter().filter_map(find).collect();
        let streams = ["stream-short", "stream-long"].map(find);
        let measured = || batches.iter().copied().chain(streams.into_iter().flatten());
        if measured().next().is_none() {
            return String::new();
        }
        let of_batches = OVERVIEW.map(|shape| cell(&times_of_batch(&batches, shape)));
        let of_streams = streams.map(|stream| cell(&times_of_stream(stream)));
        let cells = [&of_batches[..], &of_streams].concat().join(" | ");
        format!("| {}, {}{} | {cells} |\n", title(model), precision.name(), disturbed(measured()))
    };
    Precision::ALL.into_iter().map(line).collect()
}

/// Milliseconds of each rival for a batch of equal lengths, if it was measured.
fn times_of_batch<'a>(sections: &[&'a Section], shape: (usize, u32)) -> Vec<(&'a str, f64)> {
    let is_meant = |cases: &Vec<&Case>| {
        let case = cases[0];
        (case.batch_size, case.max_seq_len) == shape && !case.is_ragged()
    };
    let cases = sections.iter().flat_map(|section| shapes(section)).find(is_meant).unwrap_or_default();
    cases.into_iter().map(|case| (case.rival.as_str(), case.median_ms)).collect()
}

/// Milliseconds of each rival for a stream, if it was measured.
fn times_of_stream(section: Option<&Section>) -> Vec<(&str, f64)> {
    match section.map(|section| &section.rows) {
        Some(Rows::Stream(streams)) => {
            streams.iter().map(|it| (it.rival.as_str(), 1e3 * it.median_s)).collect()
        }
        _ => Vec::new(),
    }
}

/// `15.4 (1.39 × OpenVINO)`: turbo's time, and that of the best other as a multiple of it.
fn cell(times: &[(&str, f64)]) -> String {
    let turbo = times.iter().find(|(rival, _)| *rival == TURBO).map(|(_, time)| digits(*time));
    let others = times.iter().filter(|(rival, _)| *rival != TURBO);
    let best = others.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(rival, _)| title(rival));
    match (turbo, goals::ratio(times.iter().copied()), best) {
        (Some(turbo), Some(ratio), Some(best)) => format!("{turbo} ({ratio:.2} × {best})"),
        (turbo, ..) => turbo.unwrap_or_default(),
    }
}

/// The models that were measured, each once.
fn models(comparison: &Comparison) -> Vec<&str> {
    let mut models: Vec<&str> = Vec::new();
    let sections = comparison.rows.iter().filter(|it| !matches!(it.rows, Rows::Products(_)));
    sections.for_each(|section| {
        if !models.contains(&section.model.as_str()) {
            models.push(&section.model);
        }
    });
    models.sort_unstable();
    models
}

fn about(comparison: &Comparison) -> String {
    let ceiling =
        |of: fn(&Ceilings) -> f64| span(comparison.rows.iter().map(|section| of(&section.ceilings)));
    let trips = comparison.rows.iter().filter_map(|section| section.ceilings.round_trip_ns);
    let round_trip = match trips.clone().next() {
        Some(_) => format!(" A cache line goes to the other core and back in {} ns.", span(trips)),
        None => String::new(),
    };
    format!(
        "{}.\nAll compute the same, beside turbo in f32, within a cosine of {}. *Limit* is turbo's share of the machine's: \
         {} GFLOP/s in f32, {} in bf16, {} GOP/s in int8, {} GB/s, measured in the same run.{round_trip}{}\n",
        origin(comparison, "From ids to the last hidden state"),
        bounds(comparison),
        ceiling(|it| it.f32),
        ceiling(|it| it.bf16),
        ceiling(|it| it.int8),
        ceiling(|it| it.memory),
        doubt(comparison),
    )
}

/// What was measured, on which machine, when, and with which libraries.
fn origin(comparison: &Comparison, what: &str) -> String {
    let (data, provenance) = (&comparison.data, &comparison.provenance);
    let foreign: Vec<f64> = comparison.rows.iter().flat_map(foreign).collect();
    let foreign = mean(&foreign).map_or(String::new(), |share| {
        format!("; others used {:.0} % of the machine meanwhile", share * 100.0)
    });
    format!(
        "{what}, {} threads, medians of turns, on {} with {} cores ({}, commit {}{foreign}).\n{}",
        data.threads,
        provenance.processor,
        provenance.cores,
        each(comparison.rows.iter().map(day)).join(", "),
        each(comparison.rows.iter().map(|section| section.commit.as_str())).join(", "),
        libraries(comparison).join(" · "),
    )
}

/// Each word once, in order of appearance.
fn each<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    words.for_each(|word| {
        if !all.contains(&word) {
            all.push(word);
        }
    });
    all
}

fn day(section: &Section) -> &str {
    section.date.split('T').next().unwrap_or_default()
}

/// `465`, or `463 to 470` where numbers differ.
fn span(values: impl Iterator<Item = f64> + Clone) -> String {
    let [low, high] = [values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max)];
    let [low, high] = [low, high].map(|it| format!("{it:.0}"));
    if low == high { low } else { format!("{low} to {high}") }
}

/// The smallest cosine that counts as the same, at each precision that was compared.
fn bounds(comparison: &Comparison) -> String {
    let compared = |precision: &Precision| {
        comparison.rows.iter().any(|it| it.precision == *precision && !it.agreement.is_empty())
    };
    let of = |it: Precision| format!("{} in {}", it.least_cosine(), it.name());
    Precision::ALL.into_iter().filter(compared).map(of).collect::<Vec<_>>().join(", ")
}

/// Name, version and device of all engines, each once, without its variant.
fn libraries(comparison: &Comparison) -> Vec<&str> {
    let all = comparison.rows.iter().flat_map(|section| &section.agreement);
    each(all.map(|it| it.library.split(" (").next().unwrap_or_default()))
}

/// Shares of the machine that other processes used meanwhile.
fn foreign(section: &Section) -> Vec<f64> {
    match &section.rows {
        Rows::Batches(cases) => cases.iter().filter_map(|it| it.foreign_cpu).collect(),
        Rows::Stream(streams) => streams.iter().filter_map(|it| it.foreign_cpu).collect(),
        Rows::Scaling(scales) => scales.iter().filter_map(|it| it.foreign_cpu).collect(),
        Rows::Products(_) => Vec::new(),
    }
}

/// The largest share that other processes used, if that disturbs.
fn disturbed<'a>(sections: impl IntoIterator<Item = &'a Section>) -> String {
    let most = sections.into_iter().flat_map(foreign).fold(0.0, f64::max);
    if most > DISTURBING {
        format!(", others used up to {:.0} % of the machine", 100.0 * most)
    } else {
        String::new()
    }
}

/// A remark on a limit that was beaten.
fn doubt(comparison: &Comparison) -> &'static str {
    let beaten = comparison
        .rows
        .iter()
        .flat_map(shapes)
        .flatten()
        .any(|case| case.rival == TURBO && case.max_seq_len >= 128 && case.median_ms < case.floor_ms);
    if beaten {
        "\nShares above 100 % from 128 tokens on show that this limit was measured too low: read them against each other only."
    } else {
        ""
    }
}

/// How the record was timed, and which sections were timed in another way.
fn method(comparison: &Comparison) -> String {
    let other: Vec<String> = comparison.rows.iter().filter(|it| !it.is_current()).map(name).collect();
    let [now, before] = METHODS;
    match other.len() {
        0 => format!("{now}\n"),
        all if all == comparison.rows.len() => format!("All of it {before}\n"),
        _ => format!("{now} Some of it {before} That is {}.\n", other.join(", ")),
    }
}

/// Model, precision and regime.
fn name(Section { model, precision, name, .. }: &Section) -> String {
    format!("{model} {} {name}", precision.name())
}

/// Commit, date, processor and rounds of each section, if the sections differ in origin.
fn measured(comparison: &Comparison) -> String {
    let origin =
        |section: &Section| (section.commit.clone(), day(section).to_owned(), section.processor.clone());
    let mut origins: Vec<_> = comparison.rows.iter().map(origin).collect();
    origins.dedup();
    if origins.len() < 2 {
        return String::new();
    }
    let mut text = "\nNot everything was measured at once:\n\n\
                    | regime | commit | date | processor | rounds |\n|---|---|---|---|---:|\n"
        .to_owned();
    for section in &comparison.rows {
        let Section { commit, date, processor, rounds, .. } = section;
        let minute = date.get(..16).unwrap_or(date);
        _ = writeln!(text, "| {} | {commit} | {minute} | {processor} | {rounds} |", name(section));
    }
    text
}

fn of_verdicts(verdicts: &[Verdict]) -> String {
    noted(verdict::table(verdicts, |kind, found| match kind {
        Kind::Limit => of_limit(found),
        _ => kind.show(found),
    }))
}

/// Marks a share above 100 %.
const MARK: &str = " \\*";

/// A share of what the machine can do.
fn of_limit(share: f64) -> String {
    let mark = if (share * 1e3).round() > 1e3 { MARK } else { "" };
    format!("{}{mark}", Kind::Limit.show(share))
}

/// A table, with a note on marked shares below it.
fn noted(table: String) -> String {
    const NOTE: &str = "\n\\* More than the limit, which has all weights come from memory: some stayed in a cache, or \
                        memory was faster than when it was measured.\n";
    if table.contains(MARK) { table + NOTE } else { table }
}

fn pictures() -> String {
    super::picture::ALL.iter().map(|(file, about)| format!("![{about}]({file})\n\n")).collect()
}

fn of_model(comparison: &Comparison, model: &str) -> String {
    let mut text = format!("\n## {}\n", title(model));
    for (name, heading) in [
        ("batch1", "One request, milliseconds"),
        ("batches", "Twenty of one length, milliseconds"),
        ("batches-long", "Twenty long ones of one length, milliseconds"),
        ("ragged", "Twenty of different lengths, up to so many tokens, milliseconds"),
        ("ragged-long", "Twenty long ones of different lengths, milliseconds"),
    ] {
        let Some(section) = section(comparison, name, model, Precision::F32) else { continue };
        let mut grid = Grid::default();
        shapes(section).iter().for_each(|cases| grid.cases(cases));
        let (rounds, disturbed) = (section.rounds, disturbed([section]));
        _ = write!(text, "\n{heading} ({rounds} rounds{disturbed}):\n\n{}", grid.markdown("batch × tokens"));
    }
    text += &of_streams(
        comparison,
        model,
        "\nA stream of 200 requests that all wait, seconds, each engine under its best policy:\n\n",
    );
    text += &of_lower(comparison, model, Precision::Bf16);
    text += &of_lower(comparison, model, Precision::Int8);
    text + &of_scaling(comparison, model)
}

/// Times of all engines, one row for each case.
#[derive(Default)]
struct Grid {
    rivals: Vec<String>,
    /// Label, times, floor.
    rows: Vec<(String, Vec<Time>, f64)>,
}

/// An engine, its time, and a remark on it.
type Time = (String, f64, String);

impl Grid {
    fn cases(&mut self, cases: &[&Case]) {
        let first = cases[0];
        let up_to = if first.is_ragged() { "≤ " } else { "" };
        let label = format!("{} × {up_to}{}", first.batch_size, first.max_seq_len);
        let times = cases.iter().map(|case| (case.rival.clone(), case.median_ms, String::new()));
        self.row(label, times.collect(), first.floor_ms);
    }

    fn row(&mut self, label: String, times: Vec<Time>, floor: f64) {
        for (rival, ..) in &times {
            if !self.rivals.contains(rival) {
                self.rivals.push(rival.clone());
            }
        }
        self.rows.push((label, times, floor));
    }

    fn markdown(&self, first: &str) -> String {
        let columns: String = self.rivals.iter().map(|rival| format!(" {} |", title(rival))).collect();
        let lines = "---:|".repeat(self.rivals.len());
        let mut text = format!("| {first} |{columns} best other / turbo | limit |\n|---|{lines}---:|---:|\n");
        for (label, times, floor) in &self.rows {
            let of = |rival: &String| times.iter().find(|(name, ..)| name == rival);
            let cells: String = self
                .rivals
                .iter()
                .map(|rival| match of(rival) {
                    Some((_, time, said)) => format!(" {}{said} |", digits(*time)),
                    None => " |".to_owned(),
                })
                .collect();
            let ratio = goals::ratio(times.iter().map(|(rival, time, _)| (rival.as_str(), *time)));
            let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let limit = times.iter().find(|(rival, ..)| rival == TURBO);
            let limit = limit.map_or(String::new(), |(_, time, _)| of_limit(floor / time));
            _ = writeln!(text, "| {label} |{cells} {ratio} | {limit} |");
        }
        noted(text)
    }
}

fn of_streams(comparison: &Comparison, model: &str, heading: &str) -> String {
    let mut grid = Grid::default();
    for name in ["stream-short", "stream-long"] {
        let Some(section) = section(comparison, name, model, Precision::F32) else { continue };
        let Rows::Stream(streams) = &section.rows else { continue };
        let Some(Stream { lens, floor_s, .. }) = streams.first() else { continue };
        let time = |it: &Stream| {
            let about = if it.rounds == 0 { "estimate, " } else { "" };
            (it.rival.clone(), it.median_s, format!(" ({about}{})", it.policy))
        };
        let label = format!("{} to {} tokens{}", lens.start(), lens.end(), disturbed([section]));
        grid.row(label, streams.iter().map(time).collect(), *floor_s);
    }
    if grid.rows.is_empty() { String::new() } else { format!("{heading}{}", grid.markdown("requests")) }
}

fn of_lower(comparison: &Comparison, model: &str, precision: Precision) -> String {
    let Some(section) = section(comparison, "points", model, precision) else { return String::new() };
    let mut grid = Grid::default();
    shapes(section).iter().for_each(|cases| grid.cases(cases));
    format!(
        "\n{} in {}, milliseconds{}:\n\n{}",
        title(model),
        precision.name(),
        disturbed([section]),
        grid.markdown("batch × tokens")
    )
}

fn of_scaling(comparison: &Comparison, model: &str) -> String {
    let Some(section) = section(comparison, "scaling", model, Precision::F32) else { return String::new() };
    let Rows::Scaling(scales) = &section.rows else { return String::new() };
    let (threads, disturbed) = (comparison.data.threads, disturbed([section]));
    let mut text = format!(
        "\nOne thread and {threads}, and {threads} while something else takes 5 % of one core, milliseconds{disturbed}:\n\n\
         | batch × tokens | engine | 1 thread | {threads} threads | times as fast | disturbed | loss |\n|---|---|---:|---:|---:|---:|---:|\n"
    );
    for it in scales {
        let Scale { rival, batch_size, seq_len, one_ms, all_ms, disturbed_ms, .. } = it;
        let (speedup, loss) = (it.speedup(), 100.0 * it.loss());
        let [one, all, disturbed] = [*one_ms, *all_ms, *disturbed_ms].map(digits);
        let rival = title(rival);
        _ = writeln!(
            text,
            "| {batch_size} × {seq_len} | {rival} | {one} | {all} | {speedup:.2} | {disturbed} | {loss:.1} % |"
        );
    }
    text
}

/// How products are measured, and how oneDNN multiplies.
const PRODUCTS: &str = "\
Weights rotate over 128 MiB of copies. The first run of a turn does not count, and what is printed are medians of the
rounds' medians. *Times as fast* is the median of each round's ratio. What others use of the machine meanwhile is not kept
here.

oneDNN packs the weights in a layout of its own choice and is called through its C interface, from Python, which is in its
times (about a microsecond). Its rows are bf16 or bytes before the clock starts, and with bf16 its results are too; turbo's
rows and results are f32 at every precision. It is the last release that PyPI has built for GNU's OpenMP, of 2023.
";

fn of_products(comparison: &Comparison) -> String {
    let mut text = String::new();
    for precision in Precision::ALL {
        let Some(section) = section(comparison, "products", "bert-base", precision) else { continue };
        let Rows::Products(products) = &section.rows else { continue };
        text += &format!(
            "\n{}, geometric means over the four shapes of a BERT-base layer:\n\n{}",
            precision.name(),
            table_of_products(products)
        );
    }
    let is_compared = |section: &Section| match &section.rows {
        Rows::Products(products) => products.iter().any(|it| it.rival != TURBO),
        _ => false,
    };
    let how = if comparison.rows.iter().any(is_compared) { format!("\n{PRODUCTS}") } else { String::new() };
    if text.is_empty() { text } else { format!("\n## Products with packed weights\n{how}{text}") }
}

fn table_of_products(products: &[Product]) -> String {
    let mut others: Vec<&str> = products.iter().map(|it| it.rival.as_str()).collect();
    others.retain(|rival| *rival != TURBO);
    others.sort_unstable();
    others.dedup();
    let columns: String =
        others.iter().map(|rival| format!(" {} | GELU costs | times as fast |", title(rival))).collect();
    let lines = "---:|".repeat(3 * others.len());
    let mut table = format!(
        "| threads | rows | 10⁹ operations a second | of the peak | of memory | of the floor | GELU costs |{columns}\n\
         |---:|---:|---:|---:|---:|---:|---:|{lines}\n"
    );
    let mut keys: Vec<(usize, usize)> = products.iter().map(|it| (it.threads, it.rows)).collect();
    keys.sort_unstable();
    keys.dedup();
    for (threads, rows) in keys {
        let mean = |rival: &str, value: fn(&Product) -> f64| {
            let is_asked = |it: &&Product| (it.rival.as_str(), it.threads, it.rows) == (rival, threads, rows);
            geometric_mean(products.iter().filter(is_asked).map(value)).unwrap_or(f64::NAN)
        };
        let rate = |rival: &str| digits(mean(rival, |it| it.giga_ops));
        let gelu =
            |rival: &str| format!("{:.1} %", 100.0 * (mean(rival, |it| it.gelu_us / it.bias_us) - 1.0));
        let [peak, memory, floor] =
            [mean(TURBO, |it| it.of_peak), mean(TURBO, |it| it.of_memory), mean(TURBO, |it| it.of_floor)]
                .map(of_limit);
        let (turbo, its_gelu) = (rate(TURBO), gelu(TURBO));
        let beside = |rival: &&str| {
            let ratio = goals::product_ratio(products, rival, threads, rows);
            let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            format!(" {} | {} | {ratio} |", rate(rival), gelu(rival))
        };
        let cells: String = others.iter().map(beside).collect();
        _ = writeln!(
            table,
            "| {threads} | {rows} | {turbo} | {peak} | {memory} | {floor} | {its_gelu} |{cells}"
        );
    }
    noted(table)
}

/// How close all engines are to turbo in f32, each once.
fn of_agreement(comparison: &Comparison) -> String {
    let mut text = format!(
        "\n## Outputs\n\nFirst and last vectors of three sequences of different lengths, and first and last rows of products, beside \
         those of turbo in f32. A cosine below {} would have ended the run, and one of a product below {} in f32 and {} in the \
         others:\n\n| of | engine | least cosine | largest difference |\n|---|---|---:|---:|\n",
        bounds(comparison),
        products::least_cosine(Precision::F32),
        products::least_cosine(Precision::Int8),
    );
    let mut seen = Vec::new();
    for section in &comparison.rows {
        for Agreement { library, cosine, difference, .. } in &section.agreement {
            let of = match section.rows {
                Rows::Products(_) => "products",
                _ => title(&section.model),
            };
            let line = format!("| {of} | {library} | {cosine:.6} | {difference:.1e} |");
            if !seen.contains(&line) {
                _ = writeln!(text, "{line}");
                seen.push(line);
            }
        }
    }
    text
}
