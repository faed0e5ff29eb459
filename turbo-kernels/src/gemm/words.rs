//! The tile kernel: up to 14 rows times one panel, accumulators in registers. Of numbers narrower than a word several
//! values of `k` share one.
//!
//! ```text
//! panel  [words of k][column]                        then what the format keeps per column
//! tile   [words of k / RUN][row][RUN × parts]        then what the format keeps per row
//! ```
//!
//! Where a set has a dot product of such words, the kernel broadcasts a word of activations and multiplies it with a
//! vector of words of weights. Elsewhere it widens the weights part by part, and activations are packed as wide as
//! that: two words for one of the weights.

use std::marker::PhantomData;

use super::{
    pack::{RUN, panel_width, tile_rows, with_rows},
    tile::{Panel, Tile},
};
use crate::{
    lanes,
    simd::{Kernel, Simd},
};

/// Numbers of which one or several fit a word.
pub(crate) trait Words: 'static {
    /// Values of `k` in a word.
    const PER_WORD: usize;
    /// Words that are kept for each row of a tile and each column of a panel: two or none.
    const PARAMETERS: usize;
    /// Whether sums depend on the order of `k`.
    const ORDERED: bool;
    /// A vector of unfinished sums.
    type Sum<S: Simd>: Copy;

    /// Parts in which a word of weights is multiplied: one where there is a dot product, else two.
    fn parts<S: Simd>() -> usize;

    /// Where part `part` of word `word` lies in a run of activations.
    fn place<S: Simd>(word: usize, part: usize) -> usize;

    /// A part of a word of weights, as [`Words::dot`] wants it.
    fn part<S: Simd>(s: S, words: S::I32, part: usize) -> S::I32;

    /// `sum` plus a part of the products.
    fn dot<S: Simd>(s: S, x: S::I32, weight: S::I32, sum: Self::Sum<S>) -> Self::Sum<S>;

    /// No products yet.
    fn zero<S: Simd>(s: S) -> Self::Sum<S>;

    /// The bits of a sum.
    fn bits<S: Simd>(s: S, sum: Self::Sum<S>) -> S::F32;

    /// The finished sums of some columns, given their bits and what is kept for the row and for these columns.
    fn value<S: Simd>(s: S, bits: S::F32, row: [f32; 2], columns: [S::F32; 2]) -> S::F32;
}

/// Rows of the tile that suits best: words in two parts stay in two more registers until their second part is done.
pub(super) fn most_rows<S: Simd, N: Words>() -> usize {
    if N::parts::<S>() == 1 { tile_rows::<S>() } else { (tile_rows::<S>() - 1).max(2) }
}

/// Words of `k` values.
pub(super) fn words<N: Words>(k: usize) -> usize {
    k.div_ceil(N::PER_WORD)
}

/// Words of each row in a packed tile.
pub(super) fn row_words<S: Simd, N: Words>(k: usize) -> usize {
    words::<N>(k).next_multiple_of(RUN) * N::parts::<S>() + N::PARAMETERS
}

/// [`super::Format::panel_words`].
pub(super) fn panel_words<S: Simd, N: Words>(k: usize) -> usize {
    panel_width::<S>() * (words::<N>(k) + N::PARAMETERS)
}

/// Values of the longest run: sixteen words of four.
const MOST_RUN: usize = 4 * RUN;
/// The widest panel: two vectors of sixteen.
const MOST_WIDTH: usize = 32;

/// Turns columns of `k` values into lines of panel width, run by run: `pack` is given the lines of a run and how many
/// words they make, and writes these words, `[words][panel width]`.
#[inline(always)]
pub(super) fn pack_columns<S: Simd, N: Words>(
    s: S,
    columns: &[f32],
    k: usize,
    panel: &mut [f32],
    mut pack: impl FnMut(&[f32], &mut [f32]),
) {
    let width = panel_width::<S>();
    let mut lines = [0.0; MOST_RUN * MOST_WIDTH];
    let run = RUN * N::PER_WORD;
    for (first, words) in (0..k).step_by(run).zip(panel.chunks_mut(RUN * width)) {
        let len = run.min(k - first);
        transpose(s, columns, k, first..first + len, &mut lines);
        let words = &mut words[..len.div_ceil(N::PER_WORD) * width];
        lines[len * width..run * width].fill(0.0);
        pack(&lines[..run * width], words);
    }
}

/// `to[(k - range.start) · panel width + column] = columns[column][k]` for the `k` of `range`.
#[inline(always)]
pub(super) fn transpose<S: Simd>(
    s: S,
    columns: &[f32],
    k: usize,
    range: std::ops::Range<usize>,
    to: &mut [f32],
) {
    let width = panel_width::<S>();
    let whole = columns.len() / k / lanes::SQUARE * lanes::SQUARE;
    for first in (0..whole).step_by(lanes::SQUARE) {
        let mut rows = [&columns[..0]; lanes::SQUARE];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &columns[(first + i) * k..][range.clone()];
        }
        lanes::transpose(s, rows, &mut to[first..], width);
    }
    for (column, values) in columns.chunks_exact(k).enumerate().skip(whole) {
        for (line, value) in to.chunks_exact_mut(width).zip(&values[range.clone()]) {
            line[column] = *value;
        }
    }
}

/// `Σₖ tile[row][k] · panel[k][column]` to line `row` of `products`, of panel width: one chain over ascending `k` from
/// zero each, or an exact sum. Rows that also meet a weight of another format may come in larger tiles than suits.
#[inline(always)]
pub(crate) fn multiply<S: Simd, N: Words>(
    s: S,
    tile: Tile<'_>,
    panel: Panel<'_>,
    k: usize,
    products: &mut [f32],
) {
    let (tile, rows, words) = (tile.values, tile.rows, words::<N>(k));
    with_rows!(S, rows, ROWS => {
        s.call(Product::<N, ROWS> { tile, panel, words, products, format: PhantomData })
    });
}

/// [`multiply`] for `ROWS` rows, a function of its own: inlined wherever products are finished, it would be most of
/// this crate's code.
struct Product<'a, N, const ROWS: usize> {
    tile: &'a [f32],
    panel: Panel<'a>,
    words: usize,
    products: &'a mut [f32],
    format: PhantomData<N>,
}

impl<N: Words, const ROWS: usize> Kernel for Product<'_, N, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, panel: Panel { words: panel, mut ahead }, words, products, .. } = self;
        let (width, run_words) = (panel_width::<S>(), RUN * N::parts::<S>());
        // the words of the last row in the last run are the last ones; what follows them is kept per row
        let runs_before = words.saturating_sub(1) / RUN * ROWS * run_words;
        let last = N::place::<S>(words.saturating_sub(1) % RUN, N::parts::<S>() - 1);
        assert!(words == 0 || tile.len() > runs_before + (ROWS - 1) * run_words + last);
        let (weights, columns) = panel.split_at(words * width);
        let mut sums = [[N::zero(s); 2]; ROWS];
        let mut left = words;
        let mut weights = weights.as_ptr().cast::<i32>();
        let mut values = tile.as_ptr().cast::<i32>();
        // Integers may be added in any order, and the compiler does so: it adds the parts of a word to each other first, for
        // which the registers do not suffice. With each part in a pass of its own it has nothing to choose.
        let passes = if N::ORDERED { 1 } else { N::parts::<S>() };
        let parts_of_pass = N::parts::<S>() / passes;
        while left > 0 {
            let run = left.min(RUN);
            for pass in 0..passes {
                for word in 0..run {
                    if pass == 0 {
                        ahead.ask(s);
                    }
                    let line = weights.wrapping_add(word * width);
                    // SAFETY: `weights` has advanced by the lines of the runs before, of `width` words each, so `line` is
                    // one of as many lines as there are words.
                    let (low, high) = unsafe { (s.load_i32_ptr(line), s.load_i32_ptr(line.add(S::LANES))) };
                    for part in pass * parts_of_pass..(pass + 1) * parts_of_pass {
                        let (low, high) = (N::part(s, low, part), N::part(s, high, part));
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let at = row * run_words + N::place::<S>(word, part);
                            // SAFETY: a word of `row` in this run; the assertion covers the last one of the last run.
                            let x = s.splat_i32(unsafe { *values.add(at) });
                            sums[0] = N::dot(s, x, low, sums[0]);
                            sums[1] = N::dot(s, x, high, sums[1]);
                        }
                    }
                }
            }
            weights = weights.wrapping_add(run * width);
            values = values.wrapping_add(ROWS * run_words);
            left -= run;
        }
        for (row, sums) in sums.iter().enumerate() {
            s.store(N::bits(s, sums[0]), &mut products[row * width..]);
            s.store(N::bits(s, sums[1]), &mut products[row * width + S::LANES..]);
        }
        // In a loop of its own: where finishing a sum is more than storing it, the loop is not unrolled, and sums that are
        // chosen by number live in memory from the first product on.
        if N::PARAMETERS > 0 {
            let rows = &tile[words.div_ceil(RUN) * ROWS * run_words..];
            for at in [0, S::LANES] {
                let columns = [s.load(&columns[at..]), s.load(&columns[width + at..])];
                for (row, kept) in rows.as_chunks::<2>().0.iter().take(ROWS).enumerate() {
                    let products = &mut products[row * width + at..];
                    s.store(N::value(s, s.load(products), *kept, columns), products);
                }
            }
        }
    }
}
