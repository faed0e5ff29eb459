//! What this machine can do at most, measured: the yardstick beside every time that a bench prints.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use crate::{
    Cpu, Device, DeviceError,
    device::{CpuBlock, CpuQueue},
    simd::{Kernel, Simd},
};

/// Ceilings of a CPU with all threads of its queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// f32 operations a second; a multiply-add is two. On the portable path of x86-64, with its 16 small registers,
    /// no loop reaches the ceiling, and a product may do a little better than this.
    pub flops: f64,
    /// Bytes read from memory a second.
    pub memory_bytes: f64,
}

/// Bytes that no cache holds.
const MEMORY: usize = 256 << 20;
/// Values read in one piece.
const PIECE: usize = 256 << 10;
/// Multiply-adds of each chain in one piece.
const STEPS: usize = 20_000;
/// The best of this many runs counts: a ceiling is what the machine reaches undisturbed.
const RUNS: usize = 7;

impl Limits {
    /// Measures for a quarter of a second, with 256 MiB.
    ///
    /// # Errors
    /// When there is no memory or no thread.
    pub fn measure(cpu: &Cpu) -> Result<Limits, DeviceError> {
        let mut queue = cpu.queue()?;
        Ok(Limits { flops: flops(cpu, &mut queue)?, memory_bytes: memory_bytes(cpu, &mut queue)? })
    }
}

fn flops(cpu: &Cpu, queue: &mut CpuQueue) -> Result<f64, DeviceError> {
    let pieces = 64 * queue.threads();
    let per_piece = 2 * STEPS * cpu.supported_isa().run(Chains { steps: 1 });
    let time = best_time(|| {
        queue.for_each_piece(pieces, 0, |_, _| {
            cpu.supported_isa().run(Chains { steps: STEPS });
        })
    })?;
    Ok((pieces * per_piece) as f64 / time.as_secs_f64())
}

fn memory_bytes(cpu: &Cpu, queue: &mut CpuQueue) -> Result<f64, DeviceError> {
    let mut block = CpuBlock::zeroed(MEMORY)?;
    let values = block.view_mut::<f32>(0, MEMORY / size_of::<f32>())?;
    values.fill(1.0); // pages that were never written have no memory of their own
    let values = &*values;
    let time = best_time(|| {
        queue.for_each_piece(values.len() / PIECE, 0, |piece, _| {
            black_box(cpu.supported_isa().run(Sum(&values[piece * PIECE..][..PIECE])));
        })
    })?;
    Ok(MEMORY as f64 / time.as_secs_f64())
}

fn best_time(mut run: impl FnMut() -> Result<(), DeviceError>) -> Result<Duration, DeviceError> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

/// Independent chains of multiply-adds, as many as hide the latency of one; gives the values in a step.
struct Chains {
    steps: usize,
}

impl Kernel for Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        // Five chains of the portable path on x86-64 are spilled to the stack and run at a quarter of the speed of four.
        if S::REGISTERS >= 16 { chains::<S, 12>(s, self.steps) } else { chains::<S, 4>(s, self.steps) }
    }
}

#[inline(always)]
fn chains<S: Simd, const N: usize>(s: S, steps: usize) -> usize {
    let (x, y) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
    let mut sums = [s.splat(1.0); N];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = s.mul_add(*sum, x, y);
        }
    }
    sums.iter().for_each(|sum| {
        black_box(s.reduce_sum(*sum));
    });
    N * S::LANES
}

/// Sum of whole groups of vectors.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(0.0); 4];
        for values in self.0.chunks_exact(4 * S::LANES) {
            for (sum, values) in sums.iter_mut().zip(values.chunks_exact(S::LANES)) {
                *sum = s.add(*sum, s.load(values));
            }
        }
        sums.iter().map(|sum| s.reduce_sum(*sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{CpuOptions, Isa};

    #[test]
    fn ceilings_are_those_of_a_computer() {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: Some(Isa::detect()) }).unwrap();
        let limits = Limits::measure(&cpu).unwrap();
        assert!((1e8..1e14).contains(&limits.flops), "{limits:?}");
        assert!((1e8..1e13).contains(&limits.memory_bytes), "{limits:?}");
    }

    #[test]
    fn sums_read_everything() {
        for isa in crate::simd::supported() {
            assert_eq!(isa.run(Sum(&[1.0; 128])), 128.0);
        }
    }
}
