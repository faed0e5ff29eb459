//! `softmax(scale · q · kᵀ + bias) · v` per sequence and head, over the keys that a mask lets a row see.

use std::ops::Range;

use super::{
    ROUNDING, WIDTHS,
    numbers::Numbers,
    pool::cu_seqlens,
    rig::{Rig, compare, of_storing, refuses_length, refuses_size, rounded},
    twin::{self, Product},
};
use crate::{
    Attention, AttentionMask, Columns, ColumnsOn, DType, Device, Float, FloatsOn, Layout, PositionBuckets,
    Queries, RelativeBias, attention::AttentionShape,
};

/// Masks that see little, much and everything.
pub(super) const MASKS: [AttentionMask; 5] = [
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
pub fn attention<D: Attention>(device: &D) {
    let plain = Case {
        num_heads: 3,
        num_kv_heads: 3,
        head_dim: 16,
        spread: 1.0,
        mask: AttentionMask::Full,
        bias: None,
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
            for bias in [buckets(8, 20), RelativeBias::Alibi, disentangled(8, Some(20))] {
                Case { num_heads, num_kv_heads, head_dim: 8, mask, bias: Some(bias), ..plain }.check(device);
            }
        }
        let long =
            Case { num_heads: 1, num_kv_heads: 1, head_dim: 32, mask, seq_lens: &[300, 1, 513], ..plain };
        Case { bias: (mask == AttentionMask::Full).then_some(buckets(32, 128)), ..long }.check(device);
    }
    // slopes of a number of heads that is no power of two, in kernels of all kinds
    for (num_heads, head_dim) in [(6, 32), (3, 64), (3, 5)] {
        let bias = Some(RelativeBias::Alibi);
        let seq_lens = &[150, 1, 300];
        Case { num_heads, num_kv_heads: num_heads, head_dim, bias, seq_lens, ..plain }.check(device);
    }
    // few positions and many, with and without logarithms, of more keys than one stretch or tile
    for (span, max_distance) in
        [(1, None), (6, None), (200, None), (2, Some(4)), (7, Some(40)), (64, Some(300))]
    {
        let (bias, seq_lens) = (Some(disentangled(span, max_distance)), &[1, 3, 33, 150, 290][..]);
        for (num_heads, head_dim) in [(2, 32), (3, 5)] {
            Case { num_heads, num_kv_heads: num_heads, head_dim, bias, seq_lens, ..plain }.check(device);
        }
    }
    // heads wider than any tensor core takes, those of EmbeddingGemma
    for mask in [AttentionMask::Full, MASKS[3]] {
        Case { num_heads: 3, num_kv_heads: 1, head_dim: 256, mask, ..plain }.check(device);
    }
    // scores up to 1e4, so one key takes all and the exponentials of the others underflow
    Case { num_heads: 2, num_kv_heads: 2, head_dim: 32, spread: 40.0, seq_lens: &[33, 8], ..plain }
        .check(device);
    Case { seq_lens: &[0, 3, 0], ..plain }.check(device);
    Case { seq_lens: &[], ..plain }.check(device);
    for mask in MASKS {
        for dtype in [DType::F32, DType::Bf16] {
            // the greatest value, where it is stored as it is
            let greatest = Some(f32::MAX).filter(|&greatest| rounded::<D::Float>(greatest) == greatest);
            // an even key and an odd one, of which some kernels make one word
            for (head_dim, value) in [(8, 19), (20, 18), (20, 19)] {
                for of_value in [f32::NAN].into_iter().chain(greatest) {
                    keeps_nan_to_those_who_see_it(device, (mask, dtype, head_dim), (value, of_value));
                }
            }
            finds_the_greatest_of_giant_scores(device, mask, dtype);
        }
    }
    for mask in MASKS {
        let seq_lens = &[3, 0, 40, 140];
        for bias in [buckets(8, 20), RelativeBias::Alibi, disentangled(8, Some(20))].map(Some) {
            let grouped = Case { num_heads: 2, num_kv_heads: 1, head_dim: 8, mask, bias, seq_lens, ..plain };
            one_query_of_each_sequence(device, grouped);
        }
    }
    let window = AttentionMask::Window { reach: 70 };
    for (mask, head_dim) in [
        (AttentionMask::Full, 64),
        (AttentionMask::Causal, 20),
        (MASKS[3], 5),
        (window, 80),
        (AttentionMask::Causal, 128),
        (AttentionMask::Full, 33),
        (window, 256),
    ] {
        bf16_is_within_its_bound(device, mask, head_dim);
    }
    refuses_wrong_sizes(device);
}

fn buckets(num_buckets: usize, max_distance: usize) -> RelativeBias<()> {
    RelativeBias::Buckets { table: (), num_buckets, max_distance }
}

fn disentangled(span: usize, max_distance: Option<usize>) -> RelativeBias<()> {
    let positions = PositionBuckets { span, max_distance };
    RelativeBias::Disentangled { of_queries: (), of_keys: (), positions }
}

/// Checks the bound that [`AttentionShape::dtype`] states, against the same attention in f32.
fn bf16_is_within_its_bound<D: Attention>(device: &D, mask: AttentionMask, head_dim: usize) {
    const ROWS: usize = 300;
    let scale = 1.0 / (head_dim as f32).sqrt();
    // two heads of queries share one of keys and values
    let mut numbers = Numbers::<D::Float>::new(head_dim);
    let (qkv, table) = (numbers.values(ROWS * 4 * head_dim), numbers.values(8 * 2));
    let mut rig = Rig::new(device);
    let (on_qkv, on_table, sums) = (rig.put(&qkv), rig.put(&table), rig.put_u32(&[0, ROWS as u32]));
    let mut run = |dtype| {
        rig.answer(ROWS * 2 * head_dim, |d, queue, out| {
            let queries = Queries::All;
            let shape =
                AttentionShape { num_heads: 2, num_kv_heads: 1, head_dim, scale, mask, dtype, queries };
            let [q, k, v] = [0, 2, 3].map(|first| Columns {
                rows: on_qkv.view(),
                first: first * head_dim,
                row_stride: 4 * head_dim,
            });
            let layout = Layout::Packed { cu_seqlens: sums.view() };
            let bias = RelativeBias::Buckets { table: on_table.view(), num_buckets: 8, max_distance: 20 };
            let bias = Some(bias).filter(|_| head_dim > 64);
            d.attention(queue, shape, layout, q, k, v, bias, out)
        })
        .unwrap_or_else(|e| panic!("{dtype}: {e}"))
    };
    let want: Vec<f64> = run(DType::F32).into_iter().map(f64::from).collect();
    // values of queries, keys and values are within ±1
    let delta = f64::from(scale) * head_dim as f64 / 128.0;
    let bound = delta.exp_m1() + 1.0 / 128.0;
    // the rounding of what either of them stores: the result, and weights, see `Case::row`
    let bound = bound + 5.0 * of_storing::<D::Float>(1.0);
    for dtype in [DType::Bf16, DType::Int8] {
        compare::<D::Float>((dtype, mask, head_dim), &run(dtype), &want, |_| bound);
    }
}

/// Queries of one row per sequence; one of the sequences has none.
fn one_query_of_each_sequence<D: Attention>(device: &D, case: Case<'_>) {
    let sums = cu_seqlens(case.seq_lens);
    let [width, kv_width, _] = case.widths();
    let values = case.values::<D::Float>();
    let mut rig = Rig::new(device);
    let [_, k, v] = values.parts.each_ref().map(|part| rig.put(part));
    let on_sums = rig.put_u32(&sums);
    for queries in [Queries::First, Queries::Last] {
        let row = |len: u32| if queries == Queries::First { 0 } else { len as usize - 1 };
        let picked = |rows: &[f32], width: usize| {
            let mut picked = Vec::new();
            for (&len, &start) in case.seq_lens.iter().zip(&sums) {
                match len {
                    0 => picked.extend(vec![0.5; width]),
                    _ => picked.extend(&rows[(start as usize + row(len)) * width..][..width]),
                }
            }
            picked
        };
        let q = rig.put(&picked(&values.parts[0], width));
        let [first, second] = &values.bias;
        let first = case.bias_width().map_or_else(|| first.clone(), |width| picked(first, width));
        let tables = [&first, second].map(|table| rig.put(table));
        let out = rig
            .answer(case.seq_lens.len() * width, |d, queue, out| {
                let shape = AttentionShape { queries, ..case.shape() };
                let layout = Layout::Packed { cu_seqlens: on_sums.view() };
                let [k, v] = [&k, &v].map(|part| Columns::all(part.view(), kv_width));
                let bias = case.bias(tables.each_ref().map(|table| table.view()));
                d.attention(queue, shape, layout, Columns::all(q.view(), width), k, v, bias, out)
            })
            .unwrap_or_else(|e| panic!("{queries:?}: {e}"));
        for (b, out) in out.chunks_exact(width).enumerate() {
            if case.seq_lens[b] == 0 {
                assert!(out.iter().all(|v| *v == 0.0), "{queries:?}: a query without keys is not 0: {out:?}");
                continue;
            }
            let row = row(case.seq_lens[b]);
            for (head, out) in out.chunks_exact(case.head_dim).enumerate() {
                let sequence = sums[b] as usize..sums[b + 1] as usize;
                let (want, allowed) = case.row::<D::Float>(&values, sequence, head, row);
                compare::<D::Float>((queries, case, b, head), out, &want, |_| allowed);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    /// The greatest magnitude of queries, keys and values.
    spread: f32,
    mask: AttentionMask,
    bias: Option<RelativeBias<()>>,
    seq_lens: &'a [u32],
}

/// Queries, keys and values on the host, each `[rows, heads · head_dim]`, and the tables of the bias.
struct Values {
    parts: [Vec<f32>; 3],
    bias: [Vec<f32>; 2],
}

/// The answer of a query, and its tolerance before it is stored.
type Want = (Vec<f64>, f64);

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

    fn values<F: Float>(&self) -> Values {
        let rows = self.seq_lens.iter().sum::<u32>() as usize;
        let mut numbers = Numbers::<F>::new(rows + self.num_heads * self.head_dim);
        let parts = self.widths().map(|width| numbers.around(0.0, self.spread, rows * width));
        let bias = match self.bias {
            Some(RelativeBias::Buckets { num_buckets, .. }) => {
                [numbers.values(num_buckets * self.num_heads), Vec::new()]
            }
            Some(RelativeBias::Alibi) | None => Default::default(),
            Some(RelativeBias::Disentangled { positions, .. }) => {
                [(); 2].map(|()| numbers.values(rows * self.num_heads * positions.count()))
            }
        };
        Values { parts, bias }
    }

    fn bias<V>(&self, tables: [V; 2]) -> Option<RelativeBias<V>> {
        self.bias.map(|bias| bias.with_tables(tables))
    }

    /// Columns of the tables of a bias that has a row for each token.
    fn bias_width(&self) -> Option<usize> {
        match self.bias {
            Some(RelativeBias::Disentangled { positions, .. }) => Some(self.num_heads * positions.count()),
            _ => None,
        }
    }

    fn check<D: Attention>(&self, device: &D) {
        let sums = cu_seqlens(self.seq_lens);
        let rows = sums[self.seq_lens.len()] as usize;
        let starts: Vec<usize> = sums.iter().map(|&start| start as usize).collect();
        let values = self.values::<D::Float>();
        let wants = self.rows::<D::Float>(&values, &starts);
        let mut rig = Rig::new(device);

        // side by side in one tensor, as a merged projection leaves them
        let merged = rig.put(&side_by_side(&values.parts, self.widths(), rows));
        let row_stride = self.widths().iter().sum::<usize>() + 3;
        let [q, k, _] = self.widths();
        let columns = [0, q + 1, q + k + 2].map(|first| Columns { rows: merged.view(), first, row_stride });
        let on_sums = rig.put_u32(&sums);
        let layout = Layout::Packed { cu_seqlens: on_sums.view() };
        self.compare(&mut rig, layout, (&values, &wants), columns, &starts);

        // the same rows in three tensors, spread apart, with NaN in the padding: no query may attend to it
        let padded_len = self.seq_lens.iter().max().map_or(0, |&len| len as usize + 3);
        let mut widths = self.widths().into_iter();
        let parts = values.parts.map(|part| {
            spread_apart(&part, widths.next().expect("three parts"), &starts, self.seq_lens, padded_len)
        });
        let bias = values.bias.map(|table| match self.bias_width() {
            Some(width) => spread_apart(&table, width, &starts, self.seq_lens, padded_len),
            None => table,
        });
        let starts: Vec<usize> = (0..self.seq_lens.len()).map(|b| b * padded_len).collect();
        let on_device = parts.each_ref().map(|part| rig.put(part));
        let [q, k, v] = self.widths();
        let columns = [(&on_device[0], q), (&on_device[1], k), (&on_device[2], v)]
            .map(|(part, width)| Columns::all(part.view(), width));
        let on_lens = rig.put_u32(self.seq_lens);
        let layout = Layout::Padded { seq_lens: on_lens.view(), padded_len };
        self.compare(&mut rig, layout, (&Values { parts, bias }, &wants), columns, &starts);
    }

    fn compare<D: Attention>(
        &self,
        rig: &mut Rig<'_, D>,
        layout: Layout<D::View<'_, u32>>,
        (values, wants): (&Values, &[Want]),
        [q, k, v]: [ColumnsOn<'_, D>; 3],
        starts: &[usize],
    ) {
        let hidden_size = self.num_heads * self.head_dim;
        let tables = values.bias.each_ref().map(|table| rig.put(table));
        let out = rig
            .answer(values.parts[0].len(), |d, queue, out| {
                let bias = self.bias(tables.each_ref().map(|table| table.view()));
                d.attention(queue, self.shape(), layout, q, k, v, bias, out)
            })
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        for ((b, head, row), (want, allowed)) in self.queries().zip(wants) {
            let at = (starts[b] + row) * hidden_size + head * self.head_dim;
            compare::<D::Float>((self, b, head, row), &out[at..at + self.head_dim], want, |_| *allowed);
        }
    }

    /// Sequence, head and row of every query.
    fn queries(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let rows = |(b, &len): (usize, &u32)| {
            (0..self.num_heads).flat_map(move |head| (0..len as usize).map(move |row| (b, head, row)))
        };
        self.seq_lens.iter().enumerate().flat_map(rows)
    }

    /// The answer of every query, of sequences that begin at these rows.
    fn rows<F: Float>(&self, values: &Values, starts: &[usize]) -> Vec<Want> {
        let row = |(b, head, row): (usize, usize, usize)| {
            let sequence = starts[b]..starts[b] + self.seq_lens[b] as usize;
            self.row::<F>(values, sequence, head, row)
        };
        self.queries().map(row).collect()
    }

    /// The answer of one query.
    fn row<F: Float>(&self, values: &Values, sequence: Range<usize>, head: usize, row: usize) -> Want {
        let kv_head = head / (self.num_heads / self.num_kv_heads);
        let part = |which: usize, row: usize, head: usize| {
            let first = (sequence.start + row) * self.widths()[which] + head * self.head_dim;
            &values.parts[which][first..first + self.head_dim]
        };
        let scale = f64::from(self.shape().scale);
        let bias = |key: usize| match self.bias {
            None => 0.0,
            Some(RelativeBias::Buckets { num_buckets, max_distance, .. }) => {
                let bucket = twin::bucket(key as isize - row as isize, num_buckets, max_distance);
                f64::from(values.bias[0][bucket * self.num_heads + head])
            }
            Some(RelativeBias::Disentangled { positions, .. }) => {
                let position = twin::position(key as isize - row as isize, positions);
                let score = |table: &[f32], row: usize| {
                    let first = ((sequence.start + row) * self.num_heads + head) * positions.count();
                    f64::from(table[first + position])
                };
                score(&values.bias[0], row) + score(&values.bias[1], key)
            }
            Some(RelativeBias::Alibi) => -twin::slope(head, self.num_heads) * key.abs_diff(row) as f64,
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
        let mut out = vec![0.0; self.head_dim];
        for (&key, weight) in keys.iter().zip(&weights) {
            for (sum, &value) in out.iter_mut().zip(part(2, key, kv_head)) {
                *sum += weight * f64::from(value);
            }
        }
        // A score errs by head_dim roundings of its magnitude (and so does the maximum), which is a relative error of
        // its exponential; normaliser and weighted sum add a rounding per key, each of at most the largest value.
        let magnitude = scores.iter().map(|s| s.magnitude).fold(0.0, f64::max);
        let relative =
            ROUNDING * (2.0 * (self.head_dim as f64 + 3.0) * magnitude + 2.0 * keys.len() as f64 + 8.0);
        // a device that stores less than f32 may round the weights to its type for the product with the values, and add
        // them up before or after that
        let of_weights = 2.0 * weights.iter().map(|weight| of_storing::<F>(*weight)).sum::<f64>();
        (out, (relative + of_weights) * f64::from(self.spread))
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

/// NaN in a value reaches its column in the rows that see it, and NaN in a key those rows as a whole; neither reaches
/// anything else or another sequence. The same holds for `of_value` in the value of key `value`, which need not be NaN,
/// but may be infinite in narrower types.
fn keeps_nan_to_those_who_see_it<D: Attention>(
    device: &D,
    (mask, dtype, head_dim): (AttentionMask, DType, usize),
    (value, of_value): (usize, f32),
) {
    let shape = AttentionShape {
        num_heads: 1,
        num_kv_heads: 1,
        head_dim,
        scale: 0.3,
        mask,
        dtype,
        queries: Queries::All,
    };
    let seq_lens = [5u32, 24, 36];
    let mut qkv = Numbers::<D::Float>::new(4).values(65 * 3 * head_dim);
    let key = 13; // of the second sequence, and `value` of the third
    qkv[(5 + key) * 3 * head_dim + head_dim + 2] = f32::NAN;
    qkv[(29 + value) * 3 * head_dim + 2 * head_dim + 3] = of_value;
    let mut rig = Rig::new(device);
    let (qkv, sums) = (rig.put(&qkv), rig.put_u32(&cu_seqlens(&seq_lens)));
    let layout = Layout::Packed { cu_seqlens: sums.view() };
    let out = rig
        .answer(65 * head_dim, |d, queue, out| {
            let [q, k, v] = thirds::<D>(qkv.view(), head_dim);
            d.attention(queue, shape, layout, q, k, v, None, out)
        })
        .expect("the layout fits");
    for (i, v) in out.iter().enumerate() {
        let holds = match i / head_dim {
            row @ 5..29 if twin::sees(mask, row - 5, key) => v.is_nan(),
            row @ 29.. if i % head_dim == 3 && twin::sees(mask, row - 29, value) => {
                v.is_nan() || !of_value.is_nan()
            }
            _ => v.is_finite(),
        };
        assert!(
            holds,
            "attention {mask:?} {dtype} {head_dim}, a value of {of_value}: row {}, column {}: {v}",
            i / head_dim,
            i % head_dim
        );
    }
}

/// Scores that scaling rounds to multiples of thousands: the greatest takes all, and equal ones share.
fn finds_the_greatest_of_giant_scores<D: Attention>(device: &D, mask: AttentionMask, dtype: DType) {
    const HEAD_DIM: usize = 64;
    const LARGE: f32 = 16384.0;
    let seq_lens = [3u32, 300];
    let mut qkv = Vec::new();
    for row in 0..303 {
        // products of a few bits, which sum up exactly
        qkv.extend([if row % 2 == 0 { LARGE } else { -LARGE }; HEAD_DIM]);
        qkv.extend([LARGE * (1.0 + (row % 7) as f32 / 8.0); HEAD_DIM]);
        qkv.extend((0..HEAD_DIM).map(|column| ((row * 5 + column) % 16) as f32 - 8.0));
    }
    let part = |third: usize, row: usize| &qkv[(3 * row + third) * HEAD_DIM..][..HEAD_DIM];
    let sums = cu_seqlens(&seq_lens);
    let mut rig = Rig::new(device);
    let (on_qkv, on_sums) = (rig.put(&qkv), rig.put_u32(&sums));
    for scale in [1.0, 0.3] {
        let (num_heads, num_kv_heads, queries) = (1, 1, Queries::All);
        let shape =
            AttentionShape { num_heads, num_kv_heads, head_dim: HEAD_DIM, scale, mask, dtype, queries };
        let out = rig
            .answer(303 * HEAD_DIM, |d, queue, out| {
                let [q, k, v] = thirds::<D>(on_qkv.view(), HEAD_DIM);
                let layout = Layout::Packed { cu_seqlens: on_sums.view() };
                d.attention(queue, shape, layout, q, k, v, None, out)
            })
            .expect("the layout fits");
        for (&first, &len) in sums.iter().zip(&seq_lens) {
            let (first, len) = (first as usize, len as usize);
            for row in 0..len {
                let keys: Vec<usize> = (0..len).filter(|&key| twin::sees(mask, row, key)).collect();
                let score = |&key: &usize| part(0, first + row)[0] * part(1, first + key)[0];
                let most = keys.iter().map(score).fold(f32::NEG_INFINITY, f32::max);
                let equal: Vec<usize> = keys.into_iter().filter(|key| score(key) == most).collect();
                let want: Vec<f64> = (0..HEAD_DIM)
                    .map(|j| equal.iter().map(|key| f64::from(part(2, first + key)[j])).sum::<f64>())
                    .map(|sum| sum / equal.len() as f64)
                    .collect();
                let got = &out[(first + row) * HEAD_DIM..][..HEAD_DIM];
                // weights of 1 are exact in every type, and so are their sums with small integers
                compare::<D::Float>((mask, dtype, scale, row), got, &want, |_| 8.0 * 4.0 * ROUNDING);
            }
        }
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
fn thirds<'a, D: Device>(rows: FloatsOn<'a, D>, hidden_size: usize) -> [ColumnsOn<'a, D>; 3] {
    [0, 1, 2].map(|third| Columns { rows, first: third * hidden_size, row_stride: 3 * hidden_size })
}

/// Refuses wrong sizes that the host's arguments and the lengths of buffers reveal.
fn refuses_wrong_sizes<D: Attention>(device: &D) {
    let mut rig = Rig::new(device);
    let (x, lens, table) = (rig.put(&[0.0; 36]), rig.put_u32(&[1, 1, 1]), rig.put(&[0.0; 16]));
    let whole = thirds::<D>(x.view(), 4);
    let mut run = |shape, [q, k, v]: [ColumnsOn<'_, D>; 3], bias: Option<(usize, usize, usize)>, out_len| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
        rig.answer(out_len, |d, queue, out| {
            let bias = bias.map(|(len, num_buckets, max_distance)| RelativeBias::Buckets {
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
    let mut disentangled = |of_queries, of_keys, span, max_distance| {
        let layout = Layout::Padded { seq_lens: lens.view(), padded_len: 1 };
        let [of_queries, of_keys] = [of_queries, of_keys].map(|len| table.part(0, len));
        let positions = PositionBuckets { span, max_distance };
        let bias = Some(RelativeBias::Disentangled { of_queries, of_keys, positions });
        rig.answer(12, |d, queue, out| d.attention(queue, NARROW, layout, q, k, v, bias, out))
    };
    // three rows of two heads with two positions
    assert!(disentangled(12, 12, 1, None).is_ok(), "attention: scores with positions fit");
    refuses_length("attention: scores of queries too short", disentangled(11, 12, 1, None));
    refuses_length("attention: scores of keys too short", disentangled(12, 11, 1, None));
    refuses_size("attention: no positions", disentangled(12, 12, 0, None));
    refuses_size("attention: logarithms of one position", disentangled(12, 12, 1, Some(9)));
    refuses_size("attention: logarithms to nowhere", disentangled(16, 16, 2, Some(2)));
}

/// Refuses layouts that contradict themselves or the buffers.
pub(super) fn refuses_broken_layouts<D: Attention>(device: &D) {
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
