//! Which routes a model answers, and how the others refuse.

use super::{error::ApiError, target::Target};
use crate::engine::{ModelInfo, Task};

/// What a route computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// A vector per input.
    Embed,
    /// A vector per token.
    EmbedAll,
    /// A sparse vector per input: vocabulary entries, each with its weight.
    EmbedSparse,
    /// The similarity of texts.
    Similarity,
    /// Scores of labels.
    Predict,
    /// Texts in the order of their scores by a model's only label.
    Rerank,
    /// How well two texts match: a pair's score, or the similarity of two vectors.
    Score,
    /// Rows of inputs or of tokens, whatever their meaning.
    Pool,
    /// Labelled words.
    TokenClassification,
    /// Where in a text the answer is.
    QuestionAnswering,
    /// Words that fit into a gap.
    FillMask,
}

impl Ability {
    /// What `POST /` asks of this model by default.
    pub(super) fn of(model: &ModelInfo) -> Self {
        match model.task {
            Task::Embedding { .. } => Self::Embed,
            Task::SparseEmbedding => Self::EmbedSparse,
            Task::SequenceClassification if model.labels.len() == 1 => Self::Rerank,
            Task::SequenceClassification => Self::Predict,
            Task::TokenClassification => Self::TokenClassification,
            Task::QuestionAnswering => Self::QuestionAnswering,
            Task::MaskedLm => Self::FillMask,
        }
    }

    /// Whether a model has this ability.
    pub(crate) fn is_of(self, model: &ModelInfo) -> bool {
        let main = Self::of(model);
        match self {
            // A sparse vector is a vector, too, only a long one.
            Self::Embed | Self::Similarity => matches!(main, Self::Embed | Self::EmbedSparse),
            Self::EmbedAll => main == Self::Embed,
            // A model with one label is a classifier, too.
            Self::Predict => matches!(main, Self::Predict | Self::Rerank),
            Self::Score => matches!(main, Self::Rerank | Self::Embed | Self::EmbedSparse),
            Self::Pool => !matches!(main, Self::QuestionAnswering | Self::FillMask),
            _ => main == self,
        }
    }

    /// Refuses if the model lacks this ability. The error names the requested route, because several routes share an
    /// ability.
    pub(super) fn check(self, target: &Target) -> Result<(), ApiError> {
        let model = &target.engine().info().model;
        if self.is_of(model) {
            return Ok(());
        }
        let message = format!(
            "`{}` needs {}, and this model is for {}: use {}",
            target.route(),
            self.needs(),
            model.task,
            Self::of(model).path()
        );
        Err(ApiError::wrong_model(message))
    }

    /// The route that errors recommend for it.
    fn path(self) -> &'static str {
        match self {
            Self::Embed => "`/embed`",
            Self::EmbedAll => "`/embed_all`",
            Self::EmbedSparse => "`/embed_sparse`",
            Self::Similarity => "`/similarity`",
            Self::Predict => "`/predict`",
            Self::Rerank => "`/rerank`",
            Self::Score => "`/score`",
            Self::Pool => "`/pooling`",
            Self::TokenClassification => "`/pipeline/token-classification`",
            Self::QuestionAnswering => "`/pipeline/question-answering`",
            Self::FillMask => "`/pipeline/fill-mask`",
        }
    }

    /// The kind of model that has it.
    pub(crate) fn needs(self) -> &'static str {
        match self {
            Self::Embed | Self::EmbedAll | Self::Similarity => "an embedding model",
            Self::EmbedSparse => "an embedding model with SPLADE pooling",
            Self::Predict => "a sequence classifier",
            Self::Rerank => "a sequence classifier with one label",
            Self::Score => "a sequence classifier with one label or an embedding model",
            Self::Pool => "an embedding model, a sequence classifier or a token classifier",
            Self::TokenClassification => "a token classifier",
            Self::QuestionAnswering => "a model for question answering",
            Self::FillMask => "a masked language model",
        }
    }
}
