//! Operations on nothing: no rows, no sequences, sequences without tokens. A device that launches blocks must not
//! launch an empty grid.

use super::{
    experts,
    matmul::separate,
    rig::{Rig, compare},
};
use crate::{
    Activation, Attention, AttentionMask, BatchedMatMul, BiasAct, Columns, DType, Device, Embed, Epilogue,
    Experts, FeedForward, Gather, Gemm, HeadSizes, Hidden, KernelError, Layout, Norm, Pool, Pooling, Queries,
    RelativeBias, Rotary, Routing, Softmax,
    attention::AttentionShape,
    embed::Lookup,
    gather::HeadShape,
    matmul::{MatMulShape, Rhs},
    norm::NormWeights,
    softmax::ScoreShape,
};

/// Values of a row, where there is one.
const WIDTH: usize = 4;

/// Every kernel without rows.
///
/// # Panics
/// When a kernel refuses, or writes anything.
pub fn empty<D>(device: &D)
where
    D: Gemm + BatchedMatMul + Softmax + Norm + BiasAct + Embed + Attention + Gather + Pool + Rotary,
{
    element_wise(device);
    norms(device);
    scores(device);
    products(device);
    layouts(device);
}

/// Runs `kernel` on an output of `len` values, all of which become 0.
fn zeros<D: Device>(
    rig: &mut Rig<'_, D>,
    name: &str,
    len: usize,
    kernel: impl FnOnce(&D, &mut D::Queue, D::ViewMut<'_, D::Float>) -> Result<(), KernelError>,
) {
    let out = rig.answer(len, kernel).unwrap_or_else(|e| panic!("{name} of nothing: {e}"));
    compare::<D::Float>(name, &out, &vec![0.0; len], |_| 0.0);
}

fn element_wise<D: BiasAct>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, bias) = (rig.put(&[]), rig.put(&[1.0; WIDTH]));
    let act = Activation::GeluErf;
    zeros(&mut rig, "add_bias", 0, |d, q, out| d.add_bias(q, x.view(), bias.view(), out));
    zeros(&mut rig, "activate", 0, |d, q, out| d.activate(q, x.view(), act, out));
    zeros(&mut rig, "bias_activate", 0, |d, q, out| d.bias_activate(q, x.view(), bias.view(), act, out));
    zeros(&mut rig, "add", 0, |d, q, out| d.add(q, x.view(), x.view(), out));
    zeros(&mut rig, "mul", 0, |d, q, out| d.mul(q, x.view(), x.view(), out));
    zeros(&mut rig, "gate", 0, |d, q, out| d.gate(q, act, x.view(), WIDTH, out));
    zeros(&mut rig, "scale", 0, |d, q, out| d.scale(q, x.view(), 2.0, out));
    let routing = Routing { num_experts: 2, top_k: 1 };
    zeros(&mut rig, "weigh_experts", 0, |d, q, out| d.weigh_experts(q, x.view(), x.view(), routing, out));
}

fn norms<D: Norm + Embed + Pool>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, gain, no_ids) = (rig.put(&[]), rig.put(&[1.0; WIDTH]), rig.put_u32(&[]));
    let weights = || NormWeights { gain: gain.view(), offset: Some(gain.view()), epsilon: 1e-5 };
    let lookup = Lookup { table: gain.view(), ids: no_ids.view() };
    zeros(&mut rig, "layer_norm", 0, |d, q, out| d.layer_norm(q, x.view(), weights(), out));
    zeros(&mut rig, "bias_residual_layer_norm", 0, |d, q, out| {
        d.bias_residual_layer_norm(q, x.view(), Some(gain.view()), x.view(), weights(), out)
    });
    zeros(&mut rig, "rms_norm", 0, |d, q, out| d.rms_norm(q, x.view(), gain.view(), 1e-6, out));
    zeros(&mut rig, "head_rms_norm", 0, |d, q, out| {
        let heads = HeadSizes { num_heads: 2, head_dim: WIDTH };
        d.head_rms_norm(q, heads, Columns::all(x.view(), 2 * WIDTH), gain.view(), 1e-6, out)
    });
    zeros(&mut rig, "embed", 0, |d, q, out| d.embed(q, lookup, out));
    zeros(&mut rig, "embed_sum_layer_norm", 0, |d, q, out| {
        d.embed_sum_layer_norm(q, &[lookup; 2], weights(), out)
    });
    zeros(&mut rig, "l2_normalize", 0, |d, q, out| d.l2_normalize(q, WIDTH, x.view(), out));
}

fn scores<D: Softmax>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, table) = (rig.put(&[]), rig.put(&[1.0; 16]));
    let mask = AttentionMask::Causal;
    for (batch_size, queries, keys) in [(0, 3, 3), (2, 0, 3), (2, 3, 0)] {
        let shape = ScoreShape { batch_size, num_heads: 2, queries, keys };
        let lens = rig.put_u32(&vec![keys as u32; batch_size]);
        let bias = || RelativeBias::Buckets { table: table.view(), num_buckets: 8, max_distance: 16 };
        zeros(&mut rig, "scale_mask_softmax", 0, |d, q, out| {
            d.scale_mask_softmax(q, shape, x.view(), 0.5, Some(bias()), Some(lens.view()), mask, out)
        });
        zeros(&mut rig, "mask", 0, |d, q, out| d.mask(q, shape, x.view(), lens.view(), mask, out));
        zeros(&mut rig, "add_relative_bias", 0, |d, q, out| {
            d.add_relative_bias(q, shape, x.view(), bias(), out)
        });
    }
}

fn products<D: Gemm + BatchedMatMul + Gather>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, values) = (rig.put(&[]), rig.put(&[1.0; WIDTH]));
    let weight =
        device.pack(&[0.5; WIDTH * WIDTH], WIDTH, WIDTH, DType::F32).expect("the weight has its shape");
    let norm = || NormWeights { gain: values.view(), offset: None, epsilon: 1e-5 };
    zeros(&mut rig, "gemm", 0, |d, q, out| {
        let epilogue = Epilogue::BiasResidual { bias: values.view(), residual: x.view() };
        d.gemm(q, x.view(), &weight, epilogue, out)
    });
    zeros(&mut rig, "gemm_norm", 0, |d, q, out| {
        d.gemm_norm(q, x.view(), &weight, Some(values.view()), Some(x.view()), norm(), out)
    });
    zeros(&mut rig, "feed_forward", 0, |d, q, out| {
        let layer = FeedForward {
            up: &weight,
            up_bias: Some(values.view()),
            hidden: Hidden::Activation(Activation::Silu),
            down: &weight,
            down_bias: None,
            residual: Some(x.view()),
            norm: Some(norm()),
        };
        d.feed_forward(q, x.view(), layer, out)
    });
    let square = [0.5; WIDTH * WIDTH];
    let [up, down] = experts::pack(device, DType::F32, 2, (&square, WIDTH), (&square, WIDTH));
    zeros(&mut rig, "experts", 0, |d, q, out| {
        let routing = Routing { num_experts: 2, top_k: 1 };
        let layer = Experts { routing, up: &up, activation: Activation::Silu, down: &down };
        d.experts(q, x.view(), x.view(), layer, out)
    });
    let shape = MatMulShape { batch_size: 2, num_heads: 2, num_kv_heads: 2, m: 2, n: 2, k: 2 };
    for (name, shape, len) in [
        ("batched_matmul without sequences", MatMulShape { batch_size: 0, ..shape }, 0),
        ("batched_matmul without rows", MatMulShape { m: 0, ..shape }, 0),
        ("batched_matmul without columns", MatMulShape { n: 0, ..shape }, 0),
        ("batched_matmul without terms", MatMulShape { k: 0, ..shape }, 16),
    ] {
        let MatMulShape { m, n, k, .. } = shape;
        let of = rig.put(&[1.0; 16]);
        zeros(&mut rig, name, len, |d, q, out| {
            let a = (of.view(), separate(2, m, k));
            let b = (of.view(), separate(2, n, k), Rhs::Transposed);
            d.batched_matmul(q, shape, a, b, (out, separate(2, m, n)))
        });
    }
    for (name, batch_size, rows) in
        [("copy_heads without sequences", 0, 2), ("copy_heads without rows", 2, 0)]
    {
        let shape = HeadShape { batch_size, num_heads: 2, rows, head_dim: 2 };
        let at = separate(2, rows, 2);
        zeros(&mut rig, name, 0, |d, q, out| d.copy_heads(q, shape, (x.view(), at), (out, at)));
    }
}

/// Kernels on no sequences, or on sequences without tokens. Results with a row per sequence become 0.
fn layouts<D: Gemm + Attention + Pool + Rotary>(device: &D) {
    let mut rig = Rig::new(device);
    let x = rig.put(&[]);
    let weight =
        device.pack(&[0.5; WIDTH * WIDTH], WIDTH, WIDTH, DType::F32).expect("the weight has its shape");
    for batch_size in [0, 3] {
        let (sums, lens) = (rig.put_u32(&vec![0; batch_size + 1]), rig.put_u32(&vec![0; batch_size]));
        let table = rig.put(&[0.5; WIDTH]);
        let packed = Layout::Packed { cu_seqlens: sums.view() };
        let padded = Layout::Padded { seq_lens: lens.view(), padded_len: 0 };
        for layout in [packed, padded] {
            for pooling in Pooling::ALL {
                zeros(&mut rig, "pool", batch_size * WIDTH, |d, q, out| {
                    d.pool(q, pooling, layout, x.view(), out)
                });
            }
            zeros(&mut rig, "gemm_max_pool", batch_size * WIDTH, |d, q, out| {
                d.gemm_max_pool(q, layout, x.view(), &weight, Some(table.view()), out)
            });
            let heads = HeadSizes { num_heads: 1, head_dim: WIDTH };
            zeros(&mut rig, "rotary", 0, |d, q, out| {
                d.rotary(q, heads, layout, Columns::all(x.view(), WIDTH), table.view(), out)
            });
            for (queries, rows) in
                [(Queries::All, 0), (Queries::First, batch_size), (Queries::Last, batch_size)]
            {
                let shape = AttentionShape {
                    num_heads: 1,
                    num_kv_heads: 1,
                    head_dim: WIDTH,
                    scale: 0.5,
                    mask: AttentionMask::Full,
                    dtype: DType::F32,
                    queries,
                };
                let of_queries = rig.put(&vec![1.0; rows * WIDTH]);
                zeros(&mut rig, "attention", rows * WIDTH, |d, q, out| {
                    let all = |rows| Columns::all(rows, WIDTH);
                    let (k, v) = (all(x.view()), all(x.view()));
                    d.attention(q, shape, layout, all(of_queries.view()), k, v, None, out)
                });
            }
        }
    }
}
