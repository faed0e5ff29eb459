//! `turbo bench`: the bare engine under the clock, beside what this machine can do at most.
//!
//! In: a model, and batches or a stream of requests. Out: a table, or JSON lines of the form that the benches of other
//! engines print. No text, no queue, no sockets: what is timed is one call from ids to the last hidden state, or to
//! what the model's head makes of it.

mod cuts;
mod engine;
mod profile;
mod report;
mod workload;

use std::{num::NonZeroUsize, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;
use turbo_models::{
    Staging,
    graph::{
        dim::Extents,
        kernels::{Device, limits::Limits},
    },
};

use self::{
    engine::{Effort, Engine, quantile},
    profile::Profile,
    report::{Case, Form, Printer, Stream, Subject, rounded, rounded_ms},
    workload::{Policy, Workload},
};
use super::{
    device::Wish,
    number::{above_0, seq_lens},
    task::{self, Opened, TaskArguments},
};

/// Time the bare engine: from ids to the last hidden state
///
/// Times batches of every length and size given, or a stream of requests of varying length under several batching
/// policies. Beside each time is its floor: every operation at this machine's peak, or every weight once from memory,
/// whichever takes longer; both ceilings are measured at the start of the run. Batches run packed: no time is spent on
/// padding. If weights stay in a cache, a run can beat the floor. Only the CPU is timed; `--device auto` is the CPU
/// here.
#[derive(Args)]
#[command(after_help = "\
Examples:
  turbo bench minilm --seq-len 10,40,128,500           single requests
  turbo bench minilm --seq-len 40 --batch-size 1,20    what a batch costs
  turbo bench minilm --seq-len 128 --profile           where the time goes
  turbo bench minilm --workload uniform:5:500:200:seed0 --policy single,naive20,sorted20,dp

A workload uniform:LO:HI:COUNT:seedS has COUNT lengths from LO to HI, both included; the same seed
gives the same lengths. Policies: `single` one request at a time; `naive20` in order of arrival,
twenty at a time; `sorted20` in order of length, twenty at a time; `dp` the cheapest cuts of the
whole queue, by costs measured just before. The time for that measuring is not counted.

With --json each case is a line
  {\"peer\":\"turbo\",\"model\",\"variant\",\"threads\",\"batch\",\"seq_len\",
   \"median_ms\",\"p10\",\"p90\",\"floor_ms\",\"gflops\"}
and each policy of a workload a line
  {\"peer\",\"model\",\"variant\",\"threads\",\"workload\",\"policy\",
   \"total_s\",\"requests_per_s\",\"tokens_per_s\"}")]
pub(super) struct Arguments {
    #[command(flatten)]
    model: TaskArguments,

    /// Tokens of each sequence; several numbers are separated by commas
    ///
    /// By default, 128, or as many as the model has positions for if those are fewer.
    #[arg(long, value_name = "N,…", value_parser = above_0::<NonZeroUsize>, value_delimiter = ',', help_heading = "Batches")]
    seq_len: Vec<NonZeroUsize>,
    /// Sequences of each batch; several numbers are separated by commas
    #[arg(long, value_name = "B,…", value_parser = above_0::<NonZeroUsize>, value_delimiter = ',', default_value = "1", help_heading = "Batches")]
    batch_size: Vec<NonZeroUsize>,
    /// Stream of requests instead of single batches
    #[arg(long, value_name = "uniform:LO:HI:COUNT:seedS", conflicts_with_all = ["seq_len", "batch_size"], help_heading = "Stream")]
    workload: Option<Workload>,
    /// How the stream is cut into batches; several are separated by commas
    #[arg(
        long,
        value_name = "POLICY,…",
        value_delimiter = ',',
        default_value = "single",
        requires = "workload",
        help_heading = "Stream"
    )]
    policy: Vec<Policy>,

    /// Maximum number of runs of each batch, after three to warm up
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, default_value = "30", help_heading = "Measuring")]
    reps: NonZeroUsize,
    /// Seconds for each batch after which no further run begins
    ///
    /// At least three runs are timed, unless they take more than four times as long.
    #[arg(long, value_name = "S", default_value_t = 4.0, help_heading = "Measuring")]
    max_seconds: f64,
    /// Print one JSON object per line
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Print the share of each operator in the time
    ///
    /// It also shows how close each is to what this machine can do.
    #[arg(long, conflicts_with_all = ["json", "workload"], help_heading = "Output")]
    profile: bool,
}

/// Benches as the arguments say.
///
/// # Errors
/// No such model, a length that it does not have positions for, no memory.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let opened = arguments.model.open()?;
    if let Wish::Cuda(_) = opened.device {
        bail!("--device {}: this command times the CPU; `cargo xtask gpu --help` times GPUs", opened.device);
    }
    let cpu = opened.cpu()?;
    let Opened { name, checkpoint, task, dtype, .. } = opened;
    let dtype = dtype.of_cpu_products();
    let printer = Printer {
        span: task::span(task),
        form: if arguments.json { Form::Json } else { Form::Table },
        subject: Subject {
            peer: "turbo",
            model: name,
            variant: dtype.to_string(),
            threads: cpu.threads().get(),
        },
    };
    let effort = arguments.effort()?;
    let mut engine = Engine::new(cpu.clone(), &checkpoint, task, dtype)?;
    let limits = Limits::measure(&cpu)?;
    let mut bench = Bench { engine: &mut engine, limits, effort, printer };
    match &arguments.workload {
        Some(workload) => bench.stream(workload, &arguments.policy, &cpu.name()),
        None => bench.cases(arguments, &cpu.name()),
    }
}

impl Arguments {
    fn effort(&self) -> Result<Effort> {
        let Ok(most) = Duration::try_from_secs_f64(self.max_seconds) else {
            bail!("--max-seconds {}: expected a number of seconds", self.max_seconds);
        };
        Ok(Effort { reps: self.reps.get(), most })
    }
}

/// One run of the program.
struct Bench<'a> {
    engine: &'a mut Engine,
    limits: Limits,
    effort: Effort,
    printer: Printer,
}

impl Bench<'_> {
    /// Every size with every length.
    fn cases(&mut self, arguments: &Arguments, device: &str) -> Result<()> {
        let mut batches = Vec::new();
        for batch_size in &arguments.batch_size {
            for seq_len in seq_lens(&arguments.seq_len, self.engine.positions()) {
                let seq_len = u32::try_from(seq_len.get()).context("--seq-len")?;
                self.engine.check(&[seq_len]).context("--seq-len")?;
                let total_tokens =
                    u32::try_from(batch_size.get()).ok().and_then(|it| it.checked_mul(seq_len));
                total_tokens.with_context(|| {
                    format!("--batch-size {batch_size}: a batch has fewer than 2³² tokens")
                })?;
                let batch = self.engine.batch(&vec![seq_len; batch_size.get()]).context("--seq-len")?;
                batches.push((seq_len, batch));
            }
        }
        self.printer.heading(device, &self.limits)?;
        self.printer.case_heads()?;
        for (seq_len, batch) in &batches {
            let case = self.case(*seq_len, batch)?;
            self.printer.case(&case)?;
        }
        for (_, batch) in batches.iter().filter(|_| arguments.profile) {
            let profile = Profile::measure(self.engine, batch, self.effort)?;
            let graph = self.engine.executor.program().graph();
            self.printer.person(&profile.table(graph, &batch.extents(), &self.limits))?;
        }
        Ok(())
    }

    fn case(&mut self, seq_len: u32, batch: &Staging) -> Result<Case> {
        let times = self.engine.times(batch, self.effort)?;
        let median = quantile(&times, 0.5);
        let flops = self.engine.executor.program().graph().total_cost(&batch.extents()).flops;
        Ok(Case {
            batch: batch.batch_size(),
            seq_len,
            median_ms: rounded_ms(median),
            p10: rounded_ms(quantile(&times, 0.1)),
            p90: rounded_ms(quantile(&times, 0.9)),
            floor_ms: rounded_ms(self.floor(&batch.extents())),
            gflops: rounded(flops as f64 / 1e9 / median.as_secs_f64(), 2),
        })
    }

    /// The whole stream under one policy after the other.
    fn stream(&mut self, workload: &Workload, policies: &[Policy], device: &str) -> Result<()> {
        let Workload { spec, lengths } = workload;
        self.engine.check(lengths).context("--workload")?;
        self.printer.heading(device, &self.limits)?;
        self.printer.stream_heads(spec, lengths)?;
        for &policy in policies {
            let budget = self.effort.most;
            let cut = |lengths: &[u32]| cuts::cheapest(self.engine, lengths, budget);
            let seq_lens = policy.batches(lengths, cut)?;
            let batches = seq_lens.iter().map(|lens| self.engine.batch(lens)).collect::<Result<Vec<_>>>()?;
            for index in [0, batches.len() - 1, batches.len() / 2] {
                self.engine.time(&batches[index])?;
            }
            let times = batches.iter().map(|batch| self.engine.time(batch)).collect::<Result<Vec<_>>>()?;
            let floor = batches.iter().map(|batch| self.floor(&batch.extents())).sum();
            self.printer.stream(&Stream::new((spec, lengths), policy, &times, floor))?;
        }
        Ok(())
    }

    fn floor(&self, extents: &Extents) -> Duration {
        self.engine.executor.program().graph().floor(extents, &self.limits)
    }
}
