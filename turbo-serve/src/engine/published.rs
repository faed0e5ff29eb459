//! A published model on a device, as the engine's [`Model`]: the only file of the engine that knows how turbo-models
//! opens and runs a model.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use turbo_models::{
    CacheUse, Checkpoint, DType, Encoder, EncoderKernels, EncoderMemory, EncoderOptions, Encoding,
    LayoutKind, ModelError, Outputs, PackedCache, PlannerConfig, RowKind, SpecialTokens, Staging, Task, Text,
    TextTokenizer, Truncation,
    graph::{
        GraphError,
        kernels::{DeviceError, Element, KernelError},
    },
};
use turbo_sched::{Candidate, Layout};

use super::{
    BuildRunner, Capacity, DeviceLost, Encoded, Extent, HeldBytes, MAX_SELECTED, MaskToken, Model, ModelInfo,
    Progress, Prompts, Rows, RunError, Runner, Sequence, Tokenize, TokenizeError,
    start::{reserved::Reserved, resident::available_bytes},
};

/// Options of a model that its folder does not determine.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The model id that clients are told; `None` is the folder's path.
    pub model_id: Option<String>,
    /// Its short name; `None` is the last component of the folder's path.
    pub name: Option<String>,
    /// Its commit on the Hub, where it came from there.
    pub sha: Option<String>,
    /// How the sequences of a batch share a tensor.
    pub layout: Layout,
    /// The task that the model is run for; `None` is the one that the folder is made for.
    pub task: Option<Task>,
    /// The data type that products are computed in.
    pub dtype: DType,
    /// Folder in which packed weights are kept between starts; `None`: they are packed at every start.
    pub packed_cache: Option<PathBuf>,
    /// Folder, below the model's, of the one dense module behind pooling; replaces those that the model names.
    pub dense_path: Option<PathBuf>,
    /// The prompt that is put before texts by default; `None` is the one that the folder names, if any.
    pub default_prompt: Option<DefaultPrompt>,
    /// Whether rows may be kept beyond this process. If so, all weights are read at start, for a digest that identifies
    /// the model.
    pub fingerprint: bool,
}

impl Default for OpenOptions {
    /// Packed sequences, f32, nothing kept, and the rest as the folder says.
    fn default() -> Self {
        Self {
            model_id: None,
            name: None,
            sha: None,
            layout: Layout::Packed,
            task: None,
            dtype: DType::F32,
            packed_cache: None,
            dense_path: None,
            default_prompt: None,
            fingerprint: false,
        }
    }
}

/// The prompt of requests that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultPrompt {
    /// One of the folder's.
    Named(String),
    /// This text.
    Text(String),
}

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder is not a model, or not one that can be run for this task.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Neither the folder nor the options say how token vectors are pooled.
    #[error(
        "{folder}: it does not say how to pool token vectors: set pooling to cls, mean, last-token or max"
    )]
    Pooling {
        /// The folder.
        folder: String,
    },
    /// The default prompt is not one of the folder's.
    #[error("the default prompt is set to `{name}`, but the model's prompts are: {known}")]
    Prompt {
        /// What was asked for.
        name: String,
        /// The folder's prompts.
        known: String,
    },
}

impl Model {
    /// Opens the model in the folder `dir`, to run on `device`.
    ///
    /// # Errors
    /// [`OpenError`]: one line that names file and field.
    pub fn open<D: EncoderKernels>(dir: &Path, device: D, options: OpenOptions) -> Result<Self, OpenError> {
        let dense_path = options.dense_path;
        let checkpoint = Checkpoint::open_with(dir, &turbo_models::OpenOptions { dense_path })?;
        checkpoint.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let no_pooling = || OpenError::Pooling { folder: dir.display().to_string() };
        let task = options.task.or(checkpoint.task()).ok_or_else(no_pooling)?;
        let is_written = checkpoint.tokenizer().is_some_and(TextTokenizer::writes_pairs);
        let default_prompt =
            options.default_prompt.is_some() || checkpoint.prompts().default_prompt().is_some();
        if default_prompt && let Some(warning) = prompt_warning(task, is_written) {
            tracing::warn!("{warning}");
        }
        let (mut prompts, mut tokenizer) =
            (prompts(&checkpoint, options.default_prompt)?, checkpoint.tokenizer().cloned());
        let reads_pairs = task == Task::SequenceClassification;
        if let Some(writes) = tokenizer.as_mut().filter(|tokenizer| reads_pairs && tokenizer.writes_pairs()) {
            // no text begins with these prompts: they tell the model what to judge by
            if let Some(instruction) = std::mem::take(&mut prompts).default {
                *writes = writes.with_instruction(&instruction)?;
            }
        }
        let info = ModelInfo {
            model_id: options.model_id.unwrap_or_else(|| dir.display().to_string()),
            sha: options.sha,
            name: options.name.unwrap_or_else(|| checkpoint.name().to_owned()),
            dtype: dtype_name::<D>(options.dtype),
            device: device.name(),
            task,
            labels: checkpoint.labels().into(),
            score_function: checkpoint.score_function(),
            pair_score_function: checkpoint.pair_score_function(),
            mask_token: tokenizer.as_ref().and_then(mask_token),
            takes_instruction: reads_pairs && tokenizer.as_ref().is_some_and(TextTokenizer::writes_pairs),
            prompts,
            rows: checkpoint.row_lens(task)?,
            max_input_length: checkpoint.max_input_length(),
            vocab_size: checkpoint.limits().vocab_size,
            type_vocab_size: checkpoint.limits().type_vocab_size,
        };
        let padding_id = checkpoint.padding_id(task)?;
        let tokenizer = tokenizer.map(|it| Arc::new(it) as Arc<dyn Tokenize>);
        let graph = checkpoint.graph(task)?.to_string();
        let layout = options.layout;
        let fingerprint = options.fingerprint.then(|| {
            let (version, rounding) = (env!("CARGO_PKG_VERSION"), device.rounding(options.dtype));
            format!("turbo {version}\n{rounding}\n{layout:?}\n{}\n{graph}", checkpoint.digest())
        });
        let keep = |dir: &Path| packed_cache(dir, |warning| tracing::warn!("{warning}"));
        let encoder = EncoderOptions {
            layout: match layout {
                Layout::Packed => LayoutKind::Packed,
                Layout::Padded => LayoutKind::Padded,
            },
            task,
            // which rows are wanted is known only when a request arrives
            outputs: Outputs::All,
            dtype: options.dtype,
            planner: PlannerConfig::default(),
            packed_cache: options.packed_cache.as_deref().and_then(keep),
        };
        let build = build(device, checkpoint, encoder);
        Ok(Self { info, layout, tokenizer, padding_id, identity: Some(graph), fingerprint, build })
    }
}

/// The name of the data type of products, written as text-embeddings-inference writes the types that it has. A device
/// whose activations are narrower than f32 multiplies in that type.
fn dtype_name<D: EncoderKernels>(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 if D::Float::NAME == "f16" => "float16",
        DType::F32 if D::Float::NAME == "bf16" => "bfloat16",
        DType::F32 => "float32",
        DType::Bf16 => "bfloat16",
        DType::Int8 => "int8",
    }
}

/// The cache of packed weights in this folder; if it cannot be opened, `warn` is called and there is none.
pub fn packed_cache(dir: &Path, warn: impl FnOnce(&str)) -> Option<PackedCache> {
    PackedCache::open(dir).map_err(|error| warn(&format!("packed weights are not kept: {error}"))).ok()
}

fn mask_token(tokenizer: &TextTokenizer) -> Option<MaskToken> {
    tokenizer.mask_token().map(|(id, text)| MaskToken { id, text: text.to_owned() })
}

/// A warning where a default prompt is not used, which may surprise. It must not be put before texts of which the
/// answers are parts, nor before pairs, but a template may write pairs with it (`pairs_are_written`).
fn prompt_warning(task: Task, pairs_are_written: bool) -> Option<String> {
    match task {
        Task::Embedding { .. } | Task::SparseEmbedding => None,
        Task::SequenceClassification if pairs_are_written => None,
        Task::SequenceClassification => Some(
            "the default prompt is put only before single texts: pairs, such as those of /rerank and /score, are read \
             without it"
                .to_owned(),
        ),
        Task::TokenClassification | Task::QuestionAnswering | Task::MaskedLm => {
            Some(format!("the default prompt is not used: this model is for {task}"))
        }
    }
}

/// The folder's prompts, and the one that is used where a request names none.
fn prompts(checkpoint: &Checkpoint, default: Option<DefaultPrompt>) -> Result<Prompts, OpenError> {
    let turbo_models::Prompts { named, default_name } = checkpoint.prompts().clone();
    let default = match default.or(default_name.map(DefaultPrompt::Named)) {
        None => None,
        Some(DefaultPrompt::Text(text)) => Some(text),
        Some(DefaultPrompt::Named(name)) => match named.get(&name) {
            Some(text) => Some(text.clone()),
            None if named.is_empty() => return Err(OpenError::Prompt { name, known: "none".into() }),
            None => {
                let known = named.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                return Err(OpenError::Prompt { name, known });
            }
        },
    };
    Ok(Prompts { named, default })
}

/// Compiles the checkpoint, with memory for the capacity.
fn build<D: EncoderKernels>(device: D, checkpoint: Checkpoint, options: EncoderOptions) -> BuildRunner {
    Box::new(move |capacity| {
        let started = Instant::now();
        let encoder = Encoder::new(device.clone(), &checkpoint, options.clone()).map_err(failed)?;
        tell(&encoder, started.elapsed());
        let selects = encoder.selected_len().is_some();
        let mut runner = EncoderRunner {
            encoder,
            staging: Staging::new(),
            capacity,
            selects,
            stopped: false,
            reserved: Reserved::default(),
        };
        runner.reserve(capacity)?;
        Ok(Box::new(runner))
    })
}

/// Logs the memory of the weights, and whether they were restored from the cache.
fn tell<D: EncoderKernels>(encoder: &Encoder<D>, took: Duration) {
    let EncoderMemory { packed_bytes, table_bytes, .. } = encoder.memory();
    let (packed_mb, tables_mb, took_ms) =
        (packed_bytes / 1_000_000, table_bytes / 1_000_000, took.as_millis() as u64);
    let Some(CacheUse { file, restored, packed, warning }) = encoder.cache_use() else {
        return tracing::info!(packed_mb, tables_mb, took_ms, "weights are packed");
    };
    if let Some(warning) = warning {
        tracing::warn!(file = %file.display(), warning, "packed weights are not kept, or not used");
    }
    let file = file.display();
    if *packed == 0 && *restored > 0 {
        tracing::info!(packed_mb, tables_mb, took_ms, %file, "packed weights are those of an earlier start");
    } else {
        tracing::info!(packed_mb, tables_mb, took_ms, %file, "weights are packed");
    }
}

fn of_models(capacity: Capacity, selects: bool) -> turbo_models::Capacity {
    let Capacity { batch_size, total_tokens, max_seq_len } = capacity;
    let selected_rows = if selects { (batch_size * MAX_SELECTED).min(total_tokens) } else { 0 };
    turbo_models::Capacity { batch_size, total_tokens, max_seq_len, selected_rows }
}

/// An encoder. On a device that computes asynchronously, the next batch is launched behind the running one.
struct EncoderRunner<D: EncoderKernels> {
    encoder: Encoder<D>,
    staging: Staging,
    capacity: Capacity,
    /// Whether it gives rows of selected tokens.
    selects: bool,
    /// Whether the last batch was cancelled.
    stopped: bool,
    /// Its reserved memory, which the system counts as free until it is touched.
    reserved: Reserved,
}

impl<D: EncoderKernels> Runner for EncoderRunner<D> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn depth(&self) -> usize {
        self.encoder.depth()
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        let capacity = Capacity {
            batch_size: batch.batch_size,
            total_tokens: usize::try_from(batch.total_tokens).unwrap_or(usize::MAX),
            max_seq_len: batch.max_seq_len as usize,
        };
        self.encoder.planned_bytes(of_models(capacity, self.selects))
    }

    fn held_bytes(&self) -> HeldBytes {
        let EncoderMemory { packed_bytes, table_bytes, footprint_bytes, output_bytes, scratch_bytes } =
            self.encoder.memory();
        HeldBytes {
            weights: packed_bytes + table_bytes,
            activations: footprint_bytes + output_bytes + scratch_bytes,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        match self.encoder.free_bytes() {
            // a device that computes in the memory of the process
            Ok(None) => Some(available_bytes()?.saturating_sub(self.reserved.of_others())),
            Ok(free) => free,
            // a device that cannot report it fails when memory is reserved
            Err(_) => None,
        }
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        let of_models = of_models(capacity, self.selects);
        self.encoder.reserve(of_models).map_err(failed)?;
        self.staging = Staging::with_capacity(of_models);
        self.capacity = capacity;
        if let Ok(None) = self.encoder.free_bytes() {
            self.reserved.set(self.held_bytes().activations as u64);
        }
        Ok(())
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        self.staging.clear();
        let mut wanted = [false; RowKind::ALL.len()];
        for Sequence { input_ids, token_type_ids, selected, rows } in batch {
            self.encoder.push(&mut self.staging, input_ids, token_type_ids)?;
            if self.selects {
                self.staging.select(selected)?;
            }
            match rows {
                Some(rows) => wanted[RowKind::from(rows) as usize] = true,
                None => wanted = [true; RowKind::ALL.len()],
            }
        }
        self.reserved.touched(self.staging.total_tokens() as f64 / self.capacity.total_tokens as f64);
        let rows = RowKind::ALL.into_iter().filter(|&rows| wanted[rows as usize]);
        if self.depth() > 1 {
            return self.encoder.run_behind(&self.staging, rows).map_err(failed);
        }
        let ran = self.encoder.run_for(&self.staging, rows, keep_going);
        self.stopped = matches!(ran, Err(ModelError::Graph(GraphError::Stopped)));
        if self.stopped { Ok(()) } else { ran.map_err(failed) }
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(match self.encoder.is_done().map_err(failed)? {
            _ if self.stopped => Progress::Stopped,
            true => Progress::Done,
            false => Progress::Running,
        })
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        match rows {
            Rows::Pooled => self.encoder.pooled(sequence, to),
            Rows::Tokens => self.encoder.tokens(sequence, to),
            Rows::Selected => self.encoder.selected(sequence, to),
        }
        .map_err(failed)
    }

    fn release(&mut self) {
        self.stopped = false;
        self.encoder.forget_oldest();
    }
}

/// The runner's error for an encoder's error, which is [`DeviceLost`] if the device is lost.
fn failed(error: ModelError) -> RunError {
    let is_lost = matches!(
        &error,
        ModelError::Graph(
            GraphError::Device(DeviceError::Lost { .. })
                | GraphError::Kernel(KernelError::Device(DeviceError::Lost { .. }))
        )
    );
    let error = RunError::from(error);
    if is_lost { DeviceLost(error).into() } else { error }
}

impl From<Rows> for RowKind {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Pooled => RowKind::Pooled,
            Rows::Tokens => RowKind::Tokens,
            Rows::Selected => RowKind::Selected,
        }
    }
}

impl Tokenize for TextTokenizer {
    fn encode(&self, text: Text<'_>, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let turbo_models::Encoded { input_ids, token_type_ids } = self.encode(text, truncation)?;
        Ok(Encoded { input_ids, token_type_ids, selected: Vec::new() })
    }

    fn tokens(&self, text: Text<'_>, extent: Extent) -> Result<Vec<Encoding>, TokenizeError> {
        Ok(match (extent, text) {
            (Extent::Whole(special), _) => vec![self.tokenize(text, special)?],
            (Extent::Word, Text::One(word)) => vec![self.word(word)?],
            (Extent::Word, Text::Pair(..)) => vec![self.tokenize(text, SpecialTokens::Without)?],
            (Extent::Input(truncation), _) => vec![self.encode_detailed(text, truncation)?],
            (Extent::Windows { max_len, stride }, Text::Pair(question, context)) => {
                self.windows(question, context, max_len, stride)?
            }
            (Extent::Windows { .. }, Text::One(_)) => {
                return Err(TokenizeError::Failed("windows are over the second of two texts".into()));
            }
        })
    }

    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizeError> {
        Ok(self.decode(ids, special)?)
    }

    fn limited_to(&self, max_input_length: usize) -> Arc<dyn Tokenize> {
        Arc::new(self.limited_to(max_input_length))
    }

    fn with_instruction(&self, instruction: &str) -> Result<Arc<dyn Tokenize>, TokenizeError> {
        let told = self.with_instruction(instruction).map_err(|error| {
            TokenizeError::Failed(match error {
                // a client need not know where the template lies
                turbo_models::ModelError::Field { field, why, .. } => format!("the model's {field}: {why}"),
                other => other.to_string(),
            })
        });
        Ok(Arc::new(told?))
    }
}

impl From<turbo_models::TokenizeError> for TokenizeError {
    fn from(error: turbo_models::TokenizeError) -> Self {
        match error {
            turbo_models::TokenizeError::TooLong { tokens, limit } => Self::TooLong { tokens, limit },
            other => Self::Failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_default_prompt_is_not_used_for_is_said() {
        for (task, pairs_are_written, said) in [
            (turbo_models::Pooling::Mean.into(), false, None),
            (Task::SequenceClassification, true, None),
            (Task::SequenceClassification, false, Some("only before single texts")),
            (Task::QuestionAnswering, false, Some("is not used")),
        ] {
            let warning = prompt_warning(task, pairs_are_written);
            assert_eq!(warning.is_some(), said.is_some(), "{task}");
            assert!(warning.unwrap_or_default().contains(said.unwrap_or_default()), "{task}");
        }
    }

    #[test]
    fn that_a_device_is_lost_is_told_as_that() {
        let lost = || DeviceError::Lost { what: "wait", why: "it fell off the bus".into() };
        let other = DeviceError::Failed { what: "wait", why: "it is busy".into() };
        for (error, is_lost) in [
            (GraphError::from(lost()), true),
            (KernelError::from(lost()).into(), true),
            (other.into(), false),
            (GraphError::Stopped, false),
        ] {
            let told = failed(error.into());
            assert_eq!(told.is::<DeviceLost>(), is_lost, "{told}");
        }
    }
}
