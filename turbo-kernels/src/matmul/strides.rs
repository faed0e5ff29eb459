//! Where the matrices of a batched product lie.

use crate::KernelError;

/// Where the matrices of all sequences and heads lie in one tensor: value `(b, h, i, j)` is element
/// `first + b · batch_stride + h · head_stride + i · row_stride + j`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadStrides {
    /// Element of `(0, 0, 0, 0)`.
    pub first: usize,
    /// Elements from one sequence to the next.
    pub batch_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
}

/// Sequences, heads of each, rows of each, values of each.
pub(crate) type Sizes = [usize; 4];

impl HeadStrides {
    /// Element of `(b, h, i, 0)`.
    pub(crate) fn row(&self, b: usize, h: usize, i: usize) -> usize {
        self.first + b * self.batch_stride + h * self.head_stride + i * self.row_stride
    }

    /// Whether a tensor of `sizes` lies inside `len` values.
    ///
    /// # Errors
    /// [`KernelError::Length`].
    pub(crate) fn check_inside(
        &self,
        kernel: &'static str,
        argument: &'static str,
        sizes: Sizes,
        len: usize,
    ) -> Result<(), KernelError> {
        if sizes.contains(&0) {
            return Ok(());
        }
        let spans = self.axes(sizes).map(|(stride, size)| stride.saturating_mul(size - 1));
        let expected = spans.into_iter().fold(self.first, usize::saturating_add).saturating_add(1);
        if expected <= len {
            Ok(())
        } else {
            Err(KernelError::Length { kernel, argument, expected, got: len })
        }
    }

    /// Whether every value of a tensor of `sizes` has an element of its own, so that threads may write it together:
    /// from the narrowest axis to the widest, a step leaps over everything narrower. The tensor has to lie inside its
    /// buffer.
    ///
    /// # Errors
    /// [`KernelError::Size`].
    pub(crate) fn check_apart(
        &self,
        kernel: &'static str,
        argument: &'static str,
        sizes: Sizes,
    ) -> Result<(), KernelError> {
        if sizes.contains(&0) {
            return Ok(());
        }
        let mut axes = self.axes(sizes);
        axes.sort_unstable();
        let mut span = 1_usize; // elements from the first to the last of the axes so far
        for (stride, size) in axes {
            if size > 1 && stride < span {
                let expected = format!("at least {span}, a stride that leaps over the values inside").into();
                return Err(KernelError::Size { kernel, argument, expected, got: stride });
            }
            span = span.saturating_add(stride.saturating_mul(size - 1));
        }
        Ok(())
    }

    fn axes(&self, [batch_size, num_heads, rows, values]: Sizes) -> [(usize, usize); 4] {
        [(self.batch_stride, batch_size), (self.head_stride, num_heads), (self.row_stride, rows), (1, values)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn elements(at: HeadStrides, sizes: Sizes) -> Vec<usize> {
        let [batch_size, num_heads, rows, values] = sizes;
        let mut elements = Vec::new();
        for b in 0..batch_size {
            for h in 0..num_heads {
                for i in 0..rows {
                    elements.extend((0..values).map(|j| at.row(b, h, i) + j));
                }
            }
        }
        elements
    }

    proptest! {
        /// Against a list of all elements.
        #[test]
        fn checks_hold_for_every_element(
            strides in prop::array::uniform4(0..24usize), sizes in prop::array::uniform4(0..4usize), len in 0..80usize,
        ) {
            let [first, batch_stride, head_stride, row_stride] = strides;
            let at = HeadStrides { first, batch_stride, head_stride, row_stride };
            let elements = elements(at, sizes);
            let inside = at.check_inside("kernel", "out", sizes, len).is_ok();
            prop_assert_eq!(inside, elements.iter().all(|element| *element < len));
            let apart = at.check_apart("kernel", "out", sizes).is_ok();
            prop_assert!(apart || !elements.is_empty(), "there is nothing to share an element");
            if apart {
                let distinct: HashSet<_> = elements.iter().collect();
                prop_assert_eq!(distinct.len(), elements.len());
            }
        }
    }

    #[test]
    fn both_orders_of_heads_are_apart() {
        let sizes = [3, 12, 7, 64];
        let merged = HeadStrides { first: 5, batch_stride: 7 * 768, head_stride: 64, row_stride: 768 };
        let separate =
            HeadStrides { first: 0, batch_stride: 12 * 7 * 64, head_stride: 7 * 64, row_stride: 64 };
        assert!(merged.check_apart("kernel", "out", sizes).is_ok());
        assert!(separate.check_apart("kernel", "out", sizes).is_ok());
        let shared = HeadStrides { head_stride: 63, ..merged };
        let error = shared.check_apart("kernel", "out strides", sizes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "kernel: out strides is 63, expected at least 64, a stride that leaps over the values inside"
        );
    }

    #[test]
    fn giant_strides_do_not_wrap() {
        let at = HeadStrides { first: 1, batch_stride: usize::MAX, head_stride: 1 << 63, row_stride: 2 };
        assert!(at.check_inside("kernel", "a", [3, 3, 1, 1], 10).is_err());
    }
}
