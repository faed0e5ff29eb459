//! The comparison as tables in Markdown.

use std::fmt::Write;

use super::{Case, Comparison, Policy, Row, Stream, TURBO};

/// All tables, with what they need to be understood.
pub fn tables(comparison: &Comparison) -> String {
    let models = comparison.data.models.iter().map(|subject| {
        let title = title(&subject.model);
        let cases: Vec<&Case> = cases(comparison).filter(|case| case.model == subject.model).collect();
        let streams: Vec<&Stream> =
            streams(comparison).filter(|stream| stream.model == subject.model).collect();
        format!("\n{title}, milliseconds:\n\n{}{}", of_cases(&cases), of_streams(&streams))
    });
    let models: String = models.collect();
    about(comparison) + &models
}

pub(super) fn cases(comparison: &Comparison) -> impl Iterator<Item = &Case> {
    comparison.rows.iter().filter_map(|row| match row {
        Row::Case(case) => Some(case),
        Row::Stream(_) => None,
    })
}

fn streams(comparison: &Comparison) -> impl Iterator<Item = &Stream> {
    comparison.rows.iter().filter_map(|row| match row {
        Row::Stream(stream) => Some(stream),
        Row::Case(_) => None,
    })
}

/// What people write for what the command line calls a model or a rival.
pub(super) fn title(name: &str) -> &str {
    match name {
        "bert-base" => "BERT-base",
        "minilm" => "MiniLM-L6",
        "torch" => "PyTorch",
        "ort" => "ONNX Runtime",
        "ov" => "OpenVINO",
        "ct2" => "CTranslate2",
        other => other,
    }
}

fn about(comparison: &Comparison) -> String {
    let (data, summary, provenance) = (&comparison.data, &comparison.summary, &comparison.provenance);
    let foreign: Vec<f64> = cases(comparison).filter_map(|case| case.foreign_cpu).collect();
    let foreign = super::cases::mean(&foreign).map_or(String::new(), |share| {
        format!("; others used {:.0} % of the machine meanwhile", share * 100.0)
    });
    let libraries: Vec<&str> = summary.rivals.iter().map(|(_, library)| library.as_str()).collect();
    format!(
        "From ids to the last hidden state, f32, {} threads, median of {} rounds in turns, on {} with {} cores ({}, \
         commit {}{foreign}).\n{}. All compute the same: vectors differ by at most {:.0e}. *Limit* is turbo's share of \
         what this machine can do at most,\n{:.0} GFLOP/s and {:.0} GB/s, both measured in the same run.{}\n",
        data.threads,
        data.rounds,
        provenance.processor,
        provenance.cores,
        provenance.date.split('T').next().unwrap_or_default(),
        provenance.commit,
        libraries.join(" · "),
        summary.largest_difference,
        summary.peak_gflops,
        summary.peak_gb_per_s,
        doubt(comparison),
    )
}

/// What is to be said of a limit that was beaten: it was measured while the machine was slower.
fn doubt(comparison: &Comparison) -> &'static str {
    let beaten = cases(comparison).any(|case| case.rival == TURBO && case.median_ms < case.floor_ms);
    if beaten {
        " Shares above 100 % show\nthat this limit was measured too low: read them against each other only."
    } else {
        ""
    }
}

/// The rivals in the order of the record, each once.
fn rivals<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    names.for_each(|name| {
        if !all.contains(&name) {
            all.push(name);
        }
    });
    all
}

/// The first columns, one for each rival, and two about turbo.
fn head(first: &str, rivals: &[&str], last: &str) -> String {
    let columns: String = rivals.iter().map(|rival| format!(" {} |", title(rival))).collect();
    format!("| {first} |{columns} {last} |\n|---|{}---:|---:|\n", "---:|".repeat(rivals.len()))
}

fn of_cases(cases: &[&Case]) -> String {
    let rivals = rivals(cases.iter().map(|case| case.rival.as_str()));
    let mut text = head("batch × tokens", &rivals, "best other / turbo | limit");
    for row in cases.chunks(rivals.len().max(1)) {
        let times: String = row.iter().map(|case| format!(" {} |", digits(case.median_ms))).collect();
        let (batch_size, seq_len, floor) = (row[0].batch_size, row[0].seq_len, row[0].floor_ms);
        let times_of = row.iter().map(|case| (case.rival.as_str(), case.median_ms));
        _ = writeln!(text, "| {batch_size} × {seq_len} |{times} {} |", ratios(times_of, floor));
    }
    text
}

fn of_streams(streams: &[&Stream]) -> String {
    let Some(first) = streams.first() else { return String::new() };
    let rivals = rivals(streams.iter().map(|stream| stream.rival.as_str()));
    let mut text = format!(
        "\nA stream of {} waiting requests, uniform lengths, {} tokens; seconds in all:\n\n{}",
        first.requests,
        first.tokens,
        head("batches", &rivals, "best other / turbo | limit")
    );
    let mut policies: Vec<Policy> = Vec::new();
    streams.iter().for_each(|stream| {
        if !policies.contains(&stream.policy) {
            policies.push(stream.policy);
        }
    });
    for policy in policies {
        let of = |rival: &&str| streams.iter().find(|it| it.policy == policy && it.rival == **rival);
        let times: String = rivals
            .iter()
            .map(|rival| of(rival).map_or(" |".into(), |it| format!(" {} |", digits(it.median_s))))
            .collect();
        // A policy that one rival alone has stands against the others' best.
        let alone = streams.iter().filter(|it| it.policy == policy).count() == 1;
        let compared = streams.iter().filter(|it| it.policy == policy || (alone && it.rival != TURBO));
        let floor = of(&TURBO).map_or(0.0, |it| it.floor_s);
        let ratios = ratios(compared.map(|it| (it.rival.as_str(), it.median_s)), floor);
        _ = writeln!(text, "| {policy} |{times} {ratios} |");
    }
    text
}

/// How many times longer the best other takes than turbo, and turbo's share of the limit.
fn ratios<'a>(times: impl Iterator<Item = (&'a str, f64)>, floor: f64) -> String {
    let (mut turbo, mut best) = (f64::NAN, f64::INFINITY);
    times.for_each(|(rival, time)| {
        if rival == TURBO {
            turbo = time;
        } else {
            best = best.min(time);
        }
    });
    let ratio = if best.is_finite() { format!("{:.2}", best / turbo) } else { String::new() };
    format!("{ratio} | {:.0} %", 100.0 * floor / turbo)
}

/// Three digits.
fn digits(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_others_counts() {
        let times = [("torch", 30.0), (TURBO, 10.0), ("ort", 15.0)];
        assert_eq!(ratios(times.into_iter(), 8.0), "1.50 | 80 %");
        assert_eq!(ratios([(TURBO, 10.0)].into_iter(), 8.0), " | 80 %");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([1.234, 12.34, 123.4].map(digits), ["1.23", "12.3", "123"]);
    }
}
