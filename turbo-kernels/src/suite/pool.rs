//! From rows of tokens to rows of sequences.

use super::{
    ROUNDING, WIDE, WIDTHS,
    numbers::Numbers,
    rig::{Floats, Rig, compare, refuses_length, refuses_size},
    twin,
};
use crate::{Float, Layout, Pool, Pooling};

/// Lengths of the sequences of a batch; one has no tokens.
const SEQ_LENS: [u32; 6] = [3, 1, 0, 17, 2, 33];
const PADDED_LEN: usize = 34;

/// Pooling in both layouts, and L2 normalisation.
///
/// # Panics
/// When the device departs from the twin.
pub fn pool<D: Pool>(device: &D) {
    for hidden_size in WIDTHS.into_iter().chain([384]) {
        for pooling in Pooling::ALL {
            packed(device, hidden_size, pooling);
            padded(device, hidden_size, pooling);
        }
        normalizes(device, hidden_size);
    }
    weights_of_long_sequences_are_exact(device);
    the_maximum_keeps_nan(device);
    refuses_wrong_lengths(device);
}

/// Rows of [`super::wide_rows`].
pub(crate) fn wide_rows<D: Pool>(device: &D) {
    for hidden_size in WIDE {
        normalizes(device, hidden_size);
    }
}

/// Prefix sums of lengths.
pub(super) fn cu_seqlens(seq_lens: &[u32]) -> Vec<u32> {
    let mut sums = vec![0];
    for len in seq_lens {
        sums.push(sums[sums.len() - 1] + len);
    }
    sums
}

fn packed<D: Pool>(device: &D, hidden_size: usize, pooling: Pooling) {
    let cu_seqlens = cu_seqlens(&SEQ_LENS);
    let rows = cu_seqlens[SEQ_LENS.len()] as usize;
    let x = Numbers::<D::Float>::new(hidden_size).values(rows * hidden_size);
    let starts: Vec<usize> = cu_seqlens.iter().map(|&start| start as usize).collect();
    let mut rig = Rig::new(device);
    let (on_x, on_lens) = (rig.put(&x), rig.put_u32(&cu_seqlens));
    check(
        &mut rig,
        pooling,
        hidden_size,
        Layout::Packed { cu_seqlens: on_lens.view() },
        (&x, &on_x),
        &starts,
    );
}

fn padded<D: Pool>(device: &D, hidden_size: usize, pooling: Pooling) {
    let mut x = Numbers::<D::Float>::new(hidden_size).values(SEQ_LENS.len() * PADDED_LEN * hidden_size);
    let starts: Vec<usize> = (0..SEQ_LENS.len()).map(|b| b * PADDED_LEN).collect();
    for (start, len) in starts.iter().zip(SEQ_LENS) {
        // padding must not be read
        x[(start + len as usize) * hidden_size..(start + PADDED_LEN) * hidden_size].fill(f32::NAN);
    }
    let mut rig = Rig::new(device);
    let (on_x, on_lens) = (rig.put(&x), rig.put_u32(&SEQ_LENS));
    let layout = Layout::Padded { seq_lens: on_lens.view(), padded_len: PADDED_LEN };
    check(&mut rig, pooling, hidden_size, layout, (&x, &on_x), &starts);
}

fn check<D: Pool>(
    rig: &mut Rig<'_, D>,
    pooling: Pooling,
    hidden_size: usize,
    layout: Layout<D::View<'_, u32>>,
    (x, on_x): (&[f32], &Floats<D>),
    starts: &[usize],
) {
    let value = |row: usize, j: usize| f64::from(x[row * hidden_size + j]);
    let mut want = Vec::new();
    for (&start, len) in starts.iter().zip(SEQ_LENS.map(|len| len as usize)) {
        let rows = start..start + len;
        want.extend((0..hidden_size).map(|j| {
            let column = rows.clone().map(|row| value(row, j));
            match pooling {
                _ if len == 0 => 0.0,
                Pooling::Cls => value(start, j),
                Pooling::Mean => column.sum::<f64>() / len as f64,
                Pooling::LastToken => value(start + len - 1, j),
                Pooling::Max => column.fold(f64::NEG_INFINITY, f64::max),
                Pooling::MeanSqrtLen => column.sum::<f64>() / (len as f64).sqrt(),
                Pooling::WeightedMean => {
                    let weight = |i| (i + 1) as f64;
                    column.enumerate().map(|(i, x)| weight(i) * x).sum::<f64>()
                        / (0..len).map(weight).sum::<f64>()
                }
            }
        }));
    }
    let out = rig
        .answer(want.len(), |d, queue, out| d.pool(queue, pooling, layout, on_x.view(), out))
        .unwrap_or_else(|e| panic!("{pooling:?} {hidden_size}: {e}"));
    // rows are copied exactly; a mean of n values below 1 takes n roundings, or 2n if weights are rounded and, without
    // FMA, products too; √n instead of n divides a sum of n roundings by √n less
    let most = f64::from(SEQ_LENS[5]);
    let roundings = match pooling {
        Pooling::Cls | Pooling::LastToken | Pooling::Max => 0.0,
        Pooling::Mean => most,
        Pooling::WeightedMean => 2.0 * most,
        Pooling::MeanSqrtLen => most * most.sqrt(),
    };
    compare::<D::Float>((pooling, hidden_size), &out, &want, |_| ROUNDING * roundings);
}

fn normalizes<D: Pool>(device: &D, hidden_size: usize) {
    // norms below 1e-12, except that f16 has only subnormals near 0 and ends at 65504
    let tiny = f32::max(1e-15, 50.0 * D::Float::SMALLEST as f32);
    let huge = f32::min(1e15, D::Float::GREATEST);
    let mut numbers = Numbers::<D::Float>::new(hidden_size);
    let mut x: Vec<f32> =
        [0.0, tiny, huge, 1.0, 1.0].map(|spread| numbers.around(0.0, spread, hidden_size)).concat();
    x[4 * hidden_size - 1] = f32::NAN;
    let mut rig = Rig::new(device);
    let on_x = rig.put(&x);
    let out = rig
        .answer(x.len(), |d, queue, out| d.l2_normalize(queue, hidden_size, on_x.view(), out))
        .unwrap_or_else(|e| panic!("l2_normalize {hidden_size}: {e}"));
    let want: Vec<f64> = twin::rows(&x, hidden_size)
        .flat_map(|row| {
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            // not `f64::max`, which ignores NaN
            let divisor = if norm < 1e-12 { 1e-12 } else { norm };
            row.into_iter().map(move |v| v / divisor)
        })
        .collect();
    // n/2 roundings of a sum of positive values, halved by the root, and the quotient's; 1e-37: subnormal squares
    let relative = ROUNDING * (hidden_size as f64 / 2.0 + 4.0);
    compare::<D::Float>(("l2_normalize", hidden_size), &out, &want, |i| relative * want[i].abs() + 1e-37);
}

/// The weights of 8192 tokens add up to more than f32 counts to.
fn weights_of_long_sequences_are_exact<D: Pool>(device: &D) {
    const LEN: usize = 8192;
    let mut x = vec![0.0; LEN];
    x[LEN - 1] = 1.0;
    let mut rig = Rig::new(device);
    let (x, sums) = (rig.put(&x), rig.put_u32(&[0, LEN as u32]));
    let layout = Layout::Packed { cu_seqlens: sums.view() };
    let out = rig
        .answer(1, |d, queue, out| d.pool(queue, Pooling::WeightedMean, layout, x.view(), out))
        .expect("the layout fits");
    let want = 2.0 / (LEN + 1) as f64;
    // all other terms are 0, so only the weight and, where they are separate, the quotient and the total are rounded
    compare::<D::Float>("weighted mean of many", &out, &[want], |_| 3.0 * ROUNDING * want);
}

/// The maximum keeps a NaN, in whichever row it lies.
fn the_maximum_keeps_nan<D: Pool>(device: &D) {
    let mut rig = Rig::new(device);
    let sums = rig.put_u32(&[0, 3, 6]);
    for row in 0..3 {
        let mut x = Numbers::<D::Float>::new(1).values(6 * 19);
        x[row * 19 + 17] = f32::NAN;
        let x = rig.put(&x);
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        let out = rig
            .answer(2 * 19, |d, q, out| d.pool(q, Pooling::Max, layout, x.view(), out))
            .expect("the layout fits");
        assert!(
            out.iter().enumerate().all(|(i, v)| v.is_nan() == (i == 17)),
            "max: NaN of row {row}: {out:?}"
        );
    }
}

/// Refuses wrong sizes that the length of a buffer reveals.
fn refuses_wrong_lengths<D: Pool>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, lens) = (rig.put(&[0.0; 12]), rig.put_u32(&[2, 1]));
    let mut run = |x_len, out_len| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 2 };
        rig.answer(out_len, |d, q, out| d.pool(q, Pooling::Mean, layout, x.part(0, x_len), out))
    };
    assert!(run(12, 6).is_ok(), "pool: the layout fits");
    refuses_length("pool: x too short", run(11, 6));
    refuses_length("pool: out has no whole rows", run(12, 5));
    refuses_length("l2_normalize", rig.answer(11, |d, q, out| d.l2_normalize(q, 3, x.view(), out)));
    refuses_length("l2_normalize", rig.answer(12, |d, q, out| d.l2_normalize(q, 5, x.view(), out)));
}

/// Refuses layouts that contradict themselves or the buffers.
pub(super) fn refuses_broken_layouts<D: Pool>(device: &D) {
    let mut rig = Rig::new(device);
    let x = rig.put(&[0.0; 12]);
    let mut packed = |cu_seqlens: &[u32]| {
        let sums = rig.put_u32(cu_seqlens);
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        rig.answer(6, |d, q, out| d.pool(q, Pooling::Mean, layout, x.view(), out))
    };
    assert!(packed(&[0, 1, 4]).is_ok(), "pool: the layout fits");
    refuses_length("pool: a sequence ends beyond x", packed(&[0, 1, 5]));
    refuses_size("pool: prefix sums fall", packed(&[0, 4, 3]));
    let lens = rig.put_u32(&[2, 3]);
    let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 2 };
    let answer = rig.answer(6, |d, q, out| d.pool(q, Pooling::Mean, layout, x.view(), out));
    refuses_size("pool: longer than padded", answer);
}
