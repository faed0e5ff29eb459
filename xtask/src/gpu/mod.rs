//! `cargo xtask gpu`: packs everything that needs a GPU into one bundle, and makes a record of what came back.
//!
//! The machine with the GPU is borrowed for minutes, and has neither Rust nor a network. So everything is built here,
//! run there by one script, and evaluated here.

mod bundle;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench;
use crate::process;
use crate::workspace::Workspace;
use bundle::{Bundle, Item};

/// Pack all that needs a GPU into one file, and record what came back
///
/// The machine with the GPU needs no Rust and no network, and this one no GPU. What is measured,
/// and against whom, is the figure `gpu` of turbo-bench.
///
///   here:   $ cargo xtask gpu pack                 # builds, and makes target/turbo-gpu.tar.gz
///   there:  $ tar -xzf turbo-gpu.tar.gz
///           $ turbo-gpu/gpu.sh results             # eleven minutes, and a line for each step
///   here:   $ cargo xtask gpu record results       # checks it, writes turbo-bench/results/gpu.*
///
/// There has to be Linux on x86-64 with a C library as new as here, an NVIDIA driver, and a Python
/// with torch and transformers, whose wheels have NVRTC and cuBLASLt.
///
/// gpu.sh goes on when a step fails, ends those that take too long, and fails when one did. It can
/// also be run in parts, into folders of which one record is made:
///
///   there:  $ turbo-gpu/gpu.sh first suite ceilings rows attention
///           $ turbo-gpu/gpu.sh second encoder sanitizer
///   here:   $ cargo xtask gpu record first second
///
/// Nothing is recorded without the suite, and nothing when it failed.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    /// Build the program and put all that is needed there into one file, of 64 MiB at most
    Pack {
        /// The file, instead of turbo-gpu.tar.gz below target
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Check what gpu.sh left, and store it as the record in turbo-bench/results
    Record {
        /// The folders that it filled; of a step that is in several the last counts
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
        /// Where the record goes, instead of turbo-bench/results
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Packs or records.
///
/// # Errors
/// When something does not build or is missing, when the bundle is too large, or when what came back cannot be
/// believed.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Subcommand::Pack { to } => pack(workspace, to.as_deref()),
        Subcommand::Record { dirs, out } => record(workspace, dirs, out.as_deref()),
    }
}

fn pack(workspace: &Workspace, to: Option<&Path>) -> Result<()> {
    let what =
        ["--release", "--locked", "--package", "turbo-bench", "--bin", "turbo-bench", "--features", "cuda"];
    // carry only what runs: no line tables
    let program = workspace.build(&[&what[..], &["--config", "profile.release.strip='symbols'"]].concat())?;
    let folder = workspace.target.join(bundle::NAME);
    let bundle = Bundle::collect(&items(workspace, program)?, &folder, &commit(&workspace.root)?)?;
    let file = to.map_or_else(|| folder.with_extension("tar.gz"), Path::to_path_buf);
    let mut tar = Command::new("tar");
    process::run(tar.arg("-czf").arg(&file).arg("-C").arg(&workspace.target).arg(bundle::NAME))?;
    println!("{bundle}");
    let packed = file.metadata().with_context(|| format!("cannot read {}", file.display()))?.len();
    println!("{}: {:.1} MiB", workspace.display(&file), bundle::mebibytes(packed));
    println!("where the GPU is: tar -xzf {NAME}.tar.gz && {NAME}/gpu.sh results", NAME = bundle::NAME);
    Ok(())
}

/// The files that are needed there, including the program that was built.
fn items(workspace: &Workspace, program: PathBuf) -> Result<Vec<Item>> {
    let root = &workspace.root;
    let of_bench =
        |from: &str, name: &str| Item { from: root.join("turbo-bench").join(from), name: name.into() };
    let mut items = vec![
        Item { from: program, name: "turbo-bench".into() },
        of_bench("gpu/gpu.sh", "gpu.sh"),
        of_bench("peers/gpu_peer.py", "peers/gpu_peer.py"),
        // gpu_peer.py imports these two
        of_bench("peers/peer_process.py", "peers/peer_process.py"),
        of_bench("peers/bench_peer.py", "peers/bench_peer.py"),
    ];
    let models = root.join("turbo-models/tests/data");
    let entries = models.read_dir().with_context(|| format!("cannot list {}", models.display()))?;
    for entry in entries {
        let folder = entry?.path();
        if is_golden_encoder(&folder) {
            let name = folder.file_name().expect("it was found in a folder");
            items.push(Item { name: Path::new("models").join(name), from: folder.clone() });
        }
    }
    Ok(items)
}

/// Whether a folder is a model with hidden states of the reference.
fn is_golden_encoder(folder: &Path) -> bool {
    let golden = std::fs::read(folder.join("golden.json")).ok();
    let golden = golden.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    golden.is_some_and(|golden| golden["kind"] == "encoder")
}

/// The commit that is packed, with `+` when code was changed since, and its date.
fn commit(root: &Path) -> Result<[String; 2]> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(root).args(arguments).output();
        let output = output.context("cannot start git")?;
        if !output.status.success() {
            bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // records, pages and documents do not affect what is measured
    let code = [":(top)", ":(top,exclude,glob)**/*.md", ":(top,exclude)turbo-bench/results"];
    let changes = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &code[..]].concat())?;
    if !changes.is_empty() {
        eprintln!("code was changed since {commit}: the record will say {commit}+");
    }
    let mark = if changes.is_empty() { "" } else { "+" };
    Ok([commit + mark, git(&["show", "--no-patch", "--format=%cI", "HEAD"])?])
}

fn record(workspace: &Workspace, dirs: &[PathBuf], out: Option<&Path>) -> Result<()> {
    let mut bench = bench::turbo_bench(workspace);
    bench.args(["gpu", "record"]);
    for dir in dirs {
        // the program runs in the root, but paths are relative to the current folder
        bench.arg(dir.canonicalize().with_context(|| format!("there is no {}", dir.display()))?);
    }
    if let Some(out) = out {
        bench.arg("--out").arg(std::path::absolute(out)?);
    }
    process::run(&mut bench)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_needs_is_packed() {
        let workspace = Workspace::load().unwrap();
        let program = "turbo-bench";
        let items = items(&workspace, program.into()).unwrap();
        for item in items.iter().filter(|item| item.name != Path::new(program)) {
            assert!(item.from.exists(), "{}", item.from.display());
        }
        let has = |name: &str| items.iter().any(|item| item.name == Path::new(name));
        let script = std::fs::read_to_string(workspace.root.join("turbo-bench/gpu/gpu.sh")).unwrap();
        for needed in [program, "peers", "models"] {
            assert!(script.contains(&format!("$here/{needed}\"")), "the script asks for {needed}");
        }
        assert!(has(program) && has("gpu.sh") && has("models/bert-base") && !has("models/tiny-sentence"));
        let peer = std::fs::read_to_string(workspace.root.join("turbo-bench/peers/gpu_peer.py")).unwrap();
        let imported = peer.lines().filter_map(|line| line.strip_prefix("import "));
        let ours =
            imported.filter(|name| workspace.root.join(format!("turbo-bench/peers/{name}.py")).exists());
        assert!(ours.clone().count() > 0 && ours.clone().all(|name| has(&format!("peers/{name}.py"))));
    }

    #[test]
    fn a_commit_has_a_date_and_a_mark_when_code_was_changed() {
        let checkout = tempfile::tempdir().unwrap();
        let git = |line: &str| {
            let config = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "core.hooksPath=/dev/null"];
            let done =
                Command::new("git").current_dir(checkout.path()).args(config).args(line.split(' ')).output();
            done.is_ok_and(|done| done.status.success())
        };
        if !git("init --quiet") {
            eprintln!("skipped: there is no git");
            return;
        }
        let write = |name: &str, text| std::fs::write(checkout.path().join(name), text).unwrap();
        write("code.rs", "before");
        write("README.md", "before");
        assert!(git("add .") && git("commit --quiet --message x"));
        write("README.md", "after");
        let [clean, date] = commit(checkout.path()).unwrap();
        assert!(clean.len() == 12 && date.contains('T'), "{clean} {date}");
        write("code.rs", "after");
        assert_eq!(commit(checkout.path()).unwrap(), [clean + "+", date]);
    }
}
