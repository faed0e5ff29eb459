//! The model that is timed or looked into, and what is computed of it.

use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use turbo_models::{Checkpoint, Cpu, Task, graph::Pooling};

use super::{
    device::{self, Wish},
    model_arguments::{Dtype, ModelArguments},
};

/// Which model, and what is computed of it. Commands take it with `#[command(flatten)]`.
#[derive(Args)]
pub(super) struct TaskArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// What is computed
    ///
    /// By default, what the model folder is made for.
    #[arg(long, value_enum, help_heading = "Model")]
    task: Option<TaskArgument>,
}

/// A model that was opened for a task, and what it is meant to run on.
pub(super) struct Opened {
    /// Its name for display.
    pub(super) name: String,
    pub(super) checkpoint: Checkpoint,
    pub(super) task: Task,
    pub(super) dtype: Dtype,
    pub(super) device: Wish,
    threads: Option<NonZeroUsize>,
}

impl Opened {
    /// The CPU, whatever is wished for.
    ///
    /// # Errors
    /// When the processor cannot be used.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        device::cpu(self.threads)
    }
}

impl TaskArguments {
    /// Opens the model.
    ///
    /// # Errors
    /// No such model, no weights for the task.
    pub(super) fn open(&self) -> Result<Opened> {
        let model = self.model.local()?;
        let checkpoint = Checkpoint::open(&model.folder)?;
        let task = of(self.task, &checkpoint)?;
        let ModelArguments { dtype, device, threads, .. } = self.model;
        Ok(Opened { name: model.name, checkpoint, task, dtype, device, threads })
    }
}

/// What can be computed of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskArgument {
    /// The last hidden state, pooled as the folder says, or by the mean
    Embedding,
    /// A weight per token of the vocabulary (SPLADE)
    SparseEmbedding,
    /// A logit per label of the input
    SequenceClassification,
    /// A logit per label of every token
    TokenClassification,
    /// Logits of an answer's start and end
    QuestionAnswering,
    /// A logit per token of the vocabulary, for one masked token of each input
    MaskedLm,
}

/// The task that was asked for, or what the folder is made for, or an embedding.
///
/// # Errors
/// When the folder has no weights for it.
fn of(argument: Option<TaskArgument>, checkpoint: &Checkpoint) -> Result<Task> {
    let pooling = || match checkpoint.task() {
        Some(Task::Embedding { pooling }) => pooling,
        _ => Pooling::Mean,
    };
    let task = match argument {
        None => checkpoint.task().unwrap_or_else(|| pooling().into()),
        Some(TaskArgument::Embedding) => pooling().into(),
        Some(TaskArgument::SparseEmbedding) => Task::SparseEmbedding,
        Some(TaskArgument::SequenceClassification) => Task::SequenceClassification,
        Some(TaskArgument::TokenClassification) => Task::TokenClassification,
        Some(TaskArgument::QuestionAnswering) => Task::QuestionAnswering,
        Some(TaskArgument::MaskedLm) => Task::MaskedLm,
    };
    if !checkpoint.supports(task) {
        bail!("--task {task}: {} has no weights for it", checkpoint.name());
    }
    Ok(task)
}

/// Tokens of each sequence whose rows `task` gives out.
pub(super) fn selected_rows(task: Task) -> usize {
    usize::from(task == Task::MaskedLm)
}

/// From where to where a run goes.
pub(super) fn span(task: Task) -> String {
    match task {
        Task::Embedding { .. } => "from ids to the last hidden state".to_owned(),
        other => format!("from ids to {other}"),
    }
}
