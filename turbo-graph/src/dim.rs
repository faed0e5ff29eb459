//! Sizes that are known only with a batch: symbolic dimensions, shapes, and the extents that fix them.

use std::fmt;

/// One axis of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Sequences of the batch.
    BatchSize,
    /// Rows of each sequence in the padded layout.
    PaddedLen,
    /// Rows of all sequences in the packed layout.
    TotalTokens,
    /// Tokens that the batch selects.
    SelectedRows,
    /// Fixed by the model.
    Fixed(usize),
}

impl Dim {
    /// The size of this axis for a batch.
    pub fn size(self, extents: &Extents) -> usize {
        match self {
            Dim::BatchSize => extents.batch_size,
            Dim::PaddedLen => extents.padded_len,
            Dim::TotalTokens => extents.total_tokens,
            Dim::SelectedRows => extents.selected_rows,
            Dim::Fixed(size) => size,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::BatchSize => f.write_str("batch_size"),
            Dim::PaddedLen => f.write_str("padded_len"),
            Dim::TotalTokens => f.write_str("total_tokens"),
            Dim::SelectedRows => f.write_str("selected_rows"),
            Dim::Fixed(size) => write!(f, "{size}"),
        }
    }
}

/// The axes of a value, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape whose sizes are all known.
    pub fn fixed(sizes: &[usize]) -> Self {
        Shape(sizes.iter().copied().map(Dim::Fixed).collect())
    }

    /// These rows with another number of columns.
    pub(crate) fn with_columns(&self, columns: usize) -> Self {
        let rows = &self.0[..self.0.len().saturating_sub(1)];
        Shape([rows, &[Dim::Fixed(columns)]].concat())
    }

    /// `[batch_size, padded_len, ..rest]`: one row per token, as a textbook draws it.
    pub fn per_token(rest: &[usize]) -> Self {
        let rows = [Dim::BatchSize, Dim::PaddedLen];
        Shape(rows.into_iter().chain(rest.iter().copied().map(Dim::Fixed)).collect())
    }

    /// The number of values in a tensor of this shape; saturates at `usize::MAX`, which nothing can hold.
    pub fn elements(&self, extents: &Extents) -> usize {
        self.0.iter().fold(1, |elements, dim| elements.saturating_mul(dim.size(extents)))
    }

    /// The size of the last axis, if the model fixes it.
    pub fn last_fixed(&self) -> Option<usize> {
        match self.0.last() {
            Some(Dim::Fixed(size)) => Some(*size),
            _ => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if axis > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

/// The sizes of one batch, or of the largest batch that a plan must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Sequences.
    pub batch_size: usize,
    /// Rows of each sequence in the padded layout: its longest `seq_len`.
    pub padded_len: usize,
    /// Sum of `seq_len`.
    pub total_tokens: usize,
    /// Sum of `seq_len²`: what packed attention costs.
    pub sum_len_sq: usize,
    /// Tokens that the batch selects.
    pub selected_rows: usize,
}

impl Extents {
    /// The extents of sequences of these lengths, of which no token is selected.
    pub fn of(seq_lens: &[usize]) -> Self {
        Extents {
            batch_size: seq_lens.len(),
            padded_len: seq_lens.iter().copied().max().unwrap_or(0),
            total_tokens: seq_lens.iter().sum(),
            sum_len_sq: seq_lens.iter().map(|len| len * len).sum(),
            selected_rows: 0,
        }
    }
}
