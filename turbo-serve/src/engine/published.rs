//! A published model on a device, as the engine's [`Model`]: the only file of the engine that knows how turbo-models
//! opens a model. `encoder_runner` knows how it runs one, `tokens::tokenize` how it tokenizes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use turbo_models::{
    Checkpoint, DType, EncoderKernels, EncoderOptions, LayoutKind, ModelError, Outputs, PackedCache,
    PlannerConfig, Task, TextTokenizer, graph::kernels::Element,
};
use turbo_sched::Layout;

use super::{MaskToken, Model, ModelInfo, Prompts, Tokenize, encoder_runner::build};

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
    /// The folder has nothing that weights words.
    #[error("pooling is set to splade, which takes the head of a masked language model: {0}")]
    Splade(ModelError),
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
        let rows = checkpoint.row_lens(task).map_err(|error| match options.task {
            Some(Task::SparseEmbedding) => OpenError::Splade(error),
            _ => error.into(),
        })?;
        tell_task(options.task, checkpoint.task());
        let writes_pairs = checkpoint.tokenizer().is_some_and(TextTokenizer::writes_pairs);
        let has_default_prompt =
            options.default_prompt.is_some() || checkpoint.prompts().default_prompt().is_some();
        let prompt_warning = prompt_warning(task, writes_pairs);
        if has_default_prompt && let Some(warning) = &prompt_warning {
            tracing::warn!("{warning}");
        }
        let prompts = prompts(&checkpoint, options.default_prompt)?;
        let (tokenizer, prompts) = instructed(checkpoint.tokenizer().cloned(), prompts, task)?;
        if let (Some(prompt), None) = (&prompts.default, &prompt_warning) {
            tracing::info!(prompt, "requests that name no prompt get the default one");
        }
        let takes_instruction = tokenizer.as_ref().is_some_and(|tokenizer| judges_pairs(tokenizer, task));
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
            takes_instruction,
            prompts,
            rows,
            max_input_length: checkpoint.max_input_length(),
            vocab_size: checkpoint.limits().vocab_size,
            type_vocab_size: checkpoint.limits().type_vocab_size,
        };
        let padding_id = checkpoint.padding_id(task)?;
        let tokenizer = tokenizer.map(|it| Arc::new(it) as Arc<dyn Tokenize>);
        let graph = checkpoint.graph(task)?.to_string();
        let layout = options.layout;
        let fingerprint =
            options.fingerprint.then(|| fingerprint(&device, &checkpoint, (options.dtype, layout), &graph));
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

/// Logs what may surprise about the task, which is `chosen` or else the folder's own.
fn tell_task(chosen: Option<Task>, own: Option<Task>) {
    match (chosen, own) {
        (
            Some(Task::Embedding { .. }),
            Some(own @ (Task::SequenceClassification | Task::TokenClassification | Task::QuestionAnswering)),
        ) => {
            tracing::warn!("pooling is set, so there are vectors: without it, this folder is for {own}");
        }
        (None, Some(Task::MaskedLm)) => {
            tracing::warn!(
                "this folder is for masked-lm, which fills gaps: for vectors, set pooling to cls or mean"
            );
        }
        _ => {}
    }
}

/// What the bits of the model's rows depend on, weights included.
fn fingerprint<D: EncoderKernels>(
    device: &D,
    checkpoint: &Checkpoint,
    (dtype, layout): (DType, Layout),
    graph: &str,
) -> String {
    let (version, rounding) = (env!("CARGO_PKG_VERSION"), device.rounding(dtype));
    format!("turbo {version}\n{rounding}\n{layout:?}\n{}\n{graph}", checkpoint.digest())
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

/// Whether the tokenizer writes pairs by a template with an instruction in it, and the model judges them.
fn judges_pairs(tokenizer: &TextTokenizer, task: Task) -> bool {
    task == Task::SequenceClassification && tokenizer.writes_pairs()
}

/// Has a tokenizer that writes pairs write the default prompt into them, where the model judges pairs. No text begins
/// with its prompts then: they tell the model what to judge by.
fn instructed(
    tokenizer: Option<TextTokenizer>,
    prompts: Prompts,
    task: Task,
) -> Result<(Option<TextTokenizer>, Prompts), OpenError> {
    match tokenizer {
        Some(tokenizer) if judges_pairs(&tokenizer, task) => {
            let tokenizer = match prompts.default {
                Some(instruction) => tokenizer.with_instruction(&instruction)?,
                None => tokenizer,
            };
            Ok((Some(tokenizer), Prompts::default()))
        }
        tokenizer => Ok((tokenizer, prompts)),
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
}
