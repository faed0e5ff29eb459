//! A constant matrix in the order in which the tile kernel reads it, and what it asks of the rows that it meets.
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
    sync::{Mutex, PoisonError},
};

use super::{
    bf16::Bf16,
    blocks::Blocks,
    format::{F32, Format, FormatKernel},
    int8::{Int8, MOST_FEATURES},
    sizes::{MOST_HELD_ROWS, TileSizes, panel_width},
    tile_registers::by_tile_registers,
    words::{panel_words, rows_are_tiles, tile_rows},
};
use crate::{
    DType, KernelError,
    device::{CpuBlock, Helpers, Slabs},
    simd::{Kernel, LINE_VALUES, Simd, SupportedIsa},
};

/// Sets of lines of the first-level cache on the processors that are known.
const SETS: usize = 64;
/// The most rows of a tile whose lines may meet in one set. A set has 8 to 12 places, and panels pass through it too.
const MOST_IN_SET: u8 = 4;

/// Words of a block of `k`. On a Zen 5 server half as many are no better, and rows of bf16 are better whole.
const BLOCK_WORDS: usize = 1536;

/// Values worth a thread when a weight is packed: a few times the cost of starting one.
const VALUES_PER_THREAD: usize = 256 << 10;

/// How many times as many words tile registers multiply and add as vectors do in the same time: 16 × 16 × 16 in 16
/// cycles, against 32 in each. By Intel's manuals; nothing was timed.
const TILE_REGISTERS_PACE: usize = 8;

/// A constant matrix `[out_features, in_features]`, packed for one instruction set and [`DType`].
#[derive(Debug)]
pub struct PackedWeight {
    panels: CpuBlock,
    out_features: usize,
    in_features: usize,
    isa: SupportedIsa,
    dtype: DType,
    properties: Properties,
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
            let panels = out_features.div_ceil(whole.properties.panel_width);
            let panels_per_part = panels.div_ceil(worth);
            let packed = packed.chunks_mut(panels_per_part * whole.properties.panel_words);
            let weight = weight.chunks(panels_per_part * whole.properties.panel_width * in_features);
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
        let properties = PackedWeight::properties(isa, dtype, in_features)?;
        let panels = CpuBlock::zeroed_beside(slabs, properties.bytes(out_features))?;
        Ok(PackedWeight { panels, out_features, in_features, isa, dtype, properties })
    }

    fn properties(isa: SupportedIsa, dtype: DType, in_features: usize) -> Result<Properties, KernelError> {
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
        let expected = PackedWeight::properties(isa, dtype, in_features)?.bytes(out_features);
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
        self.properties.panel_words
    }

    /// Rows of the largest tile of this weight's kernel.
    pub(crate) fn tile_rows(&self) -> usize {
        self.properties.tile_rows
    }

    /// The speed at which its kernel multiplies words, as a multiple of that of vectors.
    pub(crate) fn pace(&self) -> usize {
        self.properties.pace
    }

    /// Output features of a panel.
    pub(crate) fn panel_width(&self) -> usize {
        self.properties.panel_width
    }

    pub(crate) fn panel_count(&self) -> usize {
        self.out_features.div_ceil(self.properties.panel_width)
    }

    /// Runs `kernel` with the format of this weight's dtype and the instructions that multiply it best.
    #[inline]
    pub(super) fn run<K: FormatKernel>(&self, kernel: K) -> K::Output {
        run(self.isa, self.dtype, kernel)
    }

    /// Whether it multiplies `rows` rows where they lie, without packing.
    pub(super) fn takes_rows(&self, rows: usize) -> bool {
        self.properties.any_rows_are_tiles || rows == 1 && self.properties.one_row_is_a_tile
    }

    /// Words of a packed tile of `rows` rows for this weight.
    pub(crate) fn tile_words(&self, rows: usize) -> usize {
        self.block_words(rows, self.in_features)
    }

    /// Words of a packed tile of `rows` rows with `values` values each.
    pub(crate) fn block_words(&self, rows: usize, values: usize) -> usize {
        self.run(TileWords { rows, in_features: values })
    }

    /// Whether the rows that it meets are packed value by value: see [`Format::VALUE_BY_VALUE`].
    pub(crate) fn packs_value_by_value(&self) -> bool {
        self.properties.most_block_values.is_some()
    }

    /// The blocks in which long rows may meet it. There is a single one where a row is packed as a whole, or where the
    /// last panel has no room for unfinished sums.
    pub(crate) fn blocks(&self) -> Blocks {
        let whole_panels = self.out_features.is_multiple_of(self.properties.panel_width);
        match self.properties.most_block_values.filter(|_| whole_panels) {
            Some(most) => Blocks::of_at_most(most, self.in_features),
            None => Blocks::whole(self.in_features),
        }
    }

    /// Panel `index`, [`panel_words`] words.
    pub(super) fn panel(&self, index: usize) -> &[f32] {
        let words = self.properties.panel_words;
        self.panels.view(index * words * size_of::<f32>(), words).expect("the block holds every panel")
    }
}

/// What follows from format, instruction set and input features.
#[derive(Clone, Copy, Debug)]
struct Properties {
    panel_width: usize,
    panel_words: usize,
    tile_rows: usize,
    pace: usize,
    /// Whether a single row is multiplied where it lies: it is the same packed or not.
    one_row_is_a_tile: bool,
    /// Whether any number of rows are.
    any_rows_are_tiles: bool,
    /// Values of the longest block, if rows are packed value by value.
    most_block_values: Option<usize>,
}

impl Properties {
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
    type Output = Properties;

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, _: S) -> Properties {
        Properties {
            panel_width: panel_width::<S>(),
            panel_words: panel_words::<S, F>(self.in_features),
            tile_rows: tile_rows::<S, F>(),
            pace: if by_tile_registers::<S, F>() { TILE_REGISTERS_PACE } else { 1 },
            one_row_is_a_tile: F::ROWS_ARE_TILES,
            any_rows_are_tiles: rows_are_tiles::<S, F>() && rows_spread(self.in_features),
            most_block_values: F::VALUE_BY_VALUE.then_some(BLOCK_WORDS * F::PER_WORD),
        }
    }
}

/// Runs `kernel` in the format of `dtype`.
#[inline]
fn run<K: FormatKernel>(isa: SupportedIsa, dtype: DType, kernel: K) -> K::Output {
    match dtype {
        DType::F32 => isa.run(In(kernel, PhantomData::<F32>)),
        DType::Bf16 => isa.run_bf16(In(kernel, PhantomData::<Bf16>)),
        DType::Int8 => isa.run_int8(In(kernel, PhantomData::<Int8>)),
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
    // whole rounds through the sets do not count
    let distance = in_features % (SETS * LINE_VALUES);
    let mut rows_of_set = [0; SETS];
    (0..MOST_HELD_ROWS).all(|row| {
        let rows = &mut rows_of_set[row * distance / LINE_VALUES % SETS];
        *rows += 1;
        *rows <= MOST_IN_SET
    })
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
}
