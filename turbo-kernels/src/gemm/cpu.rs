//! The product on the CPU.
//!
//! ```text
//! rows ─ tiles of ≤ 14 (32), groups of tiles ─▶ (pack) ─▶ multiply: a group × a run of panels ─▶ normalise rows
//! ```
//!
//! A product is one step of the team: a [`Course`] says in which order pieces are claimed. A group of tiles stays in
//! the second-level cache while the panels of the weight stream past it. Where rows are so long that few of them fit
//! the cache, groups pass in blocks of `k`. Each value is one chain from the first to the last multiply-add, or of what
//! tile registers add up at once, so its bits depend neither on the other rows nor on the threads.
//!
//! # Floor
//! `2 · rows · out · in` operations at the FMA peak, and reading the packed weight once from memory; `benches/gemm.rs`
//! prints the share of both.

use super::{
    Epilogue, Gemm,
    blocks::Blocks,
    finish::Store,
    max_pool,
    packed_weight::PackedWeight,
    rows::{Cut, Groups, Panels, ProductRows},
    tile::Finish,
};
use crate::{
    DType, KernelError, Layout,
    device::{Course, Cpu, CpuQueue, Group, OneRoom, Piece, SharedMut, Stage},
    experts::{self, Experts},
    feed_forward::{self, FeedForward},
    norm::{NormGroup, NormWeights},
};

/// Stages, in their order.
const PACK: usize = 0;
const MULTIPLY: usize = 1;
const NORMALISE: usize = 2;

impl Gemm for Cpu {
    type Weight = PackedWeight;

    const EXPERTS_APART: bool = true;

    fn pack(
        &self,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        let place = (self.weights(), self.helpers());
        PackedWeight::new(self.supported_isa(), place, weight, [out_features, in_features], dtype)
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
        PackedWeight::restore(self.supported_isa(), self.weights(), image, [out_features, in_features], dtype)
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
        let rows = epilogue.check("gemm", features(weight), &x, &out)?;
        if rows == 0 {
            return Ok(());
        }
        let finish = Store::new(weight.out_features(), epilogue, 0, SharedMut::new(out));
        product(queue, x, rows, weight, finish, None)
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
        const NAME: &str = "gemm_norm";
        norm.fits(NAME, weight.out_features())?;
        let epilogue = Epilogue::sum(bias, residual);
        let rows = epilogue.check(NAME, features(weight), &x, &out)?;
        if rows == 0 {
            return Ok(());
        }
        let out = SharedMut::new(out);
        let finish = Store::new(weight.out_features(), epilogue, 0, out);
        let norm = NormGroup { isa: self.supported_isa(), weights: norm, out };
        product(queue, x, rows, weight, finish, Some(norm))
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

    fn experts(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        logits: &[f32],
        layer: Experts<'_, PackedWeight>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        experts::experts(self, queue, x, logits, &layer, out)
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

/// Packs `rows` rows, multiplies them, gives the products to `finish` and, once all columns of a group are there,
/// normalises its rows.
fn product(
    queue: &mut CpuQueue,
    x: &[f32],
    rows: usize,
    weight: &PackedWeight,
    finish: Store<'_>,
    norm: Option<NormGroup<'_>>,
) -> Result<(), KernelError> {
    let slots = ProductRows::slots(rows, weight, queue.threads());
    let row_words = ProductRows::alive_words(rows, weight, slots);
    let blocks = if finish.holds_sums() { weight.blocks() } else { Blocks::whole(weight.in_features()) };
    let block_words = weight.block_words(1, blocks.longest()) + weight.out_features();
    let (groups, blocks) =
        Groups::in_blocks(rows, weight.tile_rows(), row_words, (blocks, block_words), queue.threads());
    let in_blocks = blocks.count() > 1;
    let slots = if in_blocks { 1 } else { slots };
    let (team, words) = queue.team_and_shared(ProductRows::words(groups, blocks, weight, slots))?;
    let input = ProductRows::of(groups, blocks, weight, x, slots, SharedMut::new(words));
    let cut = Cut::new(groups, Panels::in_blocks(weight, blocks), team.threads());
    let norm_pieces = norm.map_or(0, |norm| norm.pieces(groups.most_rows()));
    let mut stages = [Stage::default(); 3];
    stages[PACK] = Stage::shared(input.pieces());
    stages[MULTIPLY] = cut.stage();
    stages[NORMALISE] = Stage::shared(norm_pieces);
    let one_room = match input.pieces() {
        // a block resumes the sums of the one before it
        0 => in_blocks.then_some(OneRoom { writer: MULTIPLY, last_reader: MULTIPLY }),
        // what is packed takes the place of what was packed before, once that has been multiplied
        _ => (slots == 1).then_some(OneRoom { writer: PACK, last_reader: MULTIPLY }),
    };
    let course = Course { one_room, ..Course::new(groups.tracks(), groups.count() * blocks.count(), stages) };
    course.run(team, |_, Piece { group, stage, index }| {
        let (group, block) = blocks.of_group(group);
        match stage {
            // SAFETY: a piece has its own rows, and the course runs it when those whose place they take are done.
            PACK => unsafe { input.pack(group, index, |row| &row_of(x, row, weight)[block.values()]) },
            // SAFETY: the course runs it once the group has been packed, if it has to be, and once the block before it
            // is done. A piece has its own panels or its own tiles, so nothing else uses these values of the output.
            MULTIPLY => unsafe { input.multiply((group, block), cut, index, finish) },
            _ if !block.is_last() => {}
            _ => {
                let norm = norm.expect("without a norm its stage has no pieces");
                // SAFETY: the course runs it when all columns of these rows are there, and no other piece has these rows.
                unsafe { norm.run(groups.rows(group), index) }
            }
        }
    });
    Ok(())
}

/// A `product` whose groups of rows are done one after another, so that `finish` sees the rows of a panel in order.
pub(super) fn product_in_order(
    queue: &mut CpuQueue,
    x: &[f32],
    rows: usize,
    weight: &PackedWeight,
    finish: impl Finish,
) -> Result<(), KernelError> {
    let groups = Groups::in_order(rows, weight, queue.threads());
    let blocks = Blocks::whole(weight.in_features());
    let (team, words) = queue.team_and_shared(ProductRows::words(groups, blocks, weight, 1))?;
    let input = ProductRows::of(groups, blocks, weight, x, 1, SharedMut::new(words));
    let cut = Cut::of_panels(groups, Panels::in_blocks(weight, blocks), team.threads());
    let mut stages = [Stage::default(); 2];
    stages[PACK] = Stage::shared(input.pieces());
    stages[MULTIPLY] = cut.stage();
    for number in 0..groups.count() {
        let group = Group { track: 0, number };
        Course::new(1, 1, stages).run(team, |_, Piece { stage, index, .. }| match stage {
            // SAFETY: a piece has its own rows, and the groups before are done.
            PACK => unsafe { input.pack(group, index, |row| row_of(x, row, weight)) },
            // SAFETY: the course runs it when the group is packed; a piece has its own panels.
            _ => unsafe { input.multiply((group, blocks.get(0)), cut, index, finish) },
        });
    }
    Ok(())
}

/// Results and inputs of a product with `weight`.
pub(crate) fn features(weight: &PackedWeight) -> [usize; 2] {
    [weight.out_features(), weight.in_features()]
}

/// Row `row` of `x`, an input of a product with `weight`.
pub(crate) fn row_of<'x>(x: &'x [f32], row: usize, weight: &PackedWeight) -> &'x [f32] {
    &x[row * weight.in_features()..][..weight.in_features()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Activation, Device, Isa,
        gemm::test_products::{cpus, product, values},
    };

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
                let fused = cpu.isa() != Isa::Portable || crate::simd::PORTABLE_IS_FUSED;
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
    fn groups_do_not_change_bits() {
        // several groups of rows: 700 rows of 3072 values, which are packed, are 8.6 MB, of 768, which are not, 2.2
        for (rows, n, k) in [(700, 40, 3072), (700, 40, 768)] {
            for cpu in cpus(3) {
                let weight = cpu.pack(&values(n * k, 2), n, k, DType::F32).unwrap();
                assert!(weight.takes_rows(rows) == (k == 768) || cpu.isa() == Isa::Portable);
                rows_do_not_change_bits(&cpu, &weight, rows, Epilogue::None);
            }
        }
    }

    #[test]
    fn blocks_do_not_change_bits() {
        // 3072 values are packed, 3088 lie well as they are, and 9000 of bf16 are as long; 33 results leave no room for sums
        let cases = [
            (DType::F32, 64, 3072, 2),
            (DType::F32, 64, 3088, 3),
            (DType::Bf16, 64, 9000, 3),
            (DType::Int8, 64, 9000, 1),
            (DType::F32, 33, 3072, 1),
        ];
        for (dtype, n, k, blocks) in cases {
            let rows = 300;
            let (bias, residual) = (values(n, 3), values(rows * n, 4));
            for cpu in cpus(2) {
                let weight = cpu.pack(&values(n * k, 2), n, k, dtype).unwrap();
                assert_eq!(weight.blocks().count(), blocks, "{dtype} {n} × {k}");
                for epilogue in
                    [Epilogue::None, Epilogue::BiasResidual { bias: &bias[..], residual: &residual }]
                {
                    rows_do_not_change_bits(&cpu, &weight, rows, epilogue);
                }
                rows_do_not_change_bits(&cpu, &weight, rows, Epilogue::Act(Activation::Relu));
            }
        }
    }

    /// Compares rows that are multiplied together with rows alone, which come in one group and one block.
    fn rows_do_not_change_bits(cpu: &Cpu, weight: &PackedWeight, rows: usize, epilogue: Epilogue<&[f32]>) {
        let (n, k) = (weight.out_features(), weight.in_features());
        let x = values(rows * k, 1);
        let together = product(cpu, &x, weight, epilogue);
        for row in [0, 1, 13, 14, rows / 2 - 1, rows / 2, rows - 1] {
            let epilogue = match epilogue {
                Epilogue::BiasResidual { bias, residual } => {
                    Epilogue::BiasResidual { bias, residual: &residual[row * n..][..n] }
                }
                epilogue => epilogue,
            };
            let alone = product(cpu, &x[row * k..][..k], weight, epilogue);
            assert!(alone == together[row * n..][..n], "{:?}: row {row} of {rows}", cpu.isa());
        }
    }

    #[test]
    fn weights_of_a_device_lie_one_behind_the_other() {
        let (n, k) = (256, 128); // 128 KiB in f32, no whole number of huge pages
        for cpu in cpus(1) {
            let weight = cpu.pack(&values(n * k, 1), n, k, DType::F32).unwrap();
            let image = weight.image().to_vec();
            let restored = cpu.restore(&image, n, k, DType::F32).unwrap();
            assert_eq!(weight.image().as_ptr_range().end, restored.image().as_ptr());
            drop(weight);
            assert_eq!(restored.image(), image);
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
