//! Element-wise steps on the CPU. Every lane stands alone, so bits cannot depend on where a value lies.

use super::{Activation, BiasAct, apply};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue},
    simd::{Kernel, Simd, SupportedIsa},
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
        KernelError::check_rows("add_bias", "x", bias.len(), x.len())?;
        KernelError::check_length("add_bias", "out", x.len(), out.len())?;
        let values = (PIECE / bias.len().max(1)).max(1) * bias.len().max(1);
        Ok(queue.for_each_chunk(out, values, 0, |piece, out, _| {
            let x = &x[piece * values..][..out.len()];
            for (x, out) in x.chunks_exact(bias.len()).zip(out.chunks_exact_mut(bias.len())) {
                self.supported_isa().run(Add { a: x, b: bias, out });
            }
        })?)
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
            activate_values(self.supported_isa(), activation, &x[piece * PIECE..][..out.len()], out);
        })?)
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
}

/// `out = activation(x)`; `x` and `out` have one length.
pub(crate) fn activate_values(isa: SupportedIsa, activation: Activation, x: &[f32], out: &mut [f32]) {
    isa.run(Activate { x, activation, out });
}

struct Activate<'a> {
    x: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let activation = self.activation;
        for (x, out) in self.x.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
            write(s, apply(s, activation, read(s, x)), out);
        }
    }
}

struct Add<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let terms = self.a.chunks(S::LANES).zip(self.b.chunks(S::LANES));
        for ((a, b), out) in terms.zip(self.out.chunks_mut(S::LANES)) {
            write(s, s.add(read(s, a), read(s, b)), out);
        }
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
        for (x, out) in self.x.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
            write(s, s.mul(factor, read(s, x)), out);
        }
    }
}

/// A vector, or what is left of a row with zeros behind it.
#[inline(always)]
fn read<S: Simd>(s: S, from: &[f32]) -> S::F32 {
    if from.len() == S::LANES { s.load(from) } else { s.load_partial(from, 0.0) }
}

/// As much of `v` as `to` holds.
#[inline(always)]
fn write<S: Simd>(s: S, v: S::F32, to: &mut [f32]) {
    if to.len() == S::LANES { s.store(v, to) } else { s.store_partial(v, to) }
}
