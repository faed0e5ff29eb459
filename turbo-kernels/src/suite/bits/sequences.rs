//! Kernels on sequences: the same bits packed, padded and alone.

use super::{
    super::{attention::MASKS, pool::cu_seqlens},
    Numbers, Rig, WIDTH, assert_same,
};
use crate::{
    AttentionMask, Columns, DType, EncoderKernels, HeadSizes, KernelError, Layout, Pooling, Queries,
    RelativeBias, attention::AttentionShape,
};

/// Lengths of sequences: one token, a vector and its neighbours, and more rows than a piece of attention.
const SEQ_LENS: [u32; 7] = [1, 150, 2, 16, 33, 5, 17];
const PADDED_LEN: usize = 151;
/// Values of a head: two vectors and a tail on every instruction set.
const HEAD_DIM: usize = 20;
/// Buckets and greatest distance of the relative bias.
const BUCKETS: (usize, usize) = (16, 50);

/// A kernel on sequences: it takes rows with a number of values, and gives rows of tokens or of sequences.
#[derive(Clone, Copy)]
struct Task {
    name: &'static str,
    from: usize,
    to: To,
}

/// The rows of a result, with the number of values of each.
#[derive(Clone, Copy)]
enum To {
    /// One per row.
    Rows(usize),
    /// One per sequence.
    Sequences(usize),
}

impl Task {
    /// The start of the answer for a row or sequence, given how many come before it.
    fn values(&self, rows: usize, sequences: usize) -> usize {
        match self.to {
            To::Rows(width) => rows * width,
            To::Sequences(width) => sequences * width,
        }
    }
}

/// Attention, rotary positions and poolings.
pub(super) fn sequences<D: EncoderKernels<Float = f32>>(
    rig: &mut Rig<'_, D>,
) -> Vec<(&'static str, Vec<f32>)> {
    let mut answers = attentions(rig);
    for mask in MASKS {
        one_query_of_each_sequence_is_its_row(rig, mask, DType::F32);
        one_query_of_each_sequence_is_its_row(rig, mask, DType::Bf16);
    }
    let heads = HeadSizes { num_heads: 2, head_dim: HEAD_DIM };
    let table = rig.put(&Numbers::<f32>::new(9).values(150 * HEAD_DIM));
    let task = Task { name: "rotary", from: heads.width(), to: To::Rows(heads.width()) };
    answers.push(each_sequence(rig, task, |d, q, layout, x, out| {
        d.rotary(q, heads, layout, Columns::all(x, heads.width()), table.view(), out)
    }));
    for (name, pooling) in [
        ("mean", Pooling::Mean),
        ("max", Pooling::Max),
        ("sum over root", Pooling::MeanSqrtLen),
        ("weighted mean", Pooling::WeightedMean),
    ] {
        let task = Task { name, from: WIDTH, to: To::Sequences(WIDTH) };
        answers.push(each_sequence(rig, task, |d, q, layout, x, out| d.pool(q, pooling, layout, x, out)));
    }
    const VOCAB: usize = 101;
    let mut numbers = Numbers::<f32>::new(10);
    let weight = rig
        .device()
        .pack(&numbers.values(VOCAB * WIDTH), VOCAB, WIDTH, DType::F32)
        .expect("the weight has its shape");
    let bias = rig.put(&numbers.values(VOCAB));
    let task = Task { name: "gemm_max_pool", from: WIDTH, to: To::Sequences(VOCAB) };
    answers.push(each_sequence(rig, task, |d, q, layout, x, out| {
        d.gemm_max_pool(q, layout, x, &weight, Some(bias.view()), out)
    }));
    answers
}

/// Every mask, with and without relative biases, grouped heads among them.
fn attentions<D: EncoderKernels<Float = f32>>(rig: &mut Rig<'_, D>) -> Vec<(&'static str, Vec<f32>)> {
    let (num_buckets, max_distance) = BUCKETS;
    let buckets = Some(RelativeBias::Buckets { table: (), num_buckets, max_distance });
    let alibi = Some(RelativeBias::Alibi);
    let window = AttentionMask::Window { reach: 9 };
    let mut answers = Vec::new();
    for (name, mask, num_kv_heads, bias, dtype) in [
        ("attention", AttentionMask::Full, 4, None, DType::F32),
        ("attention, biased", AttentionMask::Full, 4, buckets, DType::F32),
        ("attention, causal, grouped", AttentionMask::Causal, 2, None, DType::F32),
        ("attention, window", window, 4, None, DType::F32),
        ("attention, window, grouped, biased", window, 1, buckets, DType::F32),
        ("attention, alibi", AttentionMask::Full, 4, alibi, DType::F32),
        ("attention, alibi, bf16", AttentionMask::Full, 4, alibi, DType::Bf16),
        ("attention, bf16", AttentionMask::Full, 4, None, DType::Bf16),
        ("attention, causal, bf16", AttentionMask::Causal, 2, buckets, DType::Bf16),
        ("attention, window, bf16", window, 4, None, DType::Bf16),
        ("attention, window, grouped, biased, bf16", window, 1, buckets, DType::Bf16),
    ] {
        let shape = AttentionShape {
            num_heads: 4,
            num_kv_heads,
            head_dim: HEAD_DIM,
            scale: 0.22,
            mask,
            dtype,
            queries: Queries::All,
        };
        let (q_width, kv_width) = (4 * HEAD_DIM, num_kv_heads * HEAD_DIM);
        let row_stride = q_width + 2 * kv_width;
        let table = rig.put(&Numbers::<f32>::new(11).values(num_buckets * 4));
        let task = Task { name, from: row_stride, to: To::Rows(q_width) };
        answers.push(each_sequence(rig, task, |d, queue, layout, x, out| {
            let [q, k, v] =
                [0, q_width, q_width + kv_width].map(|first| Columns { rows: x, first, row_stride });
            let bias = bias.map(|bias| bias.with_tables([table.view(); 2]));
            d.attention(queue, shape, layout, q, k, v, bias, out)
        }));
    }
    answers
}

/// Queries of one row per sequence give the same row as queries of all rows.
fn one_query_of_each_sequence_is_its_row<D: EncoderKernels<Float = f32>>(
    rig: &mut Rig<'_, D>,
    mask: AttentionMask,
    dtype: DType,
) {
    const HIDDEN: usize = 16;
    let seq_lens = [3, 0, 40, 140];
    let sums = cu_seqlens(&seq_lens);
    let rows = sums[seq_lens.len()] as usize;
    let mut numbers = Numbers::<f32>::new(rows);
    let (q, kv, table) =
        (numbers.values(rows * HIDDEN), numbers.values(rows * HIDDEN), numbers.values(8 * 2));
    let (on_kv, on_table, on_sums) = (rig.put(&kv), rig.put(&table), rig.put_u32(&sums));
    let mut run = |queries, q: &[f32]| {
        let on_q = rig.put(q);
        rig.answer(q.len(), |d, queue, out| {
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
            let bias = RelativeBias::Buckets { table: on_table.view(), num_buckets: 8, max_distance: 20 };
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

fn each_sequence<D: EncoderKernels<Float = f32>>(
    rig: &mut Rig<'_, D>,
    task: Task,
    kernel: impl Fn(
        &D,
        &mut D::Queue,
        Layout<D::View<'_, u32>>,
        D::View<'_, f32>,
        D::ViewMut<'_, f32>,
    ) -> Result<(), KernelError>,
) -> (&'static str, Vec<f32>) {
    let Task { name, from, .. } = task;
    let mut run = |x: &[f32], layout: Layout<&[u32]>, batch_size: usize| {
        let x_on = rig.put(x);
        let (Layout::Padded { seq_lens: lens, .. } | Layout::Packed { cu_seqlens: lens }) = layout;
        let lens = rig.put_u32(lens);
        rig.answer(task.values(x.len() / from, batch_size), |d, q, out| {
            let layout = match layout {
                Layout::Padded { padded_len, .. } => Layout::Padded { seq_lens: lens.view(), padded_len },
                Layout::Packed { .. } => Layout::Packed { cu_seqlens: lens.view() },
            };
            kernel(d, q, layout, x_on.view(), out)
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let sums = cu_seqlens(&SEQ_LENS);
    let x = Numbers::<f32>::new(7).around(0.0, 2.0, sums[SEQ_LENS.len()] as usize * from);
    let batch = run(&x, Layout::Packed { cu_seqlens: &sums }, SEQ_LENS.len());

    let mut padded = vec![0.5; SEQ_LENS.len() * PADDED_LEN * from];
    for (b, pair) in sums.windows(2).enumerate() {
        let rows = &x[pair[0] as usize * from..pair[1] as usize * from];
        padded[b * PADDED_LEN * from..][..rows.len()].copy_from_slice(rows);
        let alone = run(rows, Layout::Packed { cu_seqlens: &[0, SEQ_LENS[b]] }, 1);
        assert_same(
            name,
            &alone,
            &batch[task.values(pair[0] as usize, b)..task.values(pair[1] as usize, b + 1)],
        );
    }
    let layout = Layout::Padded { seq_lens: &SEQ_LENS[..], padded_len: PADDED_LEN };
    let spread = run(&padded, layout, SEQ_LENS.len());
    for (b, pair) in sums.windows(2).enumerate() {
        let want = &batch[task.values(pair[0] as usize, b)..task.values(pair[1] as usize, b + 1)];
        assert_same(name, &spread[task.values(b * PADDED_LEN, b)..][..want.len()], want);
    }
    (name, batch)
}
