//! `cargo xtask bench`: runs a figure of turbo-bench in release, from the workspace root.
//!
//! The figures `cpu` and `serve` compare turbo with engines that run in Python and take gigabytes. They are installed
//! first, except if no requested regime of `serve` needs them. `serve` runs the server, which is built first, and makes
//! texts from the words of a published model, which is fetched first.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::model;
use crate::peers;
use crate::process;
use crate::progress::Progress;
use crate::workspace::Workspace;

/// Run a figure, or compare with other engines; records and pictures go to turbo-bench/results
///
/// `cargo xtask bench -- --help` lists the figures and what can be set. `cargo xtask bench cpu` compares with ONNX
/// Runtime, OpenVINO, CTranslate2, PyTorch and oneDNN (35 minutes on an idle machine; the first time it installs them), `cargo
/// xtask bench serve` has the server under load, beside two of them (over an hour).
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The figure and its flags, passed to turbo-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    figure: Vec<String>,
}

/// Runs the figure.
///
/// # Errors
/// When turbo-bench does not build, or fails.
pub(crate) fn run(workspace: &Workspace, progress: Progress, arguments: &Arguments) -> Result<()> {
    let mut bench = turbo_bench(workspace);
    let needs = Needs::of(&arguments.figure);
    let has_peers = match needs.peers {
        Peers::None => false,
        Peers::All => true,
        Peers::AsListed => list(workspace, &arguments.figure)?.lines().any(names_peers),
    };
    if has_peers {
        bench.env(peers::VARIABLE, peers::python(workspace)?);
    }
    if needs.server {
        bench.env("TURBO_BINARY", workspace.build(&["--quiet", "--release", "--bin", "turbo"])?);
    }
    if needs.model {
        model::minilm(workspace, progress)?;
        bench.env("TURBO_MODELS_DIR", workspace.models_dir());
    }
    process::run(bench.args(&arguments.figure))
}

/// Which other engines a figure needs.
#[derive(Debug, Default, PartialEq, Eq)]
enum Peers {
    /// None, or those in a Python that the user names.
    #[default]
    None,
    /// All of them.
    All,
    /// Those that `--list` names for the requested regimes, which are often none.
    AsListed,
}

/// What a figure needs before it runs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    peers: Peers,
    /// The server.
    server: bool,
    /// A published model.
    model: bool,
}

impl Needs {
    fn of(figure: &[String]) -> Self {
        let asks = |flag: &str| figure.iter().any(|argument| argument.split('=').next() == Some(flag));
        if ["--help", "-h", "--list", "--render"].into_iter().any(asks) {
            return Self::default();
        }
        let peers = |all| if asks("--python") { Peers::None } else { all };
        match figure.first().map(String::as_str) {
            // both names of the figure
            Some("cpu" | "encoder") => Self { peers: peers(Peers::All), ..Self::default() },
            Some("serve") => {
                Self { peers: peers(Peers::AsListed), server: !asks("--turbo"), model: !asks("--published") }
            }
            _ => Self::default(),
        }
    }
}

/// What a figure would measure, one line for each regime.
fn list(workspace: &Workspace, figure: &[String]) -> Result<String> {
    let mut list = turbo_bench(workspace);
    list.args(figure).arg("--list").stderr(Stdio::inherit());
    let listed = list.output().with_context(|| format!("cannot start `{}`", process::line(&list)))?;
    if !listed.status.success() {
        bail!("`{}` failed ({})", process::line(&list), listed.status);
    }
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// Whether a line of the list names other engines: `minilm others-short, beside ort, ov`.
fn names_peers(line: &str) -> bool {
    line.contains(", beside ")
}

/// A command that runs `turbo-bench` from the workspace root, and builds it in release first if necessary.
pub(crate) fn turbo_bench(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--quiet", "--release", "--package", "turbo-bench", "--"]);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comparison_needs_the_others() {
        let needs = |line: &str| Needs::of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let peers = Needs { peers: Peers::All, ..Needs::default() };
        for line in ["cpu", "encoder", "cpu --rounds 3", "cpu --out=--list"] {
            assert_eq!(needs(line), peers, "{line}");
        }
        for line in [
            "planning",
            "cpu --help",
            "--help",
            "cpu --python p",
            "cpu --python=p",
            "cpu --list --only minilm",
            "serve --render",
        ] {
            assert_eq!(needs(line), Needs::default(), "{line}");
        }
        assert_eq!(needs("serve"), Needs { peers: Peers::AsListed, server: true, model: true });
        assert_eq!(needs("serve --python p --turbo=t"), Needs { model: true, ..Needs::default() });
    }

    /// A test of turbo-bench checks that it prints such lines.
    #[test]
    fn a_regime_without_other_engines_needs_none() {
        assert!(names_peers("minilm others-short, beside ort, ov"));
        for line in ["minilm packed-short", "minilm endurance", ""] {
            assert!(!names_peers(line), "{line}");
        }
    }
}
