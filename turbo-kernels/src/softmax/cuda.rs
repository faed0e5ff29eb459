//! Softmax on a GPU: rows in the registers of as many threads as their length needs.

use super::{ScoreShape, Softmax};
use crate::{
    AttentionMask, KernelError, RelativeBias,
    attention::relative::BiasArguments,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, Reduction, RowKernel, blocks, count, family,
        named, row_kernels, size, warp_to_a_row,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("softmax", "softmax.cu");

static CLASSIC: [RowKernel; 1] = row_kernels! { "softmax": "_classic", 1024, 1024, 1, 1024; };

/// Rows without biases; longer ones and those with biases go to `softmax_…_any`.
static IN_REGISTERS: [RowKernel; 13] = row_kernels! { "softmax":
    "_32", 32, 4, 2, 128;
    "_64", 64, 8, 2, 128;
    "_128", 128, 16, 2, 128;
    "_256_x1", 256, 32, 1, 128;
    "_256_x2", 256, 32, 2, 128;
    "_256_x4", 256, 32, 4, 128;
    "_512_x1", 512, 32, 1, 128;
    "_512_x2", 512, 32, 2, 128;
    "_512_x4", 512, 32, 4, 128;
    "_1024_x1", 1024, 32, 1, 128;
    "_1024_x2", 1024, 32, 2, 128;
    "_2048", 2048, 256, 1, 256;
    "_4096", 4096, 256, 1, 256;
};

impl<F: Float> Softmax for Cuda<F> {
    fn scale_mask_softmax(
        &self,
        queue: &mut CudaQueue,
        shape: ScoreShape,
        scores: CudaView<'_, F>,
        scale: f32,
        bias: Option<RelativeBias<CudaView<'_, F>>>,
        seq_lens: Option<CudaView<'_, u32>>,
        mask: AttentionMask,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "scale_mask_softmax";
        shape.check(NAME, &scores, bias, seq_lens, &out)?;
        let rows = Rows::of(NAME, shape)?;
        match RowKernel::choose(&IN_REGISTERS, shape.keys).filter(|_| bias.is_none()) {
            Some(kernel) => rows.softmax(queue, kernel, scores, scale, seq_lens, mask, out),
            None => rows.softmax_any(queue, scores, scale, bias, seq_lens, mask, out),
        }
    }

    fn mask(
        &self,
        queue: &mut CudaQueue,
        shape: ScoreShape,
        scores: CudaView<'_, F>,
        seq_lens: CudaView<'_, u32>,
        mask: AttentionMask,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        shape.check("mask", &scores, None, Some(seq_lens), &out)?;
        let rows = Rows::of("mask", shape)?;
        let [before, after] = mask.reaches();
        let args =
            (scores, rows.count, rows.num_heads, rows.queries, rows.keys, seq_lens, before, after, out);
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "mask") };
        // SAFETY: scores and out hold `rows`, and each sequence has a length.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(rows.count), args) }?)
    }

    fn add_relative_bias(
        &self,
        queue: &mut CudaQueue,
        shape: ScoreShape,
        scores: CudaView<'_, F>,
        bias: RelativeBias<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "add_relative_bias";
        shape.check(NAME, &scores, Some(bias), None::<CudaView<'_, u32>>, &out)?;
        let rows = Rows::of(NAME, shape)?;
        let BiasArguments { kind, table, of_keys, num_buckets, max_distance } = BiasArguments::of(Some(bias));
        let args = (
            scores,
            rows.count,
            rows.num_heads,
            rows.queries,
            rows.keys,
            kind,
            table,
            of_keys,
            num_buckets,
            max_distance,
            out,
        );
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "add_relative_bias") };
        // SAFETY: scores and out hold `rows`, and a table has a value for each bucket and head.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(rows.count), args) }?)
    }
}

impl<F: Float> Cuda<F> {
    /// `out = softmax(scores)` of rows of `columns`, reduced by `reduction`, to compare reductions.
    ///
    /// # Errors
    /// [`KernelError::Length`]; [`KernelError::Size`] for rows longer than such a reduction takes.
    pub fn softmax_by(
        &self,
        queue: &mut CudaQueue,
        reduction: Reduction,
        scores: CudaView<'_, F>,
        columns: usize,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "softmax_by";
        let count = KernelError::check_rows(NAME, "out", columns, out.len())?;
        let shape = ScoreShape { batch_size: count, num_heads: 1, queries: 1, keys: columns };
        shape.check(NAME, &scores, None, None::<CudaView<'_, u32>>, &out)?;
        let kernel = RowKernel::by(NAME, reduction, &IN_REGISTERS, &CLASSIC, columns)?;
        Rows::of(NAME, shape)?.softmax(queue, &kernel, scores, 1.0, None, AttentionMask::Full, out)
    }
}

/// The sizes of scores as kernels take them.
#[derive(Clone, Copy)]
struct Rows {
    /// Rows of all heads; 0 if they have no values.
    count: u32,
    num_heads: u32,
    queries: u32,
    keys: u32,
}

impl Rows {
    fn of(kernel: &'static str, shape: ScoreShape) -> Result<Self, KernelError> {
        let ScoreShape { batch_size, num_heads, queries, keys } = shape;
        let rows = if keys == 0 { 0 } else { batch_size.saturating_mul(num_heads).saturating_mul(queries) };
        Ok(Self {
            count: count(kernel, "rows", rows)?,
            num_heads: size(kernel, "num_heads", num_heads)?,
            queries: size(kernel, "queries", queries)?,
            keys: count(kernel, "keys", keys)?,
        })
    }

    /// Softmax by `kernel`, which takes rows of this length. All views were checked against the sizes.
    #[allow(clippy::too_many_arguments)]
    fn softmax<F: Float>(
        self,
        queue: &mut CudaQueue,
        kernel: &RowKernel,
        scores: CudaView<'_, F>,
        scale: f32,
        seq_lens: Option<CudaView<'_, u32>>,
        mask: AttentionMask,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let [before, after] = mask.reaches();
        let Self { count, num_heads, queries, keys } = self;
        let args = (scores, count, num_heads, queries, keys, seq_lens, before, after, scale, out);
        // SAFETY: the checked views hold `count` rows of `keys` values, and each sequence has a length.
        Ok(unsafe { queue.launch(kernel.kernel::<F>(&FAMILY), kernel.shape(count), args) }?)
    }

    /// Softmax of rows of any length, with biases if there are any. All views were checked against the sizes.
    #[allow(clippy::too_many_arguments)]
    fn softmax_any<F: Float>(
        self,
        queue: &mut CudaQueue,
        scores: CudaView<'_, F>,
        scale: f32,
        bias: Option<RelativeBias<CudaView<'_, F>>>,
        seq_lens: Option<CudaView<'_, u32>>,
        mask: AttentionMask,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let [before, after] = mask.reaches();
        let Self { count, num_heads, queries, keys } = self;
        let BiasArguments { kind, table, of_keys, num_buckets, max_distance } = BiasArguments::of(bias);
        let args = (
            scores,
            count,
            num_heads,
            queries,
            keys,
            seq_lens,
            before,
            after,
            scale,
            out,
            kind,
            table,
            of_keys,
            num_buckets,
            max_distance,
        );
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "softmax", "_any") };
        // SAFETY: as in `softmax`; the table, if there is one, has a value for each bucket and head.
        Ok(unsafe { queue.launch(kernel, blocks(count, 256), args) }?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use half::f16;

    use super::*;
    use crate::{
        cuda::{
            CudaOptions,
            emulator::{Emulator, Order},
            on_emulator::{all, answer, upload},
            on_every_emulator,
        },
        device::Device,
        suite::{self, aligned},
    };

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(check);
    }

    fn check<D: Softmax>(device: &D) {
        suite::softmax(device);
        aligned(|| suite::softmax(device));
    }

    #[test]
    fn wide_rows_agree_with_the_twin() {
        on_every_emulator!(check_wide);
    }

    fn check_wide<D: Softmax>(device: &D) {
        suite::softmax::wide_rows(device);
        aligned(|| suite::softmax::wide_rows(device));
    }

    /// Eight warps share the row, and each rounds the scale for its own greatest score.
    #[test]
    fn warps_of_a_row_meet_with_the_roundings_that_they_have() {
        let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
        let device = Cuda::<f16>::new(Arc::new(emulator), CudaOptions::default());
        let mut queue = device.queue().unwrap();
        const KEYS: usize = 2048;
        let (step, scale) = (2.0, 1.43_f32);
        for greatest in [4000.0, 4016.0, 4030.0] {
            let score = |key: usize| greatest - step * ((key / 256 * 5 + 3) % 3) as f32;
            let scores: Vec<f16> = (0..KEYS).map(|key| f16::from_f32(score(key))).collect();
            let on_device = upload(&device, &mut queue, &scores);
            let got = answer(&device, &mut queue, KEYS, |queue, out| {
                let shape = ScoreShape { batch_size: 1, num_heads: 1, queries: 1, keys: KEYS };
                let scores = all(&on_device, KEYS);
                let mask = AttentionMask::Full;
                device.scale_mask_softmax(queue, shape, scores, scale, None, None, mask, out).unwrap();
            });
            let weight = |key| (f64::from(scale) * f64::from(score(key) - greatest)).exp();
            let sum: f64 = (0..KEYS).map(weight).sum();
            for (key, got) in got.into_iter().enumerate() {
                let want = weight(key) / sum;
                // half the distance between two neighbouring f16 there
                let allowed = (want.log2().floor().max(-14.0) - 11.0).exp2() + 1e-5 * want;
                assert!(
                    (f64::from(got) - want).abs() <= allowed,
                    "{greatest}, key {key}: {got}, {want} ± {allowed}"
                );
            }
        }
    }

    #[test]
    fn all_reductions_agree() {
        on_every_emulator!(check_reductions);
    }

    /// Rows of every length class, with one row too many for a group. A row's bits do not depend on the rows that it is
    /// reduced with.
    fn check_reductions<F: Float>(device: &Cuda<F>) {
        const ROWS: usize = 33;
        let mut queue = device.queue().unwrap();
        for columns in [24, 40, 100, 250, 256, 300, 510, 777, 1000] {
            let len = ROWS * columns;
            let x: Vec<F> = (0..len).map(|i| F::from_f32((i * 7919 % 801) as f32 / 100.0 - 4.0)).collect();
            let x = upload(device, &mut queue, &x);
            let mut softmax = |reduction| {
                answer(device, &mut queue, len, |queue, out| {
                    device.softmax_by(queue, reduction, all(&x, len), columns, out).unwrap();
                })
            };
            let want = softmax(Reduction::Batched(1));
            for rows in [2, 4] {
                assert_eq!(softmax(Reduction::Batched(rows)), want, "{columns} columns, {rows} rows");
            }
            for (got, want) in softmax(Reduction::Classic).into_iter().zip(&want) {
                // sums in another order, and the rounding of what is stored on both sides
                let allowed = want * (2.0 * F::ROUNDING as f32 + 1e-5) + F::SMALLEST as f32;
                assert!((got - want).abs() <= allowed, "{columns} columns: {got}, {want}");
            }
        }
        let mut too_long = |reduction, columns| {
            let x = upload(device, &mut queue, &vec![F::default(); columns]);
            let mut out = upload(device, &mut queue, &vec![F::default(); columns]);
            let out = device.view_mut(&mut out, 0, columns).unwrap();
            device.softmax_by(&mut queue, reduction, all(&x, columns), columns, out).is_err()
        };
        assert!(too_long(Reduction::Classic, 1025) && too_long(Reduction::Batched(1), 4097));
    }
}
