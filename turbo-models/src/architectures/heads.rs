//! What follows the encoder for a task: a few steps from hidden states to logits, given as data.

use turbo_graph::{Activation, Pooling, ValueId};

use crate::{
    ModelConfig, ModelError, Task,
    config::Setting,
    drawing::{Bias, Drawing},
};

/// A head that models of a family may have.
pub(crate) struct Head {
    /// Its task. If a family has several heads for one task, a model has the first whose first matrix is in its file.
    pub(crate) task: Task,
    /// Steps from the hidden state to the logits.
    pub(crate) steps: &'static [Step],
}

/// One step of a head.
pub(crate) enum Step {
    /// Pools each input to one row.
    Pool(Pooling),
    /// The same, with the pooling that this field names: `cls` or `mean`.
    PoolAs(Setting<&'static str>),
    /// A matrix of this name, with a bias if it has one.
    Linear(&'static str, Width, HasBias),
    /// This activation, in all models of the family.
    Activate(Activation),
    /// The activation that this field names.
    ActivateAs(Setting<&'static str>),
    /// The activation of the layers.
    HiddenAct,
    /// A layer norm with the layers' epsilon.
    Norm(&'static str, HasBias),
    /// The last step of a language model.
    Words(Words),
}

/// Number of columns that a step makes.
pub(crate) enum Width {
    /// That of the layers.
    Hidden,
    /// That of the embedding tables.
    Embedding,
    /// One per label.
    Labels,
    /// This many.
    Fixed(usize),
}

/// Whether something has a bias.
#[derive(Clone, Copy)]
pub(crate) enum HasBias {
    Always,
    Never,
    /// As this field says.
    If(Setting<bool>),
}

/// A logit per token of the vocabulary, usually the product with the word embeddings.
pub(crate) struct Words {
    /// Table of the word embeddings.
    pub(crate) table: &'static str,
    /// Matrix of a model that has its own.
    pub(crate) matrix: &'static str,
    /// Names of the bias, which changed over time. The first one that a file has counts: if it has both, that is the
    /// one of the matrix. If it has none, the last one is reported missing.
    pub(crate) bias: &'static [&'static str],
    /// Whether it has one.
    pub(crate) has_bias: HasBias,
}

const TIED: Setting<bool> = Setting::Field("tie_word_embeddings", true);

impl HasBias {
    fn of(self, config: &ModelConfig) -> Result<Bias, ModelError> {
        match self {
            HasBias::Always => Ok(Bias::With),
            HasBias::Never => Ok(Bias::Without),
            HasBias::If(setting) => config.bias(setting),
        }
    }
}

fn pooling(config: &ModelConfig, setting: Setting<&'static str>) -> Result<Pooling, ModelError> {
    match config.word(setting)?.as_str() {
        "cls" => Ok(Pooling::Cls),
        "mean" => Ok(Pooling::Mean),
        other => Err(config.unsupported(setting.name(), other, "cls, mean")),
    }
}

/// The head for `task` among `heads`; a sparse embedding uses that of a masked language model.
fn head<'a>(
    heads: &'a [Head],
    drawing: &Drawing<'_>,
    config: &ModelConfig,
    task: Task,
) -> Result<&'a Head, ModelError> {
    let of_task = if task == Task::SparseEmbedding { Task::MaskedLm } else { task };
    let is_there = |head: &&Head| {
        let mut matrices = head.steps.iter().filter_map(|step| match step {
            Step::Linear(name, ..) => Some(name),
            _ => None,
        });
        matrices.next().is_none_or(|name| drawing.has(&format!("{name}.weight")))
    };
    let mut of_family = heads.iter().filter(|head| head.task == of_task).peekable();
    let first = of_family.peek().copied();
    of_family.find(is_there).or(first).ok_or_else(|| {
        let mut supported = vec!["embedding"];
        for name in heads.iter().map(|head| head.task.name()) {
            if !supported.contains(&name) {
                supported.push(name);
            }
        }
        ModelError::Head { model_type: config.model_type.clone(), task, supported: supported.join(", ") }
    })
}

/// Draws from the hidden state of every token to the result of `task`: a row per input, per token, or per selected
/// token.
pub(super) fn draw(
    heads: &[Head],
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    task: Task,
    hidden: ValueId,
) -> Result<ValueId, ModelError> {
    let head = head(heads, drawing, config, task)?;
    match task {
        Task::MaskedLm => {
            let selected = drawing.graph.select(hidden)?;
            steps(drawing, config, head, selected)
        }
        Task::SparseEmbedding => {
            let logits = steps(drawing, config, head, hidden)?;
            // log(1 + relu(x)) never decreases, so the maximum may be taken first
            let most = drawing.graph.pool(logits, Pooling::Max)?;
            Ok(drawing.graph.activate(most, Activation::Log1pRelu)?)
        }
        _ => steps(drawing, config, head, hidden),
    }
}

fn steps(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    head: &Head,
    mut x: ValueId,
) -> Result<ValueId, ModelError> {
    let mut columns = config.hidden_size;
    for step in head.steps {
        x = match step {
            Step::Pool(pooling) => drawing.graph.pool(x, *pooling)?,
            Step::PoolAs(setting) => drawing.graph.pool(x, pooling(config, *setting)?)?,
            Step::Linear(name, width, bias) => {
                let from = std::mem::replace(&mut columns, width.columns(config)?);
                let drawn = drawing.linear_with(x, name, (from, columns), bias.of(config)?);
                drawn.map_err(|error| width.explained(config, error))?
            }
            Step::Activate(activation) => drawing.graph.activate(x, *activation)?,
            Step::ActivateAs(setting) => drawing.graph.activate(x, config.activation(*setting)?)?,
            Step::HiddenAct => drawing.graph.activate(x, config.hidden_act)?,
            Step::Norm(name, bias) => {
                drawing.layer_norm_with(x, name, columns, config.layer_norm_eps, bias.of(config)?)?
            }
            Step::Words(words) => self::words(drawing, config, words, x, columns)?,
        };
    }
    Ok(x)
}

fn words(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    words: &Words,
    x: ValueId,
    columns: usize,
) -> Result<ValueId, ModelError> {
    let rows = config.vocab_size;
    let own = format!("{}.weight", words.matrix);
    // The reference never shares two matrices that differ, whatever the configuration says; if they are equal, either
    // will do.
    let is_own = drawing.has(&own) || !config.read(TIED)?;
    let matrix = if is_own { own } else { format!("{}.weight", words.table) };
    let matrix = drawing.weight(&matrix, &[rows, columns])?;
    let logits = drawing.graph.matmul(x, matrix)?;
    if words.has_bias.of(config)? == Bias::Without {
        return Ok(logits);
    }
    let is_there = |name: &&&str| drawing.has(name);
    match words.bias.iter().find(is_there).or(words.bias.last()) {
        None => Ok(logits),
        Some(bias) => {
            let bias = drawing.weight(bias, &[rows])?;
            Ok(drawing.graph.add_bias(logits, bias)?)
        }
    }
}

/// Reads the vocabulary matrix in place of the embedding table, if the file lacks the table and the two are tied: a
/// file may keep a shared tensor under either name.
pub(super) fn stand_in_for_table(
    heads: &[Head],
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
) -> Result<(), ModelError> {
    let words = heads.iter().flat_map(|head| head.steps).find_map(|step| match step {
        Step::Words(words) => Some(words),
        _ => None,
    });
    let Some(words) = words else { return Ok(()) };
    let [table, matrix] = [words.table, words.matrix].map(|name| format!("{name}.weight"));
    if !drawing.has(&table) && drawing.has(&matrix) && config.read(TIED)? {
        drawing.read_for(table, matrix);
    }
    Ok(())
}

impl Width {
    fn columns(&self, config: &ModelConfig) -> Result<usize, ModelError> {
        Ok(match self {
            Width::Hidden => config.hidden_size,
            Width::Embedding => config.embedding_size,
            Width::Labels => config.num_labels()?,
            Width::Fixed(columns) => *columns,
        })
    }

    /// `error`, or the reason why the width is not that of the matrix.
    fn explained(&self, config: &ModelConfig, error: ModelError) -> ModelError {
        match self {
            Width::Labels => config.explained_by_labels(error),
            _ => error,
        }
    }
}

/// Name of the word embedding table in nearly every family.
pub(super) const WORD_TABLE: &str = "embeddings.word_embeddings";

/// BERT's classifier: the first token's state through a matrix and the hyperbolic tangent.
pub(super) const POOLED_CLASSIFIER: Head = Head {
    task: Task::SequenceClassification,
    steps: &[
        Step::Pool(Pooling::Cls),
        Step::Linear("pooler.dense", Width::Hidden, HasBias::Always),
        Step::Activate(Activation::Tanh),
        Step::Linear("classifier", Width::Labels, HasBias::Always),
    ],
};

/// A label per token by one matrix, as in nearly every family.
pub(super) const TOKEN_CLASSIFIER: Head = Head {
    task: Task::TokenClassification,
    steps: &[Step::Linear("classifier", Width::Labels, HasBias::Always)],
};

/// Start and end of an answer by one matrix, as in nearly every family.
pub(super) const ANSWERS: Head = Head {
    task: Task::QuestionAnswering,
    steps: &[Step::Linear("qa_outputs", Width::Fixed(2), HasBias::Always)],
};
