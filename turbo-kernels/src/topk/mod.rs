//! The greatest values of rows and where they stand, from which decoding picks its next tokens.

mod cpu;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub(crate) mod cuda;

use crate::{
    KernelError,
    device::{Device, FloatsOn, Values},
};

/// The most values that are picked from a row.
pub const MOST: usize = 64;

/// The greatest values of rows.
pub trait TopK: Device {
    /// The `k` greatest of each row of `columns` values, the greatest first, and their columns. Of equal values the one
    /// that stands first comes first; 0 and −0 are equal. NaN is greater than any number, so that it shows.
    ///
    /// `values` and `indices` are `[rows, k]`; the values are those of `x` to the bit.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for more than [`MOST`] values, or more than a row has.
    fn top_k(
        &self,
        queue: &mut Self::Queue,
        x: FloatsOn<'_, Self>,
        columns: usize,
        k: usize,
        values: Self::ViewMut<'_, Self::Float>,
        indices: Self::ViewMut<'_, u32>,
    ) -> Result<(), KernelError>;
}

const NAME: &str = "top_k";

/// The rows of a call, if everything fits.
fn checked_rows(
    x: &impl Values,
    columns: usize,
    k: usize,
    values: &impl Values,
    indices: &impl Values,
) -> Result<usize, KernelError> {
    let rows = KernelError::check_rows(NAME, "x", columns, x.len())?;
    if k > MOST.min(columns) {
        let expected = format!("at most {MOST} and the {columns} values of a row").into();
        return Err(KernelError::Size { kernel: NAME, argument: "k", expected, got: k });
    }
    KernelError::check_length(NAME, "values", rows * k, values.len())?;
    KernelError::check_length(NAME, "indices", rows * k, indices.len())?;
    Ok(rows)
}
