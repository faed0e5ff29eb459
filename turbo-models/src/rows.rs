//! What a program returns: rows per input, per token, per selected token.

use turbo_graph::Graph;

/// Name of the graph output with a row per input.
pub(crate) const POOLED: &str = "pooled";
/// Name of the graph output with the hidden state of every token.
pub(crate) const HIDDEN: &str = "last_hidden_state";
/// Name of the graph output with the logits of every token.
pub(crate) const TOKEN_LOGITS: &str = "token_logits";
/// Name of the graph output with a row per selected token.
pub(crate) const SELECTED: &str = "selected_logits";

/// A kind of rows that a task may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// A row per input.
    Pooled,
    /// A row per token.
    Tokens,
    /// A row per selected token.
    Selected,
}

impl RowKind {
    /// All of them.
    pub const ALL: [RowKind; 3] = [RowKind::Pooled, RowKind::Tokens, RowKind::Selected];

    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RowKind::Pooled => "pooled",
            RowKind::Tokens => "token",
            RowKind::Selected => "selected",
        }
    }
}

/// How many values there are in a row of each kind; `None` where a task has no such rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLens {
    /// A row per input.
    pub pooled: Option<usize>,
    /// A row per token.
    pub tokens: Option<usize>,
    /// A row per selected token.
    pub selected: Option<usize>,
}

impl RowLens {
    /// The row lengths of the outputs of `graph`.
    pub(crate) fn of(graph: &Graph) -> Self {
        let len = |name: &str| {
            let (value, _) = graph.outputs().find(|(_, output)| *output == name)?;
            graph.value(value).shape.last_fixed()
        };
        Self { pooled: len(POOLED), tokens: len(HIDDEN).or(len(TOKEN_LOGITS)), selected: len(SELECTED) }
    }
}
