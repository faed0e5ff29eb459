//! Inputs and unfinished outputs that are not what they should be: never a panic, and errors that name the file.

use std::{fs, path::Path};

use proptest::prelude::*;
use turbo_serve::files::{
    InputFormat, Quotes,
    read::Rows,
    write::{Existing, Opened},
};

use crate::made_up::{Adder, Run};

/// Reads everything, and checks that errors name the file.
fn read(file: &Path, format: InputFormat, columns: &[&str]) {
    let columns: Vec<String> = columns.iter().map(|&column| column.into()).collect();
    let name = file.to_str().unwrap();
    let rows = match Rows::open(name, format, &columns) {
        Ok(rows) => rows,
        Err(error) => return assert_names(&error.to_string(), name),
    };
    let mut last = 0;
    // A broken Parquet file may claim any number of rows.
    for row in rows.take(5000) {
        match row {
            Ok(row) => {
                // Records may end in a bare carriage return, and share a line.
                let apart = if matches!(format, InputFormat::Csv(_) | InputFormat::Tsv(_)) { 0 } else { 1 };
                assert!(row.number >= last + apart, "rows are numbered upwards");
                last = row.number;
                match row.cells {
                    Ok(cells) => assert_eq!(cells.len(), columns.len()),
                    Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why:?}"),
                }
            }
            Err(error) => assert_names(&error.to_string(), name),
        }
    }
}

fn assert_names(error: &str, file: &str) {
    assert!(error.contains(file), "{error:?} does not name {file}");
}

/// Something like JSON, CSV and text at once.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(
        &[
            "{\"text\": \"a\"}",
            "{\"text\":",
            "\"",
            "\n",
            "\r\n",
            ",",
            "text",
            "id,text\n",
            "\\u12",
            "[",
            "}",
            "\t",
            "\u{feff}",
            "null",
            "{\"text\": [\"a\", \"b\"]}\n",
            " ",
            "1e999",
            "\u{0}",
            "ä",
        ][..],
    );
    let bytes = prop::collection::vec(any::<u8>(), 0..4);
    let piece = prop_oneof![8 => pieces.prop_map(|piece| piece.as_bytes().to_vec()), 1 => bytes];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// A small sound Parquet file with texts.
fn parquet() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.parquet"));
    fs::write(&input, "{\"text\": \"a!\"}\n".repeat(30) + "{\"text\": \"b\"}\n").unwrap();
    Run::new(&input, &output).run(&mut Adder::default()).unwrap();
    fs::read(output.join("part-00000.parquet")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn lines_objects_and_records(content in texts()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("input");
        fs::write(&file, content).unwrap();
        for quotes in [Quotes::Around, Quotes::Text] {
            for format in [InputFormat::Csv(quotes), InputFormat::Tsv(quotes)] {
                read(&file, format, &["text"]);
            }
        }
        for format in [InputFormat::Lines, InputFormat::Jsonl] {
            read(&file, format, &["text"]);
        }
        read(&file, InputFormat::Jsonl, &["text", "id"]);
        read(&file, InputFormat::Csv(Quotes::Around), &["id", "text"]);
    }

    /// Bytes that are changed and pieces that are missing, of a file that is sound.
    #[test]
    fn parquet_files(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in 0usize..40) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("input.parquet");
        let mut content = PARQUET.with(Clone::clone);
        for (at, byte) in changes {
            let at = at.index(content.len());
            content[at] = byte;
        }
        if cut < 20 {
            content.drain(content.len() / 2..content.len() / 2 + cut);
        }
        fs::write(&file, content).unwrap();
        read(&file, InputFormat::Parquet, &["error"]);
    }
}

proptest! {
    // Each waits for the disk a few times.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What is to be gone on with may be anything: it is gone on with or refused, and only ever cut.
    #[test]
    fn unfinished_outputs(
        content in prop_oneof![texts(), prop::collection::vec(any::<u8>(), 0..300)],
        keep in 0usize..400,
        name in prop::sample::select(&["out.jsonl", "out.npy", "out.parquet"][..]),
        state in prop_oneof![Just("{\"job\":{\"model\":\"sums\"}}".as_bytes().to_vec()), texts()],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("in.txt"), folder.path().join(name));
        fs::write(&input, "one\ntwo\nthree\n").unwrap();
        // After the beginning of a sound output.
        Run::new(&input, &output).run(&mut Adder::default()).unwrap();
        let file = if name == "out.parquet" { output.join("part-00000.parquet") } else { output.clone() };
        let sound = fs::read(&file).unwrap();
        let broken = [&sound[..keep.min(sound.len())], &content[..]].concat();
        fs::write(&file, &broken).unwrap();
        fs::write(folder.path().join(format!("{name}.unfinished")), state).unwrap();
        let again = Run { existing: Existing::Continue, ..Run::new(&input, &output) };
        match again.open() {
            Ok(Opened::Ready(output)) => prop_assert!(output.rows() <= 3),
            Ok(Opened::Complete) => prop_assert!(false, "it is not complete"),
            Err(error) => {
                prop_assert!(error.to_string().contains(name), "{}", error);
                prop_assert_eq!(fs::read(&file).unwrap(), broken, "it was refused, so it stays as it was");
            }
        }
    }
}

thread_local! {
    static PARQUET: Vec<u8> = parquet();
}
