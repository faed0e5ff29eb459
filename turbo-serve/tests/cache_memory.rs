//! A cache never takes more bytes than it may: keys, values, tables and all, at any moment.
//!
//! A test of its own, because it counts every byte that the process has allocated.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use turbo_serve::cache::{ResponseCache, Scope};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What the system's allocator takes for so many bytes: a header, and whole sixteens.
fn taken(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16)
}

fn add(bytes: usize) {
    let now = ALLOCATED.fetch_add(taken(bytes), Relaxed) + taken(bytes);
    PEAK.fetch_max(now, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both live for a moment, if the system has to move it.
        add(size);
        // SAFETY: `ptr` came from this allocator, so from the system's, with the same layout.
        let moved = unsafe { System.realloc(ptr, layout, size) };
        ALLOCATED.fetch_sub(taken(layout.size()), Relaxed);
        moved
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from this allocator, so from the system's, with the same layout.
        unsafe { System.dealloc(ptr, layout) }
        ALLOCATED.fetch_sub(taken(layout.size()), Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a few handles, a lock and a test's own thread take beside the answers.
const BESIDE: usize = 4 << 10;

#[test]
fn growth_never_passes_the_budget() {
    let scope = Scope::of("test");
    for budget in [ResponseCache::LEAST_BYTES, 1 << 20, 16 << 20] {
        let values = vec![0.5_f32; budget / 256];
        let before = ALLOCATED.load(Relaxed);
        PEAK.store(before, Relaxed);
        let cache = ResponseCache::in_memory(budget).unwrap();
        // Large answers fill it, small ones the tables; then all sizes at once.
        let mut number = 0;
        for lens in [values.len() - 1..values.len(), 1..2, 8..9, 1..values.len()] {
            for _ in 0..budget / 300 {
                number += 1;
                let len = lens.start + number as usize * 7919 % lens.len();
                cache.put(scope.key("pooled", &[&[number]]), &values[..len]);
                let peak = PEAK.load(Relaxed) - before;
                assert!(
                    peak <= budget + BESIDE,
                    "{peak} of {budget} after {number} answers, of {len} values"
                );
            }
        }
        drop(cache);
        let left = ALLOCATED.load(Relaxed) - before;
        assert!(left < BESIDE, "{left} bytes are left");
    }
}
