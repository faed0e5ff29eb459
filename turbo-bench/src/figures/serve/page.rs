//! The record as a Markdown page.

use std::fmt::Write;

use super::{
    Report, Rows, Section, TURBO,
    contest::{Contest, Point, Standing},
    goals::{self, NOT_SURE},
    host_path::HostPath,
    paired::Paired,
    picture,
};
use crate::{
    figures::{
        numbers::{digits, mean},
        verdict::{self, Kind, Verdict},
    },
    fire::Latency,
    siege::Trial,
};

/// A file beside the record, written by hand: what stands between a number and its goal.
pub const NOTES: &str = "serve-notes.md";

/// How it was measured.
const HOW: &str = "\
Every server is a process that is asked over loopback HTTP with JSON in and JSON out; the generator is a process on
the same cores, so what it takes is missing to all alike. *Capacity* is what clients get that ask again as soon as
they have their answer: their number over the time of an answer. Then requests come at their times, whatever has
become of the earlier ones, and times of answers count from when a request should have been sent. *Load* is what was
offered as a share of the capacity of the first server (beside the paper's and others: of its own), *ρ* as a share of
the server's own. *Goodput* is what was answered in the time that was promised, per second: a few times what a batch
may take, which is 100 ms, and twice that where a single text may be a large part of a batch. *Tokens* are those of
the goodput: who refuses long texts rather than short ones answers more requests than it could of all lengths, so
goals that set a goodput beside a capacity, or the best load of one server beside that of another, compare tokens, and
the best load is the one with most. In a round all get the same requests, in turns, and loads are shares of what was
measured in that round; the next round has other requests, or begins elsewhere in those that were recorded. ± is half
of Student's interval of 95 % over differences or ratios of the rounds. Which policy is the best is said where every
pair is told apart or known to within 5 %; *not sure* is said elsewhere, and more rounds tell. So it is with a ratio
where what is wanted lies within its ±, or that one round has found: it counts as not reached. *s* is for how long
requests were sent that count, in all rounds, and *sent late* how late the generator itself was, in the median and at
worst. No answers are kept (`--cache-bytes 0`). Padded batches have twenty texts at most, as in the paper; *the
paper's naive* takes all that waits, pads it, has no other limit than those twenty, and refuses nothing. *Off* is how
far a server's prediction of a batch was off, in the median of the last hundred. Words of the texts are as frequent as
in natural ones (Zipf's law over the vocabulary).
";

/// The name of a server as people write it.
#[must_use]
pub fn title(name: &str) -> &str {
    match name {
        "ort" => "ONNX Runtime, uvicorn",
        "ov" => "OpenVINO, uvicorn",
        "paper" => "the paper's naive",
        other => other,
    }
}

/// The heading of a regime.
fn heading(name: &str) -> &str {
    match name {
        "packed-short" => "Policies, packed, short texts",
        "packed-long" => "Policies, packed, texts of all lengths",
        "packed-bursts" => "Policies, packed, bursts",
        "padded-short" => "Policies, padded, short texts",
        "padded-long" => "Policies, padded, texts of all lengths",
        "paper-long" => "What the paper starts from, texts of all lengths",
        "others-short" => "Other servers, short texts",
        "others-long" => "Other servers, texts of all lengths",
        "host-path" => "The server beside its engine",
        "endurance" => "Clients to survive",
        other => other,
    }
}

/// The page of a record; `notes` say what stands between numbers and their goals.
#[must_use]
pub fn page(report: &Report, notes: &str) -> String {
    let notes = match notes.trim() {
        "" => String::new(),
        notes => format!("\n## What stands between\n\n{notes}\n"),
    };
    let one = one_processor(report);
    let sections: String = report.rows.iter().map(|section| of_section(section, one)).collect();
    format!(
        "# turbo under fire\n\nWritten by `cargo xtask bench serve` from `serve.json`.\n\n{}\n{HOW}\n\
         ## What is wanted, and what was found\n\n{}{notes}\n{}{sections}",
        about(report),
        of_goals(&goals::verdicts(report)),
        pictures(report),
    )
}

/// The number of goals reached, and the table of all. A goal that the rounds do not decide counts as measured, and as
/// not reached.
fn of_goals(verdicts: &[Verdict]) -> String {
    let (reached, looked) = verdict::score(verdicts);
    let unsure = verdicts.iter().filter(|it| it.regime.ends_with(NOT_SURE)).count();
    let row = |row: &str| match row.contains(NOT_SURE) {
        true => row.replace("not measured", NOT_SURE) + "\n",
        false => format!("{row}\n"),
    };
    let table: String = verdict::table(verdicts, Kind::show).lines().map(row).collect();
    format!("{reached} of {} are reached.\n\n{table}", looked + unsure)
}

/// Whether all sections were measured on the same processor.
fn one_processor(report: &Report) -> bool {
    report.rows.windows(2).all(|pair| pair[0].processor == pair[1].processor)
}

fn about(report: &Report) -> String {
    let provenance = &report.provenance;
    let processor = match one_processor(report) {
        true => provenance.processor.as_str(),
        false => "the processor that each section names,",
    };
    let foreign: Vec<f64> = report.rows.iter().flat_map(foreign).collect();
    let foreign = mean(&foreign).map_or(String::new(), |share| {
        format!("; others used {:.0} % of the machine meanwhile", share * 100.0)
    });
    format!(
        "{} threads compute, on {} with {} cores ({}, commit {}{foreign}).\n",
        report.data.threads,
        processor,
        provenance.cores,
        provenance.date.split('T').next().unwrap_or_default(),
        provenance.commit,
    )
}

fn foreign(section: &Section) -> Vec<f64> {
    match &section.rows {
        Rows::Contest(contest) => {
            contest.standings.iter().flat_map(|it| &it.points).filter_map(|it| it.foreign_cpu).collect()
        }
        Rows::HostPath(_) | Rows::Endurance(_) => Vec::new(),
    }
}

/// Links to the pictures that were drawn.
fn pictures(report: &Report) -> String {
    let drawn = picture::all(report).into_iter().filter(|picture| picture.svg.is_some());
    let links: String = drawn.map(|it| format!("![{}]({})\n\n", it.about, it.name)).collect();
    if links.is_empty() { links } else { format!("## Pictures\n\n{links}") }
}

/// A section. It names its processor if not all sections have the same.
fn of_section(section: &Section, one_processor: bool) -> String {
    let Section { name, model, commit, date, processor, rounds, seconds, method, rows, .. } = section;
    let minute = date.get(..16).unwrap_or(date);
    let processor = if one_processor { String::new() } else { format!("{processor}, ") };
    let earlier = match rows {
        _ if *method == rows.method() => "",
        Rows::Contest(_) => {
            " It was measured in an earlier way: capacities are counts of the answers that came in a span, and a round's \
             tokens are worked out from its requests and what these have in the mean of all rounds."
        }
        Rows::HostPath(_) | Rows::Endurance(_) => " It was measured in an earlier way.",
    };
    let mut text = format!("## {}\n\n", heading(name));
    _ = write!(text, "`{model} {name}`: ");
    match rows {
        Rows::Contest(contest) => {
            _ = write!(
                text,
                "{}, {} ms promised; {}, ",
                contest.arrivals,
                contest.promised_ms,
                times(*rounds)
            );
        }
        Rows::HostPath(_) => _ = write!(text, "{}, ", times(*rounds)),
        Rows::Endurance(_) => {}
    }
    _ = writeln!(text, "{seconds:.0} s, {processor}{minute}, commit {commit}.{earlier}\n");
    match rows {
        Rows::Contest(contest) => text += &of_contest(contest),
        Rows::HostPath(found) => text += &of_host_path(found),
        Rows::Endurance(trials) => text += &of_trials(trials),
    }
    text + "\n"
}

fn times(rounds: usize) -> String {
    if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") }
}

fn of_contest(contest: &Contest) -> String {
    let Some(first) = contest.standings.first() else { return String::new() };
    let mut text = format!(
        "| server | capacity, {} clients, 1/s | × {} | best goodput, of its capacity in tokens |\n|---|---:|---:|---:|\n",
        contest.clients,
        title(&first.name)
    );
    for standing in &contest.standings {
        let Standing { name, capacity, capacities, .. } = standing;
        let share = Paired::of(capacities, &first.capacities);
        let share = share.map_or(String::new(), |it| within(it.mean, it.half, ""));
        let best = standing.best().and_then(|best| standing.of_capacity(best.load));
        let best =
            best.map_or(String::new(), |it| within(100.0 * it.mean, it.half.map(|half| 100.0 * half), " %"));
        _ = writeln!(text, "| {} | {} | {share} | {best} |", title(name), digits(*capacity));
    }
    text += &format!(
        "\n| load | server | ρ | offered, 1/s | answered, 1/s | goodput, 1/s | tokens, 1/s | {} is ahead by | p50 | p90 | p99 | p99.9 | \
         429 | p50, p99 of 429 | 504 | failed | dropped | off | s | sent late |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        title(&first.name)
    );
    for (index, point) in first.points.iter().enumerate() {
        for standing in &contest.standings {
            let Some(at) = standing.points.get(index) else { continue };
            let ahead = (standing.name != first.name && first.name != TURBO)
                .then(|| first.ahead_of(standing, point.load))
                .flatten();
            let ahead = ahead
                .map_or(String::new(), |it| format!("{:+.1} ± {:.1} %", 100.0 * it.mean, 100.0 * it.half));
            text += &of_point(standing, at, &ahead);
        }
    }
    text + "\nTimes are milliseconds, but for *s*.\n"
}

/// The row of a server at a load.
fn of_point(standing: &Standing, at: &Point, ahead: &str) -> String {
    let off = at.cost_error.map_or(String::new(), |it| format!("{:.1} %", 100.0 * it));
    let Latency { p50_ms, p90_ms, p99_ms, p999_ms, .. } = at.served;
    let rare = p999_ms.map_or("–".to_owned(), digits);
    let refusals = match at.refused.count {
        0 => String::new(),
        _ => format!("{}, {}", digits(at.refused.p50_ms), digits(at.refused.p99_ms)),
    };
    let failed: Vec<String> = at.failed.iter().map(|(status, count)| format!("{count} × {status}")).collect();
    format!(
        "| {} | {} | {:.2} | {} | {} | {} | {} | {ahead} | {} | {} | {} | {rare} | {} | {refusals} | {} | {} | {} | {off} | {} | {}, {} |\n",
        at.load,
        title(&standing.name),
        at.rho,
        digits(at.offered_rate),
        digits(at.achieved_rate),
        digits(at.goodput),
        digits(at.good_tokens),
        digits(p50_ms),
        digits(p90_ms),
        digits(p99_ms),
        at.refused.count,
        at.expired,
        failed.join(", "),
        at.dropped,
        digits(at.seconds),
        digits(at.late.p50_ms),
        digits(at.late.max_ms),
    )
}

/// A number with its ±, where there is one.
fn within(value: f64, half: Option<f64>, unit: &str) -> String {
    match half {
        Some(half) => format!("{value:.2} ± {half:.2}{unit}"),
        None => format!("{value:.2}{unit}"),
    }
}

fn of_host_path(HostPath { rate, idle }: &HostPath) -> String {
    let mut text = format!(
        "Requests of {} texts of {} tokens from {} clients, texts a second:\n\n| who | texts a second |\n|---|---:|\n",
        rate.texts, rate.tokens, rate.clients
    );
    for (batch, texts) in &rate.engine {
        _ = writeln!(text, "| bare engine, batches of {batch} | {} |", digits(*texts));
    }
    _ = writeln!(text, "| server | {} |", digits(rate.server));
    _ = writeln!(
        text,
        "\nThat is {:.1} % of the engine at its best, while the clients took {:.1} % of the machine.",
        100.0 * rate.share(),
        100.0 * rate.client_cpu
    );
    text += "\nOne text, nobody else asks, engine and server in turns, milliseconds:\n\n| tokens | bare engine | server | added |\n|---:|---:|---:|---:|\n";
    for it in idle {
        _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            it.tokens,
            digits(it.engine_ms),
            digits(it.server_ms),
            digits(it.added())
        );
    }
    text
}

fn of_trials(trials: &[Trial]) -> String {
    let mut text =
        "| clients | what came back | growth, MB | s | broken promises |\n|---|---|---:|---:|---|\n"
            .to_owned();
    for Trial { name, answers, grown_mb, seconds, broken } in trials {
        let answers: Vec<String> = answers.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        let grown = grown_mb.map_or(String::new(), |it| format!("{it:.1}"));
        let broken =
            if broken.is_empty() { "none".to_owned() } else { broken.join("; ").replace('|', "\\|") };
        _ = writeln!(text, "| {name} | {} | {grown} | {seconds} | {broken} |", answers.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{
        figures::serve::{Rows, report},
        record::Record,
    };

    #[test]
    fn sections_name_their_processors_where_these_differ() {
        let shown = |[first, second]: [&str; 2]| {
            let nobody = || Rows::Endurance(Vec::new());
            let mut report = report(vec![("host-path", nobody()), ("endurance", nobody())]);
            report.provenance.processor = second.to_owned();
            for (section, processor) in report.rows.iter_mut().zip([first, second]) {
                section.processor = processor.to_owned();
            }
            let page = super::page(&report, "");
            [first, second].map(|processor| page.matches(processor).count())
        };
        assert_eq!(shown(["EPYC", "EPYC"]), [1, 1]);
        assert_eq!(shown(["Xeon", "EPYC"]), [1, 1]);
    }

    /// The repository's page is that of its record; without a record there is no page.
    #[test]
    fn the_page_shows_the_record() {
        let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let (record, shown) =
            (results.join("serve.json"), std::fs::read_to_string(results.join("serve.md")).ok());
        let notes = std::fs::read_to_string(results.join(super::NOTES)).unwrap_or_default();
        let expected = record.exists().then(|| super::page(&Record::read(&record).unwrap(), &notes));
        assert_eq!(shown, expected);
    }
}
