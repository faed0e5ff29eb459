//! The processor that the program runs on.

use std::{
    convert::Infallible,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Course, CpuBlock, Device, DeviceError, Element, Helpers, MOST_TRACKS, Piece, SharedMut, Slabs, Span,
    Stage, block,
    team::{Team, look},
};
use crate::{
    DType,
    gemm::ROWS_OF_MOST_SCRATCH,
    simd::{Isa, PORTABLE_IS_FUSED, SupportedIsa},
};

/// The most threads of a team: more than any machine has cores, and few enough that each may have its stack and
/// scratch.
const MOST_THREADS: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not 0");

/// How a [`Cpu`] is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads that share an operation, at most 4096; by default as many as the system lets this process run at once
    /// (affinity and control groups count).
    pub threads: Option<NonZeroUsize>,
    /// The vector instructions; by default [`Isa::from_env`].
    pub isa: Option<Isa>,
}

/// The processor: host memory, and queues that are teams of threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    settings: Arc<Settings>,
}

#[derive(Debug)]
struct Settings {
    threads: NonZeroUsize,
    isa: SupportedIsa,
    /// Threads that help to pack weights.
    helpers: Helpers,
    /// Where packed weights lie.
    weights: Slabs,
    /// Where all other blocks lie: the results that operators hand on are not whole numbers of huge pages.
    blocks: Slabs,
}

impl Cpu {
    /// # Errors
    /// [`DeviceError::TooManyThreads`]; [`DeviceError::UnsupportedIsa`], from the environment as [`DeviceError::Setting`].
    pub fn new(options: CpuOptions) -> Result<Cpu, DeviceError> {
        let usual = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).min(MOST_THREADS);
        let threads = options.threads.unwrap_or_else(usual);
        if threads > MOST_THREADS {
            return Err(DeviceError::TooManyThreads { threads: threads.get(), most: MOST_THREADS.get() });
        }
        let isa = SupportedIsa::check(options.isa.map_or_else(Isa::from_env, Ok)?)?;
        let (weights, blocks) = (Slabs::default(), Slabs::default());
        let helpers = Helpers::new(threads.get() - 1);
        Ok(Cpu { settings: Arc::new(Settings { threads, isa, helpers, weights, blocks }) })
    }

    /// The vector instructions in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.settings.isa.isa()
    }

    /// Threads of each queue.
    #[must_use]
    pub fn threads(&self) -> NonZeroUsize {
        self.settings.threads
    }

    pub(crate) fn supported_isa(&self) -> SupportedIsa {
        self.settings.isa
    }

    /// Threads that help the callers that pack weights.
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.settings.helpers
    }

    /// Where packed weights lie.
    pub(crate) fn weights(&self) -> &Slabs {
        &self.settings.weights
    }
}

/// A team of threads, which includes the caller, and scratch memory for each.
pub struct CpuQueue {
    team: Team,
    scratch: Vec<CpuBlock>,
    shared: CpuBlock,
    /// The fewest values of `shared` for each thread, once it has any: see [`shared_values`].
    least_shared: usize,
}

/// Values of shared scratch for each thread that a kernel should work within. There are more of them with tile
/// registers, with which more rows are in work at once.
///
/// They are allocated all at once. The scratch that a product needs does not simply grow with its rows, so otherwise
/// the largest batch could not warm a queue up.
pub(crate) fn shared_values(isa: Isa) -> usize {
    let bytes = if isa == Isa::Amx { 8 << 20 } else { 4 << 20 };
    bytes / size_of::<f32>()
}

impl CpuQueue {
    /// Threads that share an operation.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// The time that it takes, in a region, to hand an operation over to every thread and to get it back: the least of
    /// many trials, each an operation of one empty piece a thread, which ends when all threads have met. 0 for one
    /// thread.
    pub fn hand_over(&mut self) -> Duration {
        let threads = self.team.threads();
        let _held = self.team.hold();
        let mut least = Duration::MAX;
        for _ in 0..2000 {
            let met = AtomicUsize::new(0);
            let start = Instant::now();
            self.team.for_each_piece(threads, |_, _| {
                met.fetch_add(1, Relaxed);
                let mut looks = 0;
                while met.load(Relaxed) < threads {
                    look(&mut looks);
                }
            });
            least = least.min(start.elapsed());
        }
        if threads == 1 { Duration::ZERO } else { least }
    }

    /// Gives every thread room for `values` f32 of scratch, which grows and never shrinks.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn reserve_scratch(&mut self, values: usize) -> Result<(), DeviceError> {
        self.scratch.iter_mut().try_for_each(|block| grow(block, values))
    }

    /// The team, and `values` f32 that all threads share and that hold whatever was left in them; this memory grows and
    /// never shrinks.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn team_and_shared(&mut self, values: usize) -> Result<(&mut Team, &mut [f32]), DeviceError> {
        self.reserve_shared(values)?;
        Ok((&mut self.team, self.shared.view_mut(0, values)?))
    }

    /// Makes room for `values` f32 that all threads share; none is allocated until some are wanted.
    fn reserve_shared(&mut self, values: usize) -> Result<(), DeviceError> {
        let wanted = if values == 0 { 0 } else { values.max(self.least_shared * self.team.threads()) };
        grow(&mut self.shared, wanted)
    }

    /// Bytes of scratch that the queue holds, which grow to what the largest operation so far needed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.bytes() + self.scratch.iter().map(CpuBlock::bytes).sum::<usize>()
    }

    /// Calls `work(piece, scratch)` once for every piece in `0..pieces`, shared among the threads.
    ///
    /// Each thread has a run of neighbouring pieces, the same for every operator, so it finds their rows in its own
    /// caches. It begins with the last piece, which it has probably used last, and which is the longest under a causal
    /// mask. A thread that has finished its own pieces takes the first pieces of others.
    ///
    /// `scratch` is `scratch_values` f32 of the thread, which hold whatever the last piece left in them. Choose pieces
    /// of some ten microseconds. A single piece runs on the caller alone, so work that takes less time than waking a
    /// thread should be one piece. For pieces that own a part of the output, [`CpuQueue::for_each_chunk`] is safe code.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the scratch had to grow.
    pub(crate) fn for_each_piece(
        &mut self,
        pieces: usize,
        scratch_values: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), DeviceError> {
        self.for_each_piece_with(pieces, scratch_values, 0, |_| (), |piece, scratch, ()| work(piece, scratch))
    }

    /// [`CpuQueue::for_each_piece`] where all pieces read the result of `prepare`, which first runs on the calling
    /// thread with `shared_values` f32.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the scratch had to grow.
    pub(crate) fn for_each_piece_with<'q, T: Sync>(
        &'q mut self,
        pieces: usize,
        scratch_values: usize,
        shared_values: usize,
        prepare: impl FnOnce(&'q mut [f32]) -> T,
        work: impl Fn(usize, &mut [f32], &T) + Sync,
    ) -> Result<(), DeviceError> {
        self.reserve_scratch(scratch_values)?;
        self.reserve_shared(shared_values)?;
        let prepared = prepare(self.shared.view_mut(0, shared_values)?);
        let scratch = SharedMut::new(&mut self.scratch);
        let tracks = pieces.clamp(1, self.team.threads().min(MOST_TRACKS));
        let stages = [Stage::default(), Stage::shared(pieces.div_ceil(tracks))];
        let course = Course::new(tracks, 1, stages);
        course.run(&mut self.team, |thread, Piece { group, index, .. }| {
            let [start, end] = [0, 1].map(|next| pieces * (group.track + next) / tracks);
            // some tracks have one piece fewer
            let Some(piece) = (start..end).rev().nth(index) else { return };
            // SAFETY: each thread of the team has its own number and does one piece at a time.
            let own = unsafe { scratch.slice(thread, 1) };
            let own = own[0].view_mut(0, scratch_values).expect("room for it was reserved");
            work(piece, own, &prepared);
        });
        Ok(())
    }

    /// Cuts `out` into chunks of `chunk_len` values (the last may be shorter) and calls `work(index, chunk, scratch)`
    /// once for each, shared among the threads as in [`CpuQueue::for_each_piece`].
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the scratch had to grow.
    ///
    /// # Panics
    /// When `chunk_len` is 0.
    pub(crate) fn for_each_chunk(
        &mut self,
        out: &mut [f32],
        chunk_len: usize,
        scratch_values: usize,
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) -> Result<(), DeviceError> {
        let len = out.len();
        let out = SharedMut::new(out);
        self.for_each_piece(len.div_ceil(chunk_len), scratch_values, |index, scratch| {
            let start = index * chunk_len;
            // SAFETY: chunks of different indices do not overlap, and each index is worked on once.
            let chunk = unsafe { out.slice(start, chunk_len.min(len - start)) };
            work(index, chunk, scratch);
        })
    }
}

/// Makes room for `values` f32.
fn grow(block: &mut CpuBlock, values: usize) -> Result<(), DeviceError> {
    let bytes = values.checked_mul(size_of::<f32>()).ok_or(DeviceError::OutOfMemory { bytes: usize::MAX })?;
    if block.bytes() < bytes {
        *block = CpuBlock::zeroed(bytes)?;
    }
    Ok(())
}

impl Device for Cpu {
    type Recording = Infallible;
    type Landing = Infallible;
    type Float = f32;
    type Block = CpuBlock;
    type Queue = CpuQueue;
    type View<'a, T: Element> = &'a [T];
    type ViewMut<'a, T: Element> = &'a mut [T];

    fn name(&self) -> String {
        let threads = self.settings.threads;
        let noun = if threads.get() == 1 { "thread" } else { "threads" };
        format!("cpu ({}, {threads} {noun})", self.isa())
    }

    fn scratch_bytes(&self, queue: &CpuQueue) -> usize {
        queue.bytes()
    }

    fn rows_of_most_scratch(&self, rows: usize) -> usize {
        rows.min(self.settings.threads.get().saturating_mul(ROWS_OF_MOST_SCRATCH))
    }

    fn rounding(&self, dtype: DType) -> String {
        let isa = match self.isa() {
            // depends on how this program was built
            Isa::Portable if PORTABLE_IS_FUSED => "portable, fused".to_owned(),
            isa => isa.to_string(),
        };
        let products = format!("cpu ({}, {isa}), {dtype}, {}", std::env::consts::ARCH, self.computes(dtype));
        match dtype {
            // attention has no weights, and computes in bf16
            DType::Int8 => format!("{products}, attention {}", self.computes(DType::Bf16)),
            DType::F32 | DType::Bf16 => products,
        }
    }

    fn queue(&self) -> Result<CpuQueue, DeviceError> {
        let failed =
            |error: std::io::Error| DeviceError::Failed { what: "starting threads", why: error.to_string() };
        let team = Team::new(self.settings.threads).map_err(failed)?;
        let scratch = (0..team.threads()).map(|_| CpuBlock::zeroed(0)).collect::<Result<_, _>>()?;
        let least_shared = shared_values(self.isa());
        Ok(CpuQueue { team, scratch, shared: CpuBlock::zeroed(0)?, least_shared })
    }

    fn region<T>(&self, queue: &mut CpuQueue, work: impl FnOnce(&mut CpuQueue) -> T) -> T {
        let _held = queue.team.hold();
        work(queue)
    }

    fn allocate(&self, bytes: usize) -> Result<CpuBlock, DeviceError> {
        CpuBlock::zeroed_beside(&self.settings.blocks, bytes)
    }

    fn view<'a, T: Element>(
        &self,
        block: &'a CpuBlock,
        offset: usize,
        len: usize,
    ) -> Result<&'a [T], DeviceError> {
        block.view(offset, len)
    }

    fn view_mut<'a, T: Element>(
        &self,
        block: &'a mut CpuBlock,
        offset: usize,
        len: usize,
    ) -> Result<&'a mut [T], DeviceError> {
        block.view_mut(offset, len)
    }

    fn views<'a, const R: usize, const W: usize>(
        &self,
        blocks: &'a mut [CpuBlock],
        reads: [Span; R],
        writes: [Span; W],
    ) -> Result<([&'a [f32]; R], [&'a mut [f32]; W]), DeviceError> {
        block::split(blocks, reads, writes)
    }

    fn on_host<'a, T: Element>(&self, values: Self::View<'a, T>) -> Option<&'a [T]> {
        Some(values)
    }

    fn upload<T: Element>(&self, _: &mut CpuQueue, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        copy(from, to)
    }

    fn download<T: Element>(&self, _: &mut CpuQueue, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        copy(from, to)
    }
}

fn copy<T: Element>(from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
    if from.len() != to.len() {
        return Err(DeviceError::CopyLength { from: size_of_val(from), to: size_of_val(to) });
    }
    to.copy_from_slice(from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Mutex};

    use super::*;

    fn cpu(threads: usize) -> Cpu {
        Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(Isa::Portable) }).unwrap()
    }

    #[test]
    fn the_name_says_what_runs() {
        assert_eq!(cpu(1).name(), "cpu (portable, 1 thread)");
        assert_eq!(cpu(3).name(), "cpu (portable, 3 threads)");
    }

    #[test]
    fn threads_that_no_machine_has_are_refused() {
        assert_eq!(cpu(4096).threads().get(), 4096);
        for threads in [4097, usize::MAX] {
            let options = CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(Isa::Portable) };
            let error = Cpu::new(options).unwrap_err().to_string();
            let want = "threads are too many to share an operation, ask for 4096 at most";
            assert_eq!(error, format!("{threads} {want}"));
        }
    }

    #[test]
    fn threads_round_alike_and_instruction_sets_do_not() {
        for dtype in DType::ALL {
            assert_eq!(cpu(1).rounding(dtype), cpu(3).rounding(dtype));
            let best = Cpu::new(CpuOptions { threads: None, isa: Some(Isa::detect()) }).unwrap();
            assert_eq!(best.rounding(dtype) == cpu(1).rounding(dtype), best.isa() == Isa::Portable);
        }
        assert_ne!(cpu(1).rounding(DType::F32), cpu(1).rounding(DType::Int8));
        // the parts that int8 leaves to bf16 are computed differently where there is no bf16 dot product
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: None, isa: Some(isa) }).unwrap();
            assert!(cpu.rounding(DType::Int8).contains(cpu.computes(DType::Bf16)));
        }
    }

    #[test]
    fn blocks_lie_one_behind_the_other_apart_from_weights() {
        let cpu = cpu(1);
        let blocks = [128 << 10, 64 << 10].map(|bytes| cpu.allocate(bytes).unwrap());
        let starts = blocks.each_ref().map(|block| cpu.view::<u32>(block, 0, 1).unwrap().as_ptr().addr());
        assert_eq!(starts[0] + (128 << 10), starts[1]);
        let weight = CpuBlock::zeroed_beside(cpu.weights(), 64 << 10).unwrap();
        let weight = weight.view::<u32>(0, 1).unwrap().as_ptr().addr();
        assert_ne!(starts[1] + (64 << 10), weight);
    }

    #[test]
    fn copies_check_their_lengths() {
        let cpu = cpu(1);
        let mut queue = cpu.queue().unwrap();
        let mut block = cpu.allocate(16).unwrap();
        cpu.upload(&mut queue, &[1u32, 2, 3], cpu.view_mut(&mut block, 4, 3).unwrap()).unwrap();
        let mut back = [0; 4];
        cpu.download(&mut queue, cpu.view::<u32>(&block, 0, 4).unwrap(), &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3]);
        let error = cpu.upload(&mut queue, &back, cpu.view_mut(&mut block, 0, 3).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "16 bytes are copied to a place of 12 bytes, expected as many");
    }

    #[test]
    fn chunks_and_scratch_belong_to_one_thread_at_a_time() {
        let mut queue = cpu(4).queue().unwrap();
        for len in [0, 1, 7, 8, 1000] {
            let mut out = vec![0.0; len];
            queue
                .for_each_chunk(&mut out, 7, 3, |index, chunk, scratch| {
                    scratch.fill(index as f32);
                    std::thread::yield_now();
                    chunk.iter_mut().enumerate().for_each(|(i, v)| *v = scratch[i % 3] * 7.0 + i as f32);
                })
                .unwrap();
            assert!(out.iter().enumerate().all(|(i, v)| *v == i as f32));
        }
    }

    #[test]
    fn each_thread_takes_its_own_pieces_from_the_last_to_the_first() {
        let mut queue = cpu(2).queue().unwrap();
        for pieces in [2, 7, 8, 100] {
            let taken = Mutex::new(Vec::new());
            let begin = Instant::now();
            queue
                .for_each_piece(pieces, 0, |piece, _| {
                    taken.lock().unwrap().push((thread::current().id(), piece));
                    // no thread finishes before both have come
                    let threads =
                        || taken.lock().unwrap().iter().map(|(id, _)| *id).collect::<HashSet<_>>().len();
                    while threads() < 2 && begin.elapsed() < Duration::from_secs(60) {
                        thread::yield_now();
                    }
                })
                .unwrap();
            let taken = taken.into_inner().unwrap();
            let caller = thread::current().id();
            for (own, is_caller) in [(0..pieces / 2, true), (pieces / 2..pieces, false)] {
                let of_owner: Vec<usize> = taken
                    .iter()
                    .filter(|(id, piece)| (*id == caller) == is_caller && own.contains(piece))
                    .map(|(_, piece)| *piece)
                    .collect();
                assert!(of_owner.iter().rev().is_sorted(), "{pieces}: {taken:?}");
                assert_eq!(of_owner.first().copied(), own.last(), "{pieces}: {taken:?}");
            }
            let mut all: Vec<usize> = taken.into_iter().map(|(_, piece)| piece).collect();
            all.sort_unstable();
            assert_eq!(all, (0..pieces).collect::<Vec<_>>());
        }
    }

    #[test]
    fn impossible_scratch_is_an_error() {
        let mut queue = cpu(1).queue().unwrap();
        assert!(matches!(queue.reserve_scratch(usize::MAX / 2), Err(DeviceError::OutOfMemory { .. })));
        assert!(matches!(queue.reserve_scratch(usize::MAX / 8), Err(DeviceError::OutOfMemory { .. })));
    }
}
