//! The other engines: their Python, their scripts, and the files that they load.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use turbo_bench::{checkpoint::Model, figures::cpu::Precision};

#[derive(Args)]
pub(crate) struct Engines {
    /// Python that has the other engines; see turbo-bench/peers
    #[arg(long, env = "TURBO_PEERS_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// The scripts of the other engines
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers")]
    peers: PathBuf,
    /// Where the models are made; more than a gigabyte
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers/.peers/cpu")]
    models: PathBuf,
}

/// The steps of the script that makes what engines load: each step's name, and the last file that it writes.
const MADE: [(&str, &str); 4] = [
    ("onnx", "onnx/model.onnx"),
    ("fused", "onnx/fused.onnx"),
    ("int8", "onnx/int8.onnx"),
    ("ct2", "ct2/config.json"),
];

/// The steps of [`MADE`] that an engine needs to compute at a precision: what it loads, and what that is made from.
fn steps(rival: &str, precision: Precision) -> &'static [&'static str] {
    match (rival, precision) {
        ("ov", _) => &["onnx"],
        ("ort", Precision::Int8) => &["onnx", "fused", "int8"],
        ("ort", _) => &["onnx", "fused"],
        ("ct2", _) => &["ct2"],
        // PyTorch loads the checkpoint itself
        _ => &[],
    }
}

impl Engines {
    /// The folder with what engines load of a model.
    pub(crate) fn base(&self, model: &str) -> PathBuf {
        self.models.join(model)
    }

    /// The folder of a model's checkpoint.
    pub(crate) fn checkpoint(&self, model: &str) -> PathBuf {
        self.base(model).join("hf")
    }

    /// The command of a script, without its arguments.
    ///
    /// # Errors
    /// When no Python is given.
    pub(crate) fn script(&self, name: &str) -> Result<Command> {
        let python = self.python.as_ref();
        let python =
            python.context("no Python with the other engines is given: --python, or `cargo xtask bench`")?;
        let mut command = Command::new(python);
        command.arg(self.peers.join(name));
        Ok(command)
    }

    /// Makes a model's checkpoint, with random weights, and whatever is missing of the files that these engines load.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn prepare(&self, name: &str, rivals: &[(&str, Precision)]) -> Result<()> {
        let model = Model::from_str(name, false).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        model.shape().ensure(&self.checkpoint(name), 0, |_| {})?;
        let is_wanted =
            |step: &&str| rivals.iter().any(|&(rival, precision)| steps(rival, precision).contains(step));
        let is_missing = |file: &str| !Path::exists(&self.base(name).join(file));
        let missing = MADE.iter().filter(|(step, file)| is_wanted(step) && is_missing(file));
        let missing: Vec<&str> = missing.map(|(step, _)| *step).collect();
        if missing.is_empty() {
            return Ok(());
        }
        eprintln!("{name}: making what the other engines load ({})", missing.join(", "));
        let mut build = self.script("build_models.py")?;
        build.args(["--steps", &missing.join(","), "--models", name]).arg("--out").arg(&self.models);
        let built = build.output().with_context(|| format!("cannot start {build:?}"))?;
        if !built.status.success() {
            let said = [built.stdout, built.stderr].concat();
            bail!("{build:?} failed:\n{}", String::from_utf8_lossy(&said));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_needs_what_it_loads_and_no_more() {
        let table: [(&str, Precision, &[&str]); 8] = [
            ("ov", Precision::F32, &["onnx"]),
            ("ov", Precision::Bf16, &["onnx"]),
            ("ort", Precision::F32, &["onnx", "fused"]),
            ("ort", Precision::Int8, &["onnx", "fused", "int8"]),
            ("ct2", Precision::F32, &["ct2"]),
            ("ct2", Precision::Int8, &["ct2"]),
            ("torch", Precision::F32, &[]),
            ("torch", Precision::Bf16, &[]),
        ];
        for (rival, precision, expected) in table {
            assert_eq!(steps(rival, precision), expected, "{rival} {}", precision.name());
            assert!(expected.iter().all(|step| MADE.iter().any(|(made, _)| made == step)));
        }
        let all = Precision::ALL.map(|precision| precision.rivals().len());
        assert_eq!(all.iter().sum::<usize>(), table.len(), "the table has them all");
    }
}
