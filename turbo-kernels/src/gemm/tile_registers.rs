//! Products by tile registers: tiles of up to 32 rows times one panel, with words packed as in [`super::words`].
//!
//! A tile holds sixteen words of each row, one row behind the other, and a panel holds its lines, so both are loaded as
//! they lie. Lines left over after the last whole sixteen are copied and followed by lines of zeros.
//!
//! # Numerics
//! Sums of bytes are exact, with the same bits as everywhere. In bf16, every sixteen words form two chains, of their
//! lower and of their upper halves; both begin with zero, and are added to each other and then to the sum. Subnormal
//! numbers count as zeros. Sixteens are counted from the beginning of `k`, so the bits depend on the row and the column
//! alone, as elsewhere, but they differ from the bits computed elsewhere.

use std::{marker::PhantomData, mem::MaybeUninit};

use super::{
    sizes::{RUN, panel_width},
    tile::{AheadOfTile, Panel},
    words::{Kept, Operands, Words},
};
use crate::{
    lanes,
    simd::{Kernel, Simd, TILE_REGISTERS_SIDE},
};

/// Whether format `N` is multiplied by tile registers.
pub(super) const fn by_tile_registers<S: Simd, N: Words>() -> bool {
    S::HAS_TILE_REGISTERS && N::PER_WORD > 1
}

/// The tile registers of a thread, from the first product until this is dropped. A second one on the thread would take
/// the registers from the first.
pub(crate) struct TileRegisters<S: Simd> {
    s: S,
    /// The number of rows they are set up for; 0 if they are not.
    rows: usize,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<S: Simd> TileRegisters<S> {
    /// Nothing is set up yet.
    ///
    /// # Safety
    /// No other one exists on this thread while this one lives.
    #[inline(always)]
    pub(crate) unsafe fn new(s: S) -> TileRegisters<S> {
        TileRegisters { s, rows: 0, stays_on_its_thread: PhantomData }
    }

    /// Sets the registers up for `rows` rows, 1 to [`TILE_REGISTERS_SIDE`], unless they are already.
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
        if S::HAS_TILE_REGISTERS && self.rows > 0 {
            self.s.release_tiles();
        }
    }
}

/// [`super::multiply`] where [`by_tile_registers`] holds, for tiles of at most [`TILE_REGISTERS_SIDE`] packed rows.
pub(super) struct RegisterProduct<'a, N> {
    of: &'a Operands<'a>,
    format: PhantomData<N>,
}

impl<'a, N: Words> RegisterProduct<'a, N> {
    pub(super) fn new(of: &'a Operands<'a>) -> Self {
        RegisterProduct { of, format: PhantomData }
    }

    /// Computes the product.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(self, s: S, registers: &mut TileRegisters<S>) {
        debug_assert!(
            panel_width::<S>() == TILE_REGISTERS_SIDE && N::parts::<S>() == 1,
            "words as registers have them"
        );
        registers.set_up(self.of.tiles.first.rows);
        s.call(self);
    }
}

/// Runs of `k` after which the path of the sums to memory is kept awake. A run takes 20 to 60 ns.
const AWAKE_RUNS: usize = 4;

/// Lines of panel width, aligned to cache lines.
#[repr(align(64))]
struct Lines<const N: usize>([[f32; TILE_REGISTERS_SIDE]; N]);

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
    /// Multiplies tile `number`; the registers are set up for its rows.
    #[inline(always)]
    fn multiply<S: Simd>(&self, s: S, number: usize, ahead: &mut AheadOfTile) {
        let Operands { tiles, panel: Panel { words: panel, .. }, words, stride, resumed, .. } = *self.of;
        let (rows, (tile, to)) = (tiles.first.rows, self.of.tile(number));
        let run_stride = rows * RUN;
        let runs = words.div_ceil(RUN);
        assert!(tile.len() >= runs * run_stride + N::PARAMETERS * rows);
        let (lines, columns) = panel.split_at(words * TILE_REGISTERS_SIDE);
        // SAFETY: the registers are set up for `rows` rows, and the place holds them.
        unsafe {
            if resumed {
                s.load_tiles(rows, to, stride);
            } else {
                s.zero_tiles(rows);
            }
        }
        let mut unread = MaybeUninit::<Lines<{ RUN / 2 }>>::uninit();
        let (whole, rest) = lines.as_chunks::<{ RUN * TILE_REGISTERS_SIDE }>();
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
            let mut last = Lines([[0.0; TILE_REGISTERS_SIDE]; RUN]);
            for (line, rest) in last.0.iter_mut().zip(rest.chunks_exact(TILE_REGISTERS_SIDE)) {
                ahead.ask(s);
                for at in (0..TILE_REGISTERS_SIDE).step_by(S::LANES) {
                    s.store(s.load(&rest[at..]), &mut line[at..]);
                }
            }
            // SAFETY: as above.
            unsafe {
                s.add_tile_products(rows, tile.as_ptr().add((runs - 1) * run_stride), last.0.as_ptr().cast())
            };
        }
        // not zeroed: all that is read is written first
        let mut sums = MaybeUninit::<Lines<TILE_REGISTERS_SIDE>>::uninit();
        let kept = Kept { columns, rows: &tile[runs * run_stride..][..N::PARAMETERS * rows] };
        // SAFETY: as above; `sums` has room for the rows of the largest product, and `finish` reads only the rows of
        // this tile.
        unsafe {
            s.store_tiles(rows, sums.as_mut_ptr().cast(), TILE_REGISTERS_SIDE);
            self.finish(s, number, kept, sums.as_ptr().cast());
        }
    }

    /// Turns the sums of tile `number` into products, and stores them.
    ///
    /// # Safety
    /// `sums` is valid for reading [`TILE_REGISTERS_SIDE`] words of each row.
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
                let mut sum = N::resume(s, unsafe { s.load_ptr(sums.add(row * TILE_REGISTERS_SIDE + at)) });
                if !N::ORDERED {
                    sum = N::add(s, sum, N::start(s, of_row, columns));
                }
                let mut product = N::value(s, sum, of_row, columns, bias);
                let at = row * stride + at;
                // SAFETY: half of a row of the place, and of the residual, if there is one.
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
