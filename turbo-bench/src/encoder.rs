//! `turbo-bench encoder`: the comparison with other engines, from the command line.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use turbo_bench::{
    checkpoint::Model,
    figures::encoder::{self, Data, Field, TURBO},
    rival::Rival,
};
use turbo_kernels::{Cpu, CpuOptions, Isa};

/// turbo beside other engines: BERT-base and MiniLM, from ids to the last hidden state (about a quarter of an hour)
///
/// All engines load the same random weights and take turns, so that whatever else the machine does hits all alike. The
/// record and the picture go to turbo-bench/results, the tables into README.md, whatever they say.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Python that has the other engines; see turbo-bench/peers
    #[arg(long, env = "TURBO_PEERS_PYTHON", value_name = "PATH")]
    python: PathBuf,
    /// The scripts of the other engines
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers")]
    peers: PathBuf,
    /// Where the models are made; several hundred megabytes
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers/.peers/encoder")]
    models: PathBuf,
    /// The other engines
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,…", default_value = "ort,ov,torch")]
    rivals: Vec<Peer>,
    /// One model instead of all; then nothing is written
    #[arg(long, value_name = "MODEL")]
    only: Option<String>,
    /// Rounds of turns; the median of all of them counts
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// Threads of every engine
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Where the record and the picture go
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/results")]
    out: PathBuf,
    /// The file that shows the tables
    #[arg(long, value_name = "FILE", default_value = "README.md")]
    readme: PathBuf,
}

/// Other engines that the scripts know.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    /// ONNX Runtime, fused by its own optimiser for transformers
    Ort,
    /// OpenVINO
    Ov,
    /// PyTorch with transformers
    Torch,
}

impl Peer {
    /// What the scripts call it.
    fn name(self) -> &'static str {
        match self {
            Self::Ort => "ort",
            Self::Ov => "ov",
            Self::Torch => "torch",
        }
    }
}

/// Compares, and writes what it found.
///
/// # Errors
/// When an engine is missing, or computes something else.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let device = Cpu::new(CpuOptions { threads: Some(arguments.threads), isa: Some(Isa::from_env()?) })?;
    let mut data = Data::new(arguments.threads.get(), arguments.rounds.get());
    if let Some(only) = &arguments.only {
        data.models.retain(|subject| subject.model == *only);
        if data.models.is_empty() {
            bail!("--only {only}: expected one of the models that are compared, bert-base or minilm");
        }
    }
    for subject in &data.models {
        arguments.prepare(&subject.model)?;
    }
    let checkpoint = |model: &str| arguments.models.join(model).join("hf");
    let comparison = encoder::run(&data, &device, checkpoint, |model| arguments.start(model))?;
    print!("{}", encoder::tables(&comparison));
    if arguments.only.is_some() {
        return Ok(());
    }
    encoder::write(&comparison, &arguments.out)?;
    encoder::write_into(&arguments.readme, &comparison)?;
    println!("\nwritten to {} and {}", arguments.out.display(), arguments.readme.display());
    Ok(())
}

impl Arguments {
    /// The checkpoint of a model, and what the other engines make of it.
    fn prepare(&self, name: &str) -> Result<()> {
        let model = Model::from_str(name, false).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        let base = self.models.join(name);
        model.shape().ensure(&base.join("hf"), 0, |_| {})?;
        if base.join("onnx/fused.onnx").exists() {
            return Ok(());
        }
        eprintln!("exporting {name}");
        let mut build = Command::new(&self.python);
        build.arg(self.peers.join("build_models.py")).args(["--steps", "onnx,fused", "--models", name]);
        let built = build.arg("--out").arg(&self.models).output();
        let built = built.with_context(|| format!("cannot start {}", self.python.display()))?;
        if !built.status.success() {
            let said = [built.stdout, built.stderr].concat();
            bail!("{build:?} failed:\n{}", String::from_utf8_lossy(&said));
        }
        Ok(())
    }

    /// One process per engine, each with its model loaded.
    fn start(&self, name: &str) -> Result<Field> {
        let base = self.models.join(name);
        let threads = self.threads.to_string();
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let mut turbo = Command::new(own);
        turbo.arg("peer").arg(base.join("hf")).args(["--threads", &threads]);
        let mut rivals = vec![Rival::start(TURBO, &mut turbo)?];
        for peer in &self.rivals {
            rivals.push(self.start_peer(*peer, &base, &threads)?);
        }
        Ok(Field { model: name.to_owned(), rivals })
    }

    fn start_peer(&self, peer: Peer, base: &Path, threads: &str) -> Result<Rival> {
        let mut python = Command::new(&self.python);
        python.arg(self.peers.join("peer_process.py")).args(["--peer", peer.name(), "--threads", threads]);
        Rival::start(peer.name(), python.arg("--base").arg(base))
    }
}
