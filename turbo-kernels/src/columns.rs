//! Parts of rows as matrices of their own, without copying them.

use crate::{KernelError, device::FloatsOn};

/// Some columns of the rows of a tensor: value `(i, j)` is element `i · row_stride + first + j` of `rows`.
///
/// Queries, keys and values of a merged projection are three of these over one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Columns<V> {
    /// `[rows, row_stride]`.
    pub rows: V,
    /// The first of the columns.
    pub first: usize,
    /// Values of a whole row.
    pub row_stride: usize,
}

/// Columns in memory of device `D`.
pub type ColumnsOn<'a, D> = Columns<FloatsOn<'a, D>>;

impl<V> Columns<V> {
    /// All columns of rows of `width` values.
    pub fn all(rows: V, width: usize) -> Self {
        Self { rows, first: 0, row_stride: width }
    }

    /// Whether these are `width` columns of `rows` rows, in `values` values.
    ///
    /// # Errors
    /// [`KernelError::Size`] when they reach into the next row, [`KernelError::Length`] for another number of rows.
    pub(crate) fn check_values(
        &self,
        kernel: &'static str,
        argument: &'static str,
        rows: usize,
        width: usize,
        values: usize,
    ) -> Result<(), KernelError> {
        let end = self.first.saturating_add(width);
        if end > self.row_stride {
            let expected = format!("at least {end}, where the columns of {argument} end").into();
            return Err(KernelError::Size { kernel, argument: "row_stride", expected, got: self.row_stride });
        }
        KernelError::check_length(kernel, argument, rows.saturating_mul(self.row_stride), values)
    }
}

impl<'a> Columns<&'a [f32]> {
    /// Whether these are `width` columns of `rows` rows.
    ///
    /// # Errors
    /// As for [`Columns::check_values`].
    pub(crate) fn check(
        &self,
        kernel: &'static str,
        argument: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<(), KernelError> {
        self.check_values(kernel, argument, rows, width, self.rows.len())
    }

    /// `len` values of row `row`, beginning at column `column` of these.
    #[inline(always)]
    pub(crate) fn part(&self, row: usize, column: usize, len: usize) -> &'a [f32] {
        &self.rows[self.start(row, column)..][..len]
    }

    /// Where column `column` of row `row` lies.
    #[inline(always)]
    pub(crate) fn start(&self, row: usize, column: usize) -> usize {
        row * self.row_stride + self.first + column
    }
}

/// Heads side by side in the columns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSizes {
    /// Heads.
    pub num_heads: usize,
    /// Values of each head.
    pub head_dim: usize,
}

impl HeadSizes {
    /// Columns of all heads.
    #[must_use]
    pub fn width(&self) -> usize {
        self.num_heads.saturating_mul(self.head_dim)
    }
}
