//! `turbo-bench cpu`: the comparison with other engines, from the command line.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};
use turbo_bench::{
    figures::{
        cpu::{self, Comparison, Disturbance, Entrant, Precision, Regime, Stage, TURBO, Work, place, regime},
        selection::Selection,
    },
    record::{self, Provenance},
    rival::Rival,
};
use turbo_kernels::{Cpu, CpuOptions, Device, Isa};

use super::{choice::Choice, engines::Engines, own};

/// turbo on a CPU beside other engines: BERT-base and MiniLM, from ids to the last hidden state (about 35 minutes)
///
/// All engines load the same random weights and take turns, so that whatever else the machine does hits all alike. Each
/// regime that is done goes into the record turbo-bench/results/cpu.json, where it replaces what an earlier run found,
/// into the page and the pictures beside it, and into the tables of README.md, whatever they say. On another processor
/// than that record's, it goes into a folder of that processor's own, turbo-bench/results/cpu/PROCESSOR.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    engines: Engines,
    /// Leave these engines out; the record goes elsewhere then (--out), since a goal needs all of them
    #[arg(long, value_delimiter = ',', value_name = "ENGINE,…", requires = "out",
        value_parser = PossibleValuesParser::new(regime::rivals()))]
    without: Vec<String>,
    /// Minutes that all of it may take: the cheap is measured five times, the dear at least once, even where that takes
    /// longer
    #[arg(long, default_value_t = 35.0, value_name = "MINUTES")]
    budget: f64,
    #[command(flatten)]
    choice: Choice,
}

/// The file whose tables show the record too.
const README: &str = "README.md";

/// Runs the comparison, and writes what it found.
///
/// # Errors
/// When an engine is missing, or computes something else.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let choice = &arguments.choice;
    if choice.render {
        return arguments.render();
    }
    let out = &arguments.folder()?;
    let mut record: Option<Comparison> = choice.record(out, "cpu")?;
    let regimes = arguments.regimes(record.as_ref())?;
    if choice.list {
        return Choice::print(regimes.iter().map(Regime::title));
    }
    let device = Cpu::new(CpuOptions { threads: Some(choice.threads), isa: Some(Isa::from_env()?) })?;
    if let Some(record) = &record {
        let here = Provenance::here(device.name());
        cpu::fits(record, choice.threads.get(), &here.processor)
            .with_context(|| out.display().to_string())?;
    }
    arguments.prepare(&regimes)?;
    let rounds = choice.rounds(arguments.budget);
    cpu::run(&regimes, rounds, &device, arguments, |section, provenance, summary| {
        let merged = cpu::merge(record.take(), section, (provenance.clone(), summary.clone()))?;
        arguments.show(&merged, out)?;
        record = Some(merged);
        Ok(())
    })?;
    println!("written to {}", out.display());
    Ok(())
}

impl Arguments {
    /// The regimes that are to be measured.
    fn regimes(&self, record: Option<&Comparison>) -> Result<Vec<Regime>> {
        let mut regimes = regime::all();
        let selection = Selection::new(self.choice.only.clone(), regimes.iter().map(Regime::words));
        let selection = selection.map_err(|why| anyhow::anyhow!("--only {why}"))?;
        let known = |regime: &Regime| {
            let sections = record.map(|record| &record.rows[..]).unwrap_or_default();
            sections.iter().any(|it| {
                let took_part = |rival: &String| it.agreement.iter().any(|of| &of.rival == rival);
                (it.name.as_str(), &it.model, it.precision) == (regime.name, &regime.model, regime.precision)
                    && it.is_current()
                    && regime.rivals.iter().all(took_part)
            })
        };
        for regime in &mut regimes {
            regime.rivals.retain(|rival| !self.without.contains(rival));
        }
        regimes.retain(|regime| selection.takes(regime.words()) && !(self.choice.missing && known(regime)));
        regimes.retain(|regime| {
            let can_run = regime.can_run_with(self.choice.threads.get());
            if !can_run {
                eprintln!(
                    "{}: left out, there is no second thread to measure; choose more --threads",
                    regime.title()
                );
            }
            can_run
        });
        if regimes.is_empty() {
            bail!("nothing is left to measure");
        }
        Ok(regimes)
    }

    /// The folder for the record of this processor.
    fn folder(&self) -> Result<PathBuf> {
        if self.choice.out.is_some() {
            return Ok(self.choice.folder().to_owned());
        }
        let processor = record::processor();
        let folder = place::folder(self.choice.folder(), &processor)?;
        if folder != self.choice.folder() {
            eprintln!("the record of {processor} is that in {}", folder.display());
        }
        Ok(folder)
    }

    /// Writes everything except the record, for every processor in the folder that the choice names.
    fn render(&self) -> Result<()> {
        let results = self.choice.folder();
        for other in place::others(results)? {
            let folder = results.join(&other.folder);
            self.choice.record(&folder, "cpu")?.map_or(Ok(()), |record| cpu::write(&record, &folder))?;
        }
        self.choice.record(results, "cpu")?.map_or(Ok(()), |record| self.show(&record, results))
    }

    /// Writes a record, and the pages and tables that show it.
    fn show(&self, record: &Comparison, out: &Path) -> Result<()> {
        cpu::write(record, out)?;
        if self.choice.out.is_some() {
            return Ok(());
        }
        let results = self.choice.folder();
        if out == results {
            return cpu::write_into(Path::new(README), record);
        }
        // the main page has a link to it
        self.choice.record(results, "cpu")?.map_or(Ok(()), |first| cpu::write(&first, results))
    }

    /// Makes the checkpoints, and what the other engines load.
    fn prepare(&self, regimes: &[Regime]) -> Result<()> {
        neighbour(regimes, || self.disturb())?;
        let mut models: Vec<&str> = Vec::new();
        let with_model = regimes.iter().filter(|regime| !matches!(regime.work, Work::Products { .. }));
        with_model.for_each(|regime| {
            if !models.contains(&regime.model.as_str()) {
                models.push(&regime.model);
            }
        });
        models.into_iter().try_for_each(|model| {
            let of_model = regimes.iter().filter(|regime| regime.model == model);
            let rivals = of_model
                .flat_map(|regime| regime.rivals.iter().map(move |rival| (rival.as_str(), regime.precision)));
            self.engines.prepare(model, &rivals.collect::<Vec<_>>())
        })
    }
}

impl Stage for Arguments {
    fn checkpoint(&self, model: &str) -> PathBuf {
        self.engines.checkpoint(model)
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
        let mut python = self.engines.script("peer_process.py")?;
        python.args(["--peer", rival, "--threads", &threads]);
        python.args(["--variant", variant(rival, *precision)?]);
        Rival::start(rival, python.arg("--base").arg(self.engines.base(model)))
    }

    fn multiply(&self, rival: &str, precision: Precision, threads: usize) -> Result<Rival> {
        let mut process = match rival {
            TURBO => {
                let mut turbo = own()?;
                turbo.args(["peer", "--products"]);
                turbo
            }
            _ => self.engines.script("products_peer.py")?,
        };
        process.args(["--threads", &threads.to_string(), "--dtype", precision.name()]);
        Rival::start(rival, &mut process)
    }

    fn disturb(&self) -> Result<Disturbance> {
        let status = fs::read_to_string("/proc/self/status")
            .context("cannot read /proc/self/status, which Linux has, to see which cores may be used")?;
        let core = first_core(&status).context("/proc/self/status does not say which cores may be used")?;
        let mut disturb = Command::new("taskset");
        disturb.args(["--cpu-list", core]).arg(own()?.get_program()).args(["disturb", "--share", "0.05"]);
        let child = disturb.stdin(Stdio::piped()).spawn();
        Ok(Disturbance(child.context("cannot start taskset: install util-linux")?))
    }
}

/// Makes sure that a neighbour can be started if a regime wants one. Otherwise a failure would show only when its turn
/// has come.
fn neighbour(regimes: &[Regime], start: impl FnOnce() -> Result<Disturbance>) -> Result<()> {
    let Some(regime) = regimes.iter().find(|regime| matches!(regime.work, Work::Scaling(_))) else {
        return Ok(());
    };
    let cannot = || format!("{} needs a neighbour; --only with the others leaves it out", regime.title());
    start().map(drop).with_context(cannot)
}

/// The first core that a process may use, from its `/proc/PID/status`. A neighbour on a core that the engines never use
/// would not disturb them.
fn first_core(status: &str) -> Option<&str> {
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cores.trim().split([',', '-']).next().filter(|core| !core.is_empty())
}

/// The scripts' name for a way in which an engine computes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_there_can_be_a_neighbour_is_asked_before_it_is_needed() {
        let named = |name: &str| -> Vec<Regime> {
            regime::all().into_iter().filter(|it| it.model == "minilm" && it.name == name).collect()
        };
        let refuse = || -> Result<Disturbance> { bail!("there is no taskset") };
        let error = neighbour(&[named("batch1"), named("scaling")].concat(), refuse).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "minilm f32 scaling needs a neighbour; --only with the others leaves it out: there is no taskset"
        );
        neighbour(&named("batch1"), refuse).unwrap();
    }

    #[test]
    fn the_neighbour_is_on_a_core_that_may_be_used() {
        let of = |cores: &str| format!("Name:\tit\nCpus_allowed:\tc\nCpus_allowed_list:\t{cores}\n");
        for (cores, first) in [("0-3", Some("0")), ("2-3,8", Some("2")), ("5", Some("5")), ("", None)] {
            assert_eq!(first_core(&of(cores)), first, "{cores}");
        }
        assert_eq!(first_core("Name:\tit\n"), None);
    }
}
