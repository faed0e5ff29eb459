//! An allocator that counts what a process has allocated, and the most that it had at a time.
//!
//! A measurement reads [`ALLOCATED`] and sets [`PEAK`] to it; tests that do so are processes of their own.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

struct Counting;

/// Bytes that are allocated now.
pub(crate) static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// The most bytes allocated at a time since it was set.
pub(crate) static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What the system's allocator takes for this many bytes: a header, and whole sixteens.
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
