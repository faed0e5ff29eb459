//! What the kernels are fast at, as ratios of two kernels that run in turns on one thread of this machine.
//!
//! A ratio of times says the same on a fast and on a slow machine. The thread's own clock stands still while others
//! have the core, and the least of many short runs counts, so a loaded machine changes little; and the bounds leave a
//! third of what was measured, or a tenth where both sides come near to what the processor can do.

#![cfg(all(unix, target_arch = "x86_64"))]

mod common;

use std::num::NonZeroUsize;

use common::{product, values};
use rustix::time::{ClockId, clock_gettime};
use turbo_kernels::{
    Activation, Attention, AttentionMask, BiasAct, Columns, Cpu, CpuOptions, DType, Device, Epilogue,
    FeedForward, Gemm, Hidden, Isa, KernelError, Layout, Norm, Queries, attention::AttentionShape,
    norm::NormWeights,
};

/// Turns of both sides. A turn of the longest kernel takes some milliseconds.
const TURNS: usize = 40;

/// Seconds that this thread has had a core.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// How many times longer `slow` takes than `fast`, each at its best.
fn ratio(mut slow: impl FnMut(), mut fast: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let start = now();
        run();
        now() - start
    };
    let (mut slowest, mut fastest) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TURNS {
        slowest = slowest.min(time(&mut slow));
        fastest = fastest.min(time(&mut fast));
    }
    slowest / fastest
}

fn cpu() -> Result<Cpu, KernelError> {
    Ok(Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: Some(Isa::from_env()?) })?)
}

/// A product of `rows` rows with a weight of BERT's feed-forward layer, at two dtypes or beside the other crate.
struct Sides {
    cpu: Cpu,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

const IN: usize = 768;
const OUT: usize = 1536;

impl Sides {
    fn new(rows: usize) -> Result<Self, KernelError> {
        Ok(Self { cpu: cpu()?, x: values(rows * IN, 1), weight: values(OUT * IN, 2), bias: values(OUT, 3) })
    }

    fn run(&self, dtype: DType) -> Result<impl FnMut() + '_, KernelError> {
        self.run_with(dtype, Epilogue::Bias(&self.bias[..]))
    }

    fn run_with<'a>(
        &'a self,
        dtype: DType,
        epilogue: Epilogue<&'a [f32]>,
    ) -> Result<impl FnMut() + 'a, KernelError> {
        let packed = self.cpu.pack(&self.weight, OUT, IN, dtype)?;
        let (mut queue, mut out) = (self.cpu.queue()?, vec![0.0; self.x.len() / IN * OUT]);
        Ok(move || {
            self.cpu.gemm(&mut queue, &self.x, &packed, epilogue, &mut out).expect("sizes fit");
        })
    }

    fn run_other_crate(&self) -> impl FnMut() + '_ {
        let rows = self.x.len() / IN;
        let mut out = vec![0.0; rows * OUT];
        move || product([rows, OUT, IN], &self.x, &self.weight, &mut out)
    }
}

/// One test, so that no two measurements share a core.
#[test]
fn what_was_gained_is_not_lost() -> Result<(), KernelError> {
    let isa = Isa::from_env()?;
    if isa == Isa::Portable {
        println!("skipped: without vector instructions there is nothing to keep");
        return Ok(());
    }
    let mut lost = Vec::new();
    let mut keep = |what: &str, least: f64, found: f64| {
        println!("{what}: {found:.2}, at least {least}");
        if found < least {
            lost.push(format!("{what}: {found:.2}, expected at least {least}"));
        }
    };
    let heads = Heads::new(300)?;
    // the other crate takes the best instructions that there are
    if isa == Isa::detect() {
        // with many rows both come near what a processor can do: held where that was measured
        let most_rows = if isa == Isa::Avx512 { 128 } else { 40 };
        let bounds = [(10, 1.5), (40, 1.1), (128, 0.9)];
        for (rows, least) in bounds.into_iter().filter(|(rows, _)| *rows <= most_rows) {
            let sides = Sides::new(rows)?;
            let found = ratio(sides.run_other_crate(), sides.run(DType::F32)?);
            keep(&format!("f32 products of {rows} rows beside the crate gemm"), least, found);
        }
        let found = ratio(heads.products_of_other_crate(), heads.run(DType::F32)?);
        keep("f32 attention beside its products by the crate gemm", 0.6, found);
    }
    let sides = Sides::new(128)?;
    let with_gelu = Epilogue::BiasAct(&sides.bias[..], Activation::GeluErf);
    let found = ratio(sides.run(DType::F32)?, sides.run_with(DType::F32, with_gelu)?);
    keep("f32 products with GELU beside those without", 0.85, found);
    let narrow =
        |dtype: DType| -> Result<bool, KernelError> { Ok(!cpu()?.computes(dtype).starts_with("widened")) };
    if narrow(DType::Bf16)? {
        keep("bf16 beside f32", 1.3, ratio(sides.run(DType::F32)?, sides.run(DType::Bf16)?));
        let found = ratio(heads.run(DType::F32)?, heads.run(DType::Bf16)?);
        keep("attention in bf16 beside f32", 1.3, found);
    }
    if narrow(DType::Int8)? {
        // by tile registers bf16 has not been timed, and quantising may take what bytes gain
        let by_tiles = cpu()?.computes(DType::Bf16).starts_with("tile");
        let wider = if narrow(DType::Bf16)? && !by_tiles { DType::Bf16 } else { DType::F32 };
        keep(&format!("int8 beside {wider}"), 1.3, ratio(sides.run(wider)?, sides.run(DType::Int8)?));
    }
    keep("ReLU beside a sum", 1.1, relu(ROWS)?);
    keep("a layer norm beside a sum", 0.22, layer_norm(ROWS)?);
    keep("a feed-forward layer as one beside its parts", 0.9, feed_forward(200)?);
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    Ok(())
}

const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

/// Attention of some heads over one sequence, at two dtypes or beside products of the other crate.
struct Heads {
    cpu: Cpu,
    tokens: usize,
    qkv: Vec<f32>,
    cu_seqlens: [u32; 2],
}

impl Heads {
    fn new(tokens: usize) -> Result<Self, KernelError> {
        let cu_seqlens = [0, u32::try_from(tokens).expect("a short sequence")];
        Ok(Self { cpu: cpu()?, tokens, qkv: values(tokens * 3 * HEADS * HEAD_DIM, 11), cu_seqlens })
    }

    fn run(&self, dtype: DType) -> Result<impl FnMut() + '_, KernelError> {
        let width = HEADS * HEAD_DIM;
        let [q, k, v] =
            [0, 1, 2].map(|i| Columns { rows: &self.qkv[..], first: i * width, row_stride: 3 * width });
        let shape = AttentionShape {
            num_heads: HEADS,
            num_kv_heads: HEADS,
            head_dim: HEAD_DIM,
            scale: 0.125,
            mask: AttentionMask::Full,
            queries: Queries::All,
            dtype,
        };
        let (mut queue, mut out) = (self.cpu.queue()?, vec![0.0; self.tokens * width]);
        Ok(move || {
            let layout = Layout::Packed { cu_seqlens: &self.cu_seqlens[..] };
            self.cpu.attention(&mut queue, shape, layout, q, k, v, None, &mut out).expect("sizes fit");
        })
    }

    /// Two products of the same sizes for each head, and nothing between them.
    fn products_of_other_crate(&self) -> impl FnMut() + '_ {
        let tokens = self.tokens;
        let [q, k, v] = [17, 18, 19].map(|seed| values(tokens * HEAD_DIM, seed));
        let (mut scores, mut out) = (vec![0.0; tokens * tokens], vec![0.0; tokens * HEAD_DIM]);
        move || {
            for _ in 0..HEADS {
                product([tokens, tokens, HEAD_DIM], &q, &k, &mut scores);
                product([tokens, HEAD_DIM, tokens], &scores, &v, &mut out);
            }
        }
    }
}

/// As wide as rows of MiniLM.
const WIDTH: usize = 384;
/// So many that what is read and what is written do not lie whole pages apart, which processors take for the same place.
const ROWS: usize = 15;
/// Runs of what a clock cannot tell by itself.
const TIMES: usize = 100;

/// How many times longer a sum of two takes than ReLU, of `rows` rows.
fn relu(rows: usize) -> Result<f64, KernelError> {
    let cpu = cpu()?;
    let x = values(rows * WIDTH, 15);
    let (mut queue, mut out) = (cpu.queue()?, vec![0.0; x.len()]);
    let activate = || {
        for _ in 0..TIMES {
            cpu.activate(&mut queue, &x, Activation::Relu, &mut out).expect("sizes fit");
        }
    };
    Ok(ratio(sum(&cpu, &x)?, activate))
}

/// How many times longer a sum of two takes than a layer norm, of `rows` rows.
fn layer_norm(rows: usize) -> Result<f64, KernelError> {
    let cpu = cpu()?;
    let (x, gain, offset) = (values(rows * WIDTH, 12), values(WIDTH, 13), values(WIDTH, 14));
    let weights = NormWeights { gain: &gain[..], offset: Some(&offset[..]), epsilon: 1e-12 };
    let (mut queue, mut normal) = (cpu.queue()?, vec![0.0; x.len()]);
    let normalize = || {
        for _ in 0..TIMES {
            cpu.layer_norm(&mut queue, &x, weights, &mut normal).expect("sizes fit");
        }
    };
    Ok(ratio(sum(&cpu, &x)?, normalize))
}

/// `x` and as many values more, over and over again.
fn sum<'a>(cpu: &'a Cpu, x: &'a [f32]) -> Result<impl FnMut() + 'a, KernelError> {
    let (y, mut queue, mut out) = (values(x.len(), 16), cpu.queue()?, vec![0.0; x.len()]);
    Ok(move || {
        for _ in 0..TIMES {
            cpu.add(&mut queue, x, &y, &mut out).expect("sizes fit");
        }
    })
}

/// How many times longer a feed-forward layer takes as a product with GELU and one with a layer norm.
fn feed_forward(rows: usize) -> Result<f64, KernelError> {
    const WIDE: usize = 4 * IN;
    let cpu = cpu()?;
    let (up, down) = (values(WIDE * IN, 4), values(IN * WIDE, 5));
    let (up, down) = (cpu.pack(&up, WIDE, IN, DType::F32)?, cpu.pack(&down, IN, WIDE, DType::F32)?);
    let (x, up_bias, down_bias) = (values(rows * IN, 6), values(WIDE, 7), values(IN, 8));
    let (gain, offset) = (values(IN, 9), values(IN, 10));
    let norm = || NormWeights { gain: &gain[..], offset: Some(&offset[..]), epsilon: 1e-12 };
    let mut queues = [cpu.queue()?, cpu.queue()?];
    let [parts_queue, whole_queue] = &mut queues;
    let (mut wide, mut out, mut whole) = (vec![0.0; rows * WIDE], vec![0.0; rows * IN], vec![0.0; rows * IN]);
    let parts = || {
        let epilogue = Epilogue::BiasAct(&up_bias[..], Activation::GeluErf);
        cpu.gemm(parts_queue, &x, &up, epilogue, &mut wide).expect("sizes fit");
        let norm = norm();
        cpu.gemm_norm(parts_queue, &wide, &down, Some(&down_bias), Some(&x), norm, &mut out)
            .expect("sizes fit");
    };
    let at_once = || {
        let layer = FeedForward {
            up: &up,
            up_bias: Some(&up_bias[..]),
            hidden: Hidden::Activation(Activation::GeluErf),
            down: &down,
            down_bias: Some(&down_bias[..]),
            residual: Some(&x[..]),
            norm: Some(norm()),
        };
        cpu.feed_forward(whole_queue, &x, layer, &mut whole).expect("sizes fit");
    };
    let ratio = ratio(parts, at_once);
    assert_eq!(out, whole, "both compute the same");
    Ok(ratio)
}
