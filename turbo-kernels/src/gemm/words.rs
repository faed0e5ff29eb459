//! The tile kernel: tiles of up to 14 rows times one panel, with accumulators in registers. Where numbers are narrower
//! than a word, several values of `k` share one.
//!
//! ```text
//! panel  [words of k][column]                        then what the format keeps per column
//! tile   [words of k / RUN][row][RUN × parts]        then what the format keeps per row
//!        [row][k]                                    rows of f32 that are not packed
//! ```
//!
//! Where an instruction set has a dot product of such words, the kernel broadcasts a word of activations and multiplies
//! it with a vector of words of weights. Elsewhere it widens the weights part by part, and activations are packed just
//! as wide: two words for each word of weights. With tile registers, [`super::tile_registers`] does all this instead.

use std::marker::PhantomData;

use super::{
    blocks::Block,
    sizes::{MOST_HELD_ROWS, MOST_WIDTH, RUN, held_rows, panel_width, unrolled, with_rows},
    tile::{AheadOfTile, LaidTiles, Order, Panel, Results},
    tile_registers::{self, TileRegisters, by_tile_registers},
};
use crate::{
    lanes,
    simd::{Kernel, Simd, TILE_REGISTERS_SIDE, opaque},
};

/// A format of numbers, one or several to a word.
pub(crate) trait Words: 'static {
    /// Whether words are the values themselves, so that rows need not be packed: see [`rows_are_tiles`].
    const ROWS_ARE_TILES: bool;
    /// Values of `k` in a word.
    const PER_WORD: usize;
    /// Words kept for each row of a tile and for each column of a panel: two or none.
    const PARAMETERS: usize;
    /// Whether sums depend on the order of `k`.
    const ORDERED: bool;
    /// A vector of unfinished sums.
    type Sum<S: Simd>: Copy;

    /// The number of parts in which a word of weights is multiplied: one where there is a dot product, else two.
    fn parts<S: Simd>() -> usize;

    /// Where part `part` of word `word` lies in a run of activations. The distance from part to part is the same
    /// everywhere, and so is that from word to word.
    fn place<S: Simd>(word: usize, part: usize) -> usize;

    /// A part of a word of weights, as [`Words::dot`] takes it.
    fn part<S: Simd>(s: S, words: S::I32, part: usize) -> S::I32;

    /// `a + b`.
    fn add<S: Simd>(s: S, a: Self::Sum<S>, b: Self::Sum<S>) -> Self::Sum<S>;

    /// `sum` plus the products of one part.
    fn dot<S: Simd>(s: S, x: S::I32, weight: S::I32, sum: Self::Sum<S>) -> Self::Sum<S>;

    /// The initial sums, given what is kept for the row and for these columns.
    fn start<S: Simd>(s: S, row: [f32; 2], columns: [S::F32; 2]) -> Self::Sum<S>;

    /// Sums that go on from stored ones, for words whose sums are f32.
    fn resume<S: Simd>(s: S, stored: S::F32) -> Self::Sum<S>;

    /// The products of some columns plus the bias, given their sums and what is kept for the row and for these columns.
    fn value<S: Simd>(s: S, sum: Self::Sum<S>, row: [f32; 2], columns: [S::F32; 2], bias: S::F32) -> S::F32;
}

/// Rows of the tile that suits best: as many as tile registers take, or as vector registers hold. Words in two parts
/// occupy two more registers until their second part is done. Any format takes tiles of [`held_rows`] rows.
pub(super) fn tile_rows<S: Simd, N: Words>() -> usize {
    if by_tile_registers::<S, N>() {
        return TILE_REGISTERS_SIDE;
    }
    if N::parts::<S>() == 1 { held_rows::<S>() } else { (held_rows::<S>() - 1).max(2) }
}

/// Whether tiles may be rows that are not packed. With fewer than 16 registers, the addresses of the rows take some of
/// those that hold sums: the portable path on x86-64 would be a tenth slower.
pub(super) const fn rows_are_tiles<S: Simd, N: Words>() -> bool {
    N::ROWS_ARE_TILES && S::REGISTERS >= 16
}

/// Words of `k` values.
pub(super) fn words<N: Words>(k: usize) -> usize {
    k.div_ceil(N::PER_WORD)
}

/// Words of each row in a packed tile.
pub(super) fn row_words<S: Simd, N: Words>(k: usize) -> usize {
    words::<N>(k).next_multiple_of(RUN) * N::parts::<S>() + N::PARAMETERS
}

/// Words from one row to the next within a run, and from one run to the next, in a packed tile.
#[inline(always)]
fn packed_strides<S: Simd, N: Words>(rows: usize) -> [usize; 2] {
    let row = RUN * N::parts::<S>();
    [row, rows * row]
}

/// Words of a packed panel; if they cannot be counted, more than any memory holds.
pub(super) fn panel_words<S: Simd, N: Words>(k: usize) -> usize {
    panel_width::<S>().saturating_mul(words::<N>(k).saturating_add(N::PARAMETERS))
}

/// Rows of a tile that are read through one pointer. The second and the third are one and two strides behind the first,
/// which an x86-64 address can express, so fourteen rows take five registers, whatever the stride is.
const POINTER_ROWS: usize = 3;

/// A pointer for each [`POINTER_ROWS`] rows of the highest tile.
type RowPointers = [*const i32; MOST_HELD_ROWS.div_ceil(POINTER_ROWS)];

/// Moves all pointers by `words` words.
#[inline(always)]
fn advance(pointers: &mut RowPointers, words: usize) {
    for pointer in pointers {
        *pointer = pointer.wrapping_add(words);
    }
}

/// Words of `k` that pass before the pointers advance. On an Intel server (family 6, model 167), advancing takes ports
/// that multiply-adds need: f32 products of 128 and 500 rows are 6 to 10 % faster than with one word. In an assembler
/// loop, eight were no faster than four.
const UNROLLED: usize = 4;
/// The same where fewer than [`UNROLLED`] words are left of a run, or where words have several parts.
const ONE: usize = 1;

/// Values of the longest run: sixteen words of four.
const MOST_RUN: usize = 4 * RUN;

/// Turns columns of `k` values into lines of panel width, run by run. `pack` is given the lines of a run and the words
/// that they make, `[words][panel width]`, and writes these.
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

/// Multiplies tiles by a panel, over one block of `k`, and stores to `results`, tile by tile:
///
/// * The result is `Σₖ tile[row][k] · panel[k][column] + bias[column] + residual[row][column]`, added in this order.
///   The sum is one chain over ascending `k` from zero, or exact for bytes. Columns that `bias` lacks add 0.
/// * Unless `block` is the first, sums resume from those that are stored there.
/// * Unless `block` is the last, only sums are stored; bias and residual are not read.
/// * For [`Int8`](super::int8::Int8), `block` has to be both first and last; this is not checked.
///
/// # Panics
/// When the place, or its residual, does not hold the tiles' rows; when a tile has more rows than registers hold; when
/// [`by_tile_registers`] holds and rows are not packed.
///
/// # Safety
/// Nothing else uses the values of these rows and columns meanwhile.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, N: Words>(
    s: S,
    registers: &mut TileRegisters<S>,
    tiles: &LaidTiles<'_>,
    panel: Panel<'_>,
    block: Block,
    bias: Option<&[f32]>,
    Results { place, step, finished }: Results<'_>,
) {
    let (rows, is_last) = (tiles.first.rows, block.is_last());
    let strides = match tiles.order {
        Order::Packed => packed_strides::<S, N>(rows),
        Order::Rows { stride } => [stride, RUN],
    };
    let len = (tiles.count - 1) * step + (rows - 1) * place.stride + panel_width::<S>();
    let to = place.values.part(0, len).as_mut_ptr();
    let residual = match place.residual {
        Some(residual) if is_last => residual[..len].as_ptr(),
        _ => std::ptr::null(),
    };
    let operands = Operands {
        tiles,
        strides,
        panel,
        words: words::<N>(block.values().len()),
        resumed: !block.is_first(),
        bias: bias.filter(|_| is_last),
        residual,
        to,
        stride: place.stride,
        step,
        finished,
    };
    if by_tile_registers::<S, N>() {
        assert!(matches!(tiles.order, Order::Packed), "registers load runs of rows");
        return tile_registers::RegisterProduct::<N>::new(&operands).compute(s, registers);
    }
    with_rows!(S, rows, ROWS => {
        s.call(Product::<N, ROWS> { of: &operands, format: PhantomData })
    });
}

/// The operands of [`multiply`], and where the products go.
///
/// The place is a pointer and a stride, not a [`Place`](super::tile::Place): the compiler copies a larger field, in
/// vectors, and a vector that was written in parts a moment ago is not there before everything stored before it is.
/// With results that miss the cache that was a tenth of the time of int8.
pub(super) struct Operands<'a> {
    pub(super) tiles: &'a LaidTiles<'a>,
    /// Words from one row of a tile to the next within a run, and from one run to the next.
    strides: [usize; 2],
    pub(super) panel: Panel<'a>,
    pub(super) words: usize,
    /// Whether sums resume from what `to` holds.
    pub(super) resumed: bool,
    pub(super) bias: Option<&'a [f32]>,
    /// Null, or valid for reading wherever `to` is valid for writing.
    pub(super) residual: *const f32,
    /// Valid for writing rows of panel width, `stride` values apart, of tiles that are `step` values apart.
    pub(super) to: *mut f32,
    pub(super) stride: usize,
    pub(super) step: usize,
    /// Called with the number of each tile whose results are there.
    finished: Option<&'a dyn Fn(usize)>,
}

impl Operands<'_> {
    /// What is prefetched with the first tile.
    #[inline(always)]
    pub(super) fn ahead(&self) -> AheadOfTile {
        self.panel.ahead.start(self.tiles.count)
    }

    /// Reports that tile `number` is done, and gives what is prefetched with the next one. The format keeps `kept`
    /// words for each column.
    #[inline(always)]
    pub(super) fn done(&self, number: usize, kept: usize, ahead: AheadOfTile) -> AheadOfTile {
        if let Some(finished) = self.finished {
            finished(number);
        }
        self.panel.ahead.go_on(ahead, kept, number + 1, self.tiles.count)
    }

    /// The words of tile `number` and what follows, and where its results go.
    #[inline(always)]
    pub(super) fn tile(&self, number: usize) -> (&[f32], *mut f32) {
        (&self.tiles.values[number * self.tiles.step..], self.to.wrapping_add(number * self.step))
    }

    /// Null, or what is added to the results of tile `number`.
    #[inline(always)]
    pub(super) fn residual(&self, number: usize) -> *const f32 {
        if self.residual.is_null() { self.residual } else { self.residual.wrapping_add(number * self.step) }
    }
}

/// [`multiply`] for tiles of `ROWS` rows, as a function of its own: inlined wherever products are finished, it would be
/// most of this crate's code.
struct Product<'a, N, const ROWS: usize> {
    of: &'a Operands<'a>,
    format: PhantomData<N>,
}

impl<N: Words, const ROWS: usize> Kernel for Product<'_, N, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Operands { tiles, words, .. } = *self.of;
        let [row_stride, run_stride] = self.strides::<S>();
        // the last word of the last row in the last run is the last of all; what the format keeps per row follows it
        let runs_before = words.saturating_sub(1) / RUN * run_stride;
        let last = N::place::<S>(words.saturating_sub(1) % RUN, N::parts::<S>() - 1);
        let of_tile = runs_before + (ROWS - 1) * row_stride + last;
        assert!(words == 0 || tiles.values.len() > (tiles.count - 1) * tiles.step + of_tile);
        // The loop is part of the kernel. When each tile was a call, what a call does while the multiply-adds stand
        // still was 1.5 % of the time of MiniLM's layers on a Zen 4 server.
        let mut ahead = self.of.ahead();
        for number in 0..tiles.count {
            // SAFETY: the assertion found the words of all tiles.
            unsafe { self.multiply(s, number, &mut ahead) };
            ahead = self.of.done(number, N::PARAMETERS, ahead);
        }
    }
}

impl<N: Words, const ROWS: usize> Product<'_, N, ROWS> {
    /// Words from one row of a tile to the next within a run, and from one run to the next.
    #[inline(always)]
    fn strides<S: Simd>(&self) -> [usize; 2] {
        match rows_are_tiles::<S, N>() {
            true => self.of.strides,
            // a constant: words in two parts need the registers in which an address would be computed
            false => packed_strides::<S, N>(ROWS),
        }
    }

    /// Multiplies tile `number`.
    ///
    /// # Safety
    /// The tile's words are there; only those kept for its rows need not be.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, s: S, number: usize, ahead: &mut AheadOfTile) {
        let Operands { panel: Panel { words: panel, ahead: of_all }, words, stride, .. } = *self.of;
        let [row_stride, run_stride] = self.strides::<S>();
        let width = panel_width::<S>();
        let (tile, to) = self.of.tile(number);
        let (weights, columns) = panel.split_at(words * width);
        let rows = match N::PARAMETERS {
            0 => &[][..],
            _ => &tile[words.div_ceil(RUN) * run_stride..][..N::PARAMETERS * ROWS],
        };
        let kept = Kept { columns, rows };
        let (low, high) = (kept.columns::<S, N>(s, 0), kept.columns::<S, N>(s, 1));
        let mut sums = [[N::start(s, kept.row::<N>(0), low); 2]; ROWS];
        unrolled!(ROWS, row => {
            let of_row = kept.row::<N>(row);
            sums[row] = [N::start(s, of_row, low), N::start(s, of_row, high)];
        });
        if N::ORDERED && self.of.resumed {
            unrolled!(ROWS, row => {
                // SAFETY: a row of panel width that is there.
                let stored = unsafe { [s.load_ptr(to.add(row * stride)), s.load_ptr(to.add(row * stride + S::LANES))] };
                sums[row] = [N::resume(s, stored[0]), N::resume(s, stored[1])];
            });
        }
        let mut left = words;
        let mut weights = weights.as_ptr().cast::<i32>();
        let mut of_run: RowPointers = [tile.as_ptr().cast(); MOST_HELD_ROWS.div_ceil(POINTER_ROWS)];
        for (number, values) in of_run.iter_mut().enumerate() {
            *values = values.wrapping_add(number * POINTER_ROWS * row_stride);
        }
        // Integers may be added in any order, and the compiler does so: it adds the parts of a word to each other
        // first, which takes more registers than there are. With a pass for each part it has no choice.
        let passes = if N::ORDERED { 1 } else { N::parts::<S>() };
        let parts_of_pass = N::parts::<S>() / passes;
        while left > 0 {
            let run = left.min(RUN);
            ahead.ask_for_met(s);
            if rows_are_tiles::<S, N>() && of_all.next_rows {
                // no loop and no counter, which cost 2 % where nothing is prefetched
                unrolled!(ROWS, row => {
                    let row_ahead = (ROWS + row % POINTER_ROWS) * row_stride;
                    s.prefetch(of_run[row / POINTER_ROWS].wrapping_add(row_ahead).cast());
                });
            }
            for pass in 0..passes {
                let (mut values, mut lines) = (of_run, weights);
                macro_rules! words {
                    ($count:ident) => {
                        if rows_are_tiles::<S, N>() {
                            for values in &mut values[..ROWS.div_ceil(POINTER_ROWS)] {
                                *values = opaque(*values);
                            }
                        }
                        unrolled!($count, word => {
                            if pass == 0 {
                                ahead.ask(s);
                            }
                            let line = lines.wrapping_add(word * width);
                            // SAFETY: there is one line of `width` words for each word, and `line` is one of them.
                            let (low, high) = unsafe { (s.load_i32_ptr(line), s.load_i32_ptr(line.add(S::LANES))) };
                            for part in pass * parts_of_pass..(pass + 1) * parts_of_pass {
                                let (low, high) = (N::part(s, low, part), N::part(s, high, part));
                                unrolled!(ROWS, row => {
                                    let at = row % POINTER_ROWS * row_stride + N::place::<S>(word, part);
                                    // SAFETY: a word of `row` in this run, which is there.
                                    let x = s.splat_i32(unsafe { *values[row / POINTER_ROWS].add(at) });
                                    sums[row][0] = N::dot(s, x, low, sums[row][0]);
                                    sums[row][1] = N::dot(s, x, high, sums[row][1]);
                                });
                            }
                        });
                        lines = lines.wrapping_add($count * width);
                        advance(&mut values, N::place::<S>($count, 0));
                    };
                }
                // words in several parts would need more registers than there are
                let unrolled = if N::parts::<S>() == 1 { run / UNROLLED } else { 0 };
                for _ in 0..unrolled {
                    words!(UNROLLED);
                }
                for _ in unrolled * UNROLLED..run {
                    words!(ONE);
                }
            }
            weights = weights.wrapping_add(run * width);
            advance(&mut of_run, run_stride);
            left -= run;
        }
        let end = End { kept, bias: self.of.bias, residual: self.of.residual(number), to, stride };
        // SAFETY: `multiply` checked that the rows lie inside their place and inside what is added, and was promised
        // that nothing else uses the place.
        unsafe {
            end.store::<S, N, ROWS, 0>(s, &sums);
            end.store::<S, N, ROWS, 1>(s, &sums);
        }
    }
}

/// What the format keeps for each column of a panel and for each row of a tile, if anything.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) columns: &'a [f32],
    pub(super) rows: &'a [f32],
}

impl Kept<'_> {
    /// What is kept for a row.
    #[inline(always)]
    pub(super) fn row<N: Words>(&self, row: usize) -> [f32; 2] {
        if N::PARAMETERS == 0 { [0.0; 2] } else { [self.rows[2 * row], self.rows[2 * row + 1]] }
    }

    /// What is kept for half of the columns.
    #[inline(always)]
    pub(super) fn columns<S: Simd, N: Words>(&self, s: S, half: usize) -> [S::F32; 2] {
        if N::PARAMETERS == 0 {
            return [s.splat(0.0); 2];
        }
        // not by a closure, which would be compiled without the instruction set
        let at = half * S::LANES;
        [s.load(&self.columns[at..]), s.load(&self.columns[panel_width::<S>() + at..])]
    }
}

/// What is applied to sums on their way to memory.
struct End<'a> {
    kept: Kept<'a>,
    bias: Option<&'a [f32]>,
    residual: *const f32,
    to: *mut f32,
    stride: usize,
}

impl End<'_> {
    /// Stores one half of each row.
    ///
    /// # Safety
    /// `to` is valid for writing `ROWS` rows of panel width, `stride` values apart, and `residual` is null or valid for
    /// reading them.
    #[inline(always)]
    unsafe fn store<S: Simd, N: Words, const ROWS: usize, const HALF: usize>(
        &self,
        s: S,
        sums: &[[N::Sum<S>; 2]; ROWS],
    ) {
        let at = HALF * S::LANES;
        // adding -0.0 changes nothing
        let bias = self.bias.map_or(s.splat(-0.0), |bias| lanes::read(s, bias.get(at..).unwrap_or(&[]), 0.0));
        let columns = self.kept.columns::<S, N>(s, HALF);
        // Row by row without a loop: in a loop that is not unrolled, sums are chosen by number, and live in memory from
        // the first multiply-add on.
        macro_rules! store {
            (|$product:ident, $at:ident| $result:expr) => {
                unrolled!(ROWS, row => {
                    let $at = row * self.stride + at;
                    let $product = N::value(s, sums[row][HALF], self.kept.row::<N>(row), columns, bias);
                    let result = $result;
                    // SAFETY: half of a row that the caller promised.
                    unsafe { s.store_ptr(result, self.to.add($at)) };
                })
            };
        }
        if self.residual.is_null() {
            store!(|product, at| product);
        } else {
            // SAFETY: half of a row that the caller promised.
            store!(|product, at| s.add(product, unsafe { s.load_ptr(self.residual.add(at)) }));
        }
    }
}
