//! A published model on a device, as the engine's [`Model`]: the one file of the engine that knows turbo-models.

use std::{path::Path, sync::Arc};

use turbo_models::{
    Checkpoint, Encoder, EncoderKernels, EncoderOptions, LayoutKind, ModelError, PlannerConfig, Pooling,
    Staging, TextTokenizer,
};
use turbo_sched::{Candidate, Layout};

use super::{
    BuildRunner, Capacity, Encoded, Model, Progress, Rows, RunError, Runner, Sequence, Tokenize,
    TokenizeError, Truncation,
};

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder is not a model, or not one that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The folder does not say how token vectors become one, and nobody else did.
    #[error(
        "{folder}: it does not say how to pool token vectors: pass `--pooling cls`, `mean` or `last-token`"
    )]
    Pooling {
        /// The folder.
        folder: String,
    },
}

impl Model {
    /// Opens the model in the folder `dir`, to run on `device`.
    ///
    /// * `model_id`: what clients are told.
    /// * `layout`: how the sequences of a batch share a tensor.
    /// * `pooling`: `None` is what the folder says.
    ///
    /// # Errors
    /// [`OpenError`]: one line that names file and field.
    pub fn open<D: EncoderKernels>(
        dir: &Path,
        model_id: String,
        device: D,
        layout: Layout,
        pooling: Option<Pooling>,
    ) -> Result<Self, OpenError> {
        let checkpoint = Checkpoint::open(dir)?;
        checkpoint.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let no_pooling = || OpenError::Pooling { folder: dir.display().to_string() };
        let pooling = pooling.or(checkpoint.pooling()).ok_or_else(no_pooling)?;
        let tokenizer = checkpoint.tokenizer().cloned().map(|it| Arc::new(it) as Arc<dyn Tokenize>);
        Ok(Self {
            model_id,
            name: checkpoint.name().to_owned(),
            pooling: pooling_name(pooling),
            hidden_size: checkpoint.config().hidden_size,
            vocab_size: checkpoint.limits().vocab_size,
            max_input_length: checkpoint.max_input_length(),
            device: device.name(),
            layout,
            tokenizer,
            build: build(device, checkpoint, layout, pooling),
        })
    }
}

/// The name in text-embeddings-inference's `/info`.
fn pooling_name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Cls => "cls",
        Pooling::Mean => "mean",
        Pooling::LastToken => "last_token",
    }
}

/// Compiles the checkpoint, with memory for the capacity.
fn build<D: EncoderKernels>(
    device: D,
    checkpoint: Checkpoint,
    layout: Layout,
    pooling: Pooling,
) -> BuildRunner {
    let layout = match layout {
        Layout::Packed => LayoutKind::Packed,
        Layout::Padded => LayoutKind::Padded,
    };
    Box::new(move |capacity| {
        let options = EncoderOptions { layout, task: pooling.into(), planner: PlannerConfig::default() };
        let mut encoder = Encoder::new(device.clone(), &checkpoint, options)?;
        encoder.reserve(of_models(capacity))?;
        let staging = Staging::with_capacity(of_models(capacity));
        Ok(Box::new(EncoderRunner { encoder, staging, capacity }))
    })
}

fn of_models(capacity: Capacity) -> turbo_models::Capacity {
    let Capacity { batch_size, total_tokens, max_seq_len } = capacity;
    turbo_models::Capacity { batch_size, total_tokens, max_seq_len }
}

/// An encoder whose device computes on the thread that submits.
struct EncoderRunner<D: EncoderKernels> {
    encoder: Encoder<D>,
    staging: Staging,
    capacity: Capacity,
}

impl<D: EncoderKernels> Runner for EncoderRunner<D> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        self.encoder.footprint_bytes(turbo_models::Capacity {
            batch_size: batch.batch_size,
            total_tokens: usize::try_from(batch.total_tokens).unwrap_or(usize::MAX),
            max_seq_len: batch.max_seq_len as usize,
        })
    }

    fn submit(&mut self, batch: &mut dyn Iterator<Item = Sequence<'_>>) -> Result<(), RunError> {
        self.staging.clear();
        for Sequence { input_ids, token_type_ids } in batch {
            self.staging.push(input_ids, token_type_ids)?;
        }
        Ok(self.encoder.run(&self.staging)?)
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(Progress::Done)
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        match rows {
            Rows::Pooled => self.encoder.pooled(sequence, to)?,
            Rows::Tokens => self.encoder.tokens(sequence, to)?,
        }
        Ok(())
    }
}

impl Tokenize for TextTokenizer {
    fn encode(&self, text: &str, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let turbo_models::Encoded { input_ids, token_type_ids } =
            self.encode(text, truncation.into()).map_err(|error| match error {
                turbo_models::TokenizeError::TooLong { tokens, limit } => {
                    TokenizeError::TooLong { tokens, limit }
                }
                other => TokenizeError::Failed(other.to_string()),
            })?;
        Ok(Encoded { input_ids, token_type_ids })
    }
}

impl From<Truncation> for turbo_models::Truncation {
    fn from(truncation: Truncation) -> Self {
        match truncation {
            Truncation::Off => Self::Off,
            Truncation::Left => Self::Left,
            Truncation::Right => Self::Right,
        }
    }
}
