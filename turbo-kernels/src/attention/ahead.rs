//! Prefetches what is read next, line by line, while something else is computed.

use std::ops::Range;

use crate::{
    Columns,
    simd::{LINE_VALUES, Simd},
};

/// The keys and values of one head in some rows. Each row lies in a page of its own, so the hardware prefetcher does
/// not fetch it, and fetching all of them at once would stall the core.
pub(super) struct Ahead {
    /// The next row of keys and of values.
    next: [*const f32; 2],
    /// Values from one row to the next.
    strides: [usize; 2],
    /// Values of a row.
    head_dim: usize,
    /// Where the next line begins in the row.
    value: usize,
    rows: usize,
}

impl Ahead {
    /// What head `head` has in the rows `rows`.
    #[inline(always)]
    pub(super) fn new(
        columns: [Columns<&[f32]>; 2],
        head: usize,
        head_dim: usize,
        rows: Range<usize>,
    ) -> Ahead {
        Ahead {
            next: columns.map(|of| of.rows.as_ptr().wrapping_add(of.start(rows.start, head * head_dim))),
            strides: columns.map(|of| of.row_stride),
            head_dim,
            value: 0,
            rows: if head_dim == 0 { 0 } else { rows.len() },
        }
    }

    /// Prefetches the next line of keys and of values.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S) {
        if self.rows == 0 {
            return;
        }
        for row in self.next {
            s.prefetch(row.wrapping_add(self.value));
        }
        self.value += LINE_VALUES;
        if self.value >= self.head_dim {
            self.go_to_next_row();
        }
    }

    /// Prefetches all that is left.
    #[inline(always)]
    pub(super) fn ask_for_rest<S: Simd>(&mut self, s: S) {
        while self.rows > 0 {
            for row in self.next {
                for value in (self.value..self.head_dim).step_by(LINE_VALUES) {
                    s.prefetch(row.wrapping_add(value));
                }
            }
            self.go_to_next_row();
        }
    }

    #[inline(always)]
    fn go_to_next_row(&mut self) {
        self.value = 0;
        self.rows -= 1;
        for (row, stride) in self.next.iter_mut().zip(self.strides) {
            *row = row.wrapping_add(stride);
        }
    }
}
