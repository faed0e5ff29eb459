//! The tile kernel: up to 14 rows times one panel, accumulators in registers; what follows is a [`Finish`].

use super::{
    format::{Format, FormatKernel},
    pack::{RUN, panel_width, tile_rows},
};
use crate::simd::{Kernel, Simd};

/// Bytes ahead of the reader at which a panel is prefetched by the first tile that meets it, past its end into the next
/// one. Measured on a Zen 5 server, 10 rows times 64 MB of weights: none gives 38 % of the multiply-add peak, 4 KiB
/// 62 %, 16 KiB 90 %, and twice that no more.
const DISTANCE: usize = 16 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What becomes of the products of a tile.
pub(crate) trait Finish: Copy + Send + Sync {
    /// Takes the products, in format `F`, of a tile with the panel whose first column is `first`: line `i` of `products`, of panel
    /// width, is row `i` of the tile; values behind the last column mean nothing.
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile<'_>, first: usize, products: &[f32]);
}

/// Tiles of rows times a run of panels: panel by panel, tiles in their order.
pub(super) struct Tiles<'a, I, F> {
    pub(super) tiles: I,
    /// Their numbers.
    pub(super) panels: std::ops::Range<usize>,
    pub(super) weight: &'a super::PackedWeight,
    pub(super) finish: F,
}

/// Room for the largest product: 14 rows of two vectors of 16. No vector of it lies across two cache lines.
#[repr(align(64))]
pub(crate) struct Products(pub(crate) [f32; 14 * 32]);

impl Products {
    pub(crate) fn new() -> Products {
        Products([0.0; 14 * 32])
    }
}

/// A tile of packed activations.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Which of its group.
    pub(crate) index: usize,
    /// As its format packs them.
    pub(crate) values: &'a [f32],
}

impl<'a, I: ExactSizeIterator<Item = Tile<'a>> + Clone, E: Finish> FormatKernel for Tiles<'a, I, E> {
    type Output = ();

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, s: S) {
        let mut products = Products::new();
        for panel in self.panels {
            let words = self.weight.panel(panel);
            for (number, tile) in self.tiles.clone().enumerate() {
                let columns = Panel::streamed::<S>(words, number, self.tiles.len());
                F::multiply(
                    s,
                    tile,
                    columns,
                    self.weight.in_features(),
                    &mut products.0,
                    Places::rows::<S>(),
                );
                self.finish.finish::<F, S>(s, tile, panel * panel_width::<S>(), &products.0);
            }
        }
    }
}

/// A panel of a weight, and what is asked for while a tile meets it.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// As its format packs them.
    pub(crate) words: &'a [f32],
    pub(crate) ahead: Ahead,
}

impl<'a> Panel<'a> {
    /// A panel that caches hold.
    pub(crate) fn cached(words: &'a [f32]) -> Panel<'a> {
        Panel { words, ahead: Ahead { from: words.as_ptr(), advance: 0 } }
    }

    /// A panel that the next one follows, as tile `number` of `tiles` meets it.
    #[inline(always)]
    fn streamed<S: Simd>(words: &'a [f32], number: usize, tiles: usize) -> Panel<'a> {
        let line = panel_width::<S>() * size_of::<f32>();
        let Some(number) = number.checked_sub(1) else {
            let from = words.as_ptr().wrapping_byte_add(DISTANCE);
            return Panel { words, ahead: Ahead { from, advance: line } };
        };
        let advance = line.div_ceil(tiles - 1);
        let part = words.len() / panel_width::<S>() * advance;
        let from = words.as_ptr_range().end.wrapping_byte_add(number * part);
        Panel { words, ahead: Ahead { from, advance } }
    }
}

/// Lines that memory shall deliver.
///
/// The first tile asks for what it reads itself a little later, the others each for a part of the next panel: while they
/// find theirs in the second-level cache, memory has time. On a Zen 5 server that takes a tenth off the time of 128
/// rows times cold weights on two threads.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    from: *const f32,
    /// Bytes for each line of the panel.
    advance: usize,
}

impl Ahead {
    /// Asks for what goes with the next line of the panel.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S) {
        // In the order of addresses and without a condition, which takes a tenth of the time of a few rows.
        s.prefetch(self.from);
        if panel_width::<S>() * size_of::<f32>() > LINE {
            s.prefetch(self.from.wrapping_byte_add(LINE));
        }
        self.from = self.from.wrapping_byte_add(self.advance);
    }
}

/// Where the products of a tile with a panel are put: the vectors of row `i` begin at `i · row` and `i · row + half`.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) row: usize,
    pub(crate) half: usize,
}

impl Places {
    /// Rows of panel width, one after another.
    #[inline(always)]
    pub(crate) fn rows<S: Simd>() -> Places {
        Places { row: panel_width::<S>(), half: S::LANES }
    }
}

/// `Σₖ tile[row][k] · panel[k][column]`, one chain over ascending `k` from zero each.
#[inline(always)]
pub(crate) fn multiply<S: Simd>(
    s: S,
    tile: Tile<'_>,
    panel: Panel<'_>,
    k: usize,
    products: &mut [f32],
    places: Places,
) {
    macro_rules! instances {
        ($($rows:literal)*) => {
            match tile.rows {
                $($rows if $rows <= tile_rows::<S>() => {
                    s.call(Product::<$rows> { tile: tile.values, panel, k, products, places })
                },)*
                rows => unreachable!("tiles have 1 to {} rows, not {rows}", tile_rows::<S>()),
            }
        };
    }
    instances!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// [`multiply`] for `ROWS` rows, a function of its own: inlined wherever products are finished, it would be most of
/// this crate's code.
struct Product<'a, const ROWS: usize> {
    tile: &'a [f32],
    panel: Panel<'a>,
    k: usize,
    products: &'a mut [f32],
    places: Places,
}

impl<const ROWS: usize> Kernel for Product<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, panel: Panel { words: panel, mut ahead }, k, products, places } = self;
        let width = panel_width::<S>();
        // the last row of the last run ends with the last value of k
        let runs_before = k.saturating_sub(1) / RUN * ROWS * RUN;
        assert!(
            panel.len() >= k * width
                && (k == 0 || tile.len() > runs_before + (ROWS - 1) * RUN + (k - 1) % RUN)
        );
        let mut sums = [[s.splat(0.0); 2]; ROWS];
        let mut weights = panel.as_ptr();
        let mut values = tile.as_ptr();
        let mut left = k;
        while left > 0 {
            let run = left.min(RUN);
            for i in 0..run {
                ahead.ask(s);
                // SAFETY: `weights` has advanced by one line of `width` values for each of fewer than `k` steps, and the
                // panel holds `k` lines.
                let (low, high) = unsafe { (s.load_ptr(weights), s.load_ptr(weights.add(S::LANES))) };
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: value `i` of `row` in this run; the assertion covers the last one of the last run.
                    let x = s.splat(unsafe { *values.add(row * RUN + i) });
                    sums[0] = s.mul_add(x, low, sums[0]);
                    sums[1] = s.mul_add(x, high, sums[1]);
                }
                weights = weights.wrapping_add(width);
            }
            values = values.wrapping_add(ROWS * RUN);
            left -= run;
        }
        for (row, sums) in sums.iter().enumerate() {
            s.store(sums[0], &mut products[row * places.row..]);
            s.store(sums[1], &mut products[row * places.row + places.half..]);
        }
    }
}
