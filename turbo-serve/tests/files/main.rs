//! Files of texts into files of answers: the library with a made-up model, and the binary with the tests' tiny models,
//! interrupted and resumed.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod answers;
mod command;
mod fuzz;
mod interruptions;
mod made_up;
mod memory;
mod parquet;
mod pipeline;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The folder of a model among another crate's test data.
fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(name)
}

/// What a file holds, or each file of a folder.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_file() {
        return BTreeMap::from([(String::new(), fs::read(path).unwrap())]);
    }
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Lines of texts of many lengths, each different.
fn texts(count: usize) -> String {
    let words = ["the", "cat", "sat", "on", "mat", "a", "dog", "and"];
    let text = |row: usize| {
        let word = |at: usize| words[(row * 7 + at * at) % words.len()];
        let words: Vec<&str> = (0..row * 31 % 40).map(word).collect();
        format!("{row} {}\n", words.join(" "))
    };
    (0..count).map(text).collect()
}
