//! The comparison from end to end, on the tests' tiny model: two processes of turbo stand against each other.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use turbo_bench::{
    figures::encoder::{self, Comparison, Data, Field, Policy, Row, Subject, TURBO, tables},
    record::Record,
    rival::Rival,
};
use turbo_kernels::{Cpu, CpuOptions};

fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence")
}

fn turbo(name: &str) -> Rival {
    let mut peer = Command::new(env!("CARGO_BIN_EXE_turbo-bench"));
    Rival::start(name, peer.arg("peer").arg(tiny_model()).args(["--threads", "1"])).unwrap()
}

fn data() -> Data {
    let subject = Subject {
        model: "tiny-sentence".into(),
        batches: vec![(1, 5), (1, 40), (3, 20)],
        stream_lens: 5..=60,
        stream_requests: 30,
        stream_rounds: 2,
        policies: vec![Policy::Single, Policy::Sorted(20), Policy::Dp],
    };
    Data { models: vec![subject], threads: 1, rounds: 2, turn_ms: 2 }
}

fn compared() -> Comparison {
    let device = Cpu::new(CpuOptions { threads: 1.try_into().ok(), isa: None }).unwrap();
    let start = |model: &str| Ok(Field { model: model.into(), rivals: vec![turbo(TURBO), turbo("again")] });
    encoder::run(&data(), &device, |_| tiny_model(), start).unwrap()
}

#[test]
fn every_rival_has_every_case_and_the_record_is_read_as_it_was_written() {
    let comparison = compared();
    let cases = comparison.rows.iter().filter(|row| matches!(row, Row::Case(_))).count();
    let streams = comparison.rows.iter().filter(|row| matches!(row, Row::Stream(_))).count();
    assert_eq!((cases, streams), (3 * 2, 2 * 2 + 1), "only turbo has the dynamic program");
    assert_eq!(comparison.summary.largest_difference, 0.0, "one engine has one result");
    for row in &comparison.rows {
        match row {
            Row::Case(case) => {
                assert!(case.p10_ms <= case.median_ms && case.median_ms <= case.p90_ms, "{case:?}");
                assert!(case.p10_ms > 0.0 && case.floor_ms > 0.0 && case.runs >= 2, "{case:?}");
            }
            Row::Stream(stream) => {
                assert!(stream.median_s > 0.0 && stream.rounds == 2 && stream.requests == 30, "{stream:?}");
            }
        }
    }

    let folder = tempfile::tempdir().unwrap();
    encoder::write(&comparison, folder.path()).unwrap();
    let read: Comparison = Record::read(&folder.path().join("encoder.json")).unwrap();
    assert_eq!(tables(&read), tables(&comparison));
    let picture = fs::read_to_string(folder.path().join("encoder.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("tiny-sentence, one request at a time"));

    let readme = folder.path().join("README.md");
    let marked = "before\n<!-- written by `cargo xtask bench encoder` -->\nold\n<!-- until here -->\nafter\n";
    fs::write(&readme, marked).unwrap();
    encoder::write_into(&readme, &comparison).unwrap();
    let text = fs::read_to_string(&readme).unwrap();
    assert!(text.contains(&tables(&comparison)) && !text.contains("old"), "{text}");
    assert!(text.starts_with("before\n") && text.ends_with("<!-- until here -->\nafter\n"), "{text}");
    assert!(text.contains("| 1 × 5 |") && text.contains("| one at a time |"), "{text}");
    fs::write(&readme, "no place").unwrap();
    assert!(encoder::write_into(&readme, &comparison).is_err());
}

#[test]
fn a_request_that_makes_no_sense_ends_the_process_with_a_reason() {
    let mut rival = turbo("it");
    let error = rival.time(&[vec![65]], 0, 1).unwrap_err().to_string();
    assert!(error.contains("it ended") && error.contains("64"), "{error}");
}

/// The tables of the README are those of the record, and there are none without one.
#[test]
fn the_readme_shows_the_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, shown) = readme.split_once("<!-- written by `cargo xtask bench encoder` -->\n").unwrap();
    let (shown, _) = shown.split_once("<!-- until here -->").unwrap();
    let record = root.join("turbo-bench/results/encoder.json");
    let expected = match record.exists() {
        true => tables(&Record::read(&record).unwrap()),
        false => String::new(),
    };
    assert_eq!(shown, expected);
}
