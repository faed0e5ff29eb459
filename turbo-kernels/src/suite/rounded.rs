//! A device that stores less than f32, to test the suite itself: the suite must pass a correct one, and fail one that
//! is a little off.

use std::{marker::PhantomData, num::NonZeroUsize};

use half::{bf16, f16};

use crate::{
    Activation, Attention, AttentionMask, BatchedMatMul, BiasAct, Columns, Cpu, CpuOptions, DType, Device,
    DeviceError, Element, Embed, Epilogue, Experts, FeedForward, Float, Gather, Gemm, HeadSizes, Hidden,
    KernelError, Layout, Norm, Pool, Pooling, RelativeBias, Rotary, Routing, Softmax, Span,
    attention::AttentionShape,
    device::{CpuBlock, CpuQueue, split},
    embed::Lookup,
    gather::HeadShape,
    gemm::PackedWeight,
    matmul::{HeadStrides, MatMulShape, Rhs},
    norm::NormWeights,
    softmax::ScoreShape,
};

/// The CPU with memory of `F`s: a kernel widens its inputs to f32, and each result is rounded once. This device stores
/// everything that a device may store in between: before an activation, a gate, a second product or a norm, and also
/// before the bias of a product that has an activation or a residual.
#[derive(Clone)]
pub(super) struct Rounded<F> {
    cpu: Cpu,
    units_off: u8,
    float: PhantomData<F>,
}

impl<F: Float> Rounded<F> {
    pub(super) fn new() -> Self {
        Self::off_by(0)
    }

    /// A device on which the greatest value of every answer is `units` units in the last place too great.
    fn off_by(units: u8) -> Self {
        let options = CpuOptions { threads: NonZeroUsize::new(1), isa: None };
        let cpu = Cpu::new(options).expect("the instruction set is the machine's");
        Self { cpu, units_off: units, float: PhantomData }
    }

    /// The result of `kernel` in `out`, rounded.
    fn answer(
        &self,
        out: &mut [F],
        kernel: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut wide = widen(out);
        kernel(&mut wide)?;
        out.iter_mut().zip(&wide).for_each(|(out, v)| *out = F::from_f32(*v));
        let finite = out.iter_mut().filter(|v| v.to_f32().is_finite());
        if let Some(most) = finite.max_by(|a, b| a.to_f32().abs().total_cmp(&b.to_f32().abs())) {
            let value = most.to_f32();
            let power_of_two = f32::from_bits(value.to_bits() & f32::INFINITY.to_bits());
            let unit = power_of_two * 2.0 * F::ROUNDING as f32;
            *most = F::from_f32(value + (f32::from(self.units_off) * unit).copysign(value));
        }
        Ok(())
    }
}

fn widen<F: Float>(values: &[F]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

/// `columns` of widened rows.
fn columns<'a, F>(rows: &'a [f32], columns: Columns<&[F]>) -> Columns<&'a [f32]> {
    Columns { rows, first: columns.first, row_stride: columns.row_stride }
}

fn with_norm<F: Float, T>(
    NormWeights { gain, offset, epsilon }: NormWeights<&[F]>,
    work: impl FnOnce(NormWeights<&[f32]>) -> T,
) -> T {
    let (gain, offset) = (widen(gain), offset.map(widen));
    work(NormWeights { gain: &gain, offset: offset.as_deref(), epsilon })
}

fn with_bias<F: Float, T>(
    bias: Option<RelativeBias<&[F]>>,
    work: impl FnOnce(Option<RelativeBias<&[f32]>>) -> T,
) -> T {
    let tables = match bias {
        Some(RelativeBias::Buckets { table, .. }) => [widen(table), Vec::new()],
        Some(RelativeBias::Disentangled { of_queries, of_keys, .. }) => [of_queries, of_keys].map(widen),
        Some(RelativeBias::Alibi) | None => Default::default(),
    };
    work(bias.map(|bias| bias.with_tables(tables.each_ref().map(|table| &table[..]))))
}

impl<F: Float> Device for Rounded<F> {
    type Recording = std::convert::Infallible;
    type Landing = std::convert::Infallible;
    type Float = F;
    type Block = CpuBlock;
    type Queue = CpuQueue;
    type View<'a, T: Element> = &'a [T];
    type ViewMut<'a, T: Element> = &'a mut [T];

    fn name(&self) -> String {
        format!("{}, {}", self.cpu.name(), F::NAME)
    }

    fn queue(&self) -> Result<CpuQueue, DeviceError> {
        self.cpu.queue()
    }

    fn allocate(&self, bytes: usize) -> Result<CpuBlock, DeviceError> {
        self.cpu.allocate(bytes)
    }

    fn view<'a, T: Element>(
        &self,
        block: &'a CpuBlock,
        offset: usize,
        len: usize,
    ) -> Result<&'a [T], DeviceError> {
        self.cpu.view(block, offset, len)
    }

    fn view_mut<'a, T: Element>(
        &self,
        block: &'a mut CpuBlock,
        offset: usize,
        len: usize,
    ) -> Result<&'a mut [T], DeviceError> {
        self.cpu.view_mut(block, offset, len)
    }

    fn views<'a, const R: usize, const W: usize>(
        &self,
        blocks: &'a mut [CpuBlock],
        reads: [Span; R],
        writes: [Span; W],
    ) -> Result<([&'a [F]; R], [&'a mut [F]; W]), DeviceError> {
        split(blocks, reads, writes)
    }

    fn upload<T: Element>(&self, queue: &mut CpuQueue, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        self.cpu.upload(queue, from, to)
    }

    fn download<T: Element>(
        &self,
        queue: &mut CpuQueue,
        from: &[T],
        to: &mut [T],
    ) -> Result<(), DeviceError> {
        self.cpu.download(queue, from, to)
    }
}

impl<F: Float> Gemm for Rounded<F> {
    type Weight = PackedWeight;

    const EXPERTS_APART: bool = false;

    fn pack(
        &self,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        self.cpu.pack(weight, out_features, in_features, dtype)
    }

    fn image<'w>(&self, weight: &'w PackedWeight) -> Option<&'w [u8]> {
        self.cpu.image(weight)
    }

    fn restore(
        &self,
        image: &[u8],
        out_features: usize,
        in_features: usize,
        dtype: DType,
    ) -> Result<PackedWeight, KernelError> {
        self.cpu.restore(image, out_features, in_features, dtype)
    }

    fn packing(&self, dtype: DType) -> String {
        self.cpu.packing(dtype)
    }

    fn gemm(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        weight: &PackedWeight,
        epilogue: Epilogue<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let (bias, activation, residual) = epilogue.parts();
        let (x, residual) = (widen(x), residual.map(widen));
        // also where steps follow: it refuses everything that no product takes
        let wide_bias = bias.map(widen);
        let sum = Epilogue::sum(wide_bias.as_deref(), residual.as_deref());
        self.answer(out, |out| self.cpu.gemm(queue, &x, weight, sum, out))?;
        if activation.is_none() && residual.is_none() {
            return Ok(());
        }
        let first = Epilogue::sum(None, residual.as_deref());
        self.answer(out, |out| self.cpu.gemm(queue, &x, weight, first, out))?;
        if let Some(bias) = bias {
            let sums = out.to_vec();
            self.add_bias(queue, &sums, bias, out)?;
        }
        if let Some(activation) = activation {
            let sums = out.to_vec();
            self.activate(queue, &sums, activation, out)?;
        }
        Ok(())
    }

    fn gemm_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        weight: &PackedWeight,
        bias: Option<&[F]>,
        residual: Option<&[F]>,
        norm: NormWeights<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let mut sums = out.to_vec();
        self.gemm(queue, x, weight, Epilogue::sum(bias, residual), &mut sums)?;
        self.layer_norm(queue, &sums, norm, out)
    }

    fn feed_forward(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        layer: FeedForward<'_, PackedWeight, &[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let features = [layer.up, layer.down].map(|weight| [weight.out_features(), weight.in_features()]);
        let rows = layer.check(features, &x, &out)?;
        let FeedForward { up, up_bias, hidden, down, down_bias, residual, norm } = layer;
        let wide = down.in_features();
        let mut middle = vec![F::default(); rows * wide];
        match hidden {
            Hidden::Activation(activation) => {
                let first = up_bias.map_or(Epilogue::Act(activation), |b| Epilogue::BiasAct(b, activation));
                self.gemm(queue, x, up, first, &mut middle)?;
            }
            Hidden::Gate(activation) => {
                let mut both = vec![F::default(); rows * 2 * wide];
                self.gemm(queue, x, up, Epilogue::sum(up_bias, None), &mut both)?;
                self.gate(queue, activation, &both, wide, &mut middle)?;
            }
        }
        match norm {
            Some(norm) => self.gemm_norm(queue, &middle, down, down_bias, residual, norm, out),
            None => self.gemm(queue, &middle, down, Epilogue::sum(down_bias, residual), out),
        }
    }

    fn experts(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        logits: &[F],
        layer: Experts<'_, PackedWeight>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let features = |weight: &PackedWeight| [weight.out_features(), weight.in_features()];
        let rows = layer.check(1, features, &x, &logits, &out)?;
        let Experts { routing, up, activation, down } = layer;
        let mut activated = vec![F::default(); rows * up[0].out_features()];
        self.gemm(queue, x, &up[0], Epilogue::Act(activation), &mut activated)?;
        let mut weighted = activated.clone();
        self.weigh_experts(queue, &activated, logits, routing, &mut weighted)?;
        self.gemm(queue, &weighted, &down[0], Epilogue::None, out)
    }

    fn gemm_max_pool(
        &self,
        queue: &mut CpuQueue,
        layout: Layout<&[u32]>,
        x: &[F],
        weight: &PackedWeight,
        bias: Option<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let bias = bias.map(widen);
        self.answer(out, |out| self.cpu.gemm_max_pool(queue, layout, &widen(x), weight, bias.as_deref(), out))
    }
}

impl<F: Float> BatchedMatMul for Rounded<F> {
    fn batched_matmul(
        &self,
        queue: &mut CpuQueue,
        shape: MatMulShape,
        (a, a_at): (&[F], HeadStrides),
        (b, b_at, rhs): (&[F], HeadStrides, Rhs),
        (out, out_at): (&mut [F], HeadStrides),
    ) -> Result<(), KernelError> {
        self.answer(out, |out| {
            self.cpu.batched_matmul(queue, shape, (&widen(a), a_at), (&widen(b), b_at, rhs), (out, out_at))
        })
    }
}

impl<F: Float> Softmax for Rounded<F> {
    fn scale_mask_softmax(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[F],
        scale: f32,
        bias: Option<RelativeBias<&[F]>>,
        seq_lens: Option<&[u32]>,
        mask: AttentionMask,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        with_bias(bias, |bias| {
            self.answer(out, |out| {
                self.cpu.scale_mask_softmax(queue, shape, &widen(scores), scale, bias, seq_lens, mask, out)
            })
        })
    }

    fn mask(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[F],
        seq_lens: &[u32],
        mask: AttentionMask,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.mask(queue, shape, &widen(scores), seq_lens, mask, out))
    }

    fn add_relative_bias(
        &self,
        queue: &mut CpuQueue,
        shape: ScoreShape,
        scores: &[F],
        bias: RelativeBias<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        with_bias(Some(bias), |bias| {
            let bias = bias.expect("it was given");
            self.answer(out, |out| self.cpu.add_relative_bias(queue, shape, &widen(scores), bias, out))
        })
    }
}

impl<F: Float> Norm for Rounded<F> {
    fn layer_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        weights: NormWeights<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        with_norm(weights, |weights| {
            self.answer(out, |out| self.cpu.layer_norm(queue, &widen(x), weights, out))
        })
    }

    fn bias_residual_layer_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        bias: Option<&[F]>,
        residual: &[F],
        weights: NormWeights<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let (x, bias, residual) = (widen(x), bias.map(widen), widen(residual));
        with_norm(weights, |weights| {
            self.answer(out, |out| {
                self.cpu.bias_residual_layer_norm(queue, &x, bias.as_deref(), &residual, weights, out)
            })
        })
    }

    fn rms_norm(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        gain: &[F],
        epsilon: f32,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.rms_norm(queue, &widen(x), &widen(gain), epsilon, out))
    }

    fn head_rms_norm(
        &self,
        queue: &mut CpuQueue,
        heads: HeadSizes,
        x: Columns<&[F]>,
        gain: &[F],
        epsilon: f32,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| {
            let rows = widen(x.rows);
            self.cpu.head_rms_norm(queue, heads, columns(&rows, x), &widen(gain), epsilon, out)
        })
    }
}

impl<F: Float> BiasAct for Rounded<F> {
    fn add_bias(&self, queue: &mut CpuQueue, x: &[F], bias: &[F], out: &mut [F]) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.add_bias(queue, &widen(x), &widen(bias), out))
    }

    fn activate(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        activation: Activation,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.activate(queue, &widen(x), activation, out))
    }

    fn bias_activate(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        bias: &[F],
        activation: Activation,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.bias_activate(queue, &widen(x), &widen(bias), activation, out))
    }

    fn add(&self, queue: &mut CpuQueue, a: &[F], b: &[F], out: &mut [F]) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.add(queue, &widen(a), &widen(b), out))
    }

    fn mul(&self, queue: &mut CpuQueue, a: &[F], b: &[F], out: &mut [F]) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.mul(queue, &widen(a), &widen(b), out))
    }

    fn gate(
        &self,
        queue: &mut CpuQueue,
        activation: Activation,
        x: &[F],
        n: usize,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.gate(queue, activation, &widen(x), n, out))
    }

    fn scale(&self, queue: &mut CpuQueue, x: &[F], factor: f32, out: &mut [F]) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.scale(queue, &widen(x), factor, out))
    }

    fn weigh_experts(
        &self,
        queue: &mut CpuQueue,
        x: &[F],
        logits: &[F],
        routing: Routing,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.weigh_experts(queue, &widen(x), &widen(logits), routing, out))
    }
}

impl<F: Float> Embed for Rounded<F> {
    fn embed(
        &self,
        queue: &mut CpuQueue,
        lookup: Lookup<&[F], &[u32]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let table = widen(lookup.table);
        self.answer(out, |out| self.cpu.embed(queue, Lookup { table: &table, ids: lookup.ids }, out))
    }

    fn embed_sum_layer_norm(
        &self,
        queue: &mut CpuQueue,
        lookups: &[Lookup<&[F], &[u32]>],
        weights: NormWeights<&[F]>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let tables: Vec<_> = lookups.iter().map(|lookup| widen(lookup.table)).collect();
        let lookups: Vec<_> = lookups
            .iter()
            .zip(&tables)
            .map(|(of, table)| Lookup { table: &table[..], ids: of.ids })
            .collect();
        with_norm(weights, |weights| {
            self.answer(out, |out| self.cpu.embed_sum_layer_norm(queue, &lookups, weights, out))
        })
    }
}

impl<F: Float> Attention for Rounded<F> {
    fn attention(
        &self,
        queue: &mut CpuQueue,
        shape: AttentionShape,
        layout: Layout<&[u32]>,
        q: Columns<&[F]>,
        k: Columns<&[F]>,
        v: Columns<&[F]>,
        bias: Option<RelativeBias<&[F]>>,
        out: &mut [F],
    ) -> Result<(), KernelError> {
        let rows = [q, k, v].map(|part| widen(part.rows));
        let [q, k, v] = [(q, &rows[0]), (k, &rows[1]), (v, &rows[2])].map(|(part, rows)| columns(rows, part));
        with_bias(bias, |bias| {
            self.answer(out, |out| self.cpu.attention(queue, shape, layout, q, k, v, bias, out))
        })
    }
}

impl<F: Float> Gather for Rounded<F> {
    fn copy_heads(
        &self,
        queue: &mut CpuQueue,
        shape: HeadShape,
        (from, from_at): (&[F], HeadStrides),
        (to, to_at): (&mut [F], HeadStrides),
    ) -> Result<(), KernelError> {
        self.answer(to, |to| self.cpu.copy_heads(queue, shape, (&widen(from), from_at), (to, to_at)))
    }
}

impl<F: Float> Pool for Rounded<F> {
    fn pool(
        &self,
        queue: &mut CpuQueue,
        pooling: Pooling,
        layout: Layout<&[u32]>,
        x: &[F],
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.pool(queue, pooling, layout, &widen(x), out))
    }

    fn l2_normalize(
        &self,
        queue: &mut CpuQueue,
        hidden_size: usize,
        x: &[F],
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| self.cpu.l2_normalize(queue, hidden_size, &widen(x), out))
    }
}

impl<F: Float> Rotary for Rounded<F> {
    fn rotary(
        &self,
        queue: &mut CpuQueue,
        heads: HeadSizes,
        layout: Layout<&[u32]>,
        x: Columns<&[F]>,
        table: &[F],
        out: &mut [F],
    ) -> Result<(), KernelError> {
        self.answer(out, |out| {
            let rows = widen(x.rows);
            self.cpu.rotary(queue, heads, layout, columns(&rows, x), &widen(table), out)
        })
    }
}

#[test]
fn the_suite_holds_for_f16() {
    let device = Rounded::<f16>::new();
    super::all(&device);
    super::wide_rows(&device);
    super::indices(&device);
}

#[test]
fn the_suite_holds_for_bf16() {
    let device = Rounded::<bf16>::new();
    super::all(&device);
    super::wide_rows(&device);
    super::indices(&device);
}

/// Checks that a family fails when the greatest value of each answer is so many units in the last place off.
macro_rules! finds {
    ($($family:ident: $units:literal),* $(,)?) => {
        mod finds_in_f16 {
            $(#[test]
            #[should_panic]
            fn $family() {
                super::super::$family(&super::Rounded::<half::f16>::off_by($units));
            })*
        }
        mod finds_in_bf16 {
            $(#[test]
            #[should_panic]
            fn $family() {
                super::super::$family(&super::Rounded::<half::bf16>::off_by($units));
            })*
        }
    };
}

// One unit where every bit is known, two where a result is rounded once: the value before rounding may lie half a unit
// to the other side. More where an intermediate result is stored: weights of keys, the results of a first product.
finds! {
    bias_act: 1,
    embed: 1,
    gather: 1,
    pool: 1,
    gemm: 2,
    matmul: 2,
    max_pool: 2,
    norm: 2,
    rotary: 2,
    softmax: 2,
    wide_rows: 2,
    attention: 4,
    feed_forward: 4,
    experts: 4,
}
