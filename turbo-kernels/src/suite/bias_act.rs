//! Element-wise steps and gates. Additions and products are the exact value, rounded to f32 and then to the stored
//! type, so they are compared bit for bit.

use super::{
    ROUNDING, WIDE, WIDTHS,
    numbers::Numbers,
    rig::{Rig, compare, refuses_length, rounded},
    twin,
};
use crate::{Activation, BiasAct, KernelError, Routing};

/// Values at which activations change their form, saturate or leave the range of f32.
const ARGUMENTS: [f32; 22] = [
    0.0,
    -0.0,
    1e-30,
    -1e-30,
    0.3,
    -0.3,
    0.625,
    0.92,
    1.0,
    -1.0,
    1.4,
    -3.0,
    4.0,
    5.7,
    -6.0,
    9.1,
    -20.0,
    88.0,
    -89.0,
    1e4,
    -1e4,
    f32::NAN,
];

/// Bias, activation, sum, product, scale and gate.
///
/// # Panics
/// When the device departs from the twin.
pub fn bias_act<D: BiasAct>(device: &D) {
    for width in WIDTHS {
        sums_are_rounded_once(device, width);
        activations(device, &Numbers::<D::Float>::new(width).around(0.0, 6.0, width));
        biased_activations(device, width);
        gates(device, width);
        experts(device, width);
    }
    activations(device, &ARGUMENTS.map(rounded::<D::Float>));
    activations(device, &Numbers::<D::Float>::new(9).around(0.0, 12.0, 5000));
    refuses_wrong_lengths(device);
}

/// Rows of [`super::wide_rows`].
pub(crate) fn wide_rows<D: BiasAct>(device: &D) {
    for width in WIDE {
        sums_are_rounded_once(device, width);
        biased_activations(device, width);
        gates(device, width);
        experts(device, width);
    }
}

fn sums_are_rounded_once<D: BiasAct>(device: &D, width: usize) {
    const ROWS: usize = 3;
    let mut numbers = Numbers::<D::Float>::new(width);
    let (a, b, bias) = (numbers.values(ROWS * width), numbers.values(ROWS * width), numbers.values(width));
    let mut rig = Rig::new(device);
    let (on_a, on_b, on_bias) = (rig.put(&a), rig.put(&b), rig.put(&bias));

    let out =
        rig.answer(a.len(), |d, q, out| d.add(q, on_a.view(), on_b.view(), out)).expect("lengths agree");
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| rounded::<D::Float>(a + b)).collect();
    assert_eq!(out, want, "add");
    let out =
        rig.answer(a.len(), |d, q, out| d.mul(q, on_a.view(), on_b.view(), out)).expect("lengths agree");
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| rounded::<D::Float>(a * b)).collect();
    assert_eq!(out, want, "mul");
    let out = rig
        .answer(a.len(), |d, q, out| d.add_bias(q, on_a.view(), on_bias.view(), out))
        .expect("lengths agree");
    let want: Vec<f32> = a.iter().zip(bias.iter().cycle()).map(|(a, b)| rounded::<D::Float>(a + b)).collect();
    assert_eq!(out, want, "add_bias");
    let out = rig.answer(a.len(), |d, q, out| d.scale(q, on_a.view(), 0.3, out)).expect("lengths agree");
    let want: Vec<f32> = a.iter().map(|a| rounded::<D::Float>(0.3 * a)).collect();
    assert_eq!(out, want, "scale");
}

fn activations<D: BiasAct>(device: &D, values: &[f32]) {
    let mut rig = Rig::new(device);
    let x = rig.put(values);
    for activation in Activation::ALL {
        let out = rig
            .answer(values.len(), |d, queue, out| d.activate(queue, x.view(), activation, out))
            .unwrap_or_else(|e| panic!("{activation:?}: {e}"));
        let want: Vec<f64> = values.iter().map(|&v| twin::activate(activation, v.into())).collect();
        // the stated error of the activations; ReLU has none
        let own = if activation == Activation::Relu { 0.0 } else { 3e-7 };
        compare::<D::Float>((activation, values.len()), &out, &want, |i| {
            own * f64::from(values[i]).abs().max(1.0)
        });
    }
}

/// Activations of sums between two storable values: rounding the sums first errs by more than the activation does.
fn biased_activations<D: BiasAct>(device: &D, width: usize) {
    const ROWS: usize = 3;
    let mut numbers = Numbers::<D::Float>::new(width);
    let (x, bias) = (numbers.around(0.0, 4.0, ROWS * width), numbers.around(0.0, 0.3, width));
    let mut rig = Rig::new(device);
    let (on_x, on_bias) = (rig.put(&x), rig.put(&bias));
    let sums: Vec<f64> =
        x.iter().zip(bias.iter().cycle()).map(|(&x, &bias)| f64::from(x) + f64::from(bias)).collect();
    for activation in Activation::ALL {
        let out = rig
            .answer(x.len(), |d, q, out| d.bias_activate(q, on_x.view(), on_bias.view(), activation, out))
            .unwrap_or_else(|e| panic!("bias_activate {activation:?}: {e}"));
        let want: Vec<f64> = sums.iter().map(|&sum| twin::activate(activation, sum)).collect();
        // the stated error of the activation, and the rounding of the sum to f32, which activations amplify by at most
        // 1.2
        compare::<D::Float>(("bias_activate", activation, width), &out, &want, |i| {
            3e-7 * sums[i].abs().max(1.0) + 1.2 * ROUNDING * sums[i].abs()
        });
    }
}

/// `activation(left) · right` of rows that hold both.
fn gates<D: BiasAct>(device: &D, n: usize) {
    const ROWS: usize = 3;
    let x = Numbers::<D::Float>::new(n).around(0.0, 4.0, ROWS * 2 * n);
    let mut rig = Rig::new(device);
    let on_x = rig.put(&x);
    for activation in Activation::ALL {
        let out = rig
            .answer(ROWS * n, |d, queue, out| d.gate(queue, activation, on_x.view(), n, out))
            .unwrap_or_else(|e| panic!("gate {activation:?}: {e}"));
        let pair = |i: usize| (f64::from(x[i / n * 2 * n + i % n]), f64::from(x[i / n * 2 * n + n + i % n]));
        let want: Vec<f64> = (0..ROWS * n)
            .map(|i| {
                let (left, right) = pair(i);
                twin::activate(activation, left) * right
            })
            .collect();
        // the stated error of the activation, times the other factor, and the rounding of the product
        compare::<D::Float>(("gate", activation, n), &out, &want, |i| {
            let (left, right) = pair(i);
            3e-7 * left.abs().max(1.0) * right.abs() + ROUNDING * want[i].abs()
        });
    }
}

/// Weights of a softmax times the values of each expert; unchosen experts contribute 0, even if their values are NaN.
fn experts<D: BiasAct>(device: &D, values: usize) {
    const ROWS: usize = 3;
    for (num_experts, top_k) in [(1, 1), (3, 2), (8, 2), (64, 5), (5, 5)] {
        let width = num_experts * values;
        let mut numbers = Numbers::<D::Float>::new(width);
        let mut logits = numbers.around(0.0, 4.0, ROWS * num_experts);
        // among equal logits the first is chosen, wherever the last place falls
        logits[num_experts - 1] = logits[0];
        logits[num_experts..2 * num_experts].fill(1.0);
        let weights: Vec<Option<f64>> =
            logits.chunks(num_experts).flat_map(|row| routed(row, top_k)).collect();
        let mut x = numbers.around(0.0, 4.0, ROWS * width);
        for (x, weight) in x.chunks_mut(values).zip(&weights) {
            if weight.is_none() {
                x[0] = f32::NAN;
            }
        }
        let mut rig = Rig::new(device);
        let (on_x, on_logits) = (rig.put(&x), rig.put(&logits));
        let routing = Routing { num_experts, top_k };
        let out = rig
            .answer(x.len(), |d, q, out| d.weigh_experts(q, on_x.view(), on_logits.view(), routing, out))
            .unwrap_or_else(|e| panic!("{routing:?}: {e}"));
        let weight = |i: usize| weights[i / values].unwrap_or(0.0);
        let product =
            |i: usize| if weights[i / values].is_some() { weight(i) * f64::from(x[i]) } else { 0.0 };
        let want: Vec<f64> = (0..x.len()).map(product).collect();
        // exponentials, their sum and two products of f32
        compare::<D::Float>((routing, values), &out, &want, |i| {
            (8.0 + num_experts as f64) * ROUNDING * want[i].abs()
        });
    }
}

/// The weights of the experts that a row has; NaN where the greatest logit is infinite.
pub(super) fn routed(logits: &[f32], top_k: usize) -> Vec<Option<f64>> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = match greatest.is_infinite() {
        true => vec![f64::NAN; logits.len()],
        false => twin::softmax(&logits.iter().map(|&logit| logit.into()).collect::<Vec<f64>>()),
    };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut routed = vec![None; logits.len()];
    order[..top_k].iter().for_each(|&expert| routed[expert] = Some(weights[expert]));
    routed
}

fn refuses_wrong_lengths<D: BiasAct>(device: &D) {
    let mut rig = Rig::new(device);
    let (four, six) = (rig.put(&[0.0; 4]), rig.put(&[0.0; 6]));
    refuses_length("add", rig.answer(6, |d, q, out| d.add(q, six.view(), four.view(), out)));
    refuses_length("add", rig.answer(4, |d, q, out| d.add(q, six.view(), six.view(), out)));
    refuses_length("add_bias", rig.answer(6, |d, q, out| d.add_bias(q, six.view(), four.view(), out)));
    let relu = Activation::Relu;
    refuses_length(
        "bias_activate",
        rig.answer(6, |d, q, out| d.bias_activate(q, six.view(), four.view(), relu, out)),
    );
    refuses_length("activate", rig.answer(4, |d, q, out| d.activate(q, six.view(), relu, out)));
    refuses_length("mul", rig.answer(6, |d, q, out| d.mul(q, six.view(), four.view(), out)));
    refuses_length("mul", rig.answer(4, |d, q, out| d.mul(q, six.view(), six.view(), out)));
    refuses_length("gate", rig.answer(4, |d, q, out| d.gate(q, relu, six.view(), 2, out)));
    refuses_length("gate", rig.answer(3, |d, q, out| d.gate(q, relu, six.view(), 2, out)));
    refuses_length("scale", rig.answer(4, |d, q, out| d.scale(q, six.view(), 2.0, out)));
    let mut weigh = |num_experts, top_k, len| {
        let routing = Routing { num_experts, top_k };
        rig.answer(len, |d, q, out| d.weigh_experts(q, six.view(), four.view(), routing, out))
    };
    refuses_length("weigh_experts", weigh(2, 1, 6));
    refuses_length("weigh_experts", weigh(3, 1, 6));
    for (num_experts, top_k) in [(0, 1), (65, 1), (2, 0), (2, 3)] {
        let refused = weigh(num_experts, top_k, 6);
        assert!(matches!(refused, Err(KernelError::Size { .. })), "{num_experts}, {top_k}: {refused:?}");
    }
}
