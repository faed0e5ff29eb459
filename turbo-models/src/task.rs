//! What a model is used for, which decides the head behind its encoder.

use std::fmt;

use turbo_graph::Pooling;

/// What is computed from an input. Each task has its own program, whose rows an [`Encoder`](crate::Encoder) returns:
///
/// | task | `pooled`, a row per input | `tokens`, a row per token | `selected`, a row per selected token |
/// |---|---|---|---|
/// | [`Embedding`](Self::Embedding) | the vector, through the folder's dense modules | the last hidden state | |
/// | [`SparseEmbedding`](Self::SparseEmbedding) | a weight per token of the vocabulary | | |
/// | [`SequenceClassification`](Self::SequenceClassification) | a logit per label | | |
/// | [`TokenClassification`](Self::TokenClassification) | | a logit per label | |
/// | [`QuestionAnswering`](Self::QuestionAnswering) | | logits of start and end of the answer | |
/// | [`MaskedLm`](Self::MaskedLm) | | | a logit per token of the vocabulary |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// A vector of the whole input. Every model supports it.
    Embedding {
        /// How token vectors become one.
        pooling: Pooling,
    },
    /// SPLADE (Formal et al., 2021): the maximum over all tokens of `log(1 + relu(logit))`.
    SparseEmbedding,
    /// Logits of the labels of the whole input, of one text or of two.
    SequenceClassification,
    /// Logits of the labels of every token.
    TokenClassification,
    /// Where in the input an answer starts and ends.
    QuestionAnswering,
    /// Which words fit where a token is masked.
    MaskedLm,
}

impl Task {
    /// Its name, without the pooling: `sequence-classification`.
    pub fn name(self) -> &'static str {
        match self {
            Task::Embedding { .. } => "embedding",
            Task::SparseEmbedding => "sparse-embedding",
            Task::SequenceClassification => "sequence-classification",
            Task::TokenClassification => "token-classification",
            Task::QuestionAnswering => "question-answering",
            Task::MaskedLm => "masked-lm",
        }
    }

    /// The task that the name of a published class ends with, as in `BertForMaskedLM`.
    pub(crate) fn of_class(class: &str) -> Option<Self> {
        const ENDINGS: [(&str, Task); 6] = [
            ("ForSequenceClassification", Task::SequenceClassification),
            ("ForTokenClassification", Task::TokenClassification),
            ("ForQuestionAnswering", Task::QuestionAnswering),
            ("ForMaskedLM", Task::MaskedLm),
            // says of every token whether it was replaced
            ("ElectraForPreTraining", Task::TokenClassification),
            // a masked language model with a second head
            ("ForPreTraining", Task::MaskedLm),
        ];
        ENDINGS.iter().find(|(ending, _)| class.ends_with(ending)).map(|(_, task)| *task)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Pooling> for Task {
    fn from(pooling: Pooling) -> Self {
        Task::Embedding { pooling }
    }
}

/// How the logits of labels become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreFunction {
    /// Exactly one label is right: the scores sum to 1.
    Softmax,
    /// Each label is right or wrong independently of the others.
    Sigmoid,
    /// The logits are the scores.
    Identity,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_with_their_task() {
        let cases = [
            ("BertModel", None),
            ("Qwen3ForCausalLM", None),
            ("RobertaForSequenceClassification", Some(Task::SequenceClassification)),
            ("BertForTokenClassification", Some(Task::TokenClassification)),
            ("DistilBertForQuestionAnswering", Some(Task::QuestionAnswering)),
            ("AlbertForMaskedLM", Some(Task::MaskedLm)),
            ("BertForPreTraining", Some(Task::MaskedLm)),
            ("ElectraForPreTraining", Some(Task::TokenClassification)),
        ];
        for (class, expected) in cases {
            assert_eq!(Task::of_class(class), expected, "{class}");
        }
    }
}
