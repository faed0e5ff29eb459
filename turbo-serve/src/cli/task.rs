//! What is computed of a model that is timed or looked into.

use anyhow::{Result, bail};
use clap::ValueEnum;
use turbo_models::{Checkpoint, Task, graph::Pooling};

/// What can be computed of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TaskArgument {
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
pub(super) fn of(argument: Option<TaskArgument>, checkpoint: &Checkpoint) -> Result<Task> {
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
