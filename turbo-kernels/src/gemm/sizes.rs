//! The sizes of tiles and panels, which follow from the number and the length of vector registers, and loops over them
//! that are unrolled.

use crate::simd::{Kernel, Simd, TILE_REGISTERS_SIDE};

/// Values of a row that stay together: one cache line.
pub(crate) const RUN: usize = 16;

/// Output features of one panel: two vectors.
pub(crate) const fn panel_width<S: Simd>() -> usize {
    2 * S::LANES
}

/// The widest panel: two vectors of sixteen.
pub(super) const MOST_WIDTH: usize = 32;

/// Rows of the largest tile whose sums vectors hold: two accumulators a row, with two registers for the panel and two
/// for broadcasts.
pub(crate) const fn held_rows<S: Simd>() -> usize {
    (S::REGISTERS - 4) / 2
}

/// Rows of the highest tile whose sums vectors hold, with any instruction set.
pub(super) const MOST_HELD_ROWS: usize = 14;

/// Rows of the highest tile.
pub(super) const MOST_ROWS: usize =
    if MOST_HELD_ROWS > TILE_REGISTERS_SIDE { MOST_HELD_ROWS } else { TILE_REGISTERS_SIDE };

/// Panel width and tile rows of an instruction set.
pub(crate) struct TileSizes;

impl Kernel for TileSizes {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (panel_width::<S>(), held_rows::<S>())
    }
}

/// An expression in which the number of rows is a constant; tiles have at most as many rows as registers allow.
macro_rules! with_rows {
    ($simd:ty, $rows:expr, $count:ident => $body:expr) => {
        with_rows!(@ $simd, $rows, $count, $body, 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    };
    (@ $simd:ty, $rows:expr, $count:ident, $body:expr, $($number:literal)*) => {
        match $rows {
            $($number => with_rows!(# $simd, $number, $count, $body),)*
            rows => unreachable!("tiles have 1 to 14 rows, not {rows}"),
        }
    };
    (# $simd:ty, $number:literal, $count:ident, $body:expr) => {
        // decided at compile time, so that no code is made for tiles that cannot be
        if const { $number <= $crate::gemm::held_rows::<$simd>() } {
            const $count: usize = $number;
            $body
        } else {
            unreachable!("{} rows are more than registers hold", $number)
        }
    };
}
pub(crate) use with_rows;

/// Repeats the body for each number below a constant, which is at most 14.
macro_rules! unrolled {
    ($count:ident, $index:ident => $body:block) => {
        unrolled!(@ $count, $index, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (@ $count:ident, $index:ident, $body:block, $($number:literal)*) => {$(
        // decided at compile time, so that no code is made for the others
        if const { $number < $count } {
            let $index = $number;
            $body
        }
    )*};
}
pub(crate) use unrolled;
