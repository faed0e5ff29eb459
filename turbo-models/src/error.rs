//! Why a model folder is refused, in one line that names the file.

use std::{fmt, path::PathBuf};

use turbo_graph::GraphError;

use crate::Task;

/// Why a model folder was refused, or a batch could not run.
///
/// Each message is one line that names the file, and the field or tensor in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read or mapped.
    #[error("{file}: {why}")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
    /// A file that should be JSON is not, or not of the expected form.
    #[error("{file}: {why}")]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser said.
        why: String,
    },
    /// A field of a JSON file is missing or has an invalid value.
    #[error("{file}: {field}: {why}")]
    Field {
        /// The file.
        file: PathBuf,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The value of a field is not implemented.
    #[error("{file}: {field} is {value:?}, supported: {supported}")]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Values that are implemented.
        supported: String,
    },
    /// The weights are not a sound safetensors file.
    #[error("{file}: {why}")]
    Weights {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, with the tensor's name where there is one.
        why: String,
    },
    /// The model needs a tensor that the files do not have.
    #[error("{file}: tensor {tensor} is missing")]
    MissingTensor {
        /// The file that should have it.
        file: PathBuf,
        /// Its published name.
        tensor: String,
    },
    /// A tensor does not have the shape that the configuration calls for.
    #[error("{file}: tensor {tensor} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// Shape that the configuration calls for.
        expected: Vec<usize>,
        /// Shape in the file.
        got: Vec<usize>,
    },
    /// A tensor holds values of a type that cannot be computed with.
    #[error("{file}: tensor {tensor} holds {got}, expected F32, F16 or BF16")]
    Dtype {
        /// The file.
        file: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// Type in the file.
        got: String,
    },
    /// The models of this family have no head for the task here.
    #[error("{model_type} models have no head for {task} here, supported: {supported}")]
    Head {
        /// The family.
        model_type: String,
        /// The requested task.
        task: Task,
        /// Tasks that the model can do.
        supported: String,
    },
    /// The activations of this family exceed the range of the device's float type.
    #[error("{model_type} models have activations beyond the range of {float}, supported: {supported}")]
    Range {
        /// The family.
        model_type: String,
        /// The float type of the device.
        float: &'static str,
        /// Float types that can hold them.
        supported: &'static str,
    },
    /// The encoder's program does not return the requested rows.
    #[error(
        "{task} gives no {rows} rows: create the encoder with a task and outputs that have them (`EncoderOptions`)"
    )]
    Rows {
        /// What the encoder was compiled for.
        task: Task,
        /// The requested rows.
        rows: &'static str,
    },
    /// The tokenizer's files do not make a valid tokenizer.
    #[error("{file}: {why}")]
    Tokenizer {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An input that the model cannot take.
    #[error(transparent)]
    Input(#[from] crate::TokenizeError),
    /// The graph could not be built, or the device failed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Longest part of a message from elsewhere that is passed on, in characters.
const MAX_MESSAGE: usize = 300;

/// The first characters of a message from elsewhere, on one line: it may quote the file it is about.
pub(crate) fn one_line(message: impl fmt::Display) -> String {
    message.to_string().chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::{error::Error, io};

    use super::*;

    /// Error-chain printers append every cause to the message.
    #[test]
    fn what_a_message_says_is_no_cause_behind_it() {
        let error = ModelError::Read { file: "config.json".into(), why: io::Error::other("gone") };
        assert_eq!(error.to_string(), "config.json: gone");
        assert!(error.source().is_none());
        let error = GraphError::Weight { name: "a.weight".into(), why: Box::new(error) };
        assert_eq!(error.to_string(), "weight a.weight: config.json: gone");
        assert!(error.source().is_none());
    }

    #[test]
    fn foreign_messages_become_one_short_line() {
        assert_eq!(one_line("a\nb\tc"), "a b c");
        assert_eq!(one_line("x".repeat(1000)).len(), MAX_MESSAGE);
    }
}
