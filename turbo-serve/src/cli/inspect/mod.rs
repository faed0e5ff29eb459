//! `turbo inspect`: a model from the inside, as turbo sees it.
//!
//! In: a model and the sizes of one batch or several. Out: what it consists of, what fusion makes of its graph, what
//! each operator costs and how fast this machine could be, what another dtype would change, and where its activations
//! lie. Nothing is run.

mod costs;
mod device;
mod dtypes;
mod graph;
mod memory;
mod model;
mod pictures;

use std::{num::NonZeroUsize, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use turbo_models::Task;
use turbo_models::graph::kernels::{Device, limits::Limits};
use turbo_models::graph::{PlannerConfig, Program, TraceStep, dim::Extents, memory::plan_batches, passes};

use super::{
    device::Wish,
    model_arguments::LayoutArgument,
    number::{above_0, seq_lens},
    output,
    task::{self, Opened, TaskArguments},
};

/// Look inside a model: parameters, graph, costs, memory
///
/// Prints, in this order: what the model consists of; its graph as a textbook draws it, what each fusion pass rewrites,
/// and the graph that runs; what every kind of operator costs and how fast this machine could be; what another dtype
/// would gain and cost; where the activations lie in memory, and what changes from one length to the next. No batch is
/// run; only this machine's ceilings are measured.
///
/// With `--device cuda`, it prints the bytes that a GPU would hold instead of what this processor could do; that needs
/// no GPU. `--device auto` is the CPU here.
#[derive(Args)]
#[command(after_help = "\
Examples:
  turbo inspect minilm                             one input of 128 tokens
  turbo inspect minilm --seq-len 200,240           what a longer input does to the memory plan
  turbo inspect minilm --batch-size 20 --seq-len 40 --layout padded
  turbo inspect minilm --svg pictures              the graphs and the memory plan as SVG files
  turbo inspect path/to/folder --task masked-lm    the same encoder with its vocabulary head
  turbo inspect minilm --device cuda --dtype bf16 --batch-size 64
                                                   what it would take on a GPU

How to read it:
  %9            a value; the same name in graph, plan and picture
  batch_size, padded_len, total_tokens
                sizes that are known only once a batch is known
  slot          a planned tensor; activations of repeated layers take the same slots, one layer
                after the other
  chunk         a block of memory that is kept between batches
  limit         time at the ceiling that an operator meets first, with every byte from memory
  floor         all operations at the peak, or every weight once from memory, whichever takes
                longer")]
pub(super) struct Arguments {
    #[command(flatten)]
    model: TaskArguments,

    /// Tokens of each sequence
    ///
    /// With several numbers, separated by commas, batches are planned one after the other. By default, 128, or as many
    /// as the model has positions for if those are fewer.
    #[arg(long, value_name = "N,…", value_parser = above_0::<NonZeroUsize>, value_delimiter = ',')]
    seq_len: Vec<NonZeroUsize>,
    /// Sequences of each batch
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>, default_value = "1")]
    batch_size: NonZeroUsize,
    /// How the sequences of a batch share a tensor
    #[arg(long, value_enum, default_value_t = LayoutArgument::Packed)]
    layout: LayoutArgument,
    /// Print the graph after each pass that changed it
    ///
    /// By default only the first and the last graph are printed.
    #[arg(long)]
    passes: bool,
    /// Folder to write the graphs and the memory plan into, as SVG files
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Inspects as the arguments say.
///
/// # Errors
/// No such model, a length that it does not have positions for, a folder that cannot be written to.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let opened = arguments.model.open()?;
    let Opened { name, checkpoint, task, dtype, device, .. } = &opened;
    let (task, is_gpu) = (*task, matches!(device, Wish::Cuda(_)));
    let batches = arguments.batches(checkpoint.config().max_input_length(), task)?;

    let drawn = checkpoint.graph(task)?;
    let mut steps: Vec<TraceStep> = Vec::new();
    let layout = arguments.layout.into();
    let program = Program::compile_traced(&drawn, layout, passes::ALL, |step| steps.push(step))?;
    let program = match is_gpu {
        true => program.with_element_bytes(dtype.bytes_on_gpu()?),
        false => program.with_dtype(dtype.of_cpu_products()),
    };
    let planned = plan_batches(&program, &batches, PlannerConfig::default())?;

    let computed = if is_gpu { dtype.to_string() } else { dtype.of_cpu_products().to_string() };
    let mut sections = vec![model::section(name, checkpoint, (task, &computed), &drawn)];
    sections.push(graph::section(&drawn, &steps, &batches[0], arguments.passes));
    if !is_gpu {
        let (cpu, dtype) = (opened.cpu()?, dtype.of_cpu_products());
        let (limits, name) = (Limits::measure(&cpu)?, cpu.name());
        let costs = |extents| costs::section(program.graph(), extents, &limits, &name);
        sections.extend(batches.iter().map(costs));
        sections.extend(batches.iter().map(|extents| dtypes::section(&program, extents, &limits, dtype)));
    }
    sections.extend(memory::sections(&program, &planned));
    if is_gpu {
        sections.push(device::section(&program, &planned, *device));
    }
    if let Some(folder) = &arguments.svg {
        sections.push(pictures::write(folder, name, &drawn, &steps, &planned)?);
    }
    output::line(sections.join("\n").trim_end())
}

impl Arguments {
    /// The batch of each length.
    fn batches(&self, positions: usize, task: Task) -> Result<Vec<Extents>> {
        let batch = |seq_len: &NonZeroUsize| {
            let (seq_len, batch_size) = (seq_len.get(), self.batch_size.get());
            if seq_len > positions {
                bail!("--seq-len: {seq_len} tokens, but the model has {positions} positions");
            }
            let total_tokens = seq_len.checked_mul(batch_size);
            let total_tokens = total_tokens.filter(|&tokens| u32::try_from(tokens).is_ok());
            let total_tokens = total_tokens
                .with_context(|| format!("--batch-size {batch_size}: a batch has fewer than 2³² tokens"))?;
            let sum_len_sq = total_tokens * seq_len;
            let selected_rows = batch_size * task::selected_rows(task);
            Ok(Extents { batch_size, padded_len: seq_len, total_tokens, sum_len_sq, selected_rows })
        };
        seq_lens(&self.seq_len, positions).iter().map(batch).collect()
    }
}

/// `1 × 200 tokens`.
fn batch_name(extents: &Extents) -> String {
    format!("{} × {} tokens", extents.batch_size, extents.padded_len)
}

/// A heading that the eye finds.
fn heading(title: &str) -> String {
    format!("── {title} {}\n", "─".repeat(96_usize.saturating_sub(title.chars().count())))
}
