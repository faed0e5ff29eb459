//! The model of a command on files.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use turbo_models::{
    Checkpoint, DType, Encoded, Encoder, EncoderKernels, EncoderOptions, ModelError, Outputs, Staging, Task,
    TextTokenizer,
};
use turbo_serve::{
    engine::packed_cache,
    files::{pipeline::Compute, write::MadeFrom},
};

use super::paths;
use crate::cli::{
    caches::PackedCacheArguments,
    device::{NoGpu, OnDevice},
    model_arguments::{LocalModel, ModelArguments, NO_TOKENIZER},
    output,
};

/// An opened model, before anything is compiled.
pub(super) struct OpenModel {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: TextTokenizer,
    pub(super) local: LocalModel,
    /// What changes where its files do.
    files: MadeFrom,
}

impl OpenModel {
    /// # Errors
    /// When there is no such model, it cannot be run, or has no tokenizer.
    pub(super) fn open(arguments: &ModelArguments) -> Result<Self> {
        let local = arguments.local()?;
        // Before they are read: of one that changes meanwhile the earlier state is written down, and the later one
        // refused. Of the Hub's the commit says it all.
        let files = if local.sha.is_some() { MadeFrom::new() } else { paths::model_state(&local.folder) };
        let checkpoint = Checkpoint::open(&local.folder)?;
        checkpoint.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
        let Some(tokenizer) = checkpoint.tokenizer().cloned() else {
            bail!("{}: {NO_TOKENIZER}", shown(&local.folder));
        };
        Ok(Self { checkpoint, tokenizer, local, files })
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
            // Rows of tokens are not needed where there is one for the text.
            outputs: Outputs::Pooled,
            packed_cache,
            ..EncoderOptions::of(&self.checkpoint)
        };
        // of a machine without a driver there is nothing to tell
        let tell = |no_gpu: NoGpu| {
            if no_gpu.has_driver {
                output::note(&no_gpu.why)
            }
        };
        let device = arguments.device(tell)?;
        let threads = device.threads();
        let load = Load { checkpoint: &self.checkpoint, options };
        let encoder = device.run(load, arguments.dtype, warn)?;
        // What the Hub's folders hold never changes.
        let own_folder = self.local.sha.is_none().then(|| self.local.folder.clone());
        Ok(Compiled { encoder, threads, own_folder })
    }

    /// Adds to `made_from` which model it is.
    pub(super) fn describe(&self, arguments: &ModelArguments, made_from: &mut MadeFrom) {
        made_from.insert("--model-id".into(), arguments.model_id.clone());
        made_from.insert("--dtype".into(), arguments.dtype.to_string());
        made_from.extend(self.local.sha.clone().map(|sha| ("commit".to_owned(), sha)));
        made_from.extend(self.files.clone());
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
    encoder: Box<dyn Rows>,
    threads: NonZeroUsize,
    own_folder: Option<PathBuf>,
}

/// An encoder of whichever device.
trait Rows {
    /// Length of the row of each input, where the task has one.
    fn pooled_len(&self) -> Option<usize>;

    /// What the model gives for each input of a batch.
    fn outputs(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, ModelError>;
}

/// A checkpoint to be compiled for a device.
struct Load<'a> {
    checkpoint: &'a Checkpoint,
    options: EncoderOptions,
}

impl OnDevice for Load<'_> {
    type Output = Box<dyn Rows>;

    fn on<D: EncoderKernels>(self, device: D, dtype: DType) -> Result<Box<dyn Rows>> {
        let task = self.options.task;
        let encoder = Encoder::new(device, self.checkpoint, EncoderOptions { dtype, ..self.options })?;
        if let Some(warning) = encoder.cache_use().and_then(|cache| cache.warning.as_deref()) {
            output::note(&format!("warning: packed weights are not kept, or not used: {warning}"));
        }
        let of_text = encoder.pooled_len().is_some() && task != Task::TokenClassification;
        let rows = if of_text { Output::Pooled } else { Output::Tokens };
        Ok(Box::new(OnThis { encoder, staging: Staging::new(), rows }))
    }
}

struct OnThis<D: EncoderKernels> {
    encoder: Encoder<D>,
    staging: Staging,
    rows: Output,
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

    /// The folder that it was read from, where that is the user's own.
    pub(super) fn own_folder(&self) -> Option<&Path> {
        self.own_folder.as_deref()
    }

    /// Length of the row of each input.
    ///
    /// # Errors
    /// When the task has none.
    pub(super) fn pooled_len(&self) -> Result<usize> {
        self.encoder.pooled_len().context("this task gives no row per input")
    }
}

impl<D: EncoderKernels> Rows for OnThis<D> {
    fn pooled_len(&self) -> Option<usize> {
        self.encoder.pooled_len()
    }

    fn outputs(&mut self, batch: &[&Encoded]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.staging.clear();
        for input in batch {
            self.encoder.push(&mut self.staging, &input.input_ids, &input.token_type_ids)?;
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
        self.encoder.outputs(batch).map_err(|error| error.to_string())
    }
}
