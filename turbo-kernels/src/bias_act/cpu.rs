//! Element-wise steps on the CPU. No lane depends on another, so bits cannot depend on where a value lies.

use super::{Accuracy, Activation, BiasAct, Routing, apply, with_activation};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue},
    lanes,
    simd::{Kernel, Simd},
};

/// Values of one piece of work: 128 KiB in and out, some ten microseconds where memory is the limit.
const PIECE: usize = 16 * 1024;

impl BiasAct for Cpu {
    fn add_bias(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        bias: &[f32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        with_bias("add_bias", queue, x, bias, out, |x, out| {
            self.supported_isa().run(Add { a: x, b: bias, out });
        })
    }

    fn activate(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        activation: Activation,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        KernelError::check_length("activate", "out", x.len(), out.len())?;
        Ok(queue.for_each_chunk(out, PIECE, 0, |piece, out, _| {
            self.supported_isa().run(Activate { x: &x[piece * PIECE..][..out.len()], activation, out });
        })?)
    }

    fn bias_activate(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        bias: &[f32],
        activation: Activation,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        with_bias("bias_activate", queue, x, bias, out, |x, out| {
            self.supported_isa().run(BiasActivate { x, bias, activation, out });
        })
    }

    fn add(&self, queue: &mut CpuQueue, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
        KernelError::check_length("add", "b", a.len(), b.len())?;
        KernelError::check_length("add", "out", a.len(), out.len())?;
        Ok(queue.for_each_chunk(out, PIECE, 0, |piece, out, _| {
            let first = piece * PIECE;
            let (a, b) = (&a[first..][..out.len()], &b[first..][..out.len()]);
            self.supported_isa().run(Add { a, b, out });
        })?)
    }

    fn mul(&self, queue: &mut CpuQueue, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
        KernelError::check_length("mul", "b", a.len(), b.len())?;
        KernelError::check_length("mul", "out", a.len(), out.len())?;
        Ok(queue.for_each_chunk(out, PIECE, 0, |piece, out, _| {
            let first = piece * PIECE;
            let (a, b) = (&a[first..][..out.len()], &b[first..][..out.len()]);
            self.supported_isa().run(Mul { a, b, out });
        })?)
    }

    fn gate(
        &self,
        queue: &mut CpuQueue,
        activation: Activation,
        x: &[f32],
        n: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let rows = KernelError::check_rows("gate", "out", n, out.len())?;
        KernelError::check_length("gate", "x", rows.saturating_mul(n).saturating_mul(2), x.len())?;
        let rows_of_piece = (PIECE / n.max(1)).max(1);
        Ok(queue.for_each_chunk(out, rows_of_piece * n.max(1), 0, |piece, out, _| {
            let x = &x[piece * rows_of_piece * 2 * n..];
            for (x, out) in x.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
                let (left, right) = x.split_at(n);
                self.supported_isa().run(Gate { activation, left, right, out });
            }
        })?)
    }

    fn scale(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        factor: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        KernelError::check_length("scale", "out", x.len(), out.len())?;
        Ok(queue.for_each_chunk(out, PIECE, 0, |piece, out, _| {
            self.supported_isa().run(Scale { x: &x[piece * PIECE..][..out.len()], factor, out });
        })?)
    }

    fn weigh_experts(
        &self,
        queue: &mut CpuQueue,
        x: &[f32],
        logits: &[f32],
        routing: Routing,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let (_, values) = routing.check(logits.len(), x.len(), out.len())?;
        if values == 0 {
            return Ok(());
        }
        let width = routing.num_experts * values;
        let rows_of_piece = (PIECE / width).max(1);
        Ok(queue.for_each_chunk(out, rows_of_piece * width, 0, |piece, out, _| {
            let first = piece * rows_of_piece;
            let rows = x[first * width..].chunks_exact(width).zip(out.chunks_exact_mut(width));
            for ((x, out), logits) in rows.zip(logits.chunks_exact(routing.num_experts).skip(first)) {
                let experts = x.chunks_exact(values).zip(out.chunks_exact_mut(values));
                for ((x, out), weight) in experts.zip(routing.weights(logits)) {
                    match weight {
                        Some(factor) => self.supported_isa().run(Scale { x, factor, out }),
                        None => out.fill(0.0),
                    }
                }
            }
        })?)
    }
}

impl Routing {
    /// The weights of a row, `top_k` of them. Experts that have none are not looked at, whatever their values are.
    pub(crate) fn weights(self, logits: &[f32]) -> [Option<f32>; Self::MOST_EXPERTS] {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponentials = logits.iter().map(|logit| f64::from(logit - most).exp());
        let sum: f64 = exponentials.clone().sum();
        // a total order, in which NaN comes before numbers: otherwise NaN would let more experts in
        let is_greater = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
        let mut weights = [None; Self::MOST_EXPERTS];
        for (expert, exponential) in exponentials.enumerate() {
            let own = logits[expert];
            let before = |(other, &logit): (usize, &f32)| {
                is_greater(logit, own) || (other < expert && !is_greater(own, logit))
            };
            let rank = logits.iter().enumerate().filter(|it| before(*it)).count();
            weights[expert] = (rank < self.top_k).then_some((exponential / sum) as f32);
        }
        weights
    }
}

/// Calls `of_row` with each row of `x` and `out`, which are as long as `bias`.
fn with_bias(
    kernel: &'static str,
    queue: &mut CpuQueue,
    x: &[f32],
    bias: &[f32],
    out: &mut [f32],
    of_row: impl Fn(&[f32], &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    KernelError::check_rows(kernel, "x", bias.len(), x.len())?;
    KernelError::check_length(kernel, "out", x.len(), out.len())?;
    let hidden_size = bias.len().max(1);
    let values = (PIECE / hidden_size).max(1) * hidden_size;
    Ok(queue.for_each_chunk(out, values, 0, |piece, out, _| {
        let x = &x[piece * values..][..out.len()];
        x.chunks_exact(hidden_size)
            .zip(out.chunks_exact_mut(hidden_size))
            .for_each(|(x, out)| of_row(x, out));
    })?)
}

/// `out = activation(x + bias)` for slices of one length.
struct BiasActivate<'a> {
    x: &'a [f32],
    bias: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
}

impl Kernel for BiasActivate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let add = |[x, bias]: [_; 2]| s.add(x, bias);
        activate(s, self.activation, [self.x, self.bias], self.out, add, |activated, _| activated);
    }
}

/// `out = activation(x)` for slices of one length.
pub(crate) struct Activate<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) activation: Activation,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        activate(s, self.activation, [self.x], self.out, |[x]| x, |activated, _| activated);
    }
}

/// `out = activation(left) · right`.
struct Gate<'a> {
    activation: Activation,
    left: &'a [f32],
    right: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let gate = |activated, [_, right]: [_; 2]| s.mul(activated, right);
        activate(s, self.activation, [self.left, self.right], self.out, |[left, _]| left, gate);
    }
}

/// `out[i] = behind(activation(before(rows[i])), rows[i])` for rows of one length; `before` and `behind` are an
/// instruction each.
#[inline(always)]
fn activate<S: Simd, const N: usize>(
    s: S,
    activation: Activation,
    rows: [&[f32]; N],
    out: &mut [f32],
    before: impl Fn([S::F32; N]) -> S::F32,
    behind: impl Fn(S::F32, [S::F32; N]) -> S::F32,
) {
    let (out, rest) = out.split_at_mut(out.len() - out.len() % S::LANES);
    let rows = rows.map(|row| row.split_at(out.len()));
    with_activation!(activation, ACTIVATION => {
        // whole vectors in a loop of their own, in which nothing is left to decide
        let mut parts = rows.map(|(row, _)| row.chunks_exact(S::LANES));
        for out in out.chunks_exact_mut(S::LANES) {
            let values = parts.each_mut().map(|row| s.load(row.next().unwrap_or_default()));
            s.store(behind(apply(s, Accuracy::Full, ACTIVATION, before(values)), values), out);
        }
        if !rest.is_empty() {
            let values = rows.map(|(_, row)| s.load_partial(row, 0.0));
            s.store_partial(behind(apply(s, Accuracy::Full, ACTIVATION, before(values)), values), rest);
        }
    });
}

/// `out = a + b` for slices of one length.
pub(crate) struct Add<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes::map(s, [self.a, self.b], 0.0, self.out, |[a, b]| s.add(a, b));
    }
}

struct Mul<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Mul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes::map(s, [self.a, self.b], 0.0, self.out, |[a, b]| s.mul(a, b));
    }
}

struct Scale<'a> {
    x: &'a [f32],
    factor: f32,
    out: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        lanes::map(s, [self.x], 0.0, self.out, |[x]| s.mul(factor, x));
    }
}
