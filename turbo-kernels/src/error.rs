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
