//! What this machine can do at most, measured: the yardstick beside every time that a bench prints.

use std::{
    hint::black_box,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::*},
    },
    time::{Duration, Instant},
};

use crate::{
    Cpu, DType, Device, DeviceError,
    device::{CpuBlock, CpuQueue, look},
    simd::{Kernel, Simd, SupportedIsa, TILE_REGISTERS_SIDE},
};

/// Ceilings of a CPU with all threads of its queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// f32 operations a second; a multiply-add is two. On the portable path of x86-64, with its 16 small registers,
    /// no loop reaches the ceiling, and a product may do a little better than this.
    pub flops: f64,
    /// As `flops` with bf16 operands, computed as products of [`crate::DType::Bf16`] are: by tile registers, dot
    /// products or multiply-adds of f32.
    pub bf16_flops: f64,
    /// Operations a second on 8-bit integers, computed as products of [`crate::DType::Int8`] are; a multiply-add is
    /// two.
    pub int8_ops: f64,
    /// Bytes read from memory a second.
    pub memory_bytes: f64,
}

/// More bytes than any cache holds.
const MEMORY: usize = 256 << 20;
/// Values read in one piece.
const PIECE: usize = 256 << 10;
/// Multiply-adds of each chain in one run: about a millisecond.
const STEPS: usize = 400_000;
/// The best of this many runs counts: a ceiling is what the machine reaches undisturbed.
const RUNS: usize = 7;

impl Limits {
    /// Measures for a third of a second, with 256 MiB.
    ///
    /// The four ceilings take turns, run by run. A team that has just been woken may run on one core until the
    /// operating system has moved a thread, and other processes may hold the machine for tens of milliseconds: with
    /// turns, no ceiling has all its runs in such a time.
    ///
    /// # Errors
    /// When there is no memory or no thread.
    pub fn measure(cpu: &Cpu) -> Result<Limits, DeviceError> {
        let mut queue = cpu.queue()?;
        let isa = cpu.supported_isa();
        let mut block = CpuBlock::zeroed(MEMORY)?;
        let values = block.view_mut::<f32>(0, MEMORY / size_of::<f32>())?;
        values.fill(1.0); // pages that were never written have no memory of their own
        let values = &*values;
        let mut limits = Limits { flops: 0.0, bf16_flops: 0.0, int8_ops: 0.0, memory_bytes: 0.0 };
        for _ in 0..RUNS {
            limits.flops = limits.flops.max(run_operations(&mut queue, isa, DType::F32)?);
            limits.bf16_flops = limits.bf16_flops.max(run_operations(&mut queue, isa, DType::Bf16)?);
            limits.int8_ops = limits.int8_ops.max(run_operations(&mut queue, isa, DType::Int8)?);
            limits.memory_bytes = limits.memory_bytes.max(memory_bytes(cpu, &mut queue, values)?);
        }
        Ok(limits)
    }
}

/// Operations a second on operands of `dtype`, counted as in [`Limits`], in each of the runs that fill `time`.
///
/// A run takes about a millisecond, and there is at least one. The clock rate varies from minute to minute, and with
/// what a core did just before; it is the same for these runs and for work that they take turns with.
///
/// # Errors
/// When there is no thread.
pub fn operations(cpu: &Cpu, dtype: DType, time: Duration) -> Result<Vec<f64>, DeviceError> {
    let mut queue = cpu.queue()?;
    let isa = cpu.supported_isa();
    run_operations(&mut queue, isa, dtype)?; // wakes the team
    let (mut runs, begin) = (Vec::new(), Instant::now());
    while runs.is_empty() || begin.elapsed() < time {
        runs.push(run_operations(&mut queue, isa, dtype)?);
    }
    Ok(runs)
}

/// How long a cache line takes to another thread of `cpu` and back, the best of some runs.
///
/// It takes some tens of nanoseconds where cores share a cache, and hundreds where they are far from each other. A
/// virtual machine does not see where its cores are, and they may be moved. `None` with one thread, or when no other
/// came in time.
///
/// # Errors
/// When there is no thread.
pub fn round_trip(cpu: &Cpu) -> Result<Option<Duration>, DeviceError> {
    let mut queue = cpu.queue()?;
    let mut best: Option<Duration> = None;
    for _ in 0..if queue.threads() > 1 { RUNS } else { 0 } {
        let best_so_far = Mutex::new(best);
        let (players, turn) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
        queue.for_each_piece(2, 0, |piece, _| {
            let Some(time) = passes(&players.0, &turn.0, piece as u32) else { return };
            let mut best = best_so_far.lock().unwrap_or_else(PoisonError::into_inner);
            *best = Some(best.map_or(time, |best| best.min(time)));
        })?;
        best = best_so_far.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
    Ok(best)
}

/// A value on a cache line of its own.
#[repr(align(128))]
struct Line<T>(T);

/// Passes a line to and fro between two threads, as the first or the second of them. Gives the time of a round trip, or
/// `None` when no second thread came, because one thread has both parts.
fn passes(players: &AtomicU32, turn: &AtomicU32, me: u32) -> Option<Duration> {
    const TRIPS: u32 = 2000;
    const PATIENCE: Duration = Duration::from_millis(20);
    const GONE: u32 = 2;
    let (begin, mut looks) = (Instant::now(), 0);
    if players.fetch_add(1, AcqRel) >= GONE {
        return None;
    }
    while players.load(Acquire) != 2 {
        if begin.elapsed() > PATIENCE && players.compare_exchange(1, GONE + 1, AcqRel, Acquire).is_ok() {
            return None;
        }
        look(&mut looks);
    }
    let begin = Instant::now();
    for trip in 0..TRIPS {
        while turn.load(Acquire) != 2 * trip + me {
            look(&mut looks);
        }
        turn.store(2 * trip + me + 1, Release);
    }
    Some(begin.elapsed() / TRIPS)
}

/// Operations a second on operands of `dtype` in one run.
fn run_operations(queue: &mut CpuQueue, isa: SupportedIsa, dtype: DType) -> Result<f64, DeviceError> {
    match dtype {
        DType::F32 => run_chains(queue, |steps| isa.run(Chains { steps })),
        DType::Bf16 => run_chains(queue, |steps| isa.run_bf16(Bf16Chains { steps })),
        DType::Int8 => run_chains(queue, |steps| isa.run_int8(Int8Chains { steps })),
    }
}

/// Operations a second in one run of `chains`, which gives the multiply-adds of a step.
///
/// The rates of the threads are added, so that neither handing over nor waiting for the last thread counts. Where a
/// thread sleeps, another takes its share and counts as both: take the median of several runs.
fn run_chains(queue: &mut CpuQueue, chains: impl Fn(usize) -> usize + Sync) -> Result<f64, DeviceError> {
    let of_all = Mutex::new(0.0);
    queue.for_each_piece(queue.threads(), 0, |_, _| {
        let start = Instant::now();
        let operations = 2 * STEPS * chains(STEPS);
        let rate = operations as f64 / start.elapsed().as_secs_f64();
        *of_all.lock().unwrap_or_else(PoisonError::into_inner) += rate;
    })?;
    Ok(of_all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Bytes a second in one run over all values.
fn memory_bytes(cpu: &Cpu, queue: &mut CpuQueue, values: &[f32]) -> Result<f64, DeviceError> {
    let start = Instant::now();
    queue.for_each_piece(values.len() / PIECE, 0, |piece, _| {
        black_box(cpu.supported_isa().run(Sum(&values[piece * PIECE..][..PIECE])));
    })?;
    Ok(size_of_val(values) as f64 / start.elapsed().as_secs_f64())
}

/// Independent chains of multiply-adds, enough to hide the latency of one; gives the multiply-adds in a step.
struct Chains {
    steps: usize,
}

impl Kernel for Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let (x, y) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
        chains::<S, _>(self.steps, s.splat(1.0), |sum| s.mul_add(sum, x, y), |sum| s.reduce_sum(sum))
            * S::LANES
    }
}

/// [`Chains`] of [`Simd::dot_bf16`].
struct Bf16Chains {
    steps: usize,
}

impl Kernel for Bf16Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        if S::HAS_TILE_REGISTERS {
            return 2 * tile_words(s, self.steps);
        }
        if !S::DOT_BF16 {
            return Chains { steps: self.steps }.run(s);
        }
        let x = s.splat_i32(black_box(0x3c00_3c00));
        let chains =
            chains::<S, _>(self.steps, s.splat(1.0), |sum| s.dot_bf16(x, x, sum), |sum| s.reduce_sum(sum));
        2 * chains * S::LANES
    }
}

/// [`Chains`] of [`Simd::dot_int8`], or of the instructions that do half of one.
struct Int8Chains {
    steps: usize,
}

impl Kernel for Int8Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        if S::HAS_TILE_REGISTERS {
            return 4 * tile_words(s, self.steps);
        }
        let x = s.splat_i32(black_box(0x0102_0304));
        // each product depends on the sum before it, or the compiler would find that all are the same
        let step = |sum| {
            if S::DOT_INT8 { s.dot_int8(sum, x, sum) } else { s.add_i32(sum, s.dot_i16(sum, x)) }
        };
        let chains = chains::<S, _>(self.steps, s.splat_i32(1), step, |sum| s.reduce_sum(s.convert(sum)));
        (if S::DOT_INT8 { 4 } else { 2 }) * chains * S::LANES
    }
}

/// Products of tile registers with operands in the nearest cache; gives the words that are multiplied in a step.
#[inline(always)]
fn tile_words<S: Simd>(s: S, steps: usize) -> usize {
    const WORDS: usize = 16;
    /// A product takes as long as this many steps of [`Chains`].
    const STEPS_OF_PRODUCT: usize = 4;
    /// No row lies across two lines of the cache.
    #[repr(align(64))]
    struct Operand([f32; WORDS * TILE_REGISTERS_SIDE]);
    let operands = [const { Operand([1.0; WORDS * TILE_REGISTERS_SIDE]) }; 2];
    let [x, w] = black_box(&operands);
    s.set_up_tiles(TILE_REGISTERS_SIDE);
    for _ in 0..steps.div_ceil(STEPS_OF_PRODUCT) {
        // SAFETY: the tiles are set up for as many rows, of as many words each.
        unsafe { s.add_tile_products(TILE_REGISTERS_SIDE, x.0.as_ptr(), w.0.as_ptr()) };
    }
    s.release_tiles();
    TILE_REGISTERS_SIDE * TILE_REGISTERS_SIDE * WORDS / STEPS_OF_PRODUCT
}

/// As many chains as registers hold; gives their number.
#[inline(always)]
fn chains<S: Simd, T: Copy>(steps: usize, start: T, step: impl Fn(T) -> T, end: impl Fn(T) -> f32) -> usize {
    // Five chains of the portable path on x86-64 are spilled to the stack and run at a quarter of the speed of four.
    match S::REGISTERS {
        32.. => some_chains::<T, 24>(steps, start, step, end),
        16.. => some_chains::<T, 12>(steps, start, step, end),
        _ => some_chains::<T, 4>(steps, start, step, end),
    }
}

#[inline(always)]
fn some_chains<T: Copy, const N: usize>(
    steps: usize,
    start: T,
    step: impl Fn(T) -> T,
    end: impl Fn(T) -> f32,
) -> usize {
    let mut sums = [start; N];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = step(*sum);
        }
    }
    for sum in sums {
        black_box(end(sum));
    }
    N
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
    use std::{num::NonZeroUsize, sync::Barrier, thread};

    use super::*;
    use crate::{CpuOptions, Isa};

    /// A thread stops waiting for the other where other processes hold the cores, so single tries may fail.
    const TRIES: usize = 50;

    #[test]
    fn ceilings_are_those_of_a_computer() {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: Some(Isa::detect()) }).unwrap();
        let limits = Limits::measure(&cpu).unwrap();
        for operations in [limits.flops, limits.bf16_flops, limits.int8_ops] {
            assert!((1e8..1e14).contains(&operations), "{limits:?}");
        }
        assert!((1e8..1e13).contains(&limits.memory_bytes), "{limits:?}");
        for dtype in DType::ALL {
            let runs = operations(&cpu, dtype, Duration::ZERO).unwrap();
            assert!(runs.len() == 1 && (1e8..1e14).contains(&runs[0]), "{dtype}: {runs:?}");
        }
    }

    #[test]
    fn a_line_goes_to_another_thread_and_back() {
        let two_threads_pass = || {
            let (players, turn, both_are_here) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(2));
            let play = |me| {
                both_are_here.wait();
                passes(&players, &turn, me)
            };
            let took = thread::scope(|scope| {
                let second = scope.spawn(|| play(1));
                [play(0), second.join().unwrap()]
            });
            took.iter().all(|took| took.is_some_and(|took| !took.is_zero()))
        };
        assert!((0..TRIES).any(|_| two_threads_pass()), "none of {TRIES} tries");
    }

    #[test]
    fn a_team_of_two_has_a_round_trip_and_one_thread_has_none() {
        let cpu = |threads| Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: None }).unwrap();
        assert_eq!(round_trip(&cpu(1)).unwrap(), None);
        let cpu = cpu(2);
        let took = (0..TRIES).find_map(|_| round_trip(&cpu).unwrap());
        assert!(took.is_some_and(|took| !took.is_zero()), "{took:?}");
    }

    #[test]
    fn who_has_nobody_to_pass_to_gives_up() {
        let (players, turn) = (AtomicU32::new(0), AtomicU32::new(0));
        assert_eq!([0, 1].map(|me| passes(&players, &turn, me)), [None, None]);
    }

    #[test]
    fn sums_read_everything() {
        for isa in crate::simd::supported() {
            assert_eq!(isa.run(Sum(&[1.0; 128])), 128.0);
        }
    }
}
