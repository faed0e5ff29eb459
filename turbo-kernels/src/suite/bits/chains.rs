//! The rule behind the bits of products.

use super::{super::matmul::separate, Numbers, Rig, assert_same};
use crate::{
    BatchedMatMul, DType, Epilogue, Gemm,
    matmul::{MatMulShape, Rhs},
};

/// Checks that each value is one chain of `step(a, b, sum)` over ascending `k` from 0, to which bias and residual are
/// then added in this order.
///
/// # Panics
/// When a value has different bits.
pub fn chains<D: Gemm<Float = f32> + BatchedMatMul>(device: &D, step: impl Fn(f32, f32, f32) -> f32) {
    let mut rig = Rig::new(device);
    for (rows, out_features, in_features) in [(1, 33, 700), (9, 50, 2049), (40, 7, 64), (131, 129, 65)] {
        let mut numbers = Numbers::<f32>::new(rows);
        let (x, weight) = (numbers.values(rows * in_features), numbers.values(out_features * in_features));
        let (bias, residual) = (numbers.values(out_features), numbers.values(rows * out_features));
        let mut want = Vec::new();
        for x in x.chunks_exact(in_features) {
            for w in weight.chunks_exact(in_features) {
                want.push(x.iter().zip(w).fold(0.0, |sum, (x, w)| step(*x, *w, sum)));
            }
        }
        let packed =
            device.pack(&weight, out_features, in_features, DType::F32).expect("the weight has its shape");
        let (x, bias_on, residual_on) = (rig.put(&x), rig.put(&bias), rig.put(&residual));
        let mut run = |epilogue| {
            rig.answer(want.len(), |d, q, out| d.gemm(q, x.view(), &packed, epilogue, out))
                .unwrap_or_else(|e| panic!("gemm: {e}"))
        };
        assert_same("gemm", &run(Epilogue::None), &want);
        let biased: Vec<f32> = want.iter().zip(bias.iter().cycle()).map(|(x, bias)| x + bias).collect();
        assert_same("gemm, bias", &run(Epilogue::Bias(bias_on.view())), &biased);
        let summed: Vec<f32> = want.iter().zip(&residual).map(|(x, residual)| x + residual).collect();
        assert_same("gemm, residual", &run(Epilogue::Residual(residual_on.view())), &summed);
        let both: Vec<f32> = biased.iter().zip(&residual).map(|(x, residual)| x + residual).collect();
        let epilogue = Epilogue::BiasResidual { bias: bias_on.view(), residual: residual_on.view() };
        assert_same("gemm, bias, residual", &run(epilogue), &both);
        transposed(&mut rig, &mut numbers, (rows, out_features, in_features), &step);
    }
}

/// `a · bᵀ` of one head.
fn transposed<D: BatchedMatMul<Float = f32>>(
    rig: &mut Rig<'_, D>,
    numbers: &mut Numbers<f32>,
    (m, n, k): (usize, usize, usize),
    step: impl Fn(f32, f32, f32) -> f32,
) {
    let (a, b) = (numbers.values(m * k), numbers.values(n * k));
    let mut want = Vec::new();
    for a in a.chunks_exact(k) {
        want.extend(b.chunks_exact(k).map(|b| a.iter().zip(b).fold(0.0, |sum, (a, b)| step(*a, *b, sum))));
    }
    let (a, b) = (rig.put(&a), rig.put(&b));
    let shape = MatMulShape { batch_size: 1, num_heads: 1, num_kv_heads: 1, m, n, k };
    let got = rig
        .answer(m * n, |d, q, out| {
            let b = (b.view(), separate(1, n, k), Rhs::Transposed);
            d.batched_matmul(q, shape, (a.view(), separate(1, m, k)), b, (out, separate(1, m, n)))
        })
        .unwrap_or_else(|e| panic!("batched_matmul: {e}"));
    assert_same("batched_matmul", &got, &want);
}
