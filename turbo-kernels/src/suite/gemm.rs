//! `out = epilogue(x · weightᵀ)`.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, of_biasing, of_storing, refuses_length},
    twin::{self, Product},
};
use crate::{Activation, DType, Epilogue, Gemm, device::Float};

/// Products with packed weights under every epilogue.
///
/// # Panics
/// When the device departs from the twin.
pub fn gemm<D: Gemm>(device: &D) {
    for &dtype in device.dtypes() {
        let case = |rows, out_features, in_features| Case { dtype, rows, out_features, in_features };
        for width in WIDTHS {
            case(5, width, 40).check(device);
            case(5, 40, width).check(device);
            case(width, 40, 24).check(device);
        }
        case(130, 101, 517).check(device);
        case(3, 384, 1536).check(device);
        case(0, 8, 8).check(device);
        keeps_nan_in_its_row(device, dtype);
        refuses_wrong_lengths(device, dtype);
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| !device.dtypes().contains(dtype)) {
        assert!(device.pack(&[0.0; 12], 3, 4, dtype).is_err(), "gemm: packed for products in {dtype}");
    }
}

/// A sum, and the error from storing its intermediate results.
#[derive(Clone, Copy)]
struct Wanted {
    sum: Product,
    stored: f64,
}

impl Wanted {
    fn plus<F: Float>(self, term: f64) -> Self {
        let Self { sum: Product { value, magnitude }, stored } = self;
        Self {
            sum: Product { value: value + term, magnitude: magnitude + term.abs() },
            stored: stored + of_storing::<F>(value),
        }
    }

    fn in_either_order(self, other: Self) -> Self {
        Self { stored: self.stored.max(other.stored), ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    rows: usize,
    out_features: usize,
    in_features: usize,
}

impl Case {
    fn check<D: Gemm>(self, device: &D) {
        let Self { dtype, rows, out_features, in_features } = self;
        let mut numbers = Numbers::<D::Float>::new(rows * 7 + out_features * 3 + in_features);
        let (x, weight) = (numbers.values(rows * in_features), numbers.values(out_features * in_features));
        let (bias, residual) = (numbers.values(out_features), numbers.values(rows * out_features));
        let products = twin::linear(
            &twin::rows_in(dtype, &x, in_features),
            &twin::columns_in(dtype, &weight, in_features),
            in_features,
        );
        let products: Vec<Wanted> = products.into_iter().map(|sum| Wanted { sum, stored: 0.0 }).collect();
        let with = |wanted: &[Wanted], term: &dyn Fn(usize) -> f64| -> Vec<Wanted> {
            wanted.iter().enumerate().map(|(i, wanted)| wanted.plus::<D::Float>(term(i))).collect()
        };
        let of_bias = |i: usize| f64::from(bias[i % out_features]);

        let mut rig = Rig::new(device);
        let packed =
            device.pack(&weight, out_features, in_features, dtype).expect("the weight has its shape");
        let (x, bias_on, residual_on) = (rig.put(&x), rig.put(&bias), rig.put(&residual));
        let mut run = |name: &str, epilogue, want: &[Wanted], activation: Option<Activation>| {
            let out = rig
                .answer(rows * out_features, |d, queue, out| d.gemm(queue, x.view(), &packed, epilogue, out))
                .unwrap_or_else(|e| panic!("{self:?} {name}: {e}"));
            let values: Vec<f64> = want
                .iter()
                .map(|it| activation.map_or(it.sum.value, |a| twin::activate(a, it.sum.value)))
                .collect();
            // In terms of the operands as the dtype rounds them, a chain of k steps errs by k roundings of the sum of
            // magnitudes, or 2k without FMA (and a product of bytes by a few); bias and residual are two more. No
            // activation is steeper than 1.13; its own error is 3e-7 · max(1, |x|), or 3e-4 for GELU where operands are
            // rounded. The sum so far may be stored before an activation or a residual, and in some rows before a bias.
            let chain = ROUNDING * (2 * in_features + 2) as f64;
            let steep = if activation.is_some() { 1.13 } else { 1.0 };
            let own = match activation {
                Some(Activation::GeluErf | Activation::GeluTanh) if dtype != DType::F32 => 3e-4,
                Some(_) => 3e-7,
                None => 0.0,
            };
            compare::<D::Float>((self, name), &out, &values, |i| {
                let Wanted { sum: Product { value, magnitude }, stored } = want[i];
                let stored = match epilogue {
                    Epilogue::None => 0.0,
                    Epilogue::Bias(_) => of_biasing::<D::Float>(products[i].sum.value, out_features),
                    Epilogue::Act(_) | Epilogue::BiasAct(..) => stored + of_storing::<D::Float>(value),
                    Epilogue::Residual(_) | Epilogue::BiasResidual { .. } => stored,
                };
                steep * (chain * magnitude + stored) + own * value.abs().max(1.0)
            });
        };
        run("none", Epilogue::None, &products, None);
        let biased = with(&products, &of_bias);
        run("bias", Epilogue::Bias(bias_on.view()), &biased, None);
        for activation in Activation::ALL {
            let name = format!("bias, {activation:?}");
            run(&name, Epilogue::BiasAct(bias_on.view(), activation), &biased, Some(activation));
            run(&format!("{activation:?}"), Epilogue::Act(activation), &products, Some(activation));
        }
        let of_residual = |i: usize| f64::from(residual[i]);
        run("residual", Epilogue::Residual(residual_on.view()), &with(&products, &of_residual), None);
        let residual_first = with(&with(&products, &of_residual), &of_bias);
        let both: Vec<Wanted> = with(&biased, &of_residual)
            .into_iter()
            .zip(residual_first)
            .map(|(a, b)| a.in_either_order(b))
            .collect();
        run(
            "bias, residual",
            Epilogue::BiasResidual { bias: bias_on.view(), residual: residual_on.view() },
            &both,
            None,
        );
    }
}

fn keeps_nan_in_its_row<D: Gemm>(device: &D, dtype: DType) {
    const N: usize = 17;
    let mut rig = Rig::new(device);
    let mut x = Numbers::<D::Float>::new(1).values(3 * N);
    x[N + 4] = f32::NAN;
    let weight = Numbers::<D::Float>::new(2).values(N * N);
    let packed = device.pack(&weight, N, N, dtype).expect("the weight has its shape");
    let x = rig.put(&x);
    let out = rig
        .answer(3 * N, |d, queue, out| d.gemm(queue, x.view(), &packed, Epilogue::None, out))
        .expect("the shapes fit");
    assert!(
        out.iter().enumerate().all(|(i, v)| v.is_nan() == (i / N == 1)),
        "gemm: NaN left its row: {out:?}"
    );
}

fn refuses_wrong_lengths<D: Gemm>(device: &D, dtype: DType) {
    let mut rig = Rig::new(device);
    assert!(device.pack(&[0.0; 11], 3, 4, dtype).is_err(), "gemm: packed 11 values as 3 × 4");
    let packed = device.pack(&[0.0; 12], 3, 4, dtype).expect("the weight has its shape");
    let (x, short) = (rig.put(&[0.0; 8]), rig.put(&[0.0; 2]));
    let mut run = |case, x_len, epilogue, out_len| {
        let answer =
            rig.answer(out_len, |d, queue, out| d.gemm(queue, x.part(0, x_len), &packed, epilogue, out));
        refuses_length(case, answer);
    };
    run("gemm: x too short", 7, Epilogue::None, 6);
    run("gemm: x too long", 8, Epilogue::None, 3);
    run("gemm: out is no multiple of a row", 8, Epilogue::None, 7);
    run("gemm: bias too short", 8, Epilogue::Bias(short.view()), 6);
    run("gemm: bias too short", 8, Epilogue::BiasAct(short.view(), Activation::Relu), 6);
    run("gemm: residual too short", 8, Epilogue::Residual(short.view()), 6);
    run(
        "gemm: residual too short",
        8,
        Epilogue::BiasResidual { bias: x.part(0, 3), residual: short.view() },
        6,
    );
}
