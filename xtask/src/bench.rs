//! `cargo xtask bench`: runs a figure of turbo-bench in release, from the workspace root.
//!
//! The figure `cpu` compares turbo with engines that live in Python: they are installed first.

use std::process::Command;

use anyhow::Result;

use crate::peers;
use crate::process;
use crate::workspace::Workspace;

/// Run a figure, or compare with other engines; records and pictures go to turbo-bench/results
///
/// `cargo xtask bench -- --help` lists the figures and what can be set. `cargo xtask bench cpu` compares with ONNX
/// Runtime, OpenVINO, CTranslate2 and PyTorch (35 minutes on an idle machine; the first time it installs them).
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
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let mut bench = turbo_bench(workspace);
    if needs_peers(&arguments.figure) {
        bench.env(peers::VARIABLE, peers::python(workspace)?);
    }
    process::run(bench.args(&arguments.figure))
}

/// Whether the engines that turbo is compared with have to be there.
fn needs_peers(figure: &[String]) -> bool {
    let asks = |flag: &str| figure.iter().any(|argument| argument.split('=').next() == Some(flag));
    // by either of its names
    figure.first().is_some_and(|name| ["cpu", "encoder"].contains(&name.as_str()))
        && !["--help", "-h", "--python", "--list", "--render"].iter().any(|flag| asks(flag))
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
        let needs = |line: &str| needs_peers(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(needs("cpu") && needs("encoder") && needs("cpu --rounds 3") && needs("cpu --out=--list"));
        assert!(
            !needs("planning")
                && !needs("cpu --help")
                && !needs("--help")
                && !needs("cpu --python p")
                && !needs("cpu --python=p")
                && !needs("cpu --list --only minilm")
        );
    }
}
