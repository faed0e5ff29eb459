//! Opens a model folder: everything in it is checked, and its weights are mapped instead of copied.

use std::{
    borrow::Cow,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use turbo_graph::{Graph, Pooling, WeightSource, kernels::Float};

use crate::{
    InputLimits, ModelConfig, ModelError, Outputs, Prompts, RowLens, ScoreFunction, Task, TextTokenizer,
    TokenizeError,
    architectures::{Architecture, dense_prefix},
    config::{Labels, ScoreClass},
    json::JsonObject,
    modules::{Dense, SentenceModules},
    packed::{KeyMaker, ModelKey},
    tokenize::PairTemplate,
    weights::Weights,
};

/// Choices that override what the folder says.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Folder of the only dense module behind pooling, relative to the model's folder, instead of the modules that the
    /// folder names: some models come with one dense module per vector width.
    pub dense_path: Option<PathBuf>,
}

/// A published model in a folder. The files must not change while it is open, because they are mapped.
pub struct Checkpoint {
    dir: PathBuf,
    name: String,
    config: ModelConfig,
    task: Option<Task>,
    architecture: &'static Architecture,
    weights: Weights,
    modules: SentenceModules,
    tokenizer: Option<TextTokenizer>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the folder `dir` and checks its contents, down to the last tensor that an embedding needs.
    ///
    /// # Errors
    /// [`ModelError`], one line naming the file and the field or tensor. No allocation is sized by a number from a file
    /// before the files were found to hold that much.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        Self::open_with(dir, &OpenOptions::default())
    }

    /// Like [`Self::open`], with `options` that override the folder.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(dir: &Path, options: &OpenOptions) -> Result<Self, ModelError> {
        let dir = fs::canonicalize(dir).map_err(|why| ModelError::Read { file: dir.to_owned(), why })?;
        if !dir.is_dir() {
            let why = io::Error::new(io::ErrorKind::NotADirectory, "it is a file, expected a model folder");
            return Err(ModelError::Read { file: dir, why });
        }
        refuse_adapter(&dir)?;
        // first, because it reports folders whose parts lie in subfolders, which are not supported
        let mut modules = SentenceModules::open(&dir)?;
        let (mut config, architecture) = ModelConfig::open(&dir)?;
        modules.tanh_int8 |= !modules.is_listed && architecture.makes_whole_numbers();
        if let Some(path) = &options.dense_path {
            modules.dense = vec![Dense::open(&dir.join(path))?];
        }
        let weights = open_weights(&dir, architecture, &modules.dense)?;
        let tokenizer = open_tokenizer(&dir, &config, &modules)?;
        if modules.score.is_some() {
            config.set_labels(Labels::one(config.labels()));
        }
        let task = task_of(&modules, &config)?;
        let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
        let warnings = Vec::new();
        let mut checkpoint =
            Self { dir, name, config, task, architecture, weights, modules, tokenizer, warnings };
        // Drawing the graph looks up every weight; the choice of pooling does not matter for that.
        checkpoint.graph(Pooling::Mean)?;
        checkpoint.warnings = checkpoint.find_warnings()?;
        Ok(checkpoint)
    }

    /// Finds what [`Self::warnings`] tells.
    fn find_warnings(&self) -> Result<Vec<String>, ModelError> {
        let (config, fields, modules) = (&self.config, &self.architecture.fields, &self.modules);
        let mut warnings = tokenizer_warnings(&self.dir, config, self.tokenizer.as_ref());
        warnings.extend_from_slice(&modules.warnings);
        // inputs end at the window, if there is one, otherwise at the last position
        let window = config.window_warning(fields, modules.inputs.length_limits.most())?;
        warnings.extend(window.or_else(|| positions_warning(config, modules)));
        warnings.extend(limits_of_kinds(config, modules));
        warnings.extend(config.causal_warning(fields)?);
        match self.task {
            None => warnings.extend(generator_warning(config)?),
            Some(task) => warnings.extend(self.lacks(task).err().map(|error| format!("no {task}: {error}"))),
        }
        Ok(warnings)
    }

    /// The last component of the folder's path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder, as an absolute path without links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sizes and choices of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Most tokens of one input: the positions that the model has, or the folder's own limit if that is smaller.
    pub fn max_input_length(&self) -> usize {
        self.limits().max_input_length
    }

    /// The bounds inside which every input must lie.
    pub fn limits(&self) -> InputLimits {
        limits(&self.config, &self.modules)
    }

    /// Checks that `input_ids` from any source can be run.
    ///
    /// # Errors
    /// [`TokenizeError::Empty`], [`TokenizeError::TooLong`], [`TokenizeError::Vocabulary`].
    pub fn check_ids(&self, input_ids: &[u32]) -> Result<(), TokenizeError> {
        self.limits().check_ids(input_ids)
    }

    /// What the folder is made for, according to its modules or else the class of the model; `None` for a bare encoder,
    /// whose vectors the caller may pool in any way.
    pub fn task(&self) -> Option<Task> {
        self.task
    }

    /// Whether the folder has what `task` needs, even if it is made for another task.
    pub fn supports(&self, task: Task) -> bool {
        self.lacks(task).is_ok()
    }

    /// Fails with the reason why the folder cannot do `task`.
    fn lacks(&self, task: Task) -> Result<(), ModelError> {
        self.graph(task)?;
        self.padding_id(task).map(drop)
    }

    /// Number of values in each kind of row that `task` returns.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn row_lens(&self, task: Task) -> Result<RowLens, ModelError> {
        Ok(RowLens::of(&self.graph(task)?))
    }

    /// The prompts that the folder's authors put before texts, by name.
    pub fn prompts(&self) -> &Prompts {
        &self.modules.prompts
    }

    /// Names of a classifier's logits, in order; numbered where the folder names none. Empty if the folder's names are
    /// invalid: a head that needs them cannot be drawn then.
    pub fn labels(&self) -> &[String] {
        &self.config.labels().names
    }

    /// How the logits of a classifier become scores, as in the pipeline of the transformers library: by the folder's
    /// `problem_type`, or else by the number of labels.
    pub fn score_function(&self) -> ScoreFunction {
        self.config.labels().score_function
    }

    /// How the logits of a cross-encoder become scores, as in the sentence-transformers library: by the function that
    /// the folder names; otherwise by a sigmoid if there is one label, and unchanged if there are several.
    pub fn pair_score_function(&self) -> ScoreFunction {
        let labels = self.config.labels();
        let default = if labels.names.len() == 1 { ScoreFunction::Sigmoid } else { ScoreFunction::Identity };
        // a head that cannot be drawn has no scores
        self.asked_score_function().ok().flatten().unwrap_or(default)
    }

    /// The score function that the folder names; the library's file takes precedence over the model's.
    fn asked_score_function(&self) -> Result<Option<ScoreFunction>, ModelError> {
        let class = self.modules.activation.as_ref().or(self.config.labels().activation.as_ref());
        class.map(ScoreClass::function).transpose()
    }

    /// How the folder says that token vectors become one; `None` if it does not say.
    pub fn pooling(&self) -> Option<Pooling> {
        self.modules.pooling
    }

    /// Whether the folder says that the pooled vector is divided by its L2 norm.
    pub fn normalizes(&self) -> bool {
        self.modules.normalize
    }

    /// The folder's tokenizer under the model's limits; `None` if it has none, so that only ids can be run.
    pub fn tokenizer(&self) -> Option<&TextTokenizer> {
        self.tokenizer.as_ref()
    }

    /// Oddities of the folder that do not stop it from working.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The textbook graph of the model, from ids to the outputs of `task`. These are whichever of `pooled` (a row per
    /// sequence), `last_hidden_state` or `token_logits` (a row per token), and `selected_logits` (a row per selected
    /// token) the task has. A [`Pooling`] stands for an embedding with that pooling.
    ///
    /// # Errors
    /// If the family does not have the head or its tensors are missing, or if the score function of a cross-encoder is
    /// not supported; [`ModelError::Graph`].
    pub fn graph(&self, task: impl Into<Task>) -> Result<Graph, ModelError> {
        self.graph_with(task, Outputs::All)
    }

    /// Like [`Self::graph`], with some of the outputs.
    ///
    /// # Errors
    /// As [`Self::graph`].
    pub fn graph_with(&self, task: impl Into<Task>, outputs: Outputs) -> Result<Graph, ModelError> {
        let task = task.into();
        if task == Task::SequenceClassification {
            self.asked_score_function()?;
        }
        self.architecture.graph(&self.config, &self.weights, &self.modules, task, outputs)
    }

    /// Whether the values of the rows of `task` become whole numbers.
    pub(crate) fn makes_whole_numbers(&self, task: Task) -> bool {
        self.modules.tanh_int8 && matches!(task, Task::Embedding { .. })
    }

    /// A digest of the model itself, in hexadecimal: its config and every value of its weights, whatever the folder's
    /// path and name. Two models with the same digest that compute the same graph give the same answers. Reads all of
    /// the weights. Detects accidents, not attacks: weights can be crafted to have the digest of others.
    pub fn digest(&self) -> String {
        let mut key = KeyMaker::new();
        key.bytes(self.config.text().as_bytes());
        if self.modules.tanh_int8 {
            key.bytes(b"tanh_int8");
        }
        self.weights.digest(&mut key);
        self.weights.release_all();
        key.finish().to_string()
    }
}

impl Checkpoint {
    /// Key that tells the packed form of these weights from that of others.
    pub(crate) fn key(&self) -> ModelKey {
        let mut key = KeyMaker::new();
        self.architecture.tensor_prefixes.iter().for_each(|prefix| key.bytes(prefix.as_bytes()));
        self.weights.identify(&mut key);
        key.finish()
    }

    /// Refuses a device whose float type `F` cannot hold the model's activations.
    pub(crate) fn check_float<F: Float>(&self) -> Result<(), ModelError> {
        self.architecture.check_float::<F>(&self.config)
    }

    /// The id that [`Encoder::push`](crate::Encoder::push) drops from the end of an input for `task`; `None` if it
    /// drops none.
    ///
    /// # Errors
    /// [`ModelError`], if the other tokens would see what is dropped.
    pub fn padding_id(&self, task: Task) -> Result<Option<u32>, ModelError> {
        // the score is that of the very last token
        if task == Task::SequenceClassification && self.modules.score.is_some() {
            return Ok(None);
        }
        self.architecture.padding_id(&self.config, task)
    }

    /// Releases the memory behind the weight files; later reads load them from the files again.
    pub(crate) fn release_weights(&self) {
        self.weights.release_all();
    }
}

impl WeightSource for Checkpoint {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        Ok(self.weights.values(name, shape)?)
    }

    fn done(&self, name: &str) {
        self.weights.release(name);
    }
}

/// Refuses a folder with an adapter (PEFT): the reference applies it even if the weights are complete.
fn refuse_adapter(dir: &Path) -> Result<(), ModelError> {
    const KIND: &str = "peft_type";
    let Some(json) = JsonObject::open(dir.join("adapter_config.json"))? else { return Ok(()) };
    let kind = json.get::<String>(KIND)?.unwrap_or_else(|| "null".to_owned());
    let advice =
        "merge the adapter into the weights (`merge_and_unload` of PEFT), save them, and leave this file out";
    Err(json.unsupported(KIND, kind, format!("none: {advice}")))
}

/// The tensors of the model and of the `dense` modules behind it.
fn open_weights(dir: &Path, architecture: &Architecture, dense: &[Dense]) -> Result<Weights, ModelError> {
    let mut weights = Weights::open(dir, architecture.tensor_prefixes)?;
    for (index, module) in dense.iter().enumerate() {
        weights.add(dense_prefix(index), Weights::open(&module.path, &[])?);
    }
    Ok(weights)
}

/// The tokenizer, with the template that writes pairs if the model takes messages.
fn open_tokenizer(
    dir: &Path,
    config: &ModelConfig,
    modules: &SentenceModules,
) -> Result<Option<TextTokenizer>, ModelError> {
    let tokenizer = TextTokenizer::open_with(dir, limits(config, modules), &modules.inputs)?;
    let Some(messages) = &modules.inputs.messages else { return Ok(tokenizer) };
    let template = PairTemplate::open(dir, &messages.variables, modules.prompts.default_prompt())?;
    tokenizer.map(|tokenizer| tokenizer.with_template(template)).transpose()
}

/// What the folder is made for, according to its modules or else the class of the model.
fn task_of(modules: &SentenceModules, config: &ModelConfig) -> Result<Option<Task>, ModelError> {
    let of_class = config.task()?;
    Ok(match modules {
        SentenceModules { splade: true, .. } => Some(Task::SparseEmbedding),
        SentenceModules { score: Some(_), .. } => Some(Task::SequenceClassification),
        SentenceModules { pooling, .. } => pooling.map(Task::from).or(of_class),
    })
}

fn limits(config: &ModelConfig, modules: &SentenceModules) -> InputLimits {
    let positions = config.max_input_length();
    InputLimits {
        max_input_length: modules.inputs.length_limits.most().map_or(positions, |limit| limit.min(positions)),
        vocab_size: config.vocab_size,
        type_vocab_size: config.type_vocab_size,
    }
}

/// Most spare rows of an embedding table; many models fill it up to a round number.
const MOST_SPARE_ROWS: usize = 127;

/// Tokenizer files that are not read.
const SENTENCE_PIECE: [&str; 4] = ["sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"];

/// Warns of a tokenizer that is not read or does not fit the model; then come its own warnings.
fn tokenizer_warnings(dir: &Path, config: &ModelConfig, tokenizer: Option<&TextTokenizer>) -> Vec<String> {
    let Some(tokenizer) = tokenizer else {
        let unread = SENTENCE_PIECE.into_iter().find(|file| dir.join(file).exists());
        let unread =
            unread.map(|file| format!("{file} is not read: without tokenizer.json there are ids only"));
        return unread.into_iter().collect();
    };
    let (known, rows) = (tokenizer.vocab_size(), config.vocab_size);
    let misfit = (known > rows || rows - known > MOST_SPARE_ROWS)
        .then(|| format!("the tokenizer knows {known} tokens, the model has {rows}"));
    misfit.into_iter().chain(tokenizer.warnings().iter().cloned()).collect()
}

/// Warns that the folder's own limit exceeds the number of positions.
fn positions_warning(config: &ModelConfig, modules: &SentenceModules) -> Option<String> {
    let positions = config.max_input_length();
    let limit = modules.inputs.length_limits.of_library.filter(|limit| *limit > positions)?;
    Some(format!("sentence_bert_config.json: max_seq_length is {limit}, the model has {positions} positions"))
}

/// Warns that queries or documents have a limit of their own that differs from the limit of all texts.
fn limits_of_kinds(config: &ModelConfig, modules: &SentenceModules) -> Vec<String> {
    let (positions, limit) = (config.max_input_length(), limits(config, modules).max_input_length);
    let inputs = &modules.inputs;
    let kinds = [("query_length", inputs.query_length), ("document_length", inputs.document_length)];
    let others = kinds.into_iter().filter_map(|(field, length)| Some((field, length?)));
    let others = others.filter(|(_, length)| (*length).min(positions) != limit);
    let why = format!("which is not done here: all texts are cut at {limit} tokens");
    others.map(|(field, length)| format!("sentence_bert_config.json: {field} is {length}, {why}")).collect()
}

/// Warns that the model's class writes words, in a folder that names no task.
fn generator_warning(config: &ModelConfig) -> Result<Option<String>, ModelError> {
    Ok(config.generator()?.map(|class| {
        format!(
            "config.json: {class} writes words, which is not done here: there are only its vectors, whose pooling the \
             folder does not say; a reranker needs modules.json with LogitScore, as sentence-transformers 5.4 writes it"
        )
    }))
}
