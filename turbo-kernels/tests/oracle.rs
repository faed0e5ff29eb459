//! Products with packed weights beside those of the crate `gemm`, in f32 and in f64.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::num::NonZeroUsize;

use common::{product, values};
use turbo_kernels::{Cpu, CpuOptions, DType, Device, Epilogue, Gemm, Isa};

/// `[rows, out_features, in_features]`: sizes of tiles and panels and their neighbours, and of real layers.
const SHAPES: [[usize; 3]; 18] = [
    [1, 1, 1],
    [1, 16, 3],
    [1, 31, 768],
    [1, 768, 384],
    [2, 33, 17],
    [3, 5, 7],
    [5, 48, 63],
    [7, 65, 129],
    [13, 64, 64],
    [14, 32, 100],
    [15, 95, 31],
    [16, 1, 257],
    [29, 129, 65],
    [40, 384, 384],
    [41, 100, 1537],
    [127, 63, 96],
    [128, 1152, 384],
    [131, 257, 130],
];

fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(isa) }).unwrap()
}

fn ours(cpu: &Cpu, [rows, n, k]: [usize; 3], x: &[f32], weight: &[f32], dtype: DType) -> Vec<f32> {
    let packed = cpu.pack(weight, n, k, dtype).unwrap();
    let mut out = vec![f32::NAN; rows * n];
    cpu.gemm(&mut cpu.queue().unwrap(), x, &packed, Epilogue::None, &mut out).unwrap();
    out
}

/// The largest error of a row as a share of the product of the lengths of both factors, over all values.
fn error([rows, n, k]: [usize; 3], x: &[f32], weight: &[f32], out: &[f32], exact: &[f64]) -> f64 {
    let length = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let mut largest = 0.0_f64;
    for row in 0..rows {
        let x = length(&x[row * k..][..k]);
        for column in 0..n {
            let at = row * n + column;
            let error = (f64::from(out[at]) - exact[at]).abs() / (x * length(&weight[column * k..][..k]));
            assert!(!error.is_nan(), "value {at} of {rows} x {n} is no number");
            largest = largest.max(error);
        }
    }
    largest
}

/// A chain of `k` multiply-adds rounds `k` times, by half a unit in the last place of a sum that is no longer than the
/// product of the lengths: `k · 2⁻²⁴` would be the worst case, its square root is what happens.
#[test]
fn f32_products_are_those_of_another_crate() {
    for shape in SHAPES {
        let [rows, n, k] = shape;
        let (x, weight) = (values(rows * k, 1), values(n * k, 2));
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let mut exact = vec![0.0_f64; rows * n];
        product(shape, &wide(&x), &wide(&weight), &mut exact);
        let mut theirs = vec![0.0_f32; rows * n];
        product(shape, &x, &weight, &mut theirs);
        let bound = 4.0 * (k as f64).sqrt() * 2.0_f64.powi(-24);
        assert!(error(shape, &x, &weight, &theirs, &exact) <= bound, "{shape:?}: their f32 and their f64");
        for isa in Isa::available() {
            for threads in [1, 2] {
                let out = ours(&cpu(isa, threads), shape, &x, &weight, DType::F32);
                let error = error(shape, &x, &weight, &out, &exact);
                assert!(error <= bound, "{shape:?}, {isa}, {threads} threads: {error} of {bound}");
            }
        }
    }
}

/// bf16 rounds each factor by at most 2⁻⁸ of itself, so a product by 2⁻⁷, int8 each factor by half a step of its row's
/// range, which spans 2 over 254 steps here; errors of single products are independent of each other and average out, so
/// half of the worst case is enough for bf16.
#[test]
fn lower_precisions_stay_within_what_rounding_their_factors_costs() {
    for (dtype, bound) in [(DType::Bf16, 2.0_f64.powi(-8)), (DType::Int8, 0.02)] {
        for shape in SHAPES {
            let [rows, n, k] = shape;
            let (x, weight) = (values(rows * k, 3), values(n * k, 4));
            let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let mut exact = vec![0.0_f64; rows * n];
            product(shape, &wide(&x), &wide(&weight), &mut exact);
            for isa in Isa::available() {
                let out = ours(&cpu(isa, 1), shape, &x, &weight, dtype);
                let error = error(shape, &x, &weight, &out, &exact);
                assert!(error <= bound, "{dtype}, {shape:?}, {isa}: {error} of {bound}");
            }
        }
    }
}

/// Operands halfway between two bf16 are where the bound that the crate states is nearly met.
#[test]
fn one_product_of_bf16_errs_by_nearly_what_is_stated() {
    let x = [1.0 + 2f32.powi(-8)]; // becomes 1
    let exact = f64::from(x[0]).powi(2);
    let bound = 2.0_f64.powi(-7) * exact;
    for isa in Isa::available() {
        let error = (f64::from(ours(&cpu(isa, 1), [1, 1, 1], &x, &x, DType::Bf16)[0]) - exact).abs();
        assert!(error <= bound && error > bound / 2.0, "{isa}: {error} of {bound}");
    }
}

/// One large weight beside zeros: a value that is lost, or put elsewhere, shows without any tolerance.
#[test]
fn every_weight_reaches_its_product() {
    let shape @ [rows, n, k] = [3, 37, 21];
    let x = values(rows * k, 5);
    for at in (0..n * k).step_by(19) {
        let mut weight = vec![0.0; n * k];
        weight[at] = 1024.0;
        let mut theirs = vec![0.0; rows * n];
        product(shape, &x, &weight, &mut theirs);
        for isa in Isa::available() {
            assert_eq!(ours(&cpu(isa, 1), shape, &x, &weight, DType::F32), theirs, "{isa}, weight {at}");
        }
    }
}
