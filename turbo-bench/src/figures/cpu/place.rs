//! Where records lie: the main record, and below it those of other processors, each in a folder of its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::Comparison;

/// The file of a record.
const FILE: &str = "cpu.json";
/// The folder that contains those of other processors.
const OTHERS: &str = "cpu";

/// The record of another processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its name.
    pub processor: String,
    /// Its folder, relative to that of the main record, as written in links.
    pub folder: String,
}

/// The folder for the record of `processor`: `results`, unless the record there is of another processor.
///
/// # Errors
/// When the record in `results` cannot be read.
pub fn folder(results: &Path, processor: &str) -> Result<PathBuf> {
    let first = results.join(FILE);
    if !first.exists() || Comparison::read(&first)?.provenance.processor == processor {
        return Ok(results.to_owned());
    }
    Ok(results.join(OTHERS).join(folder_name(processor)))
}

/// The records of other processors below `results`, by their folders.
///
/// # Errors
/// When one of them cannot be read.
pub fn others(results: &Path) -> Result<Vec<Other>> {
    let folder = results.join(OTHERS);
    let cannot = || format!("cannot read {}", folder.display());
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(cannot)?,
    };
    let mut others = Vec::new();
    for entry in entries {
        let name = entry.with_context(cannot)?.file_name().to_string_lossy().into_owned();
        let file = folder.join(&name).join(FILE);
        if file.exists() {
            let processor = Comparison::read(&file)?.provenance.processor;
            others.push(Other { processor, folder: format!("{OTHERS}/{name}") });
        }
    }
    others.sort_by(|one, other| one.folder.cmp(&other.folder));
    Ok(others)
}

/// A processor's name as the name of a folder: `intel-xeon-processor-family-6-model-207`.
fn folder_name(processor: &str) -> String {
    let plain = processor.to_lowercase().replace("(r)", "").replace("(tm)", "");
    let words = plain.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figures::cpu::{Data, Summary},
        load::Load,
        record::Provenance,
    };

    /// Writes an empty record of a processor into its folder.
    fn leave(results: &Path, processor: &str) {
        let (figure, processor) = ("cpu".to_owned(), processor.to_owned());
        let folder = folder(results, &processor).unwrap();
        let provenance = Provenance { processor, ..Provenance::here("device".to_owned()) };
        let summary = Summary { load: Load { before: None, after: None } };
        Comparison { figure, provenance, data: Data { threads: 2 }, summary, rows: vec![] }
            .write(&folder)
            .unwrap();
    }

    #[test]
    fn each_processor_has_a_folder_and_the_first_one_that_of_all() {
        let scratch = tempfile::tempdir().unwrap();
        let results = scratch.path();
        assert_eq!(others(results).unwrap(), []);
        for processor in ["First (family 1)", "Other B", "Other A", "First (family 1)", "Other B"] {
            leave(results, processor);
        }
        assert_eq!(folder(results, "First (family 1)").unwrap(), results);
        let other = |processor: &str, folder: &str| Other {
            processor: processor.to_owned(),
            folder: folder.to_owned(),
        };
        assert_eq!(
            others(results).unwrap(),
            [other("Other A", "cpu/other-a"), other("Other B", "cpu/other-b")]
        );
        std::fs::write(results.join("cpu/other-a/cpu.json"), "{").unwrap();
        assert!(format!("{:#}", others(results).unwrap_err()).contains("cpu.json is no such record"));
    }

    #[test]
    fn a_folder_is_named_by_words_of_its_processor() {
        for (processor, name) in [
            ("Intel(R) Xeon(R) Processor (family 6, model 207)", "intel-xeon-processor-family-6-model-207"),
            ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "intel-core-i7-8700-cpu-3-20ghz"),
            ("../../etc", "etc"),
        ] {
            assert_eq!(folder_name(processor), name);
        }
    }
}
