//! Why a kernel does not run.

use std::borrow::Cow;

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
        expected: Cow<'static, str>,
        /// What was passed.
        got: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl KernelError {
    /// Checks that `got` is `expected`.
    pub(crate) fn check_length(
        kernel: &'static str,
        argument: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<(), KernelError> {
        if got == expected { Ok(()) } else { Err(KernelError::Length { kernel, argument, expected, got }) }
    }

    /// Checks that equally many of `num_heads` heads share each of `num_kv_heads`.
    pub(crate) fn check_grouping(
        kernel: &'static str,
        num_heads: usize,
        num_kv_heads: usize,
    ) -> Result<(), KernelError> {
        // `is_multiple_of(0)` holds for 0 alone
        if num_heads.is_multiple_of(num_kv_heads) {
            return Ok(());
        }
        let expected = format!("a divisor of num_heads, {num_heads}").into();
        Err(KernelError::Size { kernel, argument: "num_kv_heads", expected, got: num_kv_heads })
    }

    /// Checks that `values` are whole rows of `row_len` values, and gives their number.
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

#[cfg(test)]
mod tests {
    use super::KernelError;
    use crate::{
        Activation, Columns, Cpu, CpuOptions, DType, Device, FeedForward, Gemm, HeadSizes, Hidden, Layout,
        RelativeBias, Rotary, TopK,
    };

    #[test]
    fn sizes_beyond_another_are_named_with_it() {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let columns = Columns { rows: (), first: 16, row_stride: 64 };
        let bias = RelativeBias::Buckets { table: &[0.0; 32][..], num_buckets: 32, max_distance: 8 };
        let feed_forward = |hidden| {
            let weight = cpu.pack(&[0.5; 12], 3, 4, DType::F32).unwrap();
            let layer = FeedForward {
                up: &weight,
                up_bias: None,
                hidden,
                down: &weight,
                down_bias: None,
                residual: None,
                norm: None,
            };
            cpu.feed_forward(&mut cpu.queue().unwrap(), &[1.0; 4], layer, &mut [0.0; 3])
        };
        let rotary = || {
            let heads = HeadSizes { num_heads: 1, head_dim: 2 };
            let layout = Layout::Packed { cu_seqlens: &[0, 1, 4][..] };
            let (x, mut out) = ([1.0; 8], [0.0; 8]);
            let x = Columns::all(&x[..], 2);
            cpu.rotary(&mut cpu.queue().unwrap(), heads, layout, x, &[0.5; 4], &mut out)
        };
        let top_k = || cpu.top_k(&mut cpu.queue().unwrap(), &[1.0; 20], 20, 21, &mut [0.0; 21], &mut [0; 21]);
        for (answer, expected) in [
            (
                KernelError::check_grouping("k", 4, 3),
                "k: num_kv_heads is 3, expected a divisor of num_heads, 4",
            ),
            (
                columns.check_values("k", "q", 2, 64, 128),
                "k: row_stride is 64, expected at least 80, where the columns of q end",
            ),
            (
                bias.check("k", 1, [1; 2]),
                "k: max_distance is 8, expected more than 8, a quarter of num_buckets",
            ),
            (
                feed_forward(Hidden::Activation(Activation::Relu)),
                "feed_forward: out_features of up is 3, expected in_features of down, 4",
            ),
            (
                feed_forward(Hidden::Gate(Activation::Relu)),
                "feed_forward: out_features of up is 3, expected twice in_features of down, 8",
            ),
            (
                rotary(),
                "rotary: a sequence length is 3, expected at most 2, the positions of the table (sequence 1)",
            ),
            (top_k(), "top_k: k is 21, expected at most 64 and the 20 values of a row"),
        ] {
            assert_eq!(answer.unwrap_err().to_string(), expected);
        }
    }
}
