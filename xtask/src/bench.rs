//! `cargo xtask bench`: runs a figure of turbo-bench in release, from the workspace root.
//!
//! The figures `cpu` and `serve` compare turbo with engines that live in Python: they are installed first. `serve` runs the
//! server, which is built first, and makes texts of the words of a published model, which is fetched first.

use std::process::Command;

use anyhow::Result;

use crate::model;
use crate::peers;
use crate::process;
use crate::progress::Progress;
use crate::workspace::Workspace;

/// Run a figure, or compare with other engines; records and pictures go to turbo-bench/results
///
/// `cargo xtask bench -- --help` lists the figures and what can be set. `cargo xtask bench cpu` compares with ONNX
/// Runtime, OpenVINO, CTranslate2 and PyTorch (35 minutes on an idle machine; the first time it installs them), `cargo
/// xtask bench serve` has the server under load, beside two of them (an hour).
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The figure and its flags, passed to turbo-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    figure: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// When it does not build, or fails.
pub(crate) fn run(workspace: &Workspace, progress: Progress, arguments: &Arguments) -> Result<()> {
    let mut bench = turbo_bench(workspace);
    let needs = Needs::of(&arguments.figure);
    if needs.peers {
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

/// What has to be there before a figure runs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// The engines that turbo is compared with.
    peers: bool,
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
        match figure.first().map(String::as_str) {
            // by either of its names
            Some("cpu" | "encoder") => Self { peers: !asks("--python"), ..Self::default() },
            Some("serve") => {
                Self { peers: !asks("--python"), server: !asks("--turbo"), model: !asks("--published") }
            }
            _ => Self::default(),
        }
    }
}

/// `turbo-bench`, built in release if need be, run from the workspace root.
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
        let peers = Needs { peers: true, ..Needs::default() };
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
        assert_eq!(needs("serve"), Needs { peers: true, server: true, model: true });
        assert_eq!(needs("serve --python p --turbo=t"), Needs { model: true, ..Needs::default() });
    }
}
