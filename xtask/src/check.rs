//! `cargo xtask check`: everything that a review expects besides the tests.
//!
//! All steps run, even after a failure, so that one run shows everything. Each prints its seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arrows;
use crate::packages;
use crate::process;
use crate::workspace::Workspace;

/// Run all that a review expects: format, lints, docs, arrows, features, packages, scripts
///
/// Prints seconds per step and carries on after a failure; the exit code tells whether all steps passed. Tests
/// are `cargo test --workspace`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build each package from what its archive holds too, as `cargo publish` would
    #[arg(long)]
    verify_packages: bool,
}

/// The result of a step.
struct Outcome {
    name: String,
    took: Duration,
    passed: bool,
}

/// Runs all steps.
///
/// # Errors
/// When a step failed; all steps have run by then.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let mut outcomes = Vec::new();
    let mut step = |name: &str, work: &dyn Fn() -> Result<()>| {
        eprintln!("==> {name}");
        let start = Instant::now();
        let result = work();
        if let Err(error) = &result {
            eprintln!("{name} failed: {error:#}");
        }
        outcomes.push(Outcome { name: name.into(), took: start.elapsed(), passed: result.is_ok() });
    };

    step("tools", &|| tools(workspace));
    step("format", &|| cargo(workspace, &["fmt", "--all", "--check"]));
    step("arrows", &|| drawn_arrows(workspace));
    step("scripts", &|| scripts(workspace));
    step("heads", &|| heads(workspace));
    step("clippy", &|| clippy(workspace, &["--workspace", "--all-targets", "--all-features"]));
    step("docs", &|| docs(workspace));
    for krate in &workspace.crates {
        for features in krate.feature_sets() {
            let alone: Vec<&str> =
                ["--package", &krate.name].into_iter().chain(features.iter().map(String::as_str)).collect();
            step(&format!("alone: {}", alone[1..].join(" ")), &|| clippy(workspace, &alone));
        }
    }
    for (target, packages) in ELSEWHERE {
        step(&format!("{}: {}", target, packages.join(" ")), &|| elsewhere(workspace, target, packages));
    }
    step("packages", &|| packages::run(workspace, arguments.verify_packages));

    print!("{}", summary(&outcomes));
    let failed: Vec<&str> = outcomes.iter().filter(|o| !o.passed).map(|o| o.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    process::run(workspace.cargo().args(arguments))
}

/// Checks for the parts of Rust that a minimal installation lacks.
fn tools(workspace: &Workspace) -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let found = workspace.cargo().args([subcommand, "--version"]).output()?;
        if !found.status.success() {
            bail!("cargo {subcommand} is missing: rustup component add {component}");
        }
    }
    Ok(())
}

/// Runs clippy, which includes `cargo check`; unlike that, it can refuse warnings without rebuilding the dependencies.
fn clippy(workspace: &Workspace, what: &[&str]) -> Result<()> {
    cargo(workspace, &[&["clippy", "--quiet"], what, &["--", "--deny", "warnings"]].concat())
}

/// Other processors and systems, and the packages that are type-checked for them: the portable path has to stay
/// portable, and a user of a library may have another system. The server is not among them, because its TLS needs a C
/// compiler for each target.
const ELSEWHERE: [(&str, &[&str]); 3] = [
    ("aarch64-unknown-linux-gnu", &["turbo-kernels"]),
    ("aarch64-apple-darwin", &["turbo-models", "turbo-sched"]),
    ("x86_64-pc-windows-gnu", &["turbo-models", "turbo-sched"]),
];

/// Type-checks `packages`, and the crates that they use, for `target`.
///
/// This needs a download of Rust's standard library for the target. If that is not available, the step says so and
/// passes.
fn elsewhere(workspace: &Workspace, target: &str, packages: &[&str]) -> Result<()> {
    let installed =
        Command::new("rustup").args(["target", "add", target]).current_dir(&workspace.root).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no standard library for {target} (`rustup target add {target}` failed)");
        return Ok(());
    }
    let mut check = vec!["check", "--quiet", "--all-features", "--target", target];
    check.extend(packages.iter().flat_map(|package| ["--package", package]));
    cargo(workspace, &check)
}

fn docs(workspace: &Workspace) -> Result<()> {
    let mut doc = workspace.cargo();
    doc.args(["doc", "--quiet", "--workspace", "--no-deps", "--all-features"]);
    process::run(doc.env("RUSTDOCFLAGS", "--deny warnings"))
}

fn drawn_arrows(workspace: &Workspace) -> Result<()> {
    let found = arrows::violations(&workspace.crates);
    if !found.is_empty() {
        bail!("{}", found.join("; "));
    }
    Ok(())
}

/// Parses every shell and Python script, without running it.
fn scripts(workspace: &Workspace) -> Result<()> {
    let Sources { shell, python, .. } = Sources::of(workspace)?;
    for script in shell {
        process::run(Command::new("bash").arg("-n").arg(script))?;
    }
    // compile() instead of py_compile, which leaves files behind
    let compile =
        "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')";
    process::run(Command::new("python3").arg("-c").arg(compile).args(python))
}

/// Checks that every Rust file says in its first line what it is for.
fn heads(workspace: &Workspace) -> Result<()> {
    let mut silent = Vec::new();
    for file in Sources::of(workspace)?.rust {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if !text.starts_with("//!") && !text.starts_with("#![doc") {
            silent.push(file.strip_prefix(&workspace.root).unwrap_or(&file).display().to_string());
        }
    }
    if !silent.is_empty() {
        bail!("{}: the first line is no `//!` that says what the file is for", silent.join(", "));
    }
    Ok(())
}

/// The source files of a checkout by language, without generated files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sources {
    rust: Vec<PathBuf>,
    shell: Vec<PathBuf>,
    python: Vec<PathBuf>,
}

impl Sources {
    fn of(workspace: &Workspace) -> Result<Self> {
        Self::below(&workspace.root, &[&workspace.target, &workspace.models_dir()])
    }

    /// All source files below `root`, except those in `skipped` or hidden folders (environments, git); `.ci/run` is
    /// included.
    fn below(root: &Path, skipped: &[&Path]) -> Result<Self> {
        let mut found = Self { shell: vec![root.join(".ci/run")], ..Self::default() };
        let mut waiting = vec![root.to_path_buf()];
        while let Some(folder) = waiting.pop() {
            for entry in folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))? {
                let path = entry?.path();
                let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
                match path.extension().and_then(|extension| extension.to_str()) {
                    _ if hidden || skipped.contains(&path.as_path()) => {}
                    _ if path.is_dir() => waiting.push(path),
                    Some("rs") => found.rust.push(path),
                    Some("sh") => found.shell.push(path),
                    Some("py") => found.python.push(path),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}

/// A line for each step, and one for the total.
fn summary(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for Outcome { name, took, passed } in outcomes {
        let verdict = if *passed { "ok" } else { "FAILED" };
        text += &format!("{:>7.1} s  {verdict:6}  {name}\n", took.as_secs_f64());
    }
    let total: Duration = outcomes.iter().map(|o| o.took).sum();
    text + &format!("{:>7.1} s  in all\n", total.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_a_table() {
        let outcome = |name: &str, milliseconds, passed| Outcome {
            name: name.into(),
            took: Duration::from_millis(milliseconds),
            passed,
        };
        assert_eq!(
            summary(&[outcome("format", 1200, true), outcome("docs", 61_000, false)]),
            "    1.2 s  ok      format\n   61.0 s  FAILED  docs\n   62.2 s  in all\n"
        );
    }

    #[test]
    fn sources_are_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for file in ["a/b.sh", "a/c/d.py", "a/e.rs", "target/f.sh", ".venv/g.py", "a/.h.py"] {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        assert_eq!(
            Sources::below(root, &[&root.join("target")]).unwrap(),
            Sources {
                rust: vec![root.join("a/e.rs")],
                shell: vec![root.join(".ci/run"), root.join("a/b.sh")],
                python: vec![root.join("a/c/d.py")]
            }
        );
    }
}
