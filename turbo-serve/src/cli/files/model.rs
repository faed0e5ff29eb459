//! The model of a command on files.

use std::{num::NonZeroUsize, path::Path};

use anyhow::{Context, Result, bail};
use turbo_models::{
    Checkpoint, Cpu, Encoded, Encoder, EncoderOptions, ModelError, Outputs, Staging, Task, TextTokenizer,
};
use turbo_serve::{
    engine::packed_cache,
    files::{pipeline::Compute, write::Job},
};

use crate::cli::{
    caches::PackedCacheArguments,
    model_arguments::{LocalModel, ModelArguments},
    output,
};

/// An opened model, before anything is compiled.
pub(super) struct OpenModel {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: TextTokenizer,
    pub(super) local: LocalModel,
}

impl OpenModel {
    /// # Errors
    /// When there is no such model, it cannot be run, or has no tokenizer.
    pub(super) fn open(arguments: &ModelArguments) -> Result<Self> {
        let local = arguments.local()?;
        let checkpoint = Checkpoint::open(&local.folder)?;
        checkpoint.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
        let Some(tokenizer) = checkpoint.tokenizer().cloned() else {
            bail!(
                "{}: it has no tokenizer (tokenizer.json, vocab.txt, or vocab.json and merges.txt), and texts need one",
                shown(&local.folder)
            );
        };
        Ok(Self { checkpoint, tokenizer, local })
    }

    /// Compiles it for a task.
    ///
    /// # Errors
    /// When it has no head for the task, or the device fails.
    pub(super) fn compile(
        &self,
        arguments: &ModelArguments,
        cache: &PackedCacheArguments,
        task: Task,
    ) -> Result<Compiled> {
        let warn = |what: &str| output::note(&format!("warning: {what}"));
        let packed_cache = cache.folder().and_then(|dir| packed_cache(&dir, warn));
        let options = EncoderOptions {
            task,
            // Nobody asks for the rows of tokens where there is one for the text.
            outputs: Outputs::Pooled,
            dtype: arguments.dtype(warn),
            packed_cache,
            ..EncoderOptions::of(&self.checkpoint)
        };
        let device = arguments.device()?;
        let threads = device.threads();
        let encoder = Encoder::new(device, &self.checkpoint, options)?;
        if let Some(warning) = encoder.cache_use().and_then(|cache| cache.warning.as_deref()) {
            warn(&format!("packed weights are not kept, or not used: {warning}"));
        }
        let rows = if encoder.pooled_len().is_some() { Output::Pooled } else { Output::Tokens };
        let rows = if task == Task::TokenClassification { Output::Tokens } else { rows };
        Ok(Compiled { encoder, staging: Staging::new(), rows, threads })
    }

    /// Adds to `job` which model it is.
    pub(super) fn describe(&self, arguments: &ModelArguments, job: &mut Job) {
        job.insert("--model-id".into(), arguments.model_id.clone());
        job.insert("--dtype".into(), arguments.dtype(|_| ()).to_string());
        job.extend(self.local.sha.clone().map(|sha| ("commit".to_owned(), sha)));
    }

    /// The folder as messages name it.
    pub(super) fn shown(&self) -> String {
        shown(&self.local.folder)
    }
}

/// What a model is made for, in words.
pub(super) fn purpose(task: Option<Task>) -> String {
    task.map_or_else(|| "a bare encoder".to_owned(), |task| format!("for {task}"))
}

fn shown(folder: &Path) -> String {
    folder.display().to_string()
}

/// A model on its device.
pub(super) struct Compiled {
    encoder: Encoder<Cpu>,
    staging: Staging,
    rows: Output,
    threads: NonZeroUsize,
}

/// What is read of each input.
#[derive(Clone, Copy)]
enum Output {
    Pooled,
    Tokens,
}

impl Compiled {
    /// Threads that compute.
    pub(super) fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Length of the row of each input.
    ///
    /// # Errors
    /// When the task has none.
    pub(super) fn pooled_len(&self) -> Result<usize> {
        self.encoder.pooled_len().context("this task gives no row per input")
    }

    fn outputs(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.staging.clear();
        for input in batch {
            self.staging.push(&input.input_ids, &input.token_type_ids)?;
        }
        self.encoder.run(&self.staging)?;
        let read = |sequence| {
            let mut row = Vec::new();
            match self.rows {
                Output::Pooled => self.encoder.pooled(sequence, &mut row)?,
                Output::Tokens => self.encoder.tokens(sequence, &mut row)?,
            }
            Ok(row)
        };
        (0..batch.len()).map(read).collect()
    }
}

impl Compute for Compiled {
    fn run(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, String> {
        self.outputs(batch).map_err(|error| error.to_string())
    }
}
