//! The product on the CPU.
//!
//! ```text
//! rows ─even tiles of ≤ 14─▶ slab (packed activations, shared) ─▶ pieces: group of tiles × run of panels
//! ```
//!
//! Threads claim pieces in the order of groups, so a group of tiles stays in the second-level cache while the panels
//! of the weight stream past it. Nothing is cut along `k`: a product stays in its registers from the first to the last
//! multiply-add, so its bits depend neither on the other rows nor on the threads.
//!
//! # Floor
//! `2 · rows · out · in` operations at the FMA peak, and the packed weight once from memory; `benches/gemm.rs` prints
//! the share of both.

use std::ops::Range;

use super::{
    Epilogue, Gemm,
    finish::Store,
    max_pool,
    pack::{EvenTiles, PackedWeight, pack_tile, tile_values},
    tile::{Finish, Tile, Tiles},
};
use crate::{
    DType, KernelError, Layout,
    device::{Cpu, CpuQueue, SharedMut, Team},
    feed_forward::{self, FeedForward},
    norm::{NormRow, NormWeights, for_each_row},
};

/// Packed activations of one group: half of a second-level cache, the rest is for panels.
const GROUP_BYTES: usize = 512 << 10;
/// Values that are packed in one piece.
const PACK_VALUES: usize = 32 << 10;
/// Multiply-adds that are worth a piece: some ten microseconds.
const PIECE_WORK: usize = 1 << 20;
/// Multiply-adds in the time that a weight value takes to arrive from memory.
const WORK_PER_WEIGHT: usize = 16;

impl Gemm for Cpu {
    type Weight = PackedWeight;

    fn pack(
        &self,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        PackedWeight::new(self.supported_isa(), self.threads(), weight, [out_features, in_features], dtype)
    }

    fn image<'w>(&self, weight: &'w PackedWeight) -> Option<&'w [u8]> {
        Some(weight.image())
    }

    fn restore(
        &self,
        image: &[u8],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        PackedWeight::restore(self.supported_isa(), image, [out_features, in_features], dtype)
    }

    fn packing(&self, dtype: DType) -> String {
        PackedWeight::packing(self.supported_isa(), dtype)
    }

    fn gemm(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        weight: &PackedWeight,
        epilogue: Epilogue<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let rows = check(x, weight, epilogue, out)?;
        if rows == 0 {
            return Ok(());
        }
        let finish = Store { out_features: weight.out_features(), epilogue, out: SharedMut::new(out) };
        for_each_slab(queue, x, rows, weight, |team, slab| {
            let pieces = Pieces::new(slab, weight, team.threads());
            // each piece has its own panels or its own tiles, so nobody else writes these values of the output
            team.for_each_piece(pieces.count(), |_, piece| slab.multiply(pieces.get(piece), weight, finish));
        })
    }

    fn gemm_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        weight: &PackedWeight,
        bias: Option<&[f32]>,
        residual: Option<&[f32]>,
        norm: NormWeights<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        norm.fits("gemm_norm", weight.out_features())?;
        self.gemm(queue, x, weight, Epilogue::sum(bias, residual), out)?;
        for_each_row(queue, weight.out_features(), out, |_, row| {
            self.supported_isa().run(NormRow { row, weights: norm });
        })
    }

    fn feed_forward(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        layer: FeedForward<'_, PackedWeight, &[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        feed_forward::feed_forward(self, queue, x, layer, out)
    }

    fn gemm_max_pool(
        &self,
        queue: &mut CpuQueue,
        layout: Layout<&[u32]>,
        x: &[f32],
        weight: &PackedWeight,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        max_pool::gemm_max_pool(queue, layout, x, weight, bias, out)
    }
}

/// Packs `rows` rows of `x` in slabs that caches hold and gives them to `work`, one after another.
pub(super) fn for_each_slab(
    queue: &mut CpuQueue,
    x: &[f32],
    rows: usize,
    weight: &PackedWeight,
    work: impl Fn(&mut Team, &Slab<'_>),
) -> Result<(), KernelError> {
    let tiles = EvenTiles::new(rows, weight.tile_rows());
    if rows == 1 {
        // a tile of one row is the row itself
        let (team, _) = queue.team_and_shared(0)?;
        work(team, &Slab { tiles, numbers: 0..1, stride: 0, values: x });
        return Ok(());
    }
    let stride = tile_values(tiles.most_rows(), weight.in_features());
    let per_slab = (CpuQueue::SHARED_VALUES / stride.max(1)).clamp(1, tiles.count());
    let (team, packed) = queue.team_and_shared(per_slab * stride)?;
    for first in (0..tiles.count()).step_by(per_slab) {
        let numbers = first..tiles.count().min(first + per_slab);
        pack(team, x, weight.in_features(), tiles, numbers.clone(), packed, stride);
        work(team, &Slab { tiles, numbers, stride, values: packed });
    }
    Ok(())
}

/// The rows, once all buffers fit them.
fn check(
    x: &[f32],
    weight: &PackedWeight,
    epilogue: Epilogue<&[f32]>,
    out: &[f32],
) -> Result<usize, KernelError> {
    let n = weight.out_features();
    let rows = KernelError::check_rows("gemm", "out", n, out.len())?;
    KernelError::check_length("gemm", "x", rows.saturating_mul(weight.in_features()), x.len())?;
    let (bias, residual) = match epilogue {
        Epilogue::None | Epilogue::Act(_) => (None, None),
        Epilogue::Bias(bias) | Epilogue::BiasAct(bias, _) => (Some(bias), None),
        Epilogue::Residual(residual) => (None, Some(residual)),
        Epilogue::BiasResidual { bias, residual } => (Some(bias), Some(residual)),
    };
    bias.map_or(Ok(()), |bias| KernelError::check_length("gemm", "bias", n, bias.len()))?;
    residual.map_or(Ok(()), |residual| {
        KernelError::check_length("gemm", "residual", out.len(), residual.len())
    })?;
    Ok(rows)
}

/// Packs the tiles `numbers`, `stride` values apart.
fn pack(
    team: &mut Team,
    x: &[f32],
    in_features: usize,
    tiles: EvenTiles,
    numbers: Range<usize>,
    packed: &mut [f32],
    stride: usize,
) {
    // a copy: worth sharing from where it exceeds a first-level cache
    let per_piece = (PACK_VALUES / stride.max(1)).max(1);
    let packed = SharedMut::new(packed);
    team.for_each_piece(numbers.len().div_ceil(per_piece), |_, piece| {
        let first = numbers.start + piece * per_piece;
        for tile in first..numbers.end.min(first + per_piece) {
            let rows = tiles.range(tile);
            // SAFETY: tiles lie `stride` values apart and each is packed in one piece.
            let to = unsafe { packed.slice((tile - numbers.start) * stride, stride) };
            pack_tile(rows.map(|row| &x[row * in_features..][..in_features]), in_features, to);
        }
    });
}

/// Packed tiles.
pub(super) struct Slab<'a> {
    tiles: EvenTiles,
    /// Which tiles.
    numbers: Range<usize>,
    /// Values from one tile to the next.
    stride: usize,
    values: &'a [f32],
}

impl Slab<'_> {
    /// Multiplies some of its tiles with some panels.
    pub(super) fn multiply(
        &self,
        (tiles, panels): (Range<usize>, Range<usize>),
        weight: &PackedWeight,
        finish: impl Finish,
    ) {
        let tiles = tiles.map(|number| self.tile(number));
        weight.isa().run(Tiles { tiles, panels, weight, finish });
    }

    fn tile(&self, number: usize) -> Tile<'_> {
        let rows = self.tiles.range(number);
        let values = &self.values[(number - self.numbers.start) * self.stride..];
        Tile { first_row: rows.start, rows: rows.len(), values }
    }
}

/// How a slab is cut into pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    tiles: Range<usize>,
    tiles_per_group: usize,
    panels: usize,
    panels_per_piece: usize,
}

impl Pieces {
    pub(super) fn new(slab: &Slab<'_>, weight: &PackedWeight, threads: usize) -> Pieces {
        let tiles = slab.numbers.clone();
        let tiles_per_group = (GROUP_BYTES / size_of::<f32>() / slab.stride.max(1)).clamp(1, tiles.len());
        let panels = weight.panel_count();
        let rows = tiles_per_group * slab.tiles.most_rows();
        let work = (rows + WORK_PER_WEIGHT) * weight.panel_width() * weight.in_features();
        // at least four pieces a thread, where there are as many panels
        let most = (panels * tiles.len().div_ceil(tiles_per_group)).div_ceil(4 * threads);
        let panels_per_piece = (PIECE_WORK / work.max(1)).clamp(1, most.min(panels).max(1));
        Pieces { tiles, tiles_per_group, panels, panels_per_piece }
    }

    /// Pieces of one group of tiles; they come one after another.
    pub(super) fn per_group(&self) -> usize {
        self.panels.div_ceil(self.panels_per_piece)
    }

    pub(super) fn count(&self) -> usize {
        self.tiles.len().div_ceil(self.tiles_per_group) * self.per_group()
    }

    /// Tiles and panels of one piece.
    pub(super) fn get(&self, piece: usize) -> (Range<usize>, Range<usize>) {
        let tile = self.tiles.start + piece / self.per_group() * self.tiles_per_group;
        let panel = piece % self.per_group() * self.panels_per_piece;
        let tiles = tile..self.tiles.end.min(tile + self.tiles_per_group);
        (tiles, panel..self.panels.min(panel + self.panels_per_piece))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::{Activation, CpuOptions, Device, Isa};

    proptest! {
        #[test]
        fn pieces_cover_every_tile_and_panel_once(
            tiles in 1..40usize, first in 0..9usize, tiles_per_group in 1..9usize,
            panels in 0..40usize, panels_per_piece in 1..9usize,
        ) {
            let pieces = Pieces { tiles: first..first + tiles, tiles_per_group, panels, panels_per_piece };
            let mut seen = vec![0; tiles * panels];
            for piece in 0..pieces.count() {
                let (tiles, panels_of) = pieces.get(piece);
                for tile in tiles {
                    panels_of.clone().for_each(|panel| seen[(tile - first) * panels + panel] += 1);
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }
    }

    /// Values whose sums round, from a small generator.
    fn values(len: usize, seed: usize) -> Vec<f32> {
        let mut state = seed as u64 * 2 + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn product(cpu: &Cpu, x: &[f32], weight: &PackedWeight, epilogue: Epilogue<&[f32]>) -> Vec<u32> {
        let mut queue = cpu.queue().unwrap();
        let mut out = vec![f32::NAN; x.len() / weight.in_features() * weight.out_features()];
        cpu.gemm(&mut queue, x, weight, epilogue, &mut out).unwrap();
        out.into_iter().map(f32::to_bits).collect()
    }

    fn cpus(threads: usize) -> impl Iterator<Item = Cpu> {
        let threads = NonZeroUsize::new(threads);
        Isa::available().map(move |isa| Cpu::new(CpuOptions { threads, isa: Some(isa) }).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// The rule of bits, against a twin that is the rule itself: one chain per value, then the epilogue.
        #[test]
        fn bits_depend_on_the_row_alone(
            rows in 1..=70usize, threads in 1..=4usize, n in 1..100usize, k in 1..200usize,
        ) {
            let (x, w) = (values(rows * k, 1), values(n * k, 2));
            let (bias, residual) = (values(n, 3), values(rows * n, 4));
            for cpu in cpus(threads) {
                let weight = cpu.pack(&w, n, k, DType::F32).unwrap();
                let fused = cpu.isa() != Isa::Portable || cfg!(target_arch = "aarch64");
                let together = product(&cpu, &x, &weight, Epilogue::BiasResidual { bias: &bias, residual: &residual });
                for (i, got) in together.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    let chain = (0..k).fold(0.0f32, |sum, j| {
                        let (x, w) = (x[row * k + j], w[column * k + j]);
                        if fused { x.mul_add(w, sum) } else { x * w + sum }
                    });
                    prop_assert_eq!(*got, (chain + bias[column] + residual[i]).to_bits());
                }
                let gelu = Epilogue::BiasAct(&bias[..], Activation::GeluErf);
                let together = product(&cpu, &x, &weight, gelu);
                for (x, together) in x.chunks_exact(k).zip(together.chunks_exact(n)) {
                    prop_assert_eq!(&product(&cpu, x, &weight, gelu)[..], together);
                }
            }
        }
    }

    #[test]
    fn slabs_and_groups_do_not_change_bits() {
        // more than one slab: 700 rows of 3072 values are 8.6 MB
        let (rows, n, k) = (700, 40, 3072);
        let (x, w) = (values(rows * k, 1), values(n * k, 2));
        for cpu in cpus(3) {
            let weight = cpu.pack(&w, n, k, DType::F32).unwrap();
            let together = product(&cpu, &x, &weight, Epilogue::None);
            for row in [0, 1, 13, 14, 340, 341, 342, 699] {
                let alone = product(&cpu, &x[row * k..][..k], &weight, Epilogue::None);
                assert_eq!(alone, together[row * n..][..n]);
            }
        }
    }

    #[test]
    fn an_empty_sum_is_the_epilogue() {
        for cpu in cpus(2) {
            let weight = cpu.pack(&[], 3, 0, DType::F32).unwrap();
            let mut out = [f32::NAN; 6];
            cpu.gemm(&mut cpu.queue().unwrap(), &[], &weight, Epilogue::Bias(&[1.0, 2.0, 3.0]), &mut out)
                .unwrap();
            assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        }
    }
}
