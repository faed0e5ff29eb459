//! What is written for a row, in every format.

use serde::Serialize;

/// The answer of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// A vector.
    Embedding(Vec<f32>),
    /// Labels of the whole text, the likeliest first.
    Labels(Vec<Class>),
    /// Labelled spans of the text, in order.
    Entities(Vec<Entity>),
    /// The documents of the row, the best first.
    Ranking(Vec<Ranked>),
    /// How well the document in this row suits the query.
    #[serde(untagged)]
    Score {
        /// Greater is better.
        score: f32,
        /// The document, where it was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

/// A label of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Its name in the model.
    pub label: String,
    /// How sure the model is.
    pub score: f32,
}

/// A labelled span of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entity {
    /// The label.
    pub entity: String,
    /// How sure the model is.
    pub score: f32,
    /// The text of the span.
    pub word: String,
    /// First character, from 0.
    pub start: usize,
    /// One past the last character.
    pub end: usize,
}

/// A document of a ranking.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranked {
    /// Its place in the input, from 0.
    pub index: u64,
    /// How well it suits the query.
    pub score: f32,
    /// The document, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The kind of all answers of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Answer::Embedding`] of this many values.
    Embedding {
        /// Length of the vectors.
        dimensions: usize,
    },
    /// [`Answer::Labels`].
    Labels,
    /// [`Answer::Entities`].
    Entities,
    /// [`Answer::Ranking`].
    Ranking {
        /// Whether the answers include the documents.
        with_text: bool,
    },
    /// [`Answer::Score`].
    Score {
        /// Whether the answer includes the document.
        with_text: bool,
    },
}
