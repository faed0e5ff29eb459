//! `plan_into` allocates nothing once its buffers have seen requests of this size: counted by the
//! process's own allocator, so this suite is alone in its binary.
#![allow(unsafe_code)]

#[path = "../examples/workload/encoder.rs"]
mod encoder;
#[path = "../examples/workload/lengths.rs"]
mod lengths;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use turbo_alloc::{MemoryPlan, Planner, PlannerConfig, Policy, UsageRecord};

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has others.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: both methods hand their arguments to `System` unchanged, whose contract is the caller's;
// the counter is a thread-local of plain data with a constant initialiser, so it never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `layout` is the caller's, which promises that its size is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `alloc` got the block from `System` with this layout (`realloc` and
        // `alloc_zeroed` are the provided ones, which go through these two).
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of one pass over all requests.
fn allocations(planner: &mut Planner, plan: &mut MemoryPlan, requests: &[Vec<UsageRecord>]) -> usize {
    let before = ALLOCATIONS.get();
    for records in requests {
        planner.plan_into(records, plan).expect("the records are valid");
    }
    ALLOCATIONS.get() - before
}

#[test]
fn steady_planning_allocates_nothing() {
    let records = |seq_len| encoder::encoder(12, seq_len).into_iter().map(|(_, record)| record).collect();
    let requests: Vec<Vec<UsageRecord>> = lengths::mixed_lengths(50).into_iter().map(records).collect();
    for policy in [Policy::Paper, Policy::RetainFor { plans: 4 }] {
        let mut planner = Planner::new(PlannerConfig { policy, ..PlannerConfig::default() }).unwrap();
        let mut plan = MemoryPlan::default();
        assert!(allocations(&mut planner, &mut plan, &requests) > 0, "the counter counts");
        // chunks still grow and are released, but the buffers that name them are there
        assert_eq!(allocations(&mut planner, &mut plan, &requests), 0, "{policy:?}");
    }
}
