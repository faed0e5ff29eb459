//! Products by tile registers: tiles of up to 32 rows times one panel, whose words are packed as [`super::words`] has them.
//!
//! A tile of rows holds sixteen words of each row one behind the other, and a panel its lines, so both are loaded as they
//! lie. What is left behind the last sixteen lines is copied, with lines of zeros behind it.
//!
//! # Which numbers these are
//! Sums of bytes are exact, to the same bits as everywhere. Of bf16 each sixteen words make two chains, of their lower and
//! of their upper halves, which begin with zero and are added to each other and then to the sum; subnormal numbers are zeros.
//! Sixteens are counted from the beginning of `k`, so bits depend on a row and a column alone, as they do elsewhere,
//! but they are other bits.

use std::{marker::PhantomData, mem::MaybeUninit};

use super::{
    pack::{RUN, panel_width},
    tile::{AheadOfTile, Panel},
    words::{Kept, Operands, Words},
};
use crate::{
    lanes,
    simd::{Kernel, Simd, TILES_SIDE},
};

/// Whether `N` is multiplied so.
pub(super) const fn is_tiled<S: Simd, N: Words>() -> bool {
    S::TILES && N::PER_WORD > 1
}

/// The tile registers of a thread, from the first product on until this is dropped. A second one would take the registers
/// from the first.
pub(crate) struct TileRegisters<S: Simd> {
    s: S,
    /// For how many rows they are set up; 0 if they are not.
    rows: usize,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<S: Simd> TileRegisters<S> {
    /// Nothing is set up yet.
    ///
    /// # Safety
    /// While this lives, there is no other one on this thread.
    #[inline(always)]
    pub(crate) unsafe fn new(s: S) -> TileRegisters<S> {
        TileRegisters { s, rows: 0, stays_on_its_thread: PhantomData }
    }

    /// Sets them up for as many rows, 1 to [`TILES_SIDE`], unless they are.
    #[inline(always)]
    pub(crate) fn set_up(&mut self, rows: usize) {
        if self.rows != rows {
            self.s.set_up_tiles(rows);
            self.rows = rows;
        }
    }
}

impl<S: Simd> Drop for TileRegisters<S> {
    #[inline(always)]
    fn drop(&mut self) {
        if S::TILES && self.rows > 0 {
            self.s.release_tiles();
        }
    }
}

/// [`super::multiply`] where [`is_tiled`], of tiles of at most [`TILES_SIDE`] packed rows.
pub(super) struct RegisterProduct<'a, N> {
    of: &'a Operands<'a>,
    format: PhantomData<N>,
}

impl<'a, N: Words> RegisterProduct<'a, N> {
    pub(super) fn new(of: &'a Operands<'a>) -> Self {
        RegisterProduct { of, format: PhantomData }
    }

    /// Computes it.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(self, s: S, registers: &mut TileRegisters<S>) {
        debug_assert!(
            panel_width::<S>() == TILES_SIDE && N::parts::<S>() == 1,
            "words as registers have them"
        );
        registers.set_up(self.of.tiles.first.rows);
        s.call(self);
    }
}

/// Runs of `k` after which the way of sums to memory is kept awake: they take 20 to 60 ns each.
const AWAKE_RUNS: usize = 4;

/// Words of a whole panel's width, that no cache line cuts.
#[repr(align(64))]
struct Lines<const N: usize>([[f32; TILES_SIDE]; N]);

impl<N: Words> Kernel for RegisterProduct<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut ahead = self.of.ahead();
        for number in 0..self.of.tiles.count {
            self.multiply(s, number, &mut ahead);
            ahead = self.of.done(number, N::PARAMETERS, ahead);
        }
    }
}

impl<N: Words> RegisterProduct<'_, N> {
    /// Multiplies tile `number`, for whose rows the registers are set up.
    #[inline(always)]
    fn multiply<S: Simd>(&self, s: S, number: usize, ahead: &mut AheadOfTile) {
        let Operands { tiles, panel: Panel { words: panel, .. }, words, stride, resumed, .. } = *self.of;
        let (rows, (tile, to)) = (tiles.first.rows, self.of.tile(number));
        let run_stride = rows * RUN;
        let runs = words.div_ceil(RUN);
        assert!(tile.len() >= runs * run_stride + N::PARAMETERS * rows);
        let (lines, columns) = panel.split_at(words * TILES_SIDE);
        // SAFETY: the registers are set up for `rows` rows, and the place holds them.
        unsafe {
            if resumed {
                s.load_tiles(rows, to, stride);
            } else {
                s.zero_tiles(rows);
            }
        }
        let mut unread = MaybeUninit::<Lines<{ RUN / 2 }>>::uninit();
        let (whole, rest) = lines.as_chunks::<{ RUN * TILES_SIDE }>();
        for (run, lines) in whole.iter().enumerate() {
            ahead.ask_for_met(s);
            ahead.ask_for_lines(s, RUN);
            // SAFETY: as above, and the assertion found that the tile holds all runs.
            unsafe {
                s.add_tile_products(rows, tile.as_ptr().add(run * run_stride), lines.as_ptr());
                if run % AWAKE_RUNS == AWAKE_RUNS - 1 {
                    s.keep_tile_stores_awake(unread.as_mut_ptr().cast());
                }
            }
        }
        if !rest.is_empty() {
            ahead.ask_for_met(s);
            let mut last = Lines([[0.0; TILES_SIDE]; RUN]);
            for (line, rest) in last.0.iter_mut().zip(rest.chunks_exact(TILES_SIDE)) {
                ahead.ask(s);
                for at in (0..TILES_SIDE).step_by(S::LANES) {
                    s.store(s.load(&rest[at..]), &mut line[at..]);
                }
            }
            // SAFETY: as above.
            unsafe {
                s.add_tile_products(rows, tile.as_ptr().add((runs - 1) * run_stride), last.0.as_ptr().cast())
            };
        }
        // zeros would be written for nothing
        let mut sums = MaybeUninit::<Lines<TILES_SIDE>>::uninit();
        let kept = Kept { columns, rows: &tile[runs * run_stride..][..N::PARAMETERS * rows] };
        // SAFETY: as above; there is room for as many rows as the largest product has, and `finish` reads those that it has.
        unsafe {
            s.store_tiles(rows, sums.as_mut_ptr().cast(), TILES_SIDE);
            self.finish(s, number, kept, sums.as_ptr().cast());
        }
    }

    /// Makes products of the sums of tile `number`, and stores them.
    ///
    /// # Safety
    /// `sums` is valid for reading [`TILES_SIDE`] words of each row.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, number: usize, kept: Kept<'_>, sums: *const f32) {
        let Operands { tiles, stride, bias, .. } = *self.of;
        let (residual, (_, to)) = (self.of.residual(number), self.of.tile(number));
        for half in 0..2 {
            let at = half * S::LANES;
            // adding -0.0 changes nothing
            let bias = bias.map_or(s.splat(-0.0), |bias| lanes::read(s, bias.get(at..).unwrap_or(&[]), 0.0));
            let columns = kept.columns::<S, N>(s, half);
            for row in 0..tiles.first.rows {
                let of_row = kept.row::<N>(row);
                // SAFETY: half of one of the rows.
                let mut sum = N::resume(s, unsafe { s.load_ptr(sums.add(row * TILES_SIDE + at)) });
                if !N::ORDERED {
                    sum = N::add(s, sum, N::start(s, of_row, columns));
                }
                let mut product = N::value(s, sum, of_row, columns, bias);
                let at = row * stride + at;
                // SAFETY: half of a row of the place, and of what is added to it, if there is any.
                unsafe {
                    if !residual.is_null() {
                        product = s.add(product, s.load_ptr(residual.add(at)));
                    }
                    s.store_ptr(product, to.add(at));
                }
            }
        }
    }
}
