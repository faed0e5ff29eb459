//! The greatest product of each sequence.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    pool::cu_seqlens,
    rig::{Rig, compare, of_biasing, refuses_length, refuses_size},
    twin,
};
use crate::{DType, Gemm, Layout};

/// Lengths of the sequences of a batch; one has no tokens, and one more than a tile of any kernel.
const SEQ_LENS: [u32; 5] = [3, 1, 0, 40, 12];
const PADDED_LEN: usize = 41;

/// Products folded into the maximum of their sequence.
///
/// # Panics
/// When the device departs from the twin.
pub fn max_pool<D: Gemm>(device: &D) {
    for width in WIDTHS {
        for &dtype in device.dtypes() {
            check(device, dtype, width, 24);
            check(device, dtype, 40, width);
        }
    }
    device.dtypes().iter().for_each(|dtype| check(device, *dtype, 101, 517));
    keeps_nan_in_its_sequence(device);
    refuses_wrong_lengths(device);
}

fn check<D: Gemm>(device: &D, dtype: DType, out_features: usize, in_features: usize) {
    let mut numbers = Numbers::<D::Float>::new(out_features * 7 + in_features);
    let sums = cu_seqlens(&SEQ_LENS);
    let rows = sums[SEQ_LENS.len()] as usize;
    let x = numbers.values(rows * in_features);
    let (weight, bias) = (numbers.values(out_features * in_features), numbers.values(out_features));
    let products = twin::linear(
        &twin::rows_in(dtype, &x, in_features),
        &twin::columns_in(dtype, &weight, in_features),
        in_features,
    );
    let mut padded = vec![f32::NAN; SEQ_LENS.len() * PADDED_LEN * in_features];
    for (b, pair) in sums.windows(2).enumerate() {
        let rows = &x[pair[0] as usize * in_features..pair[1] as usize * in_features];
        padded[b * PADDED_LEN * in_features..][..rows.len()].copy_from_slice(rows);
    }
    let mut rig = Rig::new(device);
    let weight = device.pack(&weight, out_features, in_features, dtype).expect("the weight has its shape");
    let (x, padded, on_bias) = (rig.put(&x), rig.put(&padded), rig.put(&bias));
    let (sums_on, lens) = (rig.put_u32(&sums), rig.put_u32(&SEQ_LENS));
    for biased in [false, true] {
        let (mut want, mut allowed) = (Vec::new(), Vec::new());
        for pair in sums.windows(2) {
            for column in 0..out_features {
                let bias = if biased { f64::from(bias[column]) } else { 0.0 };
                let of_rows = (pair[0]..pair[1]).map(|row| products[row as usize * out_features + column]);
                let most = of_rows.clone().map(|p| p.value + bias).fold(f64::NEG_INFINITY, f64::max);
                want.push(if of_rows.len() == 0 { 0.0 } else { most });
                // the error of each product, see `gemm`
                let magnitude = of_rows.clone().map(|p| p.magnitude + bias.abs()).fold(0.0, f64::max);
                let stored =
                    of_rows.map(|p| of_biasing::<D::Float>(p.value, out_features)).fold(0.0, f64::max);
                let stored = if biased { stored } else { 0.0 };
                allowed.push(ROUNDING * (2 * in_features + 1) as f64 * magnitude + stored);
            }
        }
        let bias = || biased.then(|| on_bias.view());
        for (case, x, layout) in [
            ("max_pool, packed", &x, Layout::Packed { cu_seqlens: sums_on.view() }),
            ("max_pool, padded", &padded, Layout::Padded { seq_lens: lens.view(), padded_len: PADDED_LEN }),
        ] {
            let out = rig
                .answer(want.len(), |d, q, out| d.gemm_max_pool(q, layout, x.view(), &weight, bias(), out))
                .unwrap_or_else(|e| panic!("{case} {out_features} x {in_features}: {e}"));
            compare::<D::Float>((case, out_features, in_features), &out, &want, |i| allowed[i]);
        }
    }
}

/// A NaN is greater than everything, in whichever row it lies.
fn keeps_nan_in_its_sequence<D: Gemm>(device: &D) {
    const N: usize = 9;
    let mut rig = Rig::new(device);
    let weight = device
        .pack(&Numbers::<D::Float>::new(2).values(N * N), N, N, DType::F32)
        .expect("the weight has its shape");
    let sums = rig.put_u32(&[0, 20, 40, 60]);
    for row in [20, 27, 39] {
        let mut x = Numbers::<D::Float>::new(1).values(60 * N);
        x[row * N + 4] = f32::NAN;
        let x = rig.put(&x);
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        let out = rig
            .answer(3 * N, |d, q, out| d.gemm_max_pool(q, layout, x.view(), &weight, None, out))
            .expect("the shapes fit");
        let kept = out.iter().enumerate().all(|(i, v)| v.is_nan() == (i / N == 1));
        assert!(kept, "max_pool: NaN in row {row} was lost or left its sequence: {out:?}");
    }
}

fn refuses_wrong_lengths<D: Gemm>(device: &D) {
    let mut rig = Rig::new(device);
    let weight = device.pack(&[0.0; 12], 3, 4, DType::F32).expect("the weight has its shape");
    let (x, lens) = (rig.put(&[0.0; 16]), rig.put_u32(&[2, 1]));
    let mut run = |x_len, bias_len: Option<usize>, out_len| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 2 };
        rig.answer(out_len, |d, q, out| {
            let bias = bias_len.map(|len| x.part(0, len));
            d.gemm_max_pool(q, layout, x.part(0, x_len), &weight, bias, out)
        })
    };
    assert!(run(16, Some(3), 6).is_ok(), "max_pool: everything fits");
    refuses_length("max_pool: x too short", run(15, None, 6));
    refuses_length("max_pool: out too short", run(16, None, 5));
    refuses_length("max_pool: bias too short", run(16, Some(2), 6));
}

/// Layouts that contradict themselves.
pub(super) fn refuses_broken_layouts<D: Gemm>(device: &D) {
    let mut rig = Rig::new(device);
    let weight = device.pack(&[0.0; 12], 3, 4, DType::F32).expect("the weight has its shape");
    let (x, sums) = (rig.put(&[0.0; 8]), rig.put_u32(&[0, 2, 1, 2]));
    let answer = rig.answer(9, |d, q, out| {
        d.gemm_max_pool(q, Layout::Packed { cu_seqlens: sums.view() }, x.view(), &weight, None, out)
    });
    refuses_size("max_pool: prefix sums fall", answer);
}
