//! `turbo-bench serve`: servers under load, from the command line.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use turbo_bench::{
    figures::{
        cpu::Precision,
        selection::Selection,
        serve::{self, Arrivals, Kind, Pace, Regime, Report, Rows, Stage, TURBO, Work, regime},
    },
    fire::{Server, Texts, Trace},
    rival::Rival,
    siege,
};
use turbo_kernels::Isa;

use super::{bound::bound, choice::Choice, engines::Engines, own};

/// turbo as a server: its policies under load, other servers beside it, clients that it has to survive (over an hour)
///
/// Every server is a process that is asked over loopback, by a generator on the same cores. Each regime that is done goes
/// into the record turbo-bench/results/serve.json, where it replaces what an earlier run found, and into the page and the
/// pictures beside it, whatever they say.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server, as `cargo build --release --bin turbo` makes it
    #[arg(long, env = "TURBO_BINARY", value_name = "PATH", default_value = "target/release/turbo")]
    turbo: PathBuf,
    /// Where published models are kept: the words of `minilm` are what texts are made of
    #[arg(long, env = "TURBO_MODELS_DIR", value_name = "DIR", default_value = "models")]
    published: PathBuf,
    #[command(flatten)]
    engines: Engines,
    /// Requests to send instead of those of each contest, as lines of milliseconds and tokens behind a head `at_ms,tokens`;
    /// the record goes elsewhere then (--out)
    #[arg(long, value_name = "FILE", requires = "out")]
    trace: Option<PathBuf>,
    /// Seconds of a load and of a capacity; with fewer than in the record, it goes elsewhere (--out)
    #[arg(long, value_name = "SECONDS", requires = "out", value_parser = seconds)]
    turn: Option<Duration>,
    /// Minutes that all of it may take: each regime is measured once at least, even where that takes longer
    #[arg(long, default_value_t = 75.0, value_name = "MINUTES")]
    budget: f64,
    #[command(flatten)]
    choice: Choice,
}

/// The model whose words texts are made of.
const WORDS: &str = "minilm";
/// How long a server may take to load its model and to measure what batches cost.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the measurements, and writes what they found.
///
/// # Errors
/// When a server is missing, or computes something else.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let choice = &arguments.choice;
    let out = choice.folder();
    let mut record: Option<Report> = choice.record(out, "serve")?;
    if choice.render {
        return record.map_or(Ok(()), |record| serve::write(&record, out));
    }
    let regimes = arguments.regimes(record.as_ref())?;
    if choice.list {
        return Choice::print(regimes.iter().map(listed));
    }
    if let Some(record) = &record {
        let elsewhere = || format!("{}: choose another --threads, or another --out", out.display());
        serve::fits(record, choice.threads.get()).with_context(elsewhere)?;
    }
    let place = Place::prepare(arguments, &regimes)?;
    let rounds = choice.rounds(arguments.budget);
    serve::run(
        &regimes,
        rounds,
        choice.threads.get(),
        &arguments.pace(),
        &place,
        |section, provenance, summary| {
            let merged = serve::merge(record.take(), section, (provenance.clone(), summary.clone()))?;
            serve::write(&merged, out)?;
            record = Some(merged);
            Ok(())
        },
    )?;
    println!("written to {}", out.display());
    Ok(())
}

impl Arguments {
    /// The regimes that are to be measured.
    fn regimes(&self, record: Option<&Report>) -> Result<Vec<Regime>> {
        let mut regimes = regime::all()?;
        let selection = Selection::new(self.choice.only.clone(), regimes.iter().map(Regime::words));
        let selection = selection.map_err(|why| anyhow::anyhow!("--only {why}"))?;
        let known = |regime: &Regime| {
            let sections = record.map(|record| &record.rows[..]).unwrap_or_default();
            sections.iter().any(|it| {
                let is_all = match (&it.rows, &regime.work) {
                    (Rows::Contest(contest), Work::Contest { servers, .. }) => {
                        servers.iter().all(|server| contest.standing(&server.name(servers)).is_some())
                    }
                    _ => true,
                };
                let is_current = it.method == it.rows.method();
                regime.words() == [it.model.as_str(), it.name.as_str()] && is_current && is_all
            })
        };
        regimes.retain(|regime| selection.takes(regime.words()) && !(self.choice.missing && known(regime)));
        if let Some(file) = &self.trace {
            let cannot = || format!("--trace {}", file.display());
            let trace = Trace::parse(&fs::read_to_string(file).with_context(cannot)?).with_context(cannot)?;
            for regime in &mut regimes {
                if let Work::Contest { arrivals, .. } = &mut regime.work {
                    *arrivals = Arrivals::Recorded(trace.clone());
                }
            }
        }
        if regimes.is_empty() {
            bail!("nothing is left to measure");
        }
        Ok(regimes)
    }

    fn pace(&self) -> Pace {
        match self.turn {
            Some(turn) => Pace { turn, capacity: turn, ramp: turn / 4, ..Pace::WHOLE },
            None => Pace::WHOLE,
        }
    }
}

/// Parses a time in seconds from the command line.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.01 to 3600".to_owned())
}

/// All that the figure needs to start servers.
struct Place<'a> {
    arguments: &'a Arguments,
    texts: Texts,
    /// A folder for packed weights, which all servers map, and for costs where they are kept.
    scratch: tempfile::TempDir,
}

impl<'a> Place<'a> {
    /// Makes the checkpoints and what the other engines load, and reads the words.
    fn prepare(arguments: &'a Arguments, regimes: &[Regime]) -> Result<Self> {
        let turbo = &arguments.turbo;
        if !turbo.exists() {
            bail!(
                "{}: there is no server; `cargo build --release --bin turbo` makes it, --turbo names another",
                turbo.display()
            );
        }
        let words = arguments.published.join(WORDS).join("tokenizer.json");
        if !words.exists() {
            bail!("{}: there is no such file; `cargo xtask model` fetches it", words.display());
        }
        let mut models: Vec<&str> = regimes.iter().map(|regime| regime.model.as_str()).collect();
        models.dedup();
        for model in models {
            let others = regimes.iter().filter(|regime| regime.model == model).flat_map(others);
            let others: Vec<_> = others.map(|name| (name, Precision::F32)).collect();
            arguments.engines.prepare(model, &others)?;
            complete(&arguments.engines.checkpoint(model), &words, &served(arguments, model))?;
        }
        let texts = Texts::open(&arguments.published.join(WORDS))?;
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        Ok(Self { arguments, texts, scratch })
    }

    /// The command of turbo with a model, without the arguments in which servers differ.
    fn turbo(&self, model: &str) -> Command {
        let mut command = bound(&self.arguments.turbo);
        isolate(&mut command, std::env::var_os);
        command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--device=cpu"]);
        command.args(["--pooling=mean", "--threads", &self.arguments.choice.threads.to_string()]);
        command.arg("--packed-cache").arg(self.scratch.path());
        command.arg("--model-id").arg(served(self.arguments, model));
        command
    }

    /// The same with a policy and a layout; the server keeps neither answers nor costs.
    fn forgetful(&self, model: &str, batching: &str, layout: &str) -> Command {
        let mut turbo = self.turbo(model);
        turbo.args(["--cache-bytes=0", "--cost-cache=off", "--batching", batching, "--layout", layout]);
        if layout == "padded" {
            turbo.arg(format!("--max-batch-requests={PAPER_TEXTS}"));
        }
        turbo
    }
}

/// Clears the environment of a server except for what no argument can say and the bare engine sees too. Most of its
/// variables stand for arguments, and one that happens to be set in a shell must not change what is measured.
fn isolate(command: &mut Command, variable: impl Fn(&'static str) -> Option<OsString>) {
    command.env_clear();
    for name in ["PATH", Isa::VARIABLE] {
        if let Some(value) = variable(name) {
            command.env(name, value);
        }
    }
}

/// The other engines among the servers of a regime.
fn others(regime: &Regime) -> impl Iterator<Item = &str> {
    let servers: &[Kind] = match &regime.work {
        Work::Contest { servers, .. } => servers,
        _ => &[],
    };
    servers.iter().filter_map(|server| match server {
        Kind::Other(name) => Some(name.as_str()),
        _ => None,
    })
}

/// A regime as `--list` prints it, with the other engines in it. From these `cargo xtask bench` knows whether it has to
/// install any.
fn listed(regime: &Regime) -> String {
    let others: Vec<&str> = others(regime).collect();
    match others.is_empty() {
        true => regime.title(),
        false => format!("{}, beside {}", regime.title(), others.join(", ")),
    }
}

/// The most texts of a padded batch, as in the paper.
const PAPER_TEXTS: usize = 20;
/// Tokens of the longest text that the models take.
const LONGEST: usize = 512;

/// The folder that servers load: a checkpoint and a tokenizer.
fn served(arguments: &Arguments, model: &str) -> PathBuf {
    arguments.engines.base(model).join("served")
}

/// Makes the folder `to` from a checkpoint and the tokenizer file `words`. Files that are there already stay.
fn complete(checkpoint: &Path, words: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot make {}", to.display());
    fs::create_dir_all(to).with_context(cannot)?;
    let checkpoint = fs::canonicalize(checkpoint).with_context(cannot)?;
    let files = ["config.json", "model.safetensors"].map(|name| (checkpoint.join(name), to.join(name)));
    for (from, to) in files.into_iter().chain([(fs::canonicalize(words)?, to.join("tokenizer.json"))]) {
        if !to.exists() {
            std::os::unix::fs::symlink(from, to).with_context(cannot)?;
        }
    }
    Ok(())
}

impl siege::Stage for Place<'_> {
    fn command(&self) -> Command {
        self.turbo(WORDS)
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl Stage for Place<'_> {
    fn checkpoint(&self, model: &str) -> PathBuf {
        served(self.arguments, model)
    }

    fn serve(&self, name: &str, kind: &Kind, model: &str) -> Result<Server> {
        let threads = self.arguments.choice.threads.to_string();
        let mut command = match kind {
            Kind::Turbo { batching, layout } => self.forgetful(model, batching, layout),
            Kind::Paper => {
                let mut turbo = self.forgetful(model, "naive", "padded");
                turbo.arg(format!("--max-batch-tokens={}", PAPER_TEXTS * LONGEST));
                turbo
            }
            Kind::Other(peer) => {
                let script = self.arguments.engines.script("serve_peer.py")?;
                let mut other = bound(script.get_program());
                other.args(script.get_args());
                other.args(["--peer", peer, "--threads", &threads, "--base"]);
                other.arg(self.arguments.engines.base(model)).arg("--tokenizer");
                other.arg(self.checkpoint(model).join("tokenizer.json"));
                other
            }
        };
        Server::start(name, &mut command, PATIENCE)
    }

    fn engine(&self, model: &str) -> Result<Rival> {
        let mut engine = own()?;
        engine.arg("peer").arg(self.checkpoint(model));
        Rival::start(TURBO, engine.args(["--threads", &self.arguments.choice.threads.to_string()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_seconds() {
        assert_eq!(seconds("1"), Ok(Duration::from_secs(1)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["-1", "0", "nan", "inf", "1e30", "", "1s"] {
            assert_eq!(seconds(wrong), Err("expected seconds from 0.01 to 3600".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn the_list_says_who_is_compared_with() {
        let all: Vec<String> = regime::all().unwrap().iter().map(listed).collect();
        let beside: Vec<&str> = all.iter().map(String::as_str).filter(|it| it.contains("beside")).collect();
        let expected = ["minilm others-short, beside ort, ov", "minilm others-long, beside ort, ov"];
        assert_eq!(beside, expected);
        assert!(all.iter().any(|it| it == "minilm packed-short"), "{all:?}");
    }

    #[test]
    fn a_server_uses_the_instructions_that_the_bare_engine_does() {
        let mut server = Command::new("turbo");
        let shell = [("PATH", "/bin"), ("TURBO_CPU", "avx2"), ("DTYPE", "int8")];
        isolate(server.env("MODEL_ID", "other"), |name| {
            shell.iter().find(|(it, _)| *it == name).map(|(_, value)| value.into())
        });
        let left: Vec<_> =
            server.get_envs().filter_map(|(name, value)| name.to_str().zip(value?.to_str())).collect();
        assert_eq!(left, shell[..2]);
    }
}
