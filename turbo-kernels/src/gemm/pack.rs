//! The orders in which the tile kernel reads its two operands.
//!
//! A weight is cut into panels of [`panel_width`] output features, `[panel][k][column]`, the last panel padded with
//! zeros: the kernel reads it front to back, once.
//!
//! Activations are cut into tiles of rows, whose values the kernel broadcasts one by one. Rows of f32 can stay where
//! they are: copying them takes as long as a panel or two, and where several threads share rows, each copy wanders from
//! cache to cache. On a Zen 5 server whose two cores lie far apart, 56 rows times 384 × 384 reach 69 % of the peak with
//! copies and 82 % without. Other rows are packed, `[k / RUN][row][RUN]`, by whole cache lines.

use std::{
    marker::PhantomData,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use super::{
    bf16::Bf16,
    blocks::Blocks,
    format::{F32, Format, FormatKernel},
    int8::{Int8, MOST_FEATURES},
    tiled::is_tiled,
    words::{panel_words, rows_are_tiles, tile_rows},
};
use crate::{
    DType, KernelError,
    device::{CpuBlock, Helpers, Slabs},
    simd::{Kernel, LINE_BYTES, Simd, SupportedIsa, TILES_SIDE},
};

/// Values of a row that stay together: one cache line.
pub(crate) const RUN: usize = 16;

/// Sets of lines of the first-level cache on the processors that are known.
const SETS: usize = 64;
/// The most rows of a tile whose lines may meet in one set. A set has 8 to 12 places, and panels pass through it too.
const MOST_IN_SET: u8 = 4;

/// Words of a block of `k`. On a Zen 5 server half as many are no better, and rows of bf16 are better whole.
const BLOCK_WORDS: usize = 1536;

/// Values worth a thread when a weight is packed: a few times the cost of starting one.
const VALUES_PER_THREAD: usize = 256 << 10;

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
pub(super) const MOST_ROWS: usize = if MOST_HELD_ROWS > TILES_SIDE { MOST_HELD_ROWS } else { TILES_SIDE };

/// How many times as many words tile registers multiply and add as vectors do in the same time: 16 × 16 × 16 in 16
/// cycles, against 32 in each. By Intel's manuals; nothing was timed.
const TILES_PACE: usize = 8;

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

/// A constant matrix `[out_features, in_features]`, packed for one instruction set and [`DType`].
#[derive(Debug)]
pub struct PackedWeight {
    panels: CpuBlock,
    out_features: usize,
    in_features: usize,
    isa: SupportedIsa,
    dtype: DType,
    shape: Shape,
}

impl PackedWeight {
    /// Packs row-major values into a place in `slabs`, with as many of the `helpers` as the work is worth.
    pub(super) fn new(
        isa: SupportedIsa,
        (slabs, helpers): (&Slabs, &Helpers),
        weight: &[f32],
        [out_features, in_features]: [usize; 2],
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        let expected = out_features.saturating_mul(in_features);
        KernelError::check_length("pack", "weight", expected, weight.len())?;
        let mut whole = PackedWeight::zeroed(isa, slabs, [out_features, in_features], dtype)?;
        let values = whole.panels.bytes() / size_of::<f32>();
        let packed = whole.panels.view_mut::<f32>(0, values)?;
        if !weight.is_empty() {
            let worth = (weight.len() / VALUES_PER_THREAD).max(1);
            let panels = out_features.div_ceil(whole.shape.panel_width);
            let panels_per_part = panels.div_ceil(worth);
            let packed = packed.chunks_mut(panels_per_part * whole.shape.panel_words);
            let weight = weight.chunks(panels_per_part * whole.shape.panel_width * in_features);
            let parts = Mutex::new(packed.zip(weight));
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            helpers.share(worth - 1, || {
                while let Some((packed, weight)) = next() {
                    run(isa, dtype, PackPanels { packed, weight, in_features });
                }
            });
        }
        Ok(whole)
    }

    /// A weight of zeros.
    fn zeroed(
        isa: SupportedIsa,
        slabs: &Slabs,
        [out_features, in_features]: [usize; 2],
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        let shape = PackedWeight::shape(isa, dtype, in_features)?;
        let panels = CpuBlock::zeroed_beside(slabs, shape.bytes(out_features))?;
        Ok(PackedWeight { panels, out_features, in_features, isa, dtype, shape })
    }

    fn shape(isa: SupportedIsa, dtype: DType, in_features: usize) -> Result<Shape, KernelError> {
        if dtype == DType::Int8 && in_features > MOST_FEATURES {
            let (argument, expected) = ("in_features", "at most 65536 with int8".into());
            return Err(KernelError::Size { kernel: "pack", argument, expected, got: in_features });
        }
        Ok(run(isa, dtype, Measure { in_features }))
    }

    /// The weight whose [`PackedWeight::image`] is `image`.
    pub(super) fn restore(
        isa: SupportedIsa,
        slabs: &Slabs,
        image: &[u8],
        [out_features, in_features]: [usize; 2],
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        let expected = PackedWeight::shape(isa, dtype, in_features)?.bytes(out_features);
        KernelError::check_length("restore", "image of bytes", expected, image.len())?;
        let mut whole = PackedWeight::zeroed(isa, slabs, [out_features, in_features], dtype)?;
        whole.panels.view_mut::<u8>(0, expected)?.copy_from_slice(image);
        Ok(whole)
    }

    /// The name of the byte order: dtype, panel width, and a number that grows when the order changes. Instruction sets
    /// whose panels are equally wide share images.
    pub(super) fn packing(isa: SupportedIsa, dtype: DType) -> String {
        let (panel_width, _) = isa.run(TileSizes);
        format!("{dtype}-{panel_width}-1")
    }

    /// All panels.
    pub(super) fn image(&self) -> &[u8] {
        self.panels.view(0, self.panels.bytes()).expect("the block holds its own bytes")
    }

    /// The dtype that it holds, and in which its products are computed.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether rows packed for one of the two weights are packed for the other as well.
    pub(crate) fn packs_rows_like(&self, other: &PackedWeight) -> bool {
        (self.isa, self.dtype) == (other.isa, other.dtype)
    }

    /// Rows of the matrix: values of each result.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the matrix: values of each input.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Words of a panel.
    pub(crate) fn panel_words(&self) -> usize {
        self.shape.panel_words
    }

    /// Rows of the largest tile of this weight's kernel.
    pub(crate) fn tile_rows(&self) -> usize {
        self.shape.tile_rows
    }

    /// The speed at which its kernel multiplies words, as a multiple of that of vectors.
    pub(crate) fn pace(&self) -> usize {
        self.shape.pace
    }

    /// Output features of a panel.
    pub(crate) fn panel_width(&self) -> usize {
        self.shape.panel_width
    }

    pub(crate) fn panel_count(&self) -> usize {
        self.out_features.div_ceil(self.shape.panel_width)
    }

    /// Runs `kernel` with the format of this weight's dtype and the instructions that multiply it best.
    #[inline]
    pub(crate) fn run<K: FormatKernel>(&self, kernel: K) -> K::Output {
        run(self.isa, self.dtype, kernel)
    }

    /// Whether it multiplies `rows` rows where they lie, without packing.
    pub(super) fn takes_rows(&self, rows: usize) -> bool {
        self.run(RowsAreTiles { rows, in_features: self.in_features })
    }

    /// Words of a packed tile of `rows` rows for this weight.
    pub(crate) fn tile_words(&self, rows: usize) -> usize {
        self.block_words(rows, self.in_features)
    }

    /// Words of a packed tile of `rows` rows with `values` values each.
    pub(crate) fn block_words(&self, rows: usize, values: usize) -> usize {
        self.run(TileWords { rows, in_features: values })
    }

    /// The blocks in which long rows may meet it. There is a single one where a row is packed as a whole, or where the
    /// last panel has no room for unfinished sums.
    pub(crate) fn blocks(&self) -> Blocks {
        let whole_panels = self.out_features.is_multiple_of(self.shape.panel_width);
        match self.run(BlockValues).filter(|_| whole_panels) {
            Some(most) => Blocks::of_at_most(most, self.in_features),
            None => Blocks::whole(self.in_features),
        }
    }

    /// Panel `index`, [`panel_words`] words.
    pub(super) fn panel(&self, index: usize) -> &[f32] {
        let words = self.shape.panel_words;
        self.panels.view(index * words * size_of::<f32>(), words).expect("the block holds every panel")
    }
}

/// Sizes that follow from format, instruction set and input features.
#[derive(Clone, Copy, Debug)]
struct Shape {
    panel_width: usize,
    panel_words: usize,
    tile_rows: usize,
    pace: usize,
}

impl Shape {
    /// Bytes of all panels; if they cannot be counted, more than any memory holds.
    fn bytes(&self, out_features: usize) -> usize {
        let panels = out_features.div_ceil(self.panel_width);
        panels.saturating_mul(self.panel_words).saturating_mul(size_of::<f32>())
    }
}

struct Measure {
    in_features: usize,
}

impl FormatKernel for Measure {
    type Output = Shape;

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, _: S) -> Shape {
        Shape {
            panel_width: panel_width::<S>(),
            panel_words: panel_words::<S, F>(self.in_features),
            tile_rows: tile_rows::<S, F>(),
            pace: if is_tiled::<S, F>() { TILES_PACE } else { 1 },
        }
    }
}

/// Runs `kernel` in the format of `dtype`.
#[inline]
fn run<K: FormatKernel>(isa: SupportedIsa, dtype: DType, kernel: K) -> K::Output {
    match dtype {
        DType::F32 => isa.run(In(kernel, PhantomData::<F32>)),
        DType::Bf16 => isa.run_bf16_tiles(In(kernel, PhantomData::<Bf16>)),
        DType::Int8 => isa.run_int8_tiles(In(kernel, PhantomData::<Int8>)),
    }
}

/// A kernel in one format.
struct In<K, F>(K, PhantomData<F>);

impl<K: FormatKernel, F: Format> Kernel for In<K, F> {
    type Output = K::Output;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> K::Output {
        self.0.run::<F, S>(s)
    }
}

/// Whether the rows of a tile, `in_features` values apart, spread over the sets of a first-level cache.
///
/// The kernel takes one value after another from each row, and a line that had to make room would be fetched 16 times.
/// With 1024 values that leaves 92 % of the speed on a Zen 5 server, where a set has 12 places.
fn rows_spread(in_features: usize) -> bool {
    let mut rows_of_set = [0; SETS];
    (0..MOST_HELD_ROWS).all(|row| {
        let rows = &mut rows_of_set[row * in_features * size_of::<f32>() / LINE_BYTES % SETS];
        *rows += 1;
        *rows <= MOST_IN_SET
    })
}

struct RowsAreTiles {
    rows: usize,
    in_features: usize,
}

impl FormatKernel for RowsAreTiles {
    type Output = bool;

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, _: S) -> bool {
        // a single row is the same packed or not
        F::ROWS_ARE_TILES && self.rows == 1 || rows_are_tiles::<S, F>() && rows_spread(self.in_features)
    }
}

struct BlockValues;

impl FormatKernel for BlockValues {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, _: S) -> Option<usize> {
        F::VALUE_BY_VALUE.then_some(BLOCK_WORDS * F::PER_WORD)
    }
}

struct TileWords {
    rows: usize,
    in_features: usize,
}

impl FormatKernel for TileWords {
    type Output = usize;

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, _: S) -> usize {
        F::tile_words::<S>(self.rows, self.in_features)
    }
}

/// Packs whole panels of output features; columns that the last one lacks are left as they are.
struct PackPanels<'a> {
    packed: &'a mut [f32],
    weight: &'a [f32],
    in_features: usize,
}

impl FormatKernel for PackPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, s: S) {
        let panels = self.packed.chunks_exact_mut(panel_words::<S, F>(self.in_features));
        for (panel, columns) in panels.zip(self.weight.chunks(panel_width::<S>() * self.in_features)) {
            F::pack_panel(s, columns, self.in_features, panel);
        }
    }
}

/// Panel width and tile rows of an instruction set.
pub(crate) struct TileSizes;

impl Kernel for TileSizes {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (panel_width::<S>(), held_rows::<S>())
    }
}

/// Rows cut into tiles whose heights differ by at most one: 40 = 14 + 13 + 13, so no tile is nearly empty. The higher
/// ones come first, so that tiles of one height lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvenTiles {
    rows: usize,
    count: usize,
    /// Parts with equally many tiles, which divide the rows as evenly as possible; each has its own higher tiles.
    parts: usize,
}

impl EvenTiles {
    /// Tiles of at most `most` rows.
    pub(crate) fn new(rows: usize, most: usize) -> EvenTiles {
        EvenTiles { rows, count: rows.div_ceil(most), parts: 1 }
    }

    /// The same rows in `parts` parts, which may take a few more tiles.
    pub(super) fn in_parts(self, parts: usize) -> EvenTiles {
        EvenTiles { count: self.count.next_multiple_of(parts), parts, ..self }
    }

    /// The number of tiles.
    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// The number of rows.
    pub(crate) fn rows(self) -> usize {
        self.rows
    }

    /// Rows of the highest tile.
    pub(super) fn most_rows(self) -> usize {
        self.rows.div_ceil(self.count.max(1))
    }

    /// Rows of tile `index`.
    #[inline(always)]
    pub(crate) fn range(self, index: usize) -> Range<usize> {
        self.start(index)..self.start(index + 1)
    }

    /// The first row of tile `index`; behind the last one, the number of rows.
    #[inline(always)]
    pub(super) fn start(self, index: usize) -> usize {
        let of_part = self.tiles_of_part();
        self.part(index / of_part).row(index % of_part)
    }

    /// The rows of all tiles in their order, if there is one part.
    #[inline(always)]
    pub(crate) fn ranges(self) -> TileRanges {
        debug_assert_eq!(self.parts, 1);
        TileRanges { left: self.count, part: self.part(0) }
    }

    /// Some tiles of one part, divided into the higher and the lower ones; either may be none.
    #[inline(always)]
    pub(super) fn by_height(self, tiles: Range<usize>) -> (LikeTiles, LikeTiles) {
        let of_part = self.tiles_of_part();
        let number = if self.parts == 1 { 0 } else { tiles.start / of_part };
        debug_assert!(tiles.is_empty() || (tiles.end - 1) / of_part == number);
        let (part, first) = (self.part(number), number * of_part);
        let border = (first + part.higher).clamp(tiles.start, tiles.end);
        let (higher, lower) = (tiles.start..border, border..tiles.end);
        let first_row = |tiles: &Range<usize>| part.row(tiles.start - first);
        (
            LikeTiles { first_row: first_row(&higher), tiles: higher, rows: part.least + 1 },
            LikeTiles { first_row: first_row(&lower), tiles: lower, rows: part.least },
        )
    }

    #[inline(always)]
    fn tiles_of_part(self) -> usize {
        // without the division, which most callers do not need, and for which products of a few rows have no time
        if self.parts == 1 { self.count.max(1) } else { (self.count / self.parts).max(1) }
    }

    /// Part `number`; behind the last one, a part without rows.
    #[inline(always)]
    fn part(self, number: usize) -> Part {
        let start = |number: usize| match number {
            0 => 0,
            _ if number >= self.parts => self.rows,
            _ => (self.rows * number).div_ceil(self.parts),
        };
        let first = start(number);
        let rows = start(number + 1) - first;
        let of_part = self.tiles_of_part();
        Part { start: first, least: rows / of_part, higher: rows % of_part }
    }
}

/// Consecutive tiles of one height.
pub(super) struct LikeTiles {
    pub(super) tiles: Range<usize>,
    /// Rows of each.
    pub(super) rows: usize,
    pub(super) first_row: usize,
}

/// A part of [`EvenTiles`], or what is left of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The first row.
    start: usize,
    /// Rows of the lowest tile.
    least: usize,
    /// Tiles with one row more, which come first.
    higher: usize,
}

impl Part {
    /// The first row of tile `index`.
    #[inline(always)]
    fn row(self, index: usize) -> usize {
        self.start + index * self.least + self.higher.min(index)
    }
}

/// Rows of even tiles, one after another.
#[derive(Clone, Debug)]
pub(crate) struct TileRanges {
    left: usize,
    part: Part,
}

impl Iterator for TileRanges {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        self.left = self.left.checked_sub(1)?;
        let Part { start, least, higher } = self.part;
        let end = start + least + usize::from(higher > 0);
        self.part = Part { start: end, least, higher: higher.saturating_sub(1) };
        Some(start..end)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for TileRanges {}

/// Values of a packed tile of `rows` rows.
pub(crate) fn tile_values(rows: usize, in_features: usize) -> usize {
    rows * in_features.next_multiple_of(RUN)
}

/// Packs rows of `in_features` values into `tile`. The places past the end of a row are left as they are.
#[inline(always)]
pub(crate) fn pack_tile<'a>(
    rows: impl ExactSizeIterator<Item = &'a [f32]>,
    in_features: usize,
    tile: &mut [f32],
) {
    let line = rows.len() * RUN;
    let tile = &mut tile[..tile_values(rows.len(), in_features)];
    for (row, values) in rows.enumerate() {
        let (runs, tail) = values.as_chunks::<RUN>();
        let mut lines = tile.chunks_exact_mut(line);
        for (run, line) in runs.iter().zip(&mut lines) {
            line[row * RUN..][..RUN].copy_from_slice(run);
        }
        if let Some(line) = lines.next() {
            line[row * RUN..][..tail.len()].copy_from_slice(tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::supported;

    fn new(
        isa: SupportedIsa,
        helpers: &Helpers,
        weight: &[f32],
        shape: [usize; 2],
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        PackedWeight::new(isa, (&Slabs::default(), helpers), weight, shape, dtype)
    }

    #[test]
    fn panels_hold_columns_side_by_side() {
        for isa in supported() {
            for (n, k) in [(1, 1), (5, 3), (32, 7), (33, 2), (70, 17), (4, 0), (0, 4)] {
                let weight: Vec<f32> = (0..n * k).map(|i| i as f32 + 1.0).collect();
                let packed = new(isa, &Helpers::new(0), &weight, [n, k], DType::F32).unwrap();
                let (width, _) = isa.run(TileSizes);
                for panel in 0..packed.panel_count() {
                    for (i, value) in packed.panel(panel).iter().enumerate() {
                        let (column, row) = (panel * width + i % width, i / width);
                        let want = if column < n { weight[column * k + row] } else { 0.0 };
                        assert_eq!(*value, want);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_meet_in_few_sets_do_not_spread() {
        for in_features in [100, 312, 384, 576, 768, 1152] {
            assert!(rows_spread(in_features), "{in_features}");
        }
        // a line or less from row to row: neighbours
        for in_features in [1, 4, 5, 16] {
            assert_eq!(rows_spread(in_features), in_features > 3, "{in_features}");
        }
        for in_features in [512, 513, 1024, 1536, 3072, 4096] {
            assert!(!rows_spread(in_features), "{in_features}");
        }
    }

    #[test]
    fn threads_pack_the_same() {
        let (n, k) = (1030, 1021); // four threads' worth, and no whole panels
        let weight: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        for isa in supported() {
            let packed = |helpers: Helpers| {
                let packed = new(isa, &helpers, &weight, [n, k], DType::F32).unwrap();
                (0..packed.panel_count()).flat_map(|i| packed.panel(i).to_vec()).collect::<Vec<_>>()
            };
            let alone = packed(Helpers::new(0));
            assert!([1, 2, 6].iter().all(|&helpers| packed(Helpers::new(helpers)) == alone));
            assert!(packed(Helpers::refused(6)) == alone, "what is refused leaves its parts to the others");
        }
    }

    #[test]
    fn a_weight_of_another_size_is_refused() {
        for isa in supported() {
            let new = |n, k| new(isa, &Helpers::new(0), &[0.0; 5], [n, k], DType::F32);
            let error = new(2, 3).unwrap_err();
            assert_eq!(error.to_string(), "pack: weight holds 5 values, expected 6");
            assert!(new(usize::MAX, 3).is_err());
        }
    }

    #[test]
    fn images_are_restored() {
        let (n, k) = (37, 11);
        let weight: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        for (isa, dtype) in supported().flat_map(|isa| DType::ALL.map(|dtype| (isa, dtype))) {
            let packed = new(isa, &Helpers::new(0), &weight, [n, k], dtype).unwrap();
            let restored =
                PackedWeight::restore(isa, &Slabs::default(), packed.image(), [n, k], dtype).unwrap();
            assert!(restored.image() == packed.image() && restored.dtype() == dtype);
            let short = &packed.image()[1..];
            let error =
                PackedWeight::restore(isa, &Slabs::default(), short, [n, k], dtype).unwrap_err().to_string();
            let (expected, got) = (packed.image().len(), short.len());
            assert_eq!(error, format!("restore: image of bytes holds {got} values, expected {expected}"));
            for giant in [[usize::MAX, k], [1, usize::MAX / 32 + 1]] {
                assert!(PackedWeight::restore(isa, &Slabs::default(), short, giant, dtype).is_err());
            }
        }
    }

    /// Caches on disk are shared by name.
    #[test]
    fn sets_of_one_packing_have_one_image() {
        let (n, k) = (37, 41);
        let weight: Vec<f32> = (0..n * k).map(|i| (i * 7919 % 1009) as f32 - 500.0).collect();
        let mut images: Vec<(String, PackedWeight)> = Vec::new();
        for (isa, dtype) in supported().flat_map(|isa| DType::ALL.map(|dtype| (isa, dtype))) {
            let packed = new(isa, &Helpers::new(0), &weight, [n, k], dtype).unwrap();
            let name = PackedWeight::packing(isa, dtype);
            if let Some((_, other)) = images.iter().find(|(other, _)| *other == name) {
                assert!(packed.image() == other.image(), "{name} with {isa:?}");
            }
            images.push((name, packed));
        }
    }

    #[test]
    fn rows_spread_evenly() {
        let tiles = EvenTiles::new(40, 14);
        assert_eq!((0..tiles.count()).map(|i| tiles.range(i)).collect::<Vec<_>>(), [0..14, 14..27, 27..40]);
        for (rows, parts) in (1..200).flat_map(|rows| [1, 2, 3].map(|parts| (rows, parts))) {
            let tiles = EvenTiles::new(rows, 14).in_parts(parts);
            let ranges: Vec<_> = (0..tiles.count()).map(|i| tiles.range(i)).collect();
            let heights: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
            assert_eq!(heights.iter().sum::<usize>(), rows);
            assert!(parts > 1 || tiles.ranges().eq(ranges), "{heights:?}");
            assert_eq!(heights.iter().max(), Some(&tiles.most_rows()));
            assert!(tiles.most_rows() <= 14 && heights.iter().all(|height| height + 1 >= tiles.most_rows()));
            let of_parts: Vec<&[usize]> = heights.chunks(tiles.count() / parts).collect();
            assert!(of_parts.iter().all(|heights| heights.iter().is_sorted_by(|a, b| a >= b)), "{heights:?}");
            let rows_of = |part: &&[usize]| part.iter().sum::<usize>();
            let [least, most] = [of_parts.iter().map(rows_of).min(), of_parts.iter().map(rows_of).max()];
            assert!(most <= least.map(|least| least + 1), "{heights:?}");
        }
    }

    #[test]
    fn tiles_of_one_height_lie_side_by_side() {
        for (rows, parts) in (1..200).flat_map(|rows| [1, 2, 3].map(|parts| (rows, parts))) {
            let tiles = EvenTiles::new(rows, 14).in_parts(parts);
            let of_part = tiles.count() / parts;
            for first in 0..tiles.count() {
                for end in first..=(first / of_part + 1) * of_part {
                    let like: [LikeTiles; 2] = tiles.by_height(first..end).into();
                    let all = like.iter().flat_map(|LikeTiles { tiles, rows, first_row }| {
                        (0..tiles.len()).map(move |i| first_row + i * rows..first_row + (i + 1) * rows)
                    });
                    assert!(
                        all.eq((first..end).map(|i| tiles.range(i))),
                        "{rows} in {parts}: {first}..{end}"
                    );
                    assert_eq!((like[0].tiles.start, like[1].tiles.end), (first, end));
                    assert_eq!(like[0].tiles.end, like[1].tiles.start);
                }
            }
        }
    }

    #[test]
    fn tiles_hold_runs_of_rows() {
        for (rows, k) in [(1, 5), (3, 16), (2, 33), (14, 40)] {
            let x: Vec<f32> = (0..rows * k).map(|i| i as f32 + 1.0).collect();
            let mut tile = vec![f32::NAN; tile_values(rows, k)];
            pack_tile((0..rows).map(|row| &x[row * k..][..k]), k, &mut tile);
            for row in 0..rows {
                for i in 0..k {
                    assert_eq!(tile[i / RUN * rows * RUN + row * RUN + i % RUN], x[row * k + i]);
                }
            }
        }
    }
}
