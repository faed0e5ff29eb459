//! What differs between the dtypes of products: how rows and panels are packed, and how a tile is multiplied.

use std::slice;

use super::{
    sizes::RUN,
    tile::TileRows,
    words::{self, Words, transpose},
};
use crate::{bias_act::Accuracy, simd::Simd};

/// One way to hold a weight and the rows that meet it. Both are `[k words][..]` of 32-bit words, which are passed as
/// `f32` whatever they hold.
pub(crate) trait Format: Words + Copy + Send + Sync {
    /// Whether the packed form of a value depends on that value alone, so that the values of a row can be put one by
    /// one, as soon as they are known. Otherwise the whole row must be there first.
    const VALUE_BY_VALUE: bool;
    /// The accuracy of activations of the products.
    const ACCURACY: Accuracy;

    /// Packs up to a panel's width of output features, `[columns, in_features]` row-major, into a panel of zeros.
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]);

    /// Words of a packed tile of `rows` rows.
    fn tile_words<S: Simd>(rows: usize, in_features: usize) -> usize {
        rows * words::row_words::<S, Self>(in_features)
    }

    /// Packs rows of equal length, at least one.
    ///
    /// Run by run, so that words are written in the order of their addresses; no near cache has room for what would be
    /// written row by row. With f32 a product of 40 rows gains a hundredth of its time.
    #[inline(always)]
    fn pack_rows<S: Simd>(s: S, rows: &[&[f32]], to: &mut TileRows<'_>) {
        let (k, of_run, run_words) = (rows[0].len(), RUN * Self::PER_WORD, RUN * Self::parts::<S>());
        assert!(rows.iter().all(|row| row.len() == k));
        let whole = k / of_run;
        let runs = to.runs(rows.len(), whole, run_words);
        // whole runs in a loop of their own, with lengths that are constants
        for number in 0..whole {
            for (row, values) in rows.iter().enumerate() {
                // SAFETY: one of the whole runs of `k` values.
                let values = unsafe { slice::from_raw_parts(values.as_ptr().add(number * of_run), of_run) };
                // SAFETY: there is room for it, runs do not overlap, and nothing else uses these rows.
                let words = unsafe { slice::from_raw_parts_mut(runs.place(row, number), run_words) };
                Self::pack_run(s, values, words);
            }
        }
        if whole * of_run < k {
            for (row, values) in rows.iter().enumerate() {
                Self::pack_run(s, &values[whole * of_run..], to.run(row, whole, run_words));
            }
        }
    }

    /// Packs a run of values, or what is left in the last one.
    fn pack_run<S: Simd>(s: S, values: &[f32], words: &mut [f32]);

    /// The words of a tile of `rows` rows that [`Format::put`] writes for the vector of values that begins at `column`
    /// (a multiple of `S::LANES`) of `row`.
    fn words_of<S: Simd>(rows: usize, row: usize, column: usize) -> std::ops::Range<usize>;

    /// Packs one vector of values, where [`Format::VALUE_BY_VALUE`] holds. With tile registers every vector of a run
    /// has to be put, even behind the last value.
    fn put<S: Simd>(s: S, values: S::F32, words: &mut [f32]);
}

/// Work that is compiled for each format and each instruction set that it has a path for; the struct holds the
/// arguments.
pub(super) trait FormatKernel {
    /// What it returns.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<F: Format, S: Simd>(self, s: S) -> Self::Output;
}

/// f32 as it is.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Words for F32 {
    const ROWS_ARE_TILES: bool = true;
    const PER_WORD: usize = 1;
    const PARAMETERS: usize = 0;
    const ORDERED: bool = true;
    type Sum<S: Simd> = S::F32;

    fn parts<S: Simd>() -> usize {
        1
    }

    #[inline(always)]
    fn place<S: Simd>(word: usize, _: usize) -> usize {
        word
    }

    #[inline(always)]
    fn part<S: Simd>(_: S, words: S::I32, _: usize) -> S::I32 {
        words
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, a: S::F32, b: S::F32) -> S::F32 {
        s.add(a, b)
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, x: S::I32, weight: S::I32, sum: S::F32) -> S::F32 {
        s.mul_add(s.float(x), s.float(weight), sum)
    }

    #[inline(always)]
    fn start<S: Simd>(s: S, _: [f32; 2], _: [S::F32; 2]) -> S::F32 {
        s.splat(0.0)
    }

    #[inline(always)]
    fn resume<S: Simd>(_: S, stored: S::F32) -> S::F32 {
        stored
    }

    #[inline(always)]
    fn value<S: Simd>(s: S, sum: S::F32, _: [f32; 2], _: [S::F32; 2], bias: S::F32) -> S::F32 {
        s.add(sum, bias)
    }
}

impl Format for F32 {
    const VALUE_BY_VALUE: bool = true;
    const ACCURACY: Accuracy = Accuracy::Full;

    #[inline(always)]
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]) {
        transpose(s, columns, in_features, 0..in_features, panel);
    }

    #[inline(always)]
    fn pack_run<S: Simd>(s: S, values: &[f32], words: &mut [f32]) {
        if values.len() < RUN {
            return words[..values.len()].copy_from_slice(values);
        }
        // by vectors: `copy_from_slice` of a length that is no constant is a call for each run
        for at in (0..RUN).step_by(S::LANES) {
            s.store(s.load(&values[at..]), &mut words[at..]);
        }
    }

    #[inline(always)]
    fn words_of<S: Simd>(rows: usize, row: usize, column: usize) -> std::ops::Range<usize> {
        let first = column / RUN * rows * RUN + row * RUN + column % RUN;
        first..first + S::LANES
    }

    #[inline(always)]
    fn put<S: Simd>(s: S, values: S::F32, words: &mut [f32]) {
        s.store(values, words);
    }
}
