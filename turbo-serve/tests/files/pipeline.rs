//! Order, batches, bad rows and stops, with the model that is made up.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proptest::prelude::*;
use serde_json::Value;
use turbo_serve::files::{
    FileError,
    pipeline::{Ending, Sizes, Summary},
    write::{Answer, Existing, Opened},
};

use crate::{
    contents,
    made_up::{Adder, BOMB, Run, SIZES, Sums, Told},
    texts,
};

fn rows(jsonl: &str) -> Vec<Value> {
    jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_stand_in_the_order_of_the_texts() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.txt"), folder.path().join("out.jsonl"));
    fs::write(&input, texts(5000)).unwrap();
    let mut adder = Adder::default();
    let summary = Run::new(&input, &output).run(&mut adder).unwrap();
    assert_eq!(summary, Summary { ending: Ending::Finished, rows: 5000, bad_rows: 0 });
    let expected = texts(5000);
    for (index, (row, text)) in
        rows(&fs::read_to_string(&output).unwrap()).iter().zip(expected.lines()).enumerate()
    {
        let sum = text.bytes().map(f64::from).sum::<f64>();
        assert_eq!(row["index"], index);
        assert_eq!(row["embedding"], serde_json::json!([text.len() as f64, sum]), "{index}");
    }
    // In each window all batches but the last are nearly full: a text has at most 161 tokens.
    let full = adder.batches.iter().filter(|tokens| **tokens > 200 - 161).count();
    assert!(full * 10 >= adder.batches.len() * 8, "{:?}", adder.batches);
    assert!(adder.batches.iter().all(|tokens| *tokens <= 200));
    assert!(!folder.path().join("out.jsonl.unfinished").exists());
}

#[test]
fn a_bad_row_is_told_and_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"text\": \"a\"}\noops\n\n{\"text\": \"b!\"}\n{\"text\": \"c\"}\n").unwrap();
    for name in ["out.jsonl", "out.npy"] {
        let (output, told) = (folder.path().join(name), Told::default());
        let summary =
            Run::new(&input, &output).run_told(&mut Adder::default(), &Arc::default(), told.clone()).unwrap();
        assert_eq!(summary, Summary { ending: Ending::Finished, rows: 4, bad_rows: 2 });
        let told = told.0.lock().unwrap().clone();
        assert_eq!(told, ["2: not JSON: expected value at column 1", "4: too loud"]);
    }
    let jsonl = rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    assert_eq!(jsonl[1]["error"], "not JSON: expected value at column 1");
    assert_eq!((&jsonl[2]["error"], &jsonl[3]["embedding"][1]), (&"too loud".into(), &99.0.into()));
    let npy = fs::read(folder.path().join("out.npy")).unwrap();
    let values: Vec<f32> =
        npy[128..].chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(values.len(), 8);
    assert!(values[2..6].iter().all(|value| value.is_nan()));
    assert_eq!((values[1], values[7]), (97.0, 99.0));
}

#[test]
fn a_broken_input_leaves_the_answers_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.csv"), folder.path().join("out.jsonl"));
    let mut content = b"text\n".to_vec();
    content.extend(texts(300).bytes());
    content.extend(b"\"open");
    content.resize(content.len() + (17 << 20), b'x');
    fs::write(&input, content).unwrap();
    let error = Run::new(&input, &output).run(&mut Adder::default()).unwrap_err().to_string();
    assert!(error.contains("in.csv:302: a record of more than"), "{error}");
    assert_eq!(rows(&fs::read_to_string(&output).unwrap()).len(), 300);
    assert!(folder.path().join("out.jsonl.unfinished").exists());
}

#[test]
fn a_thread_that_panics_is_not_the_end_of_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.txt"), folder.path().join("out.jsonl"));
    // The bomb is in the third chunk.
    fs::write(&input, texts(1000).replacen("\n150 ", &format!("\n150 {BOMB}"), 1)).unwrap();
    assert!(fs::read_to_string(&input).unwrap().contains(BOMB), "the test has no bomb");
    let error = Run::new(&input, &output).run(&mut Adder::default()).unwrap_err();
    assert!(matches!(error, FileError::Panicked), "{error}");
    assert_eq!(rows(&fs::read_to_string(&output).unwrap()).len(), 128, "what came before it is answered");
    // It can be resumed once the mistake is mended.
    assert!(folder.path().join("out.jsonl.unfinished").exists());
    fs::write(&input, texts(1000)).unwrap();
    let again = Run { existing: Existing::Continue, ..Run::new(&input, &output) };
    let summary = again.run(&mut Adder::default()).unwrap();
    assert_eq!((summary.ending, summary.rows), (Ending::Finished, 1000));
}

/// A thread with such a stack is refused, as one thread too many would be. The test below runs this one in a process of
/// its own.
#[test]
#[ignore = "only where threads are refused"]
fn without_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.txt"), folder.path().join("out.jsonl"));
    fs::write(&input, texts(10)).unwrap();
    let error = Run::new(&input, &output).run(&mut Adder::default()).unwrap_err().to_string();
    assert!(error.starts_with("cannot start a thread that tokenizes ("), "{error}");
    assert!(folder.path().join("out.jsonl.unfinished").exists());
}

#[test]
fn a_thread_that_is_refused_is_an_error() {
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "pipeline::without_threads", "--ignored", "--test-threads=1"]);
    let done = test.env("RUST_MIN_STACK", (1_u64 << 47).to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn no_more_rows_are_under_way_than_windows_and_queues_hold() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.txt");
    let most = |count: usize| {
        fs::write(&input, texts(count)).unwrap();
        let output = folder.path().join(format!("{count}.npy"));
        let job = Arc::new(Sums::default());
        // Slow enough that readers would run far ahead if they could.
        let mut adder = Adder { takes: Duration::from_micros(100), ..Adder::default() };
        Run::new(&input, &output).run_told(&mut adder, &job, Told::default()).unwrap();
        job.most_under_way.load(Ordering::SeqCst)
    };
    // Three threads with a chunk of 64 each in hand, one chunk before and one behind each; one window here, one queued
    // and one being written.
    let (few, many) = (most(5_000), most(40_000));
    assert!(few <= 1500 && many <= 1500, "{few}, {many}");
}

#[test]
fn what_is_there_is_not_touched_without_being_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.txt"), folder.path().join("out.jsonl"));
    fs::write(&input, texts(10)).unwrap();
    fs::write(&output, "precious\n").unwrap();
    let open = |existing| Run { existing, ..Run::new(&input, &output) }.open();
    assert!(matches!(open(Existing::Keep), Err(FileError::Exists { .. })));
    // Nothing says that the output is unfinished.
    assert!(matches!(open(Existing::Continue), Ok(Opened::Complete)));
    fs::write(folder.path().join("out.jsonl.unfinished"), r#"{"job": {"model": "other"}}"#).unwrap();
    let error = open(Existing::Continue).err().unwrap().to_string();
    assert!(
        error.contains("was begun with model other, not sums: go on with the same, or pass --overwrite"),
        "{error}"
    );
    assert!(matches!(open(Existing::Keep), Err(FileError::Unfinished { .. })));
    fs::write(folder.path().join("out.jsonl.unfinished"), r#"{"job": {"model": "sums"}}"#).unwrap();
    let error = open(Existing::Continue).err().unwrap().to_string();
    assert!(error.contains("its first line was not written by this command"), "{error}");
    assert_eq!(fs::read_to_string(&output).unwrap(), "precious\n");
    assert!(open(Existing::Replace).is_ok());
}

#[test]
fn an_output_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.txt");
    fs::write(&input, texts(10)).unwrap();
    for name in ["out.jsonl", "out.npy", "out.parquet"] {
        let output = folder.path().join(name);
        let open = |existing| Run { existing, ..Run::new(&input, &output) }.open();
        let Opened::Ready(first) = open(Existing::Keep).unwrap() else { panic!("it is complete") };
        for existing in [Existing::Keep, Existing::Continue, Existing::Replace] {
            assert!(matches!(open(existing), Err(FileError::Busy { .. })), "{name}: {existing:?}");
        }
        // Closing an output releases its lock.
        first.interrupt().unwrap();
        assert!(matches!(open(Existing::Keep), Err(FileError::Unfinished { .. })), "{name}");
        assert!(open(Existing::Continue).is_ok(), "{name}");
    }
    assert!(
        fs::read_dir(folder.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_str().unwrap().ends_with(".tmp") })
    );
}

/// Also when the count is not known, as after a crash.
#[test]
fn rows_without_an_answer_are_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let line = |row: usize| {
        if row.is_multiple_of(5) { "oops\n".to_owned() } else { format!("{{\"text\":\"{row}\"}}\n") }
    };
    fs::write(&input, (0..11_000).map(line).collect::<String>()).unwrap();
    for (name, kept) in [("out.jsonl", 10_500), ("out.npy", 10_500), ("out.parquet", 10_000)] {
        let output = folder.path().join(name);
        let run = Run { existing: Existing::Continue, ..Run::new(&input, &output) };
        let Opened::Ready(mut begun) = run.open().unwrap() else { panic!("it is complete") };
        let answer = Answer::Embedding(vec![0.0, 1.0]);
        for row in 0..10_500_u32 {
            begun.write(if row.is_multiple_of(5) { Err("oops") } else { Ok(&answer) }).unwrap();
        }
        begun.interrupt().unwrap();
        let Opened::Ready(again) = run.open().unwrap() else { panic!("it is complete") };
        assert_eq!((again.rows(), again.bad_rows()), (kept, kept / 5), "{name}");
        drop(again);
        let summary = run.run(&mut Adder::default()).unwrap();
        assert_eq!((summary.rows, summary.bad_rows), (11_000, 2200), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// However often it is stopped, and wherever, the file ends as that of a run that was never stopped.
    #[test]
    fn stops_leave_no_trace(
        stops in prop::collection::vec(1usize..40, 1..5),
        count in 0usize..1500,
        format in prop::sample::select(&["jsonl", "npy", "parquet"][..]),
        window_tokens in 1usize..3000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("in.txt");
        let text: String = texts(count).lines().map(|line| line.replace("7 the", "7!") + "\n").collect();
        fs::write(&input, text).unwrap();
        let (whole, stopped) = (folder.path().join(format!("whole.{format}")), folder.path().join(format!("stopped.{format}")));
        let expected = Run::new(&input, &whole).run(&mut Adder::default()).unwrap();
        let sizes = Sizes { window_tokens, ..SIZES };
        let again = Run { existing: Existing::Continue, sizes, ..Run::new(&input, &stopped) };
        for batches_left in stops {
            if matches!(again.open().unwrap(), Opened::Ready(_)) {
                let mut adder = Adder { batches_left, ..Adder::default() };
                let summary = again.run(&mut adder).unwrap();
                prop_assert!(summary.rows <= count as u64);
            }
        }
        let is_complete = matches!(again.open().unwrap(), Opened::Complete);
        if !is_complete {
            let summary = again.run(&mut Adder::default()).unwrap();
            prop_assert_eq!(summary, expected);
        }
        prop_assert_eq!(contents(&whole), contents(&stopped));
        let unfinished = folder.path().join(format!("stopped.{format}.unfinished"));
        prop_assert!(!unfinished.exists());
    }
}
