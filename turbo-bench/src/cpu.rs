//! `turbo-bench cpu`: the comparison with other engines, from the command line.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};
use turbo_bench::{
    checkpoint::Model,
    figures::cpu::{
        self, Comparison, Disturbance, Entrant, METHOD, Precision, Regime, Rounds, Selection, Stage, TURBO,
        Work, regime,
    },
    record::Record,
    rival::Rival,
};
use turbo_kernels::{Cpu, CpuOptions, Isa};

/// turbo on a CPU beside other engines: BERT-base and MiniLM, from ids to the last hidden state (about 35 minutes)
///
/// All engines load the same random weights and take turns, so that whatever else the machine does hits all alike. Each
/// regime that is done goes into the record turbo-bench/results/cpu.json, where it replaces what an earlier run found,
/// into the page and the pictures beside it, and into the tables of README.md, whatever they say.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Python that has the other engines; see turbo-bench/peers
    #[arg(long, env = "TURBO_PEERS_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// The scripts of the other engines
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers")]
    peers: PathBuf,
    /// Where the models are made; more than a gigabyte
    #[arg(long, value_name = "DIR", default_value = "turbo-bench/peers/.peers/cpu")]
    models: PathBuf,
    /// Leave these engines out; the record goes elsewhere then (--out), since a goal needs all of them
    #[arg(long, value_delimiter = ',', value_name = "ENGINE,…", requires = "out",
        value_parser = PossibleValuesParser::new(regime::rivals()))]
    without: Vec<String>,
    /// Models, precisions or regimes: of each kind that is named, one must fit (`minilm,batch1`); see --list
    #[arg(long, value_delimiter = ',', value_name = "WORD,…")]
    only: Vec<String>,
    /// Only what the record does not have yet, not of every engine, or timed in an earlier way
    #[arg(long)]
    missing: bool,
    /// Print the regimes, and measure nothing
    #[arg(long)]
    list: bool,
    /// Minutes that all of it may take: the cheap is measured five times, the dear at least once, even where that takes
    /// longer
    #[arg(long, default_value_t = 35.0, value_name = "MINUTES")]
    budget: f64,
    /// So many rounds of turns everywhere, whatever it takes
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// Threads of every engine; a record has one number of them
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Where the record, the page and the pictures go, instead of turbo-bench/results; README.md stays as it is then
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the page and the pictures of the record anew, and measure nothing
    #[arg(long)]
    render: bool,
}

/// Where the record is that the README shows.
const RESULTS: &str = "turbo-bench/results";
const README: &str = "README.md";

/// Compares, and writes what it found.
///
/// # Errors
/// When an engine is missing, or computes something else.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let out = arguments.out.clone().unwrap_or_else(|| RESULTS.into());
    let file = out.join("cpu.json");
    let mut record: Option<Comparison> = if file.exists() { Some(Record::read(&file)?) } else { None };
    if arguments.render {
        let record = record.with_context(|| format!("{}: there is no record", file.display()))?;
        return arguments.show(&record, &out);
    }
    let regimes = arguments.regimes(record.as_ref())?;
    if arguments.list {
        let mut out = io::stdout().lock();
        // a reader that has seen enough is no error
        return match regimes.iter().try_for_each(|regime| writeln!(out, "{}", regime.title())) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        };
    }
    if let Some(record) = &record {
        let elsewhere = || format!("{}: choose another --threads, or another --out", file.display());
        cpu::fits(record, arguments.threads.get()).with_context(elsewhere)?;
    }
    let device = Cpu::new(CpuOptions { threads: Some(arguments.threads), isa: Some(Isa::from_env()?) })?;
    arguments.prepare(&regimes)?;
    let rounds = match arguments.rounds {
        Some(rounds) => Rounds::Fixed(rounds.get()),
        None => Rounds::Budget(60.0 * arguments.budget),
    };
    cpu::run(&regimes, rounds, &device, arguments, |section, provenance, summary| {
        let merged = cpu::merge(record.take(), section, (provenance.clone(), summary.clone()))?;
        arguments.show(&merged, &out)?;
        record = Some(merged);
        Ok(())
    })?;
    println!("written to {}", out.display());
    Ok(())
}

impl Arguments {
    /// What is to be measured.
    fn regimes(&self, record: Option<&Comparison>) -> Result<Vec<Regime>> {
        let selection = Selection::new(self.only.clone()).map_err(|why| anyhow::anyhow!("--only {why}"))?;
        let known = |regime: &Regime| {
            let sections = record.map(|record| &record.rows[..]).unwrap_or_default();
            sections.iter().any(|it| {
                let took_part = |rival: &String| it.agreement.iter().any(|of| &of.rival == rival);
                (it.name.as_str(), &it.model, it.precision) == (regime.name, &regime.model, regime.precision)
                    && it.method == METHOD
                    && regime.rivals.iter().all(took_part)
            })
        };
        let mut regimes = regime::all();
        for regime in &mut regimes {
            regime.rivals.retain(|rival| !self.without.contains(rival));
        }
        regimes.retain(|regime| selection.takes(regime) && !(self.missing && known(regime)));
        if regimes.is_empty() {
            bail!("nothing is left to measure");
        }
        Ok(regimes)
    }

    fn show(&self, record: &Comparison, out: &Path) -> Result<()> {
        cpu::write(record, out)?;
        if self.out.is_none() {
            cpu::write_into(Path::new(README), record)?;
        }
        Ok(())
    }

    /// The checkpoints, and what the other engines make of them.
    fn prepare(&self, regimes: &[Regime]) -> Result<()> {
        let mut models: Vec<&str> = Vec::new();
        let with_model = regimes.iter().filter(|regime| !matches!(regime.work, Work::Products { .. }));
        with_model.for_each(|regime| {
            if !models.contains(&regime.model.as_str()) {
                models.push(&regime.model);
            }
        });
        models.into_iter().try_for_each(|model| self.prepare_model(model))
    }

    fn prepare_model(&self, name: &str) -> Result<()> {
        use clap::ValueEnum;
        let model = Model::from_str(name, false).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        let base = self.models.join(name);
        model.shape().ensure(&base.join("hf"), 0, |_| {})?;
        // Each step and the last file that it writes.
        const STEPS: [(&str, &str); 4] = [
            ("onnx", "onnx/model.onnx"),
            ("fused", "onnx/fused.onnx"),
            ("int8", "onnx/int8.onnx"),
            ("ct2", "ct2/model.bin"),
        ];
        let missing: Vec<&str> =
            STEPS.iter().filter(|(_, file)| !base.join(file).exists()).map(|(step, _)| *step).collect();
        if missing.is_empty() {
            return Ok(());
        }
        eprintln!("{name}: making what the other engines load ({})", missing.join(", "));
        let mut build = Command::new(self.python()?);
        build.arg(self.peers.join("build_models.py")).args(["--steps", &missing.join(","), "--models", name]);
        let built = build.arg("--out").arg(&self.models).output();
        let built = built.with_context(|| format!("cannot start {build:?}"))?;
        if !built.status.success() {
            let said = [built.stdout, built.stderr].concat();
            bail!("{build:?} failed:\n{}", String::from_utf8_lossy(&said));
        }
        Ok(())
    }

    fn python(&self) -> Result<&PathBuf> {
        self.python
            .as_ref()
            .context("no Python with the other engines is given: --python, or `cargo xtask bench cpu`")
    }
}

impl Stage for Arguments {
    fn checkpoint(&self, model: &str) -> PathBuf {
        self.models.join(model).join("hf")
    }

    fn start(&self, entrant: &Entrant) -> Result<Rival> {
        let Entrant { rival, model, precision, threads } = entrant;
        let threads = threads.to_string();
        if rival == TURBO {
            let mut turbo = own()?;
            turbo.arg("peer").arg(self.checkpoint(model)).args([
                "--threads",
                &threads,
                "--dtype",
                precision.name(),
            ]);
            return Rival::start(rival, &mut turbo);
        }
        let mut python = Command::new(self.python()?);
        python.arg(self.peers.join("peer_process.py")).args(["--peer", rival, "--threads", &threads]);
        python.args(["--variant", variant(rival, *precision)?]);
        Rival::start(rival, python.arg("--base").arg(self.models.join(model)))
    }

    fn disturb(&self) -> Result<Disturbance> {
        let mut disturb = Command::new("taskset");
        disturb.args(["--cpu-list", "0"]).arg(own()?.get_program()).args(["disturb", "--share", "0.05"]);
        let child = disturb.stdin(Stdio::piped()).spawn();
        Ok(Disturbance(child.context("cannot start taskset, which is part of util-linux")?))
    }
}

/// This program.
fn own() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot tell where this program is")?))
}

/// What the scripts call an engine's way to compute.
fn variant(rival: &str, precision: Precision) -> Result<&'static str> {
    Ok(match (rival, precision) {
        ("ort", Precision::F32) => "fused",
        ("ort", Precision::Int8) => "int8",
        ("ov", Precision::F32) => "f32",
        ("ov", Precision::Bf16) => "bf16",
        ("ct2", Precision::F32) => "float32",
        ("ct2", Precision::Int8) => "int8",
        ("torch", Precision::F32) => "eager",
        ("torch", Precision::Bf16) => "bf16w",
        _ => bail!("{rival} does not compute in {}", precision.name()),
    })
}
