//! Why a kernel does not run.

use crate::device::DeviceError;

/// Why a kernel refused its arguments or could not run.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A buffer does not hold what the sizes say.
    #[error("{kernel}: {argument} holds {got} values, expected {expected}")]
    Length {
        /// The kernel that was called.
        kernel: &'static str,
        /// The argument that is wrong.
        argument: &'static str,
        /// Values that the sizes call for.
        expected: usize,
        /// Values that were passed.
        got: usize,
    },
    /// A row index points past the end of its table.
    #[error("{kernel}: index {index} is outside the table of {rows} rows")]
    Index {
        /// The kernel that was called.
        kernel: &'static str,
        /// The offending index.
        index: u32,
        /// Rows of the table.
        rows: usize,
    },
    /// A size that this kernel cannot take.
    #[error("{kernel}: {argument} is {got}, expected {expected}")]
    Size {
        /// The kernel that was called.
        kernel: &'static str,
        /// The argument that is wrong.
        argument: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What was passed.
        got: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl KernelError {
    /// `got` is `expected`, or the error that says so.
    pub(crate) fn check_length(
        kernel: &'static str,
        argument: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<(), KernelError> {
        if got == expected { Ok(()) } else { Err(KernelError::Length { kernel, argument, expected, got }) }
    }

    /// As many heads of `num_heads` share each of `num_kv_heads`.
    pub(crate) fn check_grouping(
        kernel: &'static str,
        num_heads: usize,
        num_kv_heads: usize,
    ) -> Result<(), KernelError> {
        // `is_multiple_of(0)` holds for 0 alone
        if num_heads.is_multiple_of(num_kv_heads) {
            return Ok(());
        }
        let (argument, expected) = ("num_kv_heads", "a divisor of num_heads");
        Err(KernelError::Size { kernel, argument, expected, got: num_kv_heads })
    }

    /// `values` are whole rows of `row_len` values; gives their number.
    pub(crate) fn check_rows(
        kernel: &'static str,
        argument: &'static str,
        row_len: usize,
        values: usize,
    ) -> Result<usize, KernelError> {
        if row_len == 0 && values == 0 {
            return Ok(0);
        }
        let rows = if row_len == 0 { 0 } else { values.div_ceil(row_len) };
        Self::check_length(kernel, argument, rows * row_len, values).map(|()| rows)
    }
}
