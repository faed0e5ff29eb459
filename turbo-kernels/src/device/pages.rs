//! System memory in huge pages, where available: for a single block, or for blocks that lie one behind the other.
//!
//! ```text
//! slab   │ weight │ weight │ weight │ weight │ … rest │     pages of 2 MiB
//! ```
//!
//! The hardware prefetcher stops at the end of a 4 KiB page, and each page takes a TLB entry; a TLB miss costs twice as
//! much in a virtual machine. On a Zen 4 server, weights smaller than a huge page were read from memory at two thirds
//! of the rate when each had pages of its own. Side by side they lie in huge pages, and a prefetch beyond the end of
//! one weight fetches the beginning of the next. Rows and results are laid out the same way, since they are seldom a
//! whole number of huge pages.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use memmap2::{MmapMut, MmapRaw};

use super::ALIGNMENT;

/// A huge page of x86-64.
pub(super) const HUGE: usize = 2 << 20;
/// A multiple of every page size that is not huge.
const PAGE: usize = 64 << 10;
/// The size of a mapping that blocks share. Pages that were never written take no memory.
const SLAB: usize = 32 << 20;
/// Smaller blocks stay where the allocator puts them: they fit into caches.
const SMALL: usize = PAGE;

/// A mapping, and the range of `bytes` bytes in it that begins at a huge page; all whole huge pages of the range are
/// huge. The mapping is raw, since a reference to all of it would also cover bytes that the threads of other blocks
/// write.
fn map(bytes: usize) -> Option<(MmapRaw, Range<usize>)> {
    // the system may place a mapping at any page, so this leaves room to begin at a huge one
    let map = MmapRaw::from(MmapMut::map_anon(bytes.checked_add(HUGE)?).ok()?);
    let first = map.as_ptr().align_offset(HUGE);
    #[cfg(target_os = "linux")]
    // refused where huge pages are switched off: then small pages are used
    drop(map.advise_range(memmap2::Advice::HugePage, first, bytes / HUGE * HUGE));
    Some((map, first..first + bytes))
}

/// Zeroed bytes of a mapping that belong to one block.
#[derive(Debug)]
pub(super) struct Pages {
    map: Arc<MmapRaw>,
    /// Where the bytes lie in the mapping.
    range: Range<usize>,
}

impl Pages {
    /// Bytes in a mapping of their own; `None` when memory runs out.
    pub(super) fn new(bytes: usize) -> Option<Pages> {
        let (map, range) = map(bytes)?;
        Some(Pages { map: Arc::new(map), range })
    }

    /// A pointer to the first byte. All bytes belong to this value alone.
    pub(super) fn start(&self) -> NonNull<u8> {
        let start = self.map.as_mut_ptr().wrapping_add(self.range.start);
        NonNull::new(start).expect("the system maps nothing at address 0")
    }
}

impl Drop for Pages {
    /// Gives back all memory that no other block keeps: the whole pages of this block, and the mapping with its last
    /// block.
    fn drop(&mut self) {
        #[cfg(unix)]
        {
            let first = self.map.as_ptr().addr();
            let start = (first + self.range.start).next_multiple_of(PAGE) - first;
            let end = ((first + self.range.end) / PAGE * PAGE).saturating_sub(first);
            if start < end {
                let dont_need = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: these pages hold bytes of this value alone, and no pointer to them is left.
                let advised = unsafe { self.map.unchecked_advise_range(dont_need, start, end - start) };
                // pages that the system refuses here are given back with the mapping
                drop(advised);
            }
        }
    }
}

/// Mappings from which blocks are taken one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Slabs(Mutex<Rest>);

/// The unused rest of the newest slab, which its blocks keep alive.
#[derive(Debug, Default)]
struct Rest {
    map: Weak<MmapRaw>,
    range: Range<usize>,
}

impl Slabs {
    /// Takes `bytes` bytes, a multiple of [`ALIGNMENT`], behind those taken before; `None` where the block is better
    /// off elsewhere, or when memory runs out.
    pub(super) fn take(&self, bytes: usize) -> Option<Pages> {
        debug_assert!(bytes.is_multiple_of(ALIGNMENT));
        if !(SMALL..=SLAB).contains(&bytes) {
            return None;
        }
        let mut rest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = rest.take(bytes) {
            return Some(pages);
        }
        let (map, range) = map(SLAB)?;
        let map = Arc::new(map);
        *rest = Rest { map: Arc::downgrade(&map), range };
        rest.take(bytes)
    }
}

impl Rest {
    fn take(&mut self, bytes: usize) -> Option<Pages> {
        let map = self.map.upgrade().filter(|_| bytes <= self.range.len())?;
        let range = self.range.start..self.range.start + bytes;
        self.range.start = range.end;
        Some(Pages { map, range })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pages: &Pages, byte: u8) {
        // SAFETY: these bytes are the test's, and nothing else refers to them.
        unsafe { pages.start().write_bytes(byte, pages.range.len()) };
    }

    fn bytes(pages: &Pages) -> &[u8] {
        // SAFETY: they are mapped, and nothing writes them while `pages` is borrowed.
        unsafe { std::slice::from_raw_parts(pages.start().as_ptr(), pages.range.len()) }
    }

    #[test]
    fn blocks_lie_one_behind_the_other() {
        let slabs = Slabs::default();
        let blocks: Vec<Pages> = (1..20).map(|i| slabs.take(i * SMALL + ALIGNMENT).unwrap()).collect();
        assert!(blocks[0].start().addr().get().is_multiple_of(HUGE));
        for (block, next) in blocks.iter().zip(&blocks[1..]) {
            assert_eq!(block.start().addr().get() + block.range.len(), next.start().addr().get());
        }
        assert!(slabs.take(SMALL - ALIGNMENT).is_none() && slabs.take(SLAB + ALIGNMENT).is_none());
    }

    #[test]
    fn what_does_not_fit_begins_a_slab() {
        let slabs = Slabs::default();
        let blocks = [SLAB / 2, SLAB / 2 + ALIGNMENT, SLAB / 4].map(|bytes| slabs.take(bytes).unwrap());
        assert!(!Arc::ptr_eq(&blocks[0].map, &blocks[1].map) && Arc::ptr_eq(&blocks[1].map, &blocks[2].map));
    }

    #[test]
    fn a_block_that_goes_leaves_its_neighbours_as_they_are() {
        let slabs = Slabs::default();
        let mut blocks: Vec<Pages> =
            (0..6).map(|i| slabs.take((i + 3) * PAGE + 3 * ALIGNMENT).unwrap()).collect();
        blocks.iter().zip(1..).for_each(|(block, byte)| write(block, byte));
        for byte in [3, 1, 6, 2, 5] {
            blocks.retain(|block| bytes(block)[0] != byte);
            assert!(blocks.iter().all(|block| bytes(block).iter().all(|b| *b == bytes(block)[0])));
            // a block taken afterwards is zeroed
            assert!(bytes(&slabs.take(SMALL).unwrap()).iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn a_slab_goes_with_its_last_block() {
        let slabs = Slabs::default();
        let blocks = [1, 2].map(|i| slabs.take(i * SMALL).unwrap());
        let map = Arc::downgrade(&blocks[0].map);
        assert!(map.upgrade().is_some());
        drop(blocks);
        assert!(map.upgrade().is_none());
        assert!(slabs.take(SMALL).is_some());
    }
}
