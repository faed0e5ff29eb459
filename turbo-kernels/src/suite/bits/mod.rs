//! The bits of a row: the same alone as in a batch, whatever lies beside it.
//!
//! For devices that promise this, as the CPU does. Each kernel runs on a batch and on parts of it; the parts must give
//! the same bits as in the batch. The caller compares different numbers of threads: [`answers`] returns everything that
//! was computed.

use std::ops::Range;

mod chains;
mod sequences;

pub use chains::chains;

use super::{
    experts,
    matmul::{element, interleaved, separate},
    numbers::Numbers,
    rig::{Placed, Rig},
};
use crate::{
    Activation, AttentionMask, Columns, DType, Device, EncoderKernels, Epilogue, Experts, FeedForward,
    HeadSizes, Hidden, KernelError, Routing,
    embed::Lookup,
    matmul::{HeadStrides, MatMulShape, Rhs},
    norm::NormWeights,
    softmax::ScoreShape,
};

/// Values of a row: two vectors and a tail on every instruction set.
const WIDTH: usize = 37;
/// Values of a head, two of which fit a row.
const HEAD_DIM: usize = 18;
/// Rows of a batch: more than a tile of any kernel, and no multiple of one.
const ROWS: usize = 61;
/// Rows of the parts: one, and enough to fill tiles differently from the batch.
const PARTS: [usize; 5] = [1, 2, 3, 13, 40];
/// Runs every kernel on a batch and on its parts; returns the values of the batches.
///
/// # Panics
/// When a part has different bits from those in its batch.
pub fn answers<D: EncoderKernels<Float = f32>>(device: &D) -> Vec<(&'static str, Vec<f32>)> {
    let mut rig = Rig::new(device);
    let mut answers = element_wise(&mut rig);
    answers.extend(normed(&mut rig));
    answers.extend(products(&mut rig));
    answers.extend(sequences::sequences(&mut rig));
    answers.push(batched_products(&mut rig));
    answers.push(masked(&mut rig));
    answers
}

/// Compares every bit, but treats all NaNs as equal.
///
/// # Panics
/// When a value differs.
pub fn assert_same(kernel: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{kernel}: length");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    if let Some(i) = got.iter().zip(want).position(differs) {
        panic!("{kernel}: value {i} has the bits of {:e}, expected those of {:e}", got[i], want[i]);
    }
}

/// A kernel on `ROWS` rows of `width` values and on parts of them.
fn each_part<D: Device<Float = f32>>(
    rig: &mut Rig<'_, D>,
    name: &'static str,
    width: usize,
    kernel: impl Fn(&D, &mut D::Queue, Range<usize>, D::ViewMut<'_, f32>) -> Result<(), KernelError>,
) -> (&'static str, Vec<f32>) {
    let mut run = |rows: Range<usize>| {
        rig.answer(rows.len() * width, |d, queue, out| kernel(d, queue, rows, out))
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let batch = run(0..ROWS);
    for part in PARTS {
        for first in (0..=ROWS - part).step_by(part) {
            let rows = first..first + part;
            assert_same(name, &run(rows.clone()), &batch[rows.start * width..rows.end * width]);
        }
    }
    (name, batch)
}

/// Rows of `width` values on the device.
fn part<D: Device<Float = f32>>(of: &Placed<D, f32>, width: usize, rows: Range<usize>) -> D::View<'_, f32> {
    of.part(rows.start * width, rows.len() * width)
}

fn element_wise<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> Vec<(&'static str, Vec<f32>)> {
    let x = rig.put(&Numbers::<f32>::new(1).around(0.0, 6.0, ROWS * WIDTH));
    let bias = rig.put(&Numbers::<f32>::new(2).values(WIDTH));
    let names = ["gelu (erf)", "gelu (tanh)", "relu", "silu", "tanh", "sigmoid", "ln(1 + relu)"];
    let mut answers = Vec::new();
    for (name, activation) in names.into_iter().zip(Activation::ALL) {
        answers.push(each_part(rig, name, WIDTH, |d, q, rows, out| {
            d.activate(q, part(&x, WIDTH, rows), activation, out)
        }));
    }
    let halves = rig.put(&Numbers::<f32>::new(8).values(ROWS * 2 * WIDTH));
    answers.push(each_part(rig, "gate", WIDTH, |d, q, rows, out| {
        d.gate(q, Activation::GeluErf, part(&halves, 2 * WIDTH, rows), WIDTH, out)
    }));
    let logits = rig.put(&Numbers::<f32>::new(9).around(0.0, 4.0, ROWS * 4));
    let routing = Routing { num_experts: 4, top_k: 2 };
    let hidden = rig.put(&Numbers::<f32>::new(10).values(ROWS * 4 * WIDTH));
    answers.push(each_part(rig, "weigh_experts", 4 * WIDTH, |d, q, rows, out| {
        let x = part(&hidden, 4 * WIDTH, rows.clone());
        d.weigh_experts(q, x, part(&logits, 4, rows), routing, out)
    }));
    answers.push(each_part(rig, "mul", WIDTH, |d, q, rows, out| {
        d.mul(q, part(&x, WIDTH, rows.clone()), part(&x, WIDTH, rows), out)
    }));
    answers.push(each_part(rig, "add_bias", WIDTH, |d, q, rows, out| {
        d.add_bias(q, part(&x, WIDTH, rows), bias.view(), out)
    }));
    answers
}

fn normed<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> [(&'static str, Vec<f32>); 7] {
    let mut numbers = Numbers::<f32>::new(3);
    let [x, residual, table] = [0; 3].map(|_| rig.put(&numbers.values(ROWS * WIDTH)));
    let [bias, gain, offset] = [0; 3].map(|_| rig.put(&numbers.values(WIDTH)));
    let ids = rig.put_u32(&numbers.indices(ROWS, ROWS));
    let weights = || NormWeights { gain: gain.view(), offset: Some(offset.view()), epsilon: 1e-12 };
    [
        each_part(rig, "layer_norm", WIDTH, |d, q, rows, out| {
            d.layer_norm(q, part(&x, WIDTH, rows), weights(), out)
        }),
        each_part(rig, "bias_residual_layer_norm", WIDTH, |d, q, rows, out| {
            let (x, residual) = (part(&x, WIDTH, rows.clone()), part(&residual, WIDTH, rows));
            d.bias_residual_layer_norm(q, x, Some(bias.view()), residual, weights(), out)
        }),
        each_part(rig, "residual_layer_norm, no bias, no offset", WIDTH, |d, q, rows, out| {
            let (x, residual) = (part(&x, WIDTH, rows.clone()), part(&residual, WIDTH, rows));
            let weights = NormWeights { gain: gain.view(), offset: None, epsilon: 1e-5 };
            d.bias_residual_layer_norm(q, x, None, residual, weights, out)
        }),
        each_part(rig, "rms_norm", WIDTH, |d, q, rows, out| {
            d.rms_norm(q, part(&x, WIDTH, rows), gain.view(), 1e-6, out)
        }),
        each_part(rig, "head_rms_norm", 2 * HEAD_DIM, |d, q, rows, out| {
            let heads = HeadSizes { num_heads: 2, head_dim: HEAD_DIM };
            let x = Columns { rows: part(&x, WIDTH, rows), first: 1, row_stride: WIDTH };
            d.head_rms_norm(q, heads, x, gain.part(0, HEAD_DIM), 1e-6, out)
        }),
        each_part(rig, "embed_sum_layer_norm", WIDTH, |d, q, rows, out| {
            let lookup = Lookup { table: table.view(), ids: ids.part(rows.start, rows.len()) };
            d.embed_sum_layer_norm(q, &[lookup; 3], weights(), out)
        }),
        each_part(rig, "l2_normalize", WIDTH, |d, q, rows, out| {
            d.l2_normalize(q, WIDTH, part(&x, WIDTH, rows), out)
        }),
    ]
}

fn products<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> [(&'static str, Vec<f32>); 6] {
    const OUT: usize = 101;
    const IN: usize = 130;
    let mut numbers = Numbers::<f32>::new(4);
    let packed =
        rig.device().pack(&numbers.values(OUT * IN), OUT, IN, DType::F32).expect("the weight has its shape");
    let x = rig.put(&numbers.values(ROWS * IN));
    let (bias, residual) = (rig.put(&numbers.values(OUT)), rig.put(&numbers.values(ROWS * OUT)));
    let down =
        rig.device().pack(&numbers.values(IN * OUT), IN, OUT, DType::F32).expect("the weight has its shape");
    let routing = Routing { num_experts: 5, top_k: 2 };
    let logits = rig.put(&numbers.around(0.0, 4.0, ROWS * 5));
    let (ups, downs) = (numbers.values(5 * WIDTH * IN), numbers.values(OUT * 5 * WIDTH));
    let [ups, downs] = experts::pack(rig.device(), DType::F32, 5, (&ups, IN), (&downs, OUT));
    [
        each_part(rig, "experts", OUT, |d, q, rows, out| {
            let layer = Experts { routing, up: &ups, activation: Activation::GeluErf, down: &downs };
            d.experts(q, part(&x, IN, rows.clone()), part(&logits, 5, rows), layer, out)
        }),
        each_part(rig, "gemm, bias, norm", OUT, |d, q, rows, out| {
            let norm = NormWeights { gain: bias.view(), offset: Some(bias.view()), epsilon: 1e-12 };
            let residual = part(&residual, OUT, rows.clone());
            d.gemm_norm(q, part(&x, IN, rows), &packed, Some(bias.view()), Some(residual), norm, out)
        }),
        each_part(rig, "feed_forward", IN, |d, q, rows, out| {
            let x = part(&x, IN, rows);
            let layer = FeedForward {
                up: &packed,
                up_bias: Some(bias.view()),
                hidden: Hidden::Activation(Activation::GeluErf),
                down: &down,
                down_bias: None,
                residual: Some(x),
                norm: None,
            };
            d.feed_forward(q, x, layer, out)
        }),
        each_part(rig, "gemm", OUT, |d, q, rows, out| {
            d.gemm(q, part(&x, IN, rows), &packed, Epilogue::None, out)
        }),
        each_part(rig, "gemm, bias, gelu", OUT, |d, q, rows, out| {
            let epilogue = Epilogue::BiasAct(bias.view(), Activation::GeluErf);
            d.gemm(q, part(&x, IN, rows), &packed, epilogue, out)
        }),
        each_part(rig, "gemm, bias, residual", OUT, |d, q, rows, out| {
            let residual = part(&residual, OUT, rows.clone());
            let epilogue = Epilogue::BiasResidual { bias: bias.view(), residual };
            d.gemm(q, part(&x, IN, rows), &packed, epilogue, out)
        }),
    ]
}

/// Unfused scores: each row of each sequence alone.
fn batched_products<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> (&'static str, Vec<f32>) {
    let shape = MatMulShape { batch_size: 3, num_heads: 2, num_kv_heads: 2, m: 19, n: WIDTH, k: 21 };
    let MatMulShape { batch_size, num_heads, m, n, k, .. } = shape;
    let mut numbers = Numbers::<f32>::new(5);
    let a = rig.put(&numbers.values(batch_size * num_heads * m * k));
    let b = rig.put(&numbers.values(batch_size * num_heads * n * k));
    let (a_at, b_at) = (interleaved(0, num_heads, m, k), interleaved(0, num_heads, n, k));
    let out_at = separate(num_heads, m, n);
    let mut run = |shape: MatMulShape, a_first, b_first| {
        let at = |strides, first| HeadStrides { first, ..strides };
        let out_at = separate(shape.num_heads, shape.m, shape.n);
        rig.answer(shape.batch_size * shape.num_heads * shape.m * shape.n, |d, q, out| {
            let (a, b) = ((a.view(), at(a_at, a_first)), (b.view(), at(b_at, b_first), Rhs::Transposed));
            d.batched_matmul(q, shape, a, b, (out, out_at))
        })
        .unwrap_or_else(|e| panic!("batched_matmul: {e}"))
    };
    let batch = run(shape, 0, 0);
    let alone = MatMulShape { batch_size: 1, num_heads: 1, num_kv_heads: 1, m: 1, n, k };
    for sequence in 0..batch_size {
        for head in 0..num_heads {
            for row in 0..m {
                let got =
                    run(alone, element(a_at, sequence, head, row, 0), element(b_at, sequence, head, 0, 0));
                let first = element(out_at, sequence, head, row, 0);
                assert_same("batched_matmul", &got, &batch[first..first + n]);
            }
        }
    }
    ("batched_matmul", batch)
}

/// A masked row is the row of its visible keys alone, with zeros behind it.
fn masked<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> (&'static str, Vec<f32>) {
    let lens = [WIDTH as u32, 1, 18];
    let shape = ScoreShape { batch_size: lens.len(), num_heads: 2, queries: 5, keys: WIDTH };
    let scores = rig.put(&Numbers::<f32>::new(6).around(0.0, 8.0, 30 * WIDTH));
    let on_lens = rig.put_u32(&lens);
    let batch = rig
        .answer(30 * WIDTH, |d, q, out| {
            d.scale_mask_softmax(
                q,
                shape,
                scores.view(),
                0.3,
                None,
                Some(on_lens.view()),
                AttentionMask::Full,
                out,
            )
        })
        .expect("the shape fits");
    for (row, values) in batch.chunks_exact(WIDTH).enumerate() {
        let keys = lens[row / 10] as usize;
        let alone = ScoreShape { batch_size: 1, num_heads: 1, queries: 1, keys };
        let mut want = rig
            .answer(keys, |d, q, out| {
                d.scale_mask_softmax(
                    q,
                    alone,
                    scores.part(row * WIDTH, keys),
                    0.3,
                    None,
                    None,
                    AttentionMask::Full,
                    out,
                )
            })
            .expect("the shape fits");
        want.resize(WIDTH, 0.0);
        assert_same("scale_mask_softmax", values, &want);
    }
    ("scale_mask_softmax", batch)
}
