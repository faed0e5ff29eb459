//! Once a queue has seen the largest shapes, kernels allocate nothing.

use std::{
    alloc::{GlobalAlloc, Layout as Size, System},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
};

use turbo_kernels::{
    Activation, Attention, AttentionMask, BiasAct, Columns, Cpu, CpuOptions, DType, Device, Embed, Epilogue,
    FeedForward, Gemm, HeadSizes, Hidden, KernelError, Layout, Norm, Pool, Pooling, Queries, RelativeBias,
    Rotary, Softmax, attention::AttentionShape, device::CpuQueue, embed::Lookup, norm::NormWeights,
    softmax::ScoreShape,
};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, size: Size) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` came from `System`.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HEADS: AttentionShape = AttentionShape {
    num_heads: 4,
    num_kv_heads: 4,
    head_dim: 16,
    scale: 0.25,
    mask: AttentionMask::Full,
    dtype: DType::F32,
    queries: Queries::All,
};
const SIZES: HeadSizes = HeadSizes { num_heads: 4, head_dim: 16 };
const HIDDEN_SIZE: usize = 64;
const MOST_TOKENS: usize = 200;

/// A layer's kernels over two sequences of `tokens` tokens together.
fn layer<'a>(
    cpu: &Cpu,
    queue: &mut CpuQueue,
    weight: &<Cpu as Gemm>::Weight,
    values: &'a [f32],
    out: &mut [f32],
    tokens: usize,
) -> Result<(), KernelError> {
    let cu_seqlens = [0, tokens as u32 / 3, tokens as u32];
    let layout: Layout<&[u32]> = Layout::Packed { cu_seqlens: &cu_seqlens };
    let (ids, row): ([u32; MOST_TOKENS], &'a [f32]) = ([0; MOST_TOKENS], &values[..HIDDEN_SIZE]);
    let (x, out) = (&values[..tokens * HIDDEN_SIZE], &mut out[..tokens * HIDDEN_SIZE]);
    let weights = NormWeights { gain: row, offset: Some(row), epsilon: 1e-12 };
    let lookup = Lookup { table: x, ids: &ids[..tokens] };
    cpu.embed_sum_layer_norm(queue, &[lookup; 3], weights, out)?;
    let qkv = &values[..3 * tokens * HIDDEN_SIZE];
    let part = |first| Columns { rows: qkv, first: first * HIDDEN_SIZE, row_stride: 3 * HIDDEN_SIZE };
    cpu.attention(queue, HEADS, layout, part(0), part(1), part(2), None, out)?;
    let masked = AttentionShape { num_kv_heads: 2, mask: AttentionMask::Causal, ..HEADS };
    let bias = RelativeBias::Buckets { table: &values[..32], num_buckets: 8, max_distance: 20 };
    cpu.attention(queue, masked, layout, part(0), part(1), part(2), Some(bias), out)?;
    cpu.rotary(queue, SIZES, layout, part(0), &values[..tokens * SIZES.head_dim], out)?;
    cpu.head_rms_norm(queue, SIZES, part(1), &row[..SIZES.head_dim], 1e-6, out)?;
    cpu.rms_norm(queue, x, row, 1e-6, out)?;
    cpu.gate(queue, Activation::Silu, &values[..2 * tokens * HIDDEN_SIZE], HIDDEN_SIZE, out)?;
    cpu.mul(queue, x, x, out)?;
    cpu.gemm_max_pool(queue, layout, x, weight, Some(row), &mut out[..2 * HIDDEN_SIZE])?;
    cpu.gemm(queue, x, weight, Epilogue::BiasAct(row, Activation::GeluErf), out)?;
    cpu.bias_residual_layer_norm(queue, x, Some(row), x, weights, out)?;
    cpu.activate(queue, x, Activation::GeluTanh, out)?;
    let scores = ScoreShape { batch_size: 1, num_heads: 1, queries: tokens, keys: HIDDEN_SIZE };
    cpu.scale_mask_softmax(queue, scores, x, 0.5, None, Some(&[40]), AttentionMask::Full, out)?;
    let square = ScoreShape { batch_size: 1, num_heads: 4, queries: 1, keys: tokens };
    cpu.add_relative_bias(queue, square, &x[..4 * tokens], bias, &mut out[..4 * tokens])?;
    cpu.pool(queue, Pooling::Mean, layout, x, &mut out[..2 * HIDDEN_SIZE])?;
    cpu.l2_normalize(queue, HIDDEN_SIZE, x, out)
}

/// Attention's scratch is that of the longest sequence, however many others lie beside it.
fn one_long_sequence_warms_attention_for_many_short_ones() -> Result<(), KernelError> {
    let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: None })?;
    let mut queue = cpu.queue()?;
    let values = vec![0.5; 3000 * 3 * HIDDEN_SIZE];
    let mut out = vec![0.0; 3000 * HIDDEN_SIZE];
    for mask in [AttentionMask::Full, AttentionMask::Causal, AttentionMask::Window { reach: 20 }] {
        let mut attend = |batch_size: u32, seq_len: u32| -> Result<usize, KernelError> {
            let cu_seqlens: Vec<u32> = (0..=batch_size).map(|b| b * seq_len).collect();
            let layout = Layout::Packed { cu_seqlens: &cu_seqlens[..] };
            let rows = (batch_size * seq_len) as usize;
            let qkv = &values[..rows * 3 * HIDDEN_SIZE];
            let [q, k, v] = [0, 1, 2].map(|third| Columns {
                rows: qkv,
                first: third * HIDDEN_SIZE,
                row_stride: 3 * HIDDEN_SIZE,
            });
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            let out = &mut out[..rows * HIDDEN_SIZE];
            cpu.attention(&mut queue, AttentionShape { mask, ..HEADS }, layout, q, k, v, None, out)?;
            Ok(ALLOCATIONS.load(Ordering::Relaxed) - before)
        };
        attend(1, 100)?;
        for (batch_size, seq_len) in [(30, 100), (7, 64), (200, 3), (1, 99)] {
            assert_eq!(attend(batch_size, seq_len)?, 0, "{batch_size} x {seq_len}, {mask:?}");
        }
    }
    Ok(())
}

/// The scratch of products does not simply grow with their rows: how they are cut decides.
fn the_most_rows_warm_products_for_fewer() -> Result<(), KernelError> {
    const WIDE: usize = 16 * HIDDEN_SIZE;
    const MOST_ROWS: usize = 700;
    let values: Vec<f32> = (0..2 * WIDE * HIDDEN_SIZE).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    let x = vec![0.5; MOST_ROWS * HIDDEN_SIZE];
    let mut out = vec![0.0; MOST_ROWS * HIDDEN_SIZE];
    for threads in [1, 2, 5] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None })?;
        for dtype in DType::ALL {
            let mut queue = cpu.queue()?;
            let up = cpu.pack(&values, 2 * WIDE, HIDDEN_SIZE, dtype)?;
            let down = cpu.pack(&values[..WIDE * HIDDEN_SIZE], HIDDEN_SIZE, WIDE, dtype)?;
            let norm = NormWeights { gain: &values[..HIDDEN_SIZE], offset: None, epsilon: 1e-6 };
            let mut memory = |rows: usize| -> Result<[usize; 2], KernelError> {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                let (x, out) = (&x[..rows * HIDDEN_SIZE], &mut out[..rows * HIDDEN_SIZE]);
                let layer = FeedForward {
                    up: &up,
                    up_bias: None,
                    hidden: Hidden::Gate(Activation::Silu),
                    down: &down,
                    down_bias: None,
                    residual: Some(x),
                    norm: Some(norm),
                };
                cpu.feed_forward(&mut queue, x, layer, out)?;
                Ok([queue.bytes(), ALLOCATIONS.load(Ordering::Relaxed) - before])
            };
            let [warm, _] = memory(MOST_ROWS)?;
            for rows in [699, 350, 336, 100, 57, 56, 55, 14, 1, MOST_ROWS] {
                assert_eq!(memory(rows)?, [warm, 0], "{rows} rows in {dtype} on {threads} threads");
            }
        }
    }
    Ok(())
}

/// One test: a second thread of tests would allocate too.
#[test]
fn a_warm_queue_allocates_nothing() {
    one_long_sequence_warms_attention_for_many_short_ones().unwrap();
    the_most_rows_warm_products_for_fewer().unwrap();
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None }).unwrap();
        let mut queue = cpu.queue().unwrap();
        let values: Vec<f32> =
            (0..3 * MOST_TOKENS * HIDDEN_SIZE).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
        let mut out = vec![0.0; MOST_TOKENS * HIDDEN_SIZE];
        let weight =
            cpu.pack(&values[..HIDDEN_SIZE * HIDDEN_SIZE], HIDDEN_SIZE, HIDDEN_SIZE, DType::F32).unwrap();
        let mut allocations = |tokens| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            layer(&cpu, &mut queue, &weight, &values, &mut out, tokens).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        assert!(allocations(MOST_TOKENS) > 0, "the first call makes the scratch, and the counter counts");
        for tokens in [MOST_TOKENS, 2, 7, 150, MOST_TOKENS, 64] {
            assert_eq!(allocations(tokens), 0, "{tokens} tokens on {threads} threads");
        }
    }
}
