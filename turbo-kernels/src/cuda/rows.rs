//! Row kernels: the threads that share a row, and the resulting number of blocks.

use super::{Family, FloatType, Kernel, LaunchShape};
use crate::{KernelError, device::Element};

/// The wide accesses of a row kernel begin at multiples of this many bytes.
const WIDE: usize = 16;

/// How the rows of a batch are reduced, for comparisons; otherwise the length of a row decides.
///
/// Source: Fang et al., PPoPP'21, section 4.1.2 and Figure 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// A block for each row, a thread for each value, one reduction after the other: the usual way to write it. Up to
    /// 1024 columns.
    Classic,
    /// One, two or four rows for each warp, with interleaved shuffles. Fewer where registers do not hold as many.
    Batched(u32),
}

/// One instance of a row kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowKernel {
    /// The names for f32, f16 and bf16.
    pub(crate) names: [&'static str; 3],
    /// The most columns that a row may have.
    pub(crate) columns: usize,
    /// Threads that share a row.
    pub(crate) threads_of_row: u32,
    /// Rows that these threads reduce together.
    pub(crate) rows_of_group: u32,
    /// Threads of a block.
    pub(crate) block: u32,
}

/// The instances of a kernel that the foot of its `.cu` lists, as `op: "_variant", columns, threads_of_row,
/// rows_of_group, block; …`: fewest columns first, and among these fewest rows.
macro_rules! row_kernels {
    ($op:literal: $($variant:literal, $columns:expr, $threads:literal, $rows:literal, $block:literal;)*) => {
        [$($crate::cuda::RowKernel {
            names: [
                concat!($op, "_f32", $variant),
                concat!($op, "_f16", $variant),
                concat!($op, "_bf16", $variant),
            ],
            columns: $columns,
            threads_of_row: $threads,
            rows_of_group: $rows,
            block: $block,
        }),*]
    };
}
pub(crate) use row_kernels;

impl RowKernel {
    /// The one of `kernels` for rows of `columns` columns: the first class that is long enough, and in it the one with
    /// the fewest rows in a group. `None` where all are too short.
    ///
    /// This departs from the paper, where two and four rows together are faster. On an H200, from 200 columns on, one
    /// row is at least as fast, except by 0.6 to 8.8 % at three of 52 sizes (`turbo-bench/results/gpu.md`).
    pub(crate) fn choose(kernels: &[RowKernel], columns: usize) -> Option<&RowKernel> {
        Self::of_class(kernels, columns).next()
    }

    /// The one that reduces `rows_of_group` rows together, or else the next smaller number that exists. `None` where
    /// all are too short.
    pub(crate) fn batched(kernels: &[RowKernel], columns: usize, rows_of_group: u32) -> Option<&RowKernel> {
        let mut class = Self::of_class(kernels, columns);
        let first = class.next()?;
        Some(class.rev().find(|kernel| kernel.rows_of_group <= rows_of_group).unwrap_or(first))
    }

    /// The instance of `batched` or `classic` that reduces by `reduction`.
    ///
    /// # Errors
    /// [`KernelError::Size`] when none takes rows of `columns` columns.
    pub(crate) fn by(
        kernel: &'static str,
        reduction: Reduction,
        batched: &[RowKernel],
        classic: &[RowKernel; 1],
        columns: usize,
    ) -> Result<RowKernel, KernelError> {
        let found = match reduction {
            Reduction::Batched(rows) => Self::batched(batched, columns, rows).copied(),
            Reduction::Classic => Self::of_class(classic, columns).next().map(|classic| {
                let block = (columns.max(1).next_multiple_of(32)) as u32;
                RowKernel { threads_of_row: block, block, ..*classic }
            }),
        };
        let expected = "as few as the reduction takes".into();
        found.ok_or(KernelError::Size { kernel, argument: "columns", expected, got: columns })
    }

    /// The instances of the shortest class that takes rows of `columns` columns, fewest rows in a group first.
    fn of_class(kernels: &[RowKernel], columns: usize) -> impl DoubleEndedIterator<Item = &RowKernel> {
        let class = kernels.iter().map(|kernel| kernel.columns).find(|most| columns <= *most);
        kernels.iter().filter(move |kernel| Some(kernel.columns) == class)
    }

    fn rows_of_block(&self) -> u32 {
        self.block / self.threads_of_row * self.rows_of_group
    }

    /// The kernel for activations of type `F`.
    pub(crate) fn kernel<F: Element>(&self, family: &'static Family) -> Kernel {
        let name = match FloatType::of::<F>() {
            FloatType::F32 => self.names[0],
            FloatType::F16 => self.names[1],
            FloatType::Bf16 => self.names[2],
        };
        Kernel { module: family.of::<F>(), name }
    }

    /// The launch shape for `rows` rows.
    pub(crate) fn shape(&self, rows: u32) -> LaunchShape {
        blocks(rows.div_ceil(self.rows_of_block()), self.block)
    }
}

/// `grid` blocks of `block` threads, without dynamic shared memory.
pub(crate) fn blocks(grid: u32, block: u32) -> LaunchShape {
    LaunchShape { grid: [grid, 1, 1], block, shared_bytes: 0 }
}

/// A warp for each of `rows` rows.
pub(crate) fn warp_to_a_row(rows: u32) -> LaunchShape {
    const BLOCK: u32 = 256;
    blocks(rows.div_ceil(BLOCK / 32), BLOCK)
}

/// A number of rows, or of other things that have a thread each, as a kernel argument.
///
/// # Errors
/// [`KernelError::Size`] from 2³¹ on: then the number of the last thread's row might not fit 32 bits.
pub(crate) fn count(kernel: &'static str, argument: &'static str, count: usize) -> Result<u32, KernelError> {
    match u32::try_from(count) {
        Ok(count) if count < 1 << 31 => Ok(count),
        _ => Err(KernelError::Size { kernel, argument, expected: "less than 2^31".into(), got: count }),
    }
}

/// Whether all rows of `row_len` values of type `T`, in tensors at these addresses, begin at multiples of 16 bytes.
pub(crate) fn is_wide<T: Element>(
    row_len: usize,
    addresses: impl IntoIterator<Item = super::Address>,
) -> bool {
    let is_multiple = |address: super::Address| address.0.is_multiple_of(WIDE as u64);
    (row_len * size_of::<T>()).is_multiple_of(WIDE) && addresses.into_iter().all(is_multiple)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Address;

    const KERNELS: [RowKernel; 5] = row_kernels! { "op":
        "_64", 64, 8, 2, 128;
        "_512_x1", 512, 32, 1, 128;
        "_512_x2", 512, 32, 2, 128;
        "_512_x4", 512, 32, 4, 128;
        "_2048", 2048, 256, 1, 256;
    };

    #[test]
    fn as_few_rows_go_together_as_can() {
        for (rows, columns, name, blocks) in [
            (1, 1, "op_f16_64", 1),
            (33, 64, "op_f16_64", 2),
            (1, 65, "op_f16_512_x1", 1),
            (70_001, 512, "op_f16_512_x1", 17_501),
            (70_000, 513, "op_f16_2048", 70_000),
            (3, 2048, "op_f16_2048", 3),
        ] {
            let kernel = RowKernel::choose(&KERNELS, columns).unwrap();
            assert_eq!(kernel.names[1], name, "{rows} rows of {columns}");
            assert_eq!(kernel.shape(rows as u32).grid, [blocks, 1, 1], "{rows} rows of {columns}");
        }
        assert!(RowKernel::choose(&KERNELS, 2049).is_none());
    }

    #[test]
    fn a_group_has_as_many_rows_as_it_is_told_or_can() {
        for (columns, rows, name) in [
            (512, 1, "_x1"),
            (512, 2, "_x2"),
            (512, 3, "_x2"),
            (512, 4, "_x4"),
            (2000, 4, "_2048"),
            (9, 1, "_64"),
        ] {
            let kernel = RowKernel::batched(&KERNELS, columns, rows).unwrap();
            assert!(kernel.names[2].ends_with(name), "{columns} columns, {rows} rows: {kernel:?}");
        }
    }

    #[test]
    fn every_row_must_begin_at_a_multiple_of_sixteen_bytes() {
        let is_wide_at = |row_len, address| is_wide::<half::bf16>(row_len, [Address(256), Address(address)]);
        assert!(is_wide_at(8, 0) && is_wide_at(768, 32));
        assert!(!is_wide_at(12, 0) && !is_wide_at(8, 8));
        assert!(is_wide::<f32>(12, []));
    }

    #[test]
    fn rows_are_counted_in_31_bits() {
        assert_eq!(count("k", "rows", (1 << 31) - 1).unwrap(), u32::MAX >> 1);
        let error = count("k", "rows", 1 << 31).unwrap_err();
        assert_eq!(error.to_string(), "k: rows is 2147483648, expected less than 2^31");
    }
}
