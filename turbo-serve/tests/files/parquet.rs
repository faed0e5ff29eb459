//! What is written as Parquet, read again: lists, empty and missing ones, parts and row groups.

use std::path::Path;

use turbo_serve::files::{
    InputFormat, OutputFormat,
    read::{Cell, Row, Rows},
    write::{Answer, Existing, Kind, MadeFrom, Opened, Output, Ranked, Target},
};

fn write(folder: &Path, kind: Kind, answers: impl IntoIterator<Item = Result<Answer, String>>) {
    let target = Target {
        file: folder.to_str().unwrap(),
        format: OutputFormat::Parquet,
        kind,
        made_from: &MadeFrom::new(),
        existing: Existing::Keep,
        best: None,
    };
    let Opened::Ready(mut output) = Output::open(&target).unwrap() else { panic!("it is new") };
    for answer in answers {
        output.write(answer.as_ref().map_err(String::as_str)).unwrap();
    }
    output.finish().unwrap();
}

fn read(folder: &Path, part: u32, column: &str) -> Vec<Row> {
    let file = folder.join(format!("part-{part:05}.parquet"));
    let rows = Rows::open(file.to_str().unwrap(), InputFormat::Parquet, &[column.to_owned()]).unwrap();
    rows.map(Result::unwrap).collect()
}

fn ranking(texts: &[&str]) -> Result<Answer, String> {
    let ranked = |(index, text): (usize, &&str)| Ranked {
        index: index as u64,
        score: 0.5,
        text: Some((*text).to_owned()),
    };
    Ok(Answer::Ranking(texts.iter().enumerate().map(ranked).collect()))
}

#[test]
fn lists_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    let answers = [ranking(&["a", "b"]), Err("no".to_owned()), ranking(&[]), ranking(&["ä\n"])];
    write(&folder, Kind::Ranking { with_text: true }, answers);
    let list = |texts: &[&str]| Ok(vec![Cell::List(texts.iter().map(|&text| text.into()).collect())]);
    let cells: Vec<_> = read(&folder, 0, "texts").into_iter().map(|row| row.cells).collect();
    let missing = Err("the value of \"texts\" is null, expected a text".to_owned());
    assert_eq!(cells, [list(&["a", "b"]), missing, list(&[]), list(&["ä\n"])]);
    let errors: Vec<_> = read(&folder, 0, "error").into_iter().map(|row| row.cells.ok()).collect();
    assert_eq!(errors, [None, Some(vec![Cell::Text("no".into())]), None, None]);
}

/// Overwrites all copies of a text in a part: small texts are not compressed.
fn garble(part: &Path, text: &str) {
    let mut bytes = std::fs::read(part).unwrap();
    let places: Vec<usize> =
        (0..bytes.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
    assert!(!places.is_empty(), "{text} is not in it");
    places.into_iter().for_each(|at| bytes[at..][..text.len()].fill(0xff));
    std::fs::write(part, bytes).unwrap();
}

#[test]
fn a_text_that_is_not_utf8_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    let answers = [ranking(&["first"]), Err("Kj4w".to_owned()), ranking(&["a", "Vq9x"]), ranking(&["last"])];
    write(&folder, Kind::Ranking { with_text: true }, answers);
    garble(&folder.join("part-00000.parquet"), "Kj4w");
    garble(&folder.join("part-00000.parquet"), "Vq9x");
    let list = |text: &str| Ok(vec![Cell::List(vec![text.to_owned()])]);
    let not_utf8 = |column: &str| Err(format!("the value of {column:?} is not UTF-8"));
    let null = |column: &str| Err(format!("the value of {column:?} is null, expected a text"));
    let cells = |column: &str| read(&folder, 0, column).into_iter().map(|row| row.cells).collect::<Vec<_>>();
    assert_eq!(cells("texts"), [list("first"), null("texts"), not_utf8("texts"), list("last")]);
    assert_eq!(cells("error"), [null("error"), not_utf8("error"), null("error"), null("error")]);
}

/// Readers of whole folders pass over names that begin with a dot.
#[test]
fn a_part_in_progress_is_hidden_and_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    let open = |existing| {
        let target = Target {
            file: folder.to_str().unwrap(),
            format: OutputFormat::Parquet,
            kind: Kind::Score { with_text: false },
            made_from: &MadeFrom::new(),
            existing,
            best: None,
        };
        let Opened::Ready(output) = Output::open(&target).unwrap() else { panic!("it is complete") };
        output
    };
    let names = || {
        let entries = std::fs::read_dir(&folder).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    // Dropped without being closed, as by a kill.
    let mut output = open(Existing::Keep);
    output.write(Ok(&Answer::Score { score: 1.0, text: None })).unwrap();
    drop(output);
    assert_eq!(names(), [".part-00000.parquet.tmp"]);
    // The name that such a file used to have.
    std::fs::write(folder.join("part-00000.parquet.tmp"), "").unwrap();
    assert_eq!(open(Existing::Continue).rows(), 0);
    assert!(names().is_empty(), "{:?}", names());
}

/// Vectors of 4 KiB: a row group of 8 MiB is full long before a part of ten thousand rows.
#[test]
fn parts_have_ten_thousand_rows_in_several_groups() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    let vector = |row: usize| match row {
        9_999 | 10_000 => Err(format!("row {row}")),
        _ => Ok(Answer::Embedding(vec![row as f32; 1024])),
    };
    write(&folder, Kind::Embedding { dimensions: 1024 }, (0..10_002).map(vector));
    for (part, rows, bad) in [(0, 10_000, 10_000), (1, 2, 1)] {
        let errors = read(&folder, part, "error");
        assert_eq!(errors.len(), rows);
        let told: Vec<_> = errors.iter().filter(|row| row.cells.is_ok()).map(|row| row.number).collect();
        assert_eq!(told, [bad]);
    }
    // Uncompressed, these vectors are 40 MiB; equal values compress well.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn columns_without_texts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    write(&folder, Kind::Score { with_text: false }, [Ok(Answer::Score { score: 1.0, text: None })]);
    let file = folder.join("part-00000.parquet");
    let open = |column: &str| {
        let rows = Rows::open(file.to_str().unwrap(), InputFormat::Parquet, &[column.to_owned()]);
        rows.err().unwrap().to_string()
    };
    assert!(open("score").ends_with("part-00000.parquet: column \"score\" holds no texts"));
    assert!(open("text").ends_with("no column \"text\", it has: index, score, error"));
}

#[test]
fn no_rows_are_a_part_with_columns() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out.parquet");
    write(&folder, Kind::Labels, []);
    assert!(read(&folder, 0, "labels").is_empty());
}
