//! The tile kernel: up to 14 rows times one panel, accumulators in registers; what follows is a [`Finish`].

use super::{
    format::{Format, FormatKernel},
    pack::{RUN, panel_width, tile_rows},
};
use crate::simd::{Kernel, Simd};

/// Bytes ahead of the reader at which the panel is prefetched, past its end into the next one. Measured on a Zen 5
/// server, 10 rows times 64 MB of weights: none gives 38 % of the multiply-add peak, 4 KiB 62 %, 16 KiB 90 %,
/// and twice that no more.
pub(super) const PREFETCH: usize = 16 << 10;

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

/// A tile of packed activations.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// As its format packs them.
    pub(crate) values: &'a [f32],
}

impl<'a, I: Iterator<Item = Tile<'a>> + Clone, E: Finish> FormatKernel for Tiles<'a, I, E> {
    type Output = ();

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, s: S) {
        // the largest product: 14 rows of two 16-lane vectors
        let mut products = [0.0; 14 * 32];
        for panel in self.panels {
            let values = self.weight.panel(panel);
            for tile in self.tiles.clone() {
                F::multiply(s, tile, values, self.weight.in_features(), &mut products, Places::rows::<S>());
                self.finish.finish::<F, S>(s, tile, panel * panel_width::<S>(), &products);
            }
        }
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
    panel: &[f32],
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
    panel: &'a [f32],
    k: usize,
    products: &'a mut [f32],
    places: Places,
}

impl<const ROWS: usize> Kernel for Product<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, panel, k, products, places } = self;
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
                s.prefetch(weights.wrapping_byte_add(PREFETCH));
                s.prefetch(weights.wrapping_byte_add(PREFETCH + 64));
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
