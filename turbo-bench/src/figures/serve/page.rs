//! What was found as Markdown.

use std::fmt::Write;

use super::{
    METHOD, Report, Rows, Section, TURBO,
    contest::{Contest, Standing},
    goals,
    host_path::HostPath,
};
use crate::{
    figures::{
        numbers::{digits, mean},
        verdict::{self, Kind},
    },
    fire::Latency,
    siege::Trial,
};

/// A file beside the record: what stands between a number and its goal, written by hand.
pub const NOTES: &str = "serve-notes.md";

/// How it was measured.
const HOW: &str = "\
Every server is a process that is asked over loopback HTTP with JSON in and JSON out; the generator is a process on the
same cores, so what it takes is missing to all alike. *Capacity* is what 64 clients get that ask again as soon as they
have their answer. Then requests come at their times, whatever has become of the earlier ones, and times of answers
count from when a request should have been sent. *Load* is what was offered as a share of the capacity of the first
server (others: of its own), *ρ* as a share of the server's own. *Goodput* is what was answered in the time that was
promised, per second. In a round all get the same requests, in turns; the next round has others. ± is Student's
interval of 95 % over the differences of the rounds. No answers are kept (`--cache-bytes 0`). Padded batches
have twenty texts at most, as in the paper.
";

/// What people write for the name of a server.
#[must_use]
pub fn title(name: &str) -> &str {
    match name {
        "ort" => "ONNX Runtime, uvicorn",
        "ov" => "OpenVINO, uvicorn",
        other => other,
    }
}

/// What a heading says of a regime.
fn heading(name: &str) -> &str {
    match name {
        "packed-short" => "Policies, packed, short texts",
        "packed-long" => "Policies, packed, texts of all lengths",
        "packed-bursts" => "Policies, packed, bursts",
        "padded-short" => "Policies, padded, short texts",
        "padded-long" => "Policies, padded, texts of all lengths",
        "others-short" => "Other servers, short texts",
        "others-long" => "Other servers, texts of all lengths",
        "host-path" => "The server beside its engine",
        "endurance" => "Clients to survive",
        other => other,
    }
}

/// The page of a record; `notes` stand where something was not reached.
#[must_use]
pub fn page(report: &Report, notes: &str) -> String {
    let notes = match notes.trim() {
        "" => String::new(),
        notes => format!("\n## What stands between\n\n{notes}\n"),
    };
    let verdicts = goals::verdicts(report);
    let (reached, looked) = verdict::score(&verdicts);
    let sections: String = report.rows.iter().map(of_section).collect();
    format!(
        "# turbo under fire\n\nWritten by `cargo xtask bench serve` from `serve.json`.\n\n{}\n{HOW}\n\
         ## What is wanted, and what was found\n\n{reached} of {looked} are reached.\n\n{}{notes}\n## Pictures\n\n{}{sections}",
        about(report),
        verdict::table(&verdicts, Kind::show),
        pictures(),
    )
}

fn about(report: &Report) -> String {
    let provenance = &report.provenance;
    let foreign: Vec<f64> = report.rows.iter().flat_map(foreign).collect();
    let foreign = mean(&foreign).map_or(String::new(), |share| {
        format!("; others used {:.0} % of the machine meanwhile", share * 100.0)
    });
    format!(
        "{} threads compute, on {} with {} cores ({}, commit {}{foreign}).\n",
        report.data.threads,
        provenance.processor,
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

fn pictures() -> String {
    super::picture::ALL.iter().map(|(file, about)| format!("![{about}]({file})\n\n")).collect()
}

fn of_section(section: &Section) -> String {
    let Section { name, model, commit, date, rounds, seconds, method, rows, .. } = section;
    let minute = date.get(..16).unwrap_or(date);
    let earlier = if *method == METHOD { "" } else { " It was measured in an earlier way." };
    let mut text = format!("## {}\n\n", heading(name));
    _ = write!(text, "`{model} {name}`: ");
    match rows {
        Rows::Contest(contest) => {
            _ = write!(text, "{}, {} ms promised; {rounds} rounds, ", contest.arrivals, contest.promised_ms);
        }
        Rows::HostPath(_) => _ = write!(text, "{rounds} rounds, "),
        Rows::Endurance(_) => {}
    }
    _ = writeln!(text, "{seconds:.0} s, {minute}, commit {commit}.{earlier}\n");
    match rows {
        Rows::Contest(contest) => text += &of_contest(contest),
        Rows::HostPath(found) => text += &of_host_path(found),
        Rows::Endurance(trials) => text += &of_trials(trials),
    }
    text + "\n"
}

fn of_contest(contest: &Contest) -> String {
    let Some(first) = contest.standings.first() else { return String::new() };
    let mut text = format!("| server | capacity, 1/s | × {} |\n|---|---:|---:|\n", title(&first.name));
    for Standing { name, capacity, .. } in &contest.standings {
        _ = writeln!(text, "| {} | {} | {:.2} |", title(name), digits(*capacity), capacity / first.capacity);
    }
    text += &format!(
        "\n| load | server | ρ | offered, 1/s | answered, 1/s | goodput, 1/s | {} is ahead by | p50 | p90 | p99 | p99.9 | \
         429 | p50, p99 of 429 | 504 | failed | dropped |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
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
            let Latency { p50_ms, p90_ms, p99_ms, p999_ms, .. } = &at.served;
            let rare = p999_ms.map_or("–".to_owned(), digits);
            let refusals = match at.refused.count {
                0 => String::new(),
                _ => format!("{}, {}", digits(at.refused.p50_ms), digits(at.refused.p99_ms)),
            };
            let failed: Vec<String> =
                at.failed.iter().map(|(status, count)| format!("{count} × {status}")).collect();
            _ = writeln!(
                text,
                "| {} | {} | {:.2} | {} | {} | {} | {ahead} | {} | {} | {} | {rare} | {} | {refusals} | {} | {} | {} |",
                point.load,
                title(&standing.name),
                at.rho,
                digits(at.offered_rate),
                digits(at.achieved_rate),
                digits(at.goodput),
                digits(*p50_ms),
                digits(*p90_ms),
                digits(*p99_ms),
                at.refused.count,
                at.expired,
                failed.join(", "),
                at.dropped,
            );
        }
    }
    text + "\nTimes are milliseconds.\n"
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
        "\nThat is {:.1} % of the engine at its best, while the clients took {:.0} % of the machine.",
        100.0 * rate.share(),
        100.0 * rate.client_cpu
    );
    text += "\nOne text, one client, milliseconds:\n\n| tokens | bare engine | server | added |\n|---:|---:|---:|---:|\n";
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
