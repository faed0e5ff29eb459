//! `softmax(scale · q · kᵀ + bias) · v` per sequence and head, over the keys that a mask lets a row see.

use std::ops::Range;

use super::{
    ROUNDING, WIDTHS,
    bits::assert_same,
    numbers::Numbers,
    pool::cu_seqlens,
    rig::{Rig, compare, refuses_length, refuses_size},
    twin::{self, Product},
};
use crate::{
    Attention, AttentionMask, Columns, ColumnsOn, DType, Device, Layout, Queries, RelativeBias,
    attention::AttentionShape,
};

/// Masks that see little, much and everything.
const MASKS: [AttentionMask; 5] = [
    AttentionMask::Full,
    AttentionMask::Causal,
    AttentionMask::Window { reach: 0 },
    AttentionMask::Window { reach: 5 },
    AttentionMask::Window { reach: 1000 },
];

/// Attention in both layouts.
///
/// # Panics
/// When the device departs from the twin.
pub fn attention<D: Attention<Float = f32>>(device: &D) {
    let plain = Case {
        num_heads: 3,
        num_kv_heads: 3,
        head_dim: 16,
        spread: 1.0,
        mask: AttentionMask::Full,
        buckets: None,
        seq_lens: &[1, 40, 2, 17],
    };
    for head_dim in [32, 64, 8, 5, 128] {
        Case { head_dim, ..plain }.check(device);
    }
    for len in WIDTHS {
        for mask in MASKS {
            Case { num_heads: 2, num_kv_heads: 2, mask, seq_lens: &[len as u32], ..plain }.check(device);
        }
    }
    for mask in MASKS {
        for (num_heads, num_kv_heads) in [(4, 2), (3, 1), (2, 2)] {
            Case { num_heads, num_kv_heads, head_dim: 8, mask, buckets: Some((8, 20)), ..plain }
                .check(device);
        }
        let long =
            Case { num_heads: 1, num_kv_heads: 1, head_dim: 32, mask, seq_lens: &[300, 1, 513], ..plain };
        Case { buckets: (mask == AttentionMask::Full).then_some((32, 128)), ..long }.check(device);
    }
    // scores up to 1e4, so one key takes all and the exponentials of the others underflow
    Case { num_heads: 2, num_kv_heads: 2, head_dim: 32, spread: 40.0, seq_lens: &[33, 8], ..plain }
        .check(device);
    Case { seq_lens: &[0, 3, 0], ..plain }.check(device);
    for mask in MASKS {
        for dtype in [DType::F32, DType::Bf16] {
            keeps_nan_to_those_who_see_it(device, mask, dtype);
        }
    }
    for mask in MASKS {
        one_query_of_each_sequence_is_its_row(device, mask);
    }
    for (mask, head_dim) in [(AttentionMask::Full, 64), (AttentionMask::Causal, 20), (MASKS[3], 5)] {
        bf16_is_within_its_bound(device, mask, head_dim);
    }
    refuses_wrong_sizes(device);
}

/// The bound that [`AttentionShape::dtype`] states, beside the same attention in f32.
fn bf16_is_within_its_bound<D: Attention<Float = f32>>(device: &D, mask: AttentionMask, head_dim: usize) {
    const ROWS: usize = 300;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let qkv = Numbers::new(head_dim).values(ROWS * 3 * head_dim);
    let mut rig = Rig::new(device);
    let (on_qkv, sums) = (rig.put(&qkv), rig.put_u32(&[0, ROWS as u32]));
    let mut run = |dtype| {
        rig.answer(ROWS * head_dim, |d, queue, out| {
            let queries = Queries::All;
            let shape =
                AttentionShape { num_heads: 1, num_kv_heads: 1, head_dim, scale, mask, dtype, queries };
            let [q, k, v] = thirds::<D>(on_qkv.view(), head_dim);
            let layout = Layout::Packed { cu_seqlens: sums.view() };
            d.attention(queue, shape, layout, q, k, v, None, out)
        })
        .unwrap_or_else(|e| panic!("{dtype}: {e}"))
    };
    let want: Vec<f64> = run(DType::F32).into_iter().map(f64::from).collect();
    // values of queries, keys and values are within ±1
    let delta = f64::from(scale) * head_dim as f64 / 256.0;
    let bound = (2.0 * delta).exp_m1() + 1.0 / 128.0;
    for dtype in [DType::Bf16, DType::Int8] {
        compare((dtype, mask, head_dim), &run(dtype), &want, |_| bound);
    }
}

/// Queries of one row per sequence give, to the bit, what that row is among all.
fn one_query_of_each_sequence_is_its_row<D: Attention<Float = f32>>(device: &D, mask: AttentionMask) {
    const HIDDEN: usize = 16;
    let seq_lens = [3, 0, 40, 140];
    let sums = cu_seqlens(&seq_lens);
    let rows = sums[seq_lens.len()] as usize;
    let mut numbers = Numbers::new(rows);
    let (q, kv, table) =
        (numbers.values(rows * HIDDEN), numbers.values(rows * HIDDEN), numbers.values(8 * 2));
    let mut rig = Rig::new(device);
    let (on_kv, on_table, on_sums) = (rig.put(&kv), rig.put(&table), rig.put_u32(&sums));
    let mut run = |queries, q: &[f32]| {
        let on_q = rig.put(q);
        rig.answer(q.len(), |d, queue, out| {
            let dtype = DType::F32;
            let shape = AttentionShape {
                num_heads: 2,
                num_kv_heads: 1,
                head_dim: 8,
                scale: 0.3,
                mask,
                dtype,
                queries,
            };
            let layout = Layout::Packed { cu_seqlens: on_sums.view() };
            let [k, v] = [0, 8].map(|first| Columns { rows: on_kv.view(), first, row_stride: HIDDEN });
            let bias = RelativeBias { table: on_table.view(), num_buckets: 8, max_distance: 20 };
            d.attention(queue, shape, layout, Columns::all(on_q.view(), HIDDEN), k, v, Some(bias), out)
        })
        .unwrap_or_else(|e| panic!("{queries:?}: {e}"))
    };
    let all = run(Queries::All, &q);
    for queries in [Queries::First, Queries::Last] {
        let row = |b: usize| if queries == Queries::First { sums[b] } else { sums[b + 1] - 1 } as usize;
        // the empty sequence has a query that sees nothing
        let of_rows = |values: &[f32], empty: f32| -> Vec<f32> {
            let of_row = |b: usize| match seq_lens[b] {
                0 => vec![empty; HIDDEN],
                _ => values[row(b) * HIDDEN..][..HIDDEN].to_vec(),
            };
            (0..seq_lens.len()).flat_map(of_row).collect()
        };
        assert_same("one query", &run(queries, &of_rows(&q, 0.5)), &of_rows(&all, 0.0));
    }
}

#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    /// Greatest magnitude of queries, keys and values.
    spread: f32,
    mask: AttentionMask,
    /// Buckets and greatest distance of a relative bias.
    buckets: Option<(usize, usize)>,
    seq_lens: &'a [u32],
}

/// Queries, keys and values on the host, each `[rows, heads · head_dim]`, and the table of the bias.
struct Values {
    parts: [Vec<f32>; 3],
    bias: Vec<f32>,
}

impl Case<'_> {
    fn shape(&self) -> AttentionShape {
        AttentionShape {
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            mask: self.mask,
            dtype: DType::F32,
            queries: Queries::All,
        }
    }

    fn widths(&self) -> [usize; 3] {
        [self.num_heads, self.num_kv_heads, self.num_kv_heads].map(|heads| heads * self.head_dim)
    }

    fn check<D: Attention<Float = f32>>(&self, device: &D) {
        let sums = cu_seqlens(self.seq_lens);
        let rows = sums[self.seq_lens.len()] as usize;
        let mut numbers = Numbers::new(rows + self.num_heads * self.head_dim);
        let parts = self.widths().map(|width| numbers.around(0.0, self.spread, rows * width));
        let bias = numbers.values(self.buckets.map_or(0, |(num_buckets, _)| num_buckets * self.num_heads));
        let starts: Vec<usize> = sums.iter().map(|&start| start as usize).collect();
        let mut rig = Rig::new(device);

        // side by side in one tensor, as a merged projection leaves them
        let values = Values { parts, bias };
        let merged = rig.put(&side_by_side(&values.parts, self.widths(), rows));
        let row_stride = self.widths().iter().sum::<usize>() + 3;
        let [q, k, _] = self.widths();
        let columns = [0, q + 1, q + k + 2].map(|first| Columns { rows: merged.view(), first, row_stride });
        let on_sums = rig.put_u32(&sums);
        self.compare(&mut rig, Layout::Packed { cu_seqlens: on_sums.view() }, &values, columns, &starts);

        // the same rows in three tensors, spread apart, with NaN in the padding: nobody may attend to it
        let padded_len = self.seq_lens.iter().max().map_or(0, |&len| len as usize + 3);
        let mut widths = self.widths().into_iter();
        let parts = values.parts.map(|part| {
            spread_apart(&part, widths.next().expect("three parts"), &starts, self.seq_lens, padded_len)
        });
        let starts: Vec<usize> = (0..self.seq_lens.len()).map(|b| b * padded_len).collect();
        let on_device = parts.each_ref().map(|part| rig.put(part));
        let [q, k, v] = self.widths();
        let columns = [(&on_device[0], q), (&on_device[1], k), (&on_device[2], v)]
            .map(|(part, width)| Columns::all(part.view(), width));
        let on_lens = rig.put_u32(self.seq_lens);
        let layout = Layout::Padded { seq_lens: on_lens.view(), padded_len };
        self.compare(&mut rig, layout, &Values { parts, bias: values.bias }, columns, &starts);
    }

    fn compare<D: Attention<Float = f32>>(
        &self,
        rig: &mut Rig<'_, D>,
        layout: Layout<D::View<'_, u32>>,
        values: &Values,
        [q, k, v]: [ColumnsOn<'_, D>; 3],
        starts: &[usize],
    ) {
        let hidden_size = self.num_heads * self.head_dim;
        let table = rig.put(&values.bias);
        let out = rig
            .answer(values.parts[0].len(), |d, queue, out| {
                let bias = self.buckets.map(|(num_buckets, max_distance)| RelativeBias {
                    table: table.view(),
                    num_buckets,
                    max_distance,
                });
                d.attention(queue, self.shape(), layout, q, k, v, bias, out)
            })
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        for (&start, &len) in starts.iter().zip(self.seq_lens) {
            for head in 0..self.num_heads {
                for row in 0..len as usize {
                    let (want, allowed) = self.row(values, start..start + len as usize, head, row);
                    let at = (start + row) * hidden_size + head * self.head_dim;
                    compare((self, head, row), &out[at..at + self.head_dim], &want, |_| allowed);
                }
            }
        }
    }

    /// The answer of one query and how far it may be off.
    fn row(&self, values: &Values, sequence: Range<usize>, head: usize, row: usize) -> (Vec<f64>, f64) {
        let kv_head = head / (self.num_heads / self.num_kv_heads);
        let part = |which: usize, row: usize, head: usize| {
            let first = (sequence.start + row) * self.widths()[which] + head * self.head_dim;
            &values.parts[which][first..first + self.head_dim]
        };
        let scale = f64::from(self.shape().scale);
        let bias = |key: usize| {
            self.buckets.map_or(0.0, |(num_buckets, max_distance)| {
                let bucket = twin::bucket(key as isize - row as isize, num_buckets, max_distance);
                f64::from(values.bias[bucket * self.num_heads + head])
            })
        };
        let keys: Vec<usize> = (0..sequence.len()).filter(|&key| twin::sees(self.mask, row, key)).collect();
        let scores: Vec<Product> = keys
            .iter()
            .map(|&key| {
                let pairs = part(0, row, head).iter().zip(part(1, key, kv_head));
                let product = Product::sum(pairs.map(|(&q, &k)| (q.into(), k.into())));
                Product {
                    value: scale * product.value + bias(key),
                    magnitude: scale * product.magnitude + bias(key).abs(),
                }
            })
            .collect();
        let weights = twin::softmax(&scores.iter().map(|s| s.value).collect::<Vec<_>>());
        let out = (0..self.head_dim)
            .map(|j| keys.iter().zip(&weights).map(|(&key, w)| w * f64::from(part(2, key, kv_head)[j])).sum())
            .collect();
        // A score errs by head_dim roundings of its magnitude (and the maximum as well), which is a relative error of
        // its exponential; normaliser and weighted sum add a rounding per key, each of at most the largest value.
        let magnitude = scores.iter().map(|s| s.magnitude).fold(0.0, f64::max);
        let relative =
            ROUNDING * (2.0 * (self.head_dim as f64 + 3.0) * magnitude + 2.0 * keys.len() as f64 + 8.0);
        (out, relative * f64::from(self.spread))
    }
}

/// Rows of the three parts in one tensor, a NaN behind each part of a row.
fn side_by_side(parts: &[Vec<f32>; 3], widths: [usize; 3], rows: usize) -> Vec<f32> {
    let mut merged = Vec::new();
    for row in 0..rows {
        for (part, width) in parts.iter().zip(widths) {
            merged.extend(&part[row * width..(row + 1) * width]);
            merged.push(f32::NAN);
        }
    }
    merged
}

/// Rows of sequences in a padded tensor, NaN between them.
fn spread_apart(
    part: &[f32],
    width: usize,
    starts: &[usize],
    seq_lens: &[u32],
    padded_len: usize,
) -> Vec<f32> {
    let mut padded = vec![f32::NAN; seq_lens.len() * padded_len * width];
    for (b, (&start, &len)) in starts.iter().zip(seq_lens).enumerate() {
        let rows = &part[start * width..(start + len as usize) * width];
        padded[b * padded_len * width..][..rows.len()].copy_from_slice(rows);
    }
    padded
}

/// NaN in a value reaches that column of the rows that see it; NaN in a key those rows whole; nothing else, and no
/// other sequence.
fn keeps_nan_to_those_who_see_it<D: Attention<Float = f32>>(device: &D, mask: AttentionMask, dtype: DType) {
    const HIDDEN: usize = 8;
    let shape = AttentionShape {
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: HIDDEN,
        scale: 0.3,
        mask,
        dtype,
        queries: Queries::All,
    };
    let seq_lens = [5u32, 24, 36];
    let mut qkv = Numbers::new(4).values(65 * 3 * HIDDEN);
    let (key, value) = (13, 19); // within the second and the third sequence
    qkv[(5 + key) * 3 * HIDDEN + HIDDEN + 2] = f32::NAN;
    qkv[(29 + value) * 3 * HIDDEN + 2 * HIDDEN + 3] = f32::NAN;
    let mut rig = Rig::new(device);
    let (qkv, sums) = (rig.put(&qkv), rig.put_u32(&cu_seqlens(&seq_lens)));
    let layout = Layout::Packed { cu_seqlens: sums.view() };
    let out = rig
        .answer(65 * HIDDEN, |d, queue, out| {
            let [q, k, v] = thirds::<D>(qkv.view(), HIDDEN);
            d.attention(queue, shape, layout, q, k, v, None, out)
        })
        .expect("the layout fits");
    for (i, v) in out.iter().enumerate() {
        let expected = match i / HIDDEN {
            0..5 => false,
            row @ 5..29 => twin::sees(mask, row - 5, key),
            row => i % HIDDEN == 3 && twin::sees(mask, row - 29, value),
        };
        assert_eq!(
            v.is_nan(),
            expected,
            "attention {mask:?}: row {}, column {}: {v}",
            i / HIDDEN,
            i % HIDDEN
        );
    }
}

const NARROW: AttentionShape = AttentionShape {
    num_heads: 2,
    num_kv_heads: 2,
    head_dim: 2,
    scale: 1.0,
    mask: AttentionMask::Full,
    dtype: DType::F32,
    queries: Queries::All,
};

/// Queries, keys and values of merged rows.
fn thirds<'a, D: Device<Float = f32>>(rows: D::View<'a, f32>, hidden_size: usize) -> [ColumnsOn<'a, D>; 3] {
    [0, 1, 2].map(|third| Columns { rows, first: third * hidden_size, row_stride: 3 * hidden_size })
}

/// Sizes that the arguments of the host and the lengths of buffers tell.
fn refuses_wrong_sizes<D: Attention<Float = f32>>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, lens, table) = (rig.put(&[0.0; 36]), rig.put_u32(&[1, 1, 1]), rig.put(&[0.0; 16]));
    let whole = thirds::<D>(x.view(), 4);
    let mut run = |shape, [q, k, v]: [ColumnsOn<'_, D>; 3], bias: Option<(usize, usize, usize)>, out_len| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
        rig.answer(out_len, |d, queue, out| {
            let bias = bias.map(|(len, num_buckets, max_distance)| RelativeBias {
                table: table.part(0, len),
                num_buckets,
                max_distance,
            });
            d.attention(queue, shape, layout, q, k, v, bias, out)
        })
    };
    assert!(run(NARROW, whole, Some((16, 8, 16)), 12).is_ok(), "attention: everything fits");
    refuses_length("attention: qkv too short", run(NARROW, thirds::<D>(x.part(0, 35), 4), None, 12));
    refuses_length("attention: out too short", run(NARROW, whole, None, 11));
    refuses_length("attention: rows", run(NARROW, thirds::<D>(x.part(0, 24), 4), None, 8));
    refuses_length("attention: table too short", run(NARROW, whole, Some((15, 8, 16)), 12));
    refuses_size("attention: too few buckets", run(NARROW, whole, Some((6, 3, 16)), 12));
    refuses_size("attention: no distance", run(NARROW, whole, Some((16, 8, 2)), 12));
    for num_kv_heads in [0, 3] {
        let shape = AttentionShape { num_kv_heads, ..NARROW };
        refuses_size("attention: heads do not divide", run(shape, whole, None, 12));
    }
    let [q, k, v] = whole;
    refuses_size(
        "attention: columns leave the row",
        run(NARROW, [q, k, Columns { first: 9, ..v }], None, 12),
    );
    refuses_length(
        "attention: k has other rows",
        run(NARROW, [q, Columns::all(x.part(0, 8), 4), v], None, 12),
    );
}

/// Layouts that contradict themselves or the buffers.
pub(super) fn refuses_broken_layouts<D: Attention<Float = f32>>(device: &D) {
    let mut rig = Rig::new(device);
    let qkv = rig.put(&[0.0; 36]);
    let [q, k, v] = thirds::<D>(qkv.view(), 4);
    let mut packed = |cu_seqlens: &[u32]| {
        let sums = rig.put_u32(cu_seqlens);
        let layout = Layout::Packed { cu_seqlens: sums.view() };
        rig.answer(12, |d, queue, out| d.attention(queue, NARROW, layout, q, k, v, None, out))
    };
    assert!(packed(&[0, 1, 3]).is_ok(), "attention: the layout fits");
    refuses_length("attention: the last sum is beyond the rows", packed(&[0, 1, 4]));
    refuses_length("attention: no sums", packed(&[]));
    refuses_size("attention: prefix sums fall", packed(&[0, 3, 2, 3]));
    refuses_size("attention: prefix sums begin late", packed(&[1, 2, 3]));
    let lens = rig.put_u32(&[1, 2, 1]);
    let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
    let answer = rig.answer(12, |d, queue, out| d.attention(queue, NARROW, layout, q, k, v, None, out));
    refuses_size("attention: longer than padded", answer);
}
