//! `cargo xtask golden`: makes the fixtures under `turbo-models/tests/data` anew with the reference implementation.
//!
//! In: `reference/make_references.py` and the exact versions in `reference/requirements.txt`. Out: the folders of
//! [`FIXTURES`], and a list of what changed. On one machine the same script gives the same bytes, so an unintended
//! change shows at once.

use std::collections::BTreeMap;
use std::env::var_os;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::digest::{files_below, sha256_of};
use crate::process;
use crate::workspace::Workspace;

/// The fixtures that the tests use. The script knows more, for models that are not supported yet.
const FIXTURES: [&str; 108] = [
    "bert-base",
    "bert-relu",
    "bert-odd",
    "bert-bf16",
    "bert-f16",
    "bert-sharded",
    "bert-mlm-legacy",
    "bert-seqcls",
    "bert-rerank",
    "bert-tokcls",
    "bert-qa",
    "bert-mlm",
    "roberta-base",
    "roberta-seqcls",
    "roberta-tokcls",
    "roberta-qa",
    "roberta-mlm",
    "xlm-roberta-base",
    "xlm-roberta-rerank",
    "camembert-base",
    "camembert-mlm",
    "distilbert-base",
    "distilbert-seqcls",
    "distilbert-tokcls",
    "distilbert-qa",
    "distilbert-mlm",
    "electra-base",
    "electra-seqcls",
    "electra-tokcls",
    "electra-qa",
    "electra-mlm",
    "electra-rtd",
    "albert-base",
    "albert-groups",
    "albert-seqcls",
    "albert-tokcls",
    "albert-qa",
    "albert-mlm",
    "mpnet-base",
    "mpnet-seqcls",
    "mpnet-tokcls",
    "mpnet-qa",
    "mpnet-mlm",
    "mpnet-long",
    "deberta-base",
    "deberta-own",
    "deberta-long",
    "deberta-seqcls",
    "deberta-tokcls",
    "deberta-qa",
    "modernbert-base",
    "modernbert-seqcls",
    "modernbert-mean",
    "modernbert-tokcls",
    "modernbert-qa",
    "modernbert-mlm",
    "modernbert-long",
    "qwen3-base",
    "qwen3-wide",
    "qwen3-bias",
    "qwen3-rerank",
    "qwen3-tokcls",
    "qwen3-long",
    "qwen2-base",
    "qwen2-full",
    "qwen2-rerank",
    "mistral-base",
    "mistral-rerank",
    "llama-base",
    "llama-rerank",
    "gemma3-base",
    "gemma3-listed",
    "nomic-base",
    "nomic-bias",
    "nomic-experts",
    "gte-base",
    "gte-plain",
    "gte-rerank",
    "gte-tokcls",
    "gte-mlm",
    "jina-base",
    "jina-long",
    "jina-rerank",
    "jina-tokcls",
    "jina-qa",
    "jina-mlm",
    "jina-code",
    "jina-code-rerank",
    "tokenizer-wordpiece",
    "tokenizer-roberta",
    "encodings-wordpiece",
    "encodings-roberta",
    "encodings-xlm-roberta",
    "pipeline-classify",
    "pipeline-entities-wordpiece",
    "pipeline-entities-roberta",
    "pipeline-entities-xlm-roberta",
    "pipeline-answers-wordpiece",
    "pipeline-answers-roberta",
    "pipeline-answers-xlm-roberta",
    "pipeline-fill-mask-wordpiece",
    "pipeline-fill-mask-roberta",
    "tiny-sentence",
    "tiny-splade",
    "tiny-dense",
    "tiny-cross-encoder",
    "tiny-logit-score",
    "tiny-logit-score-one",
];

/// Make the golden fixtures anew with PyTorch, and say what changed
///
/// The first run makes the environment .venv-reference: about 3 GB to download, 6 GB on disk, some minutes. Set
/// TURBO_REFERENCE_PYTHON to use a python that has the packages of reference/requirements.txt already. If the
/// MiniLM model is there (`cargo xtask model`), its reference embeddings are made anew too.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these fixtures (default: all that the tests use)
    #[arg(value_name = "FIXTURE")]
    only: Vec<String>,
}

/// Runs the script and reports the difference.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let python = match var_os("TURBO_REFERENCE_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => environment(workspace)?,
    };
    let data = workspace.root.join("turbo-models/tests/data");
    let before = files_below(&data)?;
    let mut script = Command::new(python);
    script
        .current_dir(&workspace.root)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("reference/make_references.py");
    let wanted = if arguments.only.is_empty() { FIXTURES.join(",") } else { arguments.only.join(",") };
    script.arg("--out").arg(&data).arg("--only").arg(wanted);
    let minilm = workspace.models_dir().join("minilm");
    if minilm.is_dir() {
        script
            .arg("--embed-model")
            .arg(minilm)
            .arg("--embed-out")
            .arg(data.join("minilm/embed_reference.json"));
    }
    process::run(&mut script)?;
    print!("{}", report(&before, &files_below(&data)?));
    Ok(())
}

/// The Python of `.venv-reference`. The environment is made first if the requirements are not installed yet.
fn environment(workspace: &Workspace) -> Result<PathBuf> {
    let home = workspace.root.join(".venv-reference");
    let python = home.join("bin/python");
    let requirements = workspace.root.join("reference/requirements.txt");
    // written last, so that an interrupted installation is resumed
    let installed = home.join("requirements.sha256");
    let wanted = sha256_of(&requirements)?;
    if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    eprintln!("making .venv-reference: about 3 GB to download, 6 GB on disk");
    process::run(Command::new("python3").args(["-m", "venv"]).arg(&home))
        .context("cannot make a Python environment (Debian: apt-get install python3-venv)")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--requirement"]).arg(&requirements);
    process::run(&mut pip)?;
    fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(python)
}

/// One line for each file that differs, and a summary.
fn report(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> String {
    let mut lines = String::new();
    let mut line = |what: &str, path: &Path| lines += &format!("{what:8} {}\n", path.display());
    for (path, digest) in after {
        match before.get(path) {
            None => line("new", path),
            Some(old) if old != digest => line("changed", path),
            Some(_) => {}
        }
    }
    for path in before.keys().filter(|path| !after.contains_key(*path)) {
        line("gone", path);
    }
    match lines.lines().count() {
        0 => format!("nothing changed: {} files are as they were, byte for byte\n", after.len()),
        count => format!("{lines}{count} of {} files differ\n", after.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        files.iter().map(|(path, digest)| (path.into(), digest.to_string())).collect()
    }

    #[test]
    fn differences_are_listed() {
        let before = tree(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let after = tree(&[("a", "1"), ("b", "2"), ("d", "1")]);
        assert_eq!(report(&before, &before), "nothing changed: 3 files are as they were, byte for byte\n");
        assert_eq!(report(&before, &after), "changed  b\nnew      d\ngone     c\n3 of 3 files differ\n");
    }

    #[test]
    fn every_fixture_is_committed() {
        let data = Workspace::load().unwrap().root.join("turbo-models/tests/data");
        for fixture in FIXTURES {
            assert!(data.join(fixture).is_dir(), "{fixture} is missing; run `cargo xtask golden`");
        }
    }
}
