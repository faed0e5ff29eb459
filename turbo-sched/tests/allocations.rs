//! A poll in steady state allocates nothing; nor does learning from a batch.
#![allow(unsafe_code)] // a counting allocator cannot be written without it

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use turbo_sched::{
    BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Decision, Limits, Outlook,
    PackedCost, Policy, Request, RequestId,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call goes to `System` with the arguments it came with; the counter is a `Cell` without
// destructor that is initialised at compile time, so counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` gave what `System` gave.
        unsafe { System.dealloc(pointer, memory) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

/// Queues and serves two hundred requests of all lengths, learning from each batch.
fn serve(batcher: &mut Batcher) {
    for id in 0..200 {
        batcher.push(Request::new(RequestId(id), 1 + (id as u32 * 37) % 512, Duration::from_millis(id)));
    }
    batcher.cancel(RequestId(17));
    while let Decision::Run(run) = batcher.poll(Duration::from_millis(900)) {
        let (candidate, cost) = (run.candidate, run.cost);
        batcher.observe(&candidate, cost.as_duration()).expect("a batch takes time");
    }
}

/// A cost model of each layout.
fn costs() -> [CostModel; 2] {
    let points = [(1, 1), (1, 32), (512, 1), (512, 32)];
    let points = points.map(|(len, size)| (len, size, BatchTotal(1e-3 * f64::from(len) * size as f64)));
    let padded = CostModel::Padded(CostTable::from_measurements(points).expect("four valid points"));
    let batch: Candidate = [100].into_iter().collect();
    let packed = PackedCost::fit([(batch, BatchTotal(0.01))]).expect("one valid batch");
    [padded, CostModel::Packed(Box::new(packed))]
}

#[test]
fn an_outlook_learns_and_predicts_without_allocating() {
    let limits = Limits::batch_size(NonZeroUsize::new(32).expect("above 0"));
    for cost in costs() {
        let mut outlook = Outlook::new(&BatcherConfig::with_limits(limits), cost);
        let batch: Candidate = [100].into_iter().collect();
        let request = |id| Request::new(RequestId(id), 100, Duration::from_millis(id));
        (0..200).for_each(|id| outlook.enter(&request(id)));
        let mut round = || {
            outlook.observe(&batch, Duration::from_millis(9)).expect("a batch takes time");
            outlook.time_until_answered(&request(200), [100, 7], Duration::from_secs(1));
        };
        round();
        assert_eq!(allocations(round), 0);
    }
}

#[test]
fn a_second_round_allocates_nothing() {
    let width = NonZeroU32::new(16).expect("above 0");
    let limits = Limits::batch_size(NonZeroUsize::new(32).expect("above 0"));
    for cost in costs() {
        for policy in
            [Policy::OptimalSplit, Policy::TokenBudget, Policy::SortedWindow, Policy::LengthBuckets { width }]
        {
            let config = BatcherConfig { policy, ..BatcherConfig::with_limits(limits) };
            let mut batcher = Batcher::new(config, cost.clone());
            assert!(allocations(|| serve(&mut batcher)) > 0, "the counter counts");
            assert_eq!(allocations(|| serve(&mut batcher)), 0, "{policy:?}");
        }
    }
}
