//! What differs between the dtypes of products: how rows and panels are packed, and how a tile is multiplied.

use super::{
    pack::{RUN, pack_tile, panel_width, tile_rows, tile_values},
    tile::{Panel, Places, Tile, multiply},
    words::transpose,
};
use crate::simd::Simd;

/// One way to hold a weight and the rows that meet it. Both are `[k words][..]` of 32-bit words, which travel as `f32`
/// whatever they hold.
pub(crate) trait Format: Copy + Send + Sync + 'static {
    /// A single row is its own tile, and need not be packed.
    const ROW_IS_TILE: bool;
    /// The packed form of a value depends on that value alone, so the values of a row can be put one by one, as soon
    /// as they are known; otherwise whole rows must be there first.
    const VALUE_BY_VALUE: bool;

    /// Rows of the tile that suits best; any format takes as many as [`super::tile_rows`].
    fn tile_rows<S: Simd>() -> usize;

    /// Words of a packed panel.
    fn panel_words<S: Simd>(in_features: usize) -> usize;

    /// Packs up to a panel's width of output features, `[columns, in_features]` row-major, into a panel of zeros.
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]);

    /// Words of a packed tile of `rows` rows.
    fn tile_words<S: Simd>(rows: usize, in_features: usize) -> usize;

    /// Packs rows of `in_features` values into `tile`.
    fn pack_tile<'a, S: Simd>(
        s: S,
        rows: impl ExactSizeIterator<Item = &'a [f32]> + Clone,
        in_features: usize,
        tile: &mut [f32],
    );

    /// The words of a tile of `rows` rows that [`Format::put`] writes for the vector of values that begins at `column`
    /// (a multiple of `S::LANES`) of `row`.
    fn words_of<S: Simd>(rows: usize, row: usize, column: usize) -> std::ops::Range<usize>;

    /// Packs one vector of values, where [`Format::VALUE_BY_VALUE`] holds.
    fn put<S: Simd>(s: S, values: S::F32, words: &mut [f32]);

    /// Products of a tile with a panel, as f32.
    fn multiply<S: Simd>(
        s: S,
        tile: Tile<'_>,
        panel: Panel<'_>,
        in_features: usize,
        products: &mut [f32],
        places: Places,
    );
}

/// Work that is compiled for each format and each instruction set that it has a path for; the struct holds the
/// arguments.
pub(crate) trait FormatKernel {
    /// What it returns.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<F: Format, S: Simd>(self, s: S) -> Self::Output;
}

/// f32 as it is.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Format for F32 {
    const ROW_IS_TILE: bool = true;
    const VALUE_BY_VALUE: bool = true;

    fn tile_rows<S: Simd>() -> usize {
        tile_rows::<S>()
    }

    fn panel_words<S: Simd>(in_features: usize) -> usize {
        panel_width::<S>() * in_features
    }

    #[inline(always)]
    fn pack_panel<S: Simd>(s: S, columns: &[f32], in_features: usize, panel: &mut [f32]) {
        transpose(s, columns, in_features, 0..in_features, panel);
    }

    fn tile_words<S: Simd>(rows: usize, in_features: usize) -> usize {
        tile_values(rows, in_features)
    }

    #[inline(always)]
    fn pack_tile<'a, S: Simd>(
        _: S,
        rows: impl ExactSizeIterator<Item = &'a [f32]> + Clone,
        in_features: usize,
        tile: &mut [f32],
    ) {
        pack_tile(rows, in_features, tile);
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

    #[inline(always)]
    fn multiply<S: Simd>(
        s: S,
        tile: Tile<'_>,
        panel: Panel<'_>,
        in_features: usize,
        products: &mut [f32],
        places: Places,
    ) {
        multiply(s, tile, panel, in_features, products, places);
    }
}
