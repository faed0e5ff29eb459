//! `softmax(scale · q · kᵀ) · v` per sequence and head.

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    pool::cu_seqlens,
    rig::{Placed, Rig, compare, refuses_length, refuses_size},
    twin::{self, Product},
};
use crate::{Attention, AttentionMask, Columns, ColumnsOn, Device, Layout, attention::AttentionShape};

/// Attention in both layouts.
///
/// # Panics
/// When the device departs from the twin.
pub fn attention<D: Attention>(device: &D) {
    for head_dim in [32, 64, 8, 5, 128] {
        Case { num_heads: 3, head_dim, spread: 1.0, seq_lens: &[1, 40, 2, 17] }.check(device);
    }
    for len in WIDTHS {
        Case { num_heads: 2, head_dim: 16, spread: 1.0, seq_lens: &[len as u32] }.check(device);
    }
    Case { num_heads: 1, head_dim: 32, spread: 1.0, seq_lens: &[300, 1, 513] }.check(device);
    // scores up to 1e4, so one key takes all and the exponentials of the others underflow
    Case { num_heads: 2, head_dim: 32, spread: 40.0, seq_lens: &[33, 8] }.check(device);
    Case { num_heads: 2, head_dim: 8, spread: 1.0, seq_lens: &[0, 3, 0] }.check(device);
    keeps_nan_in_its_sequence(device);
    refuses_wrong_lengths(device);
}

#[derive(Debug)]
struct Case<'a> {
    num_heads: usize,
    head_dim: usize,
    /// Greatest magnitude of queries and keys.
    spread: f32,
    seq_lens: &'a [u32],
}

impl Case<'_> {
    fn shape(&self) -> AttentionShape {
        AttentionShape {
            num_heads: self.num_heads,
            num_kv_heads: self.num_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            mask: AttentionMask::Full,
        }
    }

    fn check<D: Attention>(&self, device: &D) {
        let hidden_size = self.num_heads * self.head_dim;
        let sums = cu_seqlens(self.seq_lens);
        let rows = sums[self.seq_lens.len()] as usize;
        let qkv = Numbers::new(rows + hidden_size).around(0.0, self.spread, rows * 3 * hidden_size);
        let mut rig = Rig::new(device);
        let (on_qkv, on_sums) = (rig.put(&qkv), rig.put_u32(&sums));
        let starts: Vec<usize> = sums.iter().map(|&start| start as usize).collect();
        self.compare(&mut rig, Layout::Packed { cu_seqlens: on_sums.view() }, (&qkv, &on_qkv), &starts, rows);

        // the same rows, spread apart, with NaN in the padding: nobody may attend to it
        let padded_len = self.seq_lens.iter().max().map_or(0, |&len| len as usize + 3);
        let mut padded = vec![f32::NAN; self.seq_lens.len() * padded_len * 3 * hidden_size];
        for (b, &start) in starts[..self.seq_lens.len()].iter().enumerate() {
            let (from, to) = (start * 3 * hidden_size, b * padded_len * 3 * hidden_size);
            let len = self.seq_lens[b] as usize * 3 * hidden_size;
            padded[to..to + len].copy_from_slice(&qkv[from..from + len]);
        }
        let (on_qkv, on_lens) = (rig.put(&padded), rig.put_u32(self.seq_lens));
        let starts: Vec<usize> = (0..self.seq_lens.len()).map(|b| b * padded_len).collect();
        let layout = Layout::Padded { seq_lens: on_lens.view(), padded_len };
        self.compare(&mut rig, layout, (&padded, &on_qkv), &starts, self.seq_lens.len() * padded_len);
    }

    fn compare<D: Attention>(
        &self,
        rig: &mut Rig<'_, D>,
        layout: Layout<D::View<'_, u32>>,
        (qkv, on_qkv): (&[f32], &Placed<D, f32>),
        starts: &[usize],
        rows: usize,
    ) {
        let hidden_size = self.num_heads * self.head_dim;
        let out = rig
            .answer(rows * hidden_size, |d, queue, out| {
                let [q, k, v] = thirds::<D>(on_qkv.view(), hidden_size);
                d.attention(queue, self.shape(), layout, q, k, v, None, out)
            })
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        for (&start, &len) in starts.iter().zip(self.seq_lens) {
            for head in 0..self.num_heads {
                for row in start..start + len as usize {
                    let (want, allowed) = self.row(qkv, start..start + len as usize, head, row);
                    let at = row * hidden_size + head * self.head_dim;
                    compare((self, head, row), &out[at..at + self.head_dim], &want, |_| allowed);
                }
            }
        }
    }

    /// The answer of one query and how far it may be off.
    fn row(&self, qkv: &[f32], sequence: std::ops::Range<usize>, head: usize, row: usize) -> (Vec<f64>, f64) {
        let (hidden_size, keys) = (self.num_heads * self.head_dim, sequence.len() as f64);
        let part = |which: usize, row: usize| {
            let first = row * 3 * hidden_size + which * hidden_size + head * self.head_dim;
            &qkv[first..first + self.head_dim]
        };
        let scale = f64::from(self.shape().scale);
        let scores: Vec<Product> = sequence
            .clone()
            .map(|key| {
                Product::sum(part(0, row).iter().zip(part(1, key)).map(|(&q, &k)| (q.into(), k.into())))
            })
            .collect();
        let weights = twin::softmax(&scores.iter().map(|s| scale * s.value).collect::<Vec<_>>());
        let out = (0..self.head_dim)
            .map(|j| sequence.clone().zip(&weights).map(|(key, w)| w * f64::from(part(2, key)[j])).sum())
            .collect();
        // A score errs by head_dim roundings of its magnitude (and the maximum as well), which is a relative error of
        // its exponential; normaliser and weighted sum add a rounding per key, each of at most the largest value.
        let magnitude = scores.iter().map(|s| scale * s.magnitude).fold(0.0, f64::max);
        let relative = ROUNDING * (2.0 * (self.head_dim as f64 + 3.0) * magnitude + 2.0 * keys + 8.0);
        (out, relative * f64::from(self.spread))
    }
}

/// NaN in one value reaches that sequence's column; NaN in a key the whole sequence; other sequences never.
fn keeps_nan_in_its_sequence<D: Attention>(device: &D) {
    const HIDDEN: usize = 8;
    let shape = AttentionShape {
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: HIDDEN,
        scale: 0.3,
        mask: AttentionMask::Full,
    };
    let seq_lens = [5u32, 4, 6];
    let mut qkv = Numbers::new(4).values(15 * 3 * HIDDEN);
    qkv[6 * 3 * HIDDEN + HIDDEN + 2] = f32::NAN; // a key of the second sequence
    qkv[10 * 3 * HIDDEN + 2 * HIDDEN + 3] = f32::NAN; // a value of the third, column 3
    let mut rig = Rig::new(device);
    let (qkv, sums) = (rig.put(&qkv), rig.put_u32(&cu_seqlens(&seq_lens)));
    let layout = Layout::Packed { cu_seqlens: sums.view() };
    let out = rig
        .answer(15 * HIDDEN, |d, queue, out| {
            let [q, k, v] = thirds::<D>(qkv.view(), HIDDEN);
            d.attention(queue, shape, layout, q, k, v, None, out)
        })
        .expect("the layout fits");
    for (i, v) in out.iter().enumerate() {
        let expected = match i / HIDDEN {
            0..5 => false,
            5..9 => true,
            _ => i % HIDDEN == 3,
        };
        assert_eq!(v.is_nan(), expected, "attention: row {}, column {}: {v}", i / HIDDEN, i % HIDDEN);
    }
}

/// Sizes that the length of a buffer tells.
fn refuses_wrong_lengths<D: Attention>(device: &D) {
    let mut rig = Rig::new(device);
    let (qkv, lens) = (rig.put(&[0.0; 36]), rig.put_u32(&[1, 1, 1]));
    for (case, qkv_len, out_len) in [
        ("attention: qkv too short", 35, 12),
        ("attention: out too short", 36, 11),
        ("attention: rows", 24, 8),
    ] {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
        let answer = rig.answer(out_len, |d, queue, out| {
            let [q, k, v] = thirds::<D>(qkv.part(0, qkv_len), 4);
            d.attention(queue, NARROW, layout, q, k, v, None, out)
        });
        refuses_length(case, answer);
    }
}

const NARROW: AttentionShape =
    AttentionShape { num_heads: 2, num_kv_heads: 2, head_dim: 2, scale: 1.0, mask: AttentionMask::Full };

/// Queries, keys and values of merged rows.
fn thirds<'a, D: Device>(rows: D::View<'a, f32>, hidden_size: usize) -> [ColumnsOn<'a, D>; 3] {
    [0, 1, 2].map(|third| Columns { rows, first: third * hidden_size, row_stride: 3 * hidden_size })
}

/// Layouts that contradict themselves or the buffers.
pub(super) fn refuses_broken_layouts<D: Attention>(device: &D) {
    let mut rig = Rig::new(device);
    let qkv = rig.put(&[0.0; 36]);
    let mut packed = |cu_seqlens: &[u32]| {
        let sums = rig.put_u32(cu_seqlens);
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        rig.answer(12, |d, queue, out| {
            let [q, k, v] = thirds::<D>(qkv.view(), 4);
            d.attention(queue, NARROW, layout, q, k, v, None, out)
        })
    };
    assert!(packed(&[0, 1, 3]).is_ok(), "attention: the layout fits");
    refuses_length("attention: the last sum is beyond the rows", packed(&[0, 1, 4]));
    refuses_length("attention: no sums", packed(&[]));
    refuses_size("attention: prefix sums fall", packed(&[0, 3, 2, 3]));
    refuses_size("attention: prefix sums begin late", packed(&[1, 2, 3]));
    let lens = rig.put_u32(&[1, 2, 1]);
    let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
    let answer = rig.answer(12, |d, queue, out| {
        let [q, k, v] = thirds::<D>(qkv.view(), 4);
        d.attention(queue, NARROW, layout, q, k, v, None, out)
    });
    refuses_size("attention: longer than padded", answer);
}
