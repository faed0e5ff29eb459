//! Aligned host memory, and checked views into it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    slice,
};

use super::{
    ALIGNMENT, DeviceError, Element, Span,
    pages::{HUGE, Pages, Slabs},
    spans,
};

/// Zeroed host memory, aligned to [`ALIGNMENT`], freed when dropped.
#[derive(Debug)]
pub struct CpuBlock {
    start: NonNull<u8>,
    bytes: usize,
    memory: Memory,
}

/// How the bytes are freed.
#[derive(Debug)]
enum Memory {
    /// The allocator, with this layout.
    Heap(Layout),
    /// The pages, when they are dropped.
    Mapped { _pages: Pages },
}

// SAFETY: the block is the only owner of its memory, which is not tied to a thread.
unsafe impl Send for CpuBlock {}
// SAFETY: through a shared block the memory can only be read.
unsafe impl Sync for CpuBlock {}

impl CpuBlock {
    /// A block of at least `bytes` bytes, all zero. A block of a huge page or more is mapped, so that it takes no more
    /// memory than requested.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn zeroed(bytes: usize) -> Result<CpuBlock, DeviceError> {
        let block = if bytes < HUGE { CpuBlock::heap(bytes) } else { CpuBlock::mapped(bytes) };
        block.ok_or(DeviceError::OutOfMemory { bytes })
    }

    /// [`CpuBlock::zeroed`], behind the blocks taken from `slabs` before, if its size allows.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn zeroed_beside(slabs: &Slabs, bytes: usize) -> Result<CpuBlock, DeviceError> {
        let pages = layout(bytes).and_then(|layout| slabs.take(layout.size()));
        pages.map_or_else(|| CpuBlock::zeroed(bytes), |pages| Ok(CpuBlock::of(pages, bytes)))
    }

    fn heap(bytes: usize) -> Option<CpuBlock> {
        let layout = layout(bytes)?;
        // SAFETY: `layout` never has size zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(CpuBlock { start, bytes, memory: Memory::Heap(layout) })
    }

    fn mapped(bytes: usize) -> Option<CpuBlock> {
        Some(CpuBlock::of(Pages::new(layout(bytes)?.size())?, bytes))
    }

    fn of(pages: Pages, bytes: usize) -> CpuBlock {
        CpuBlock { start: pages.start(), bytes, memory: Memory::Mapped { _pages: pages } }
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn view<T: Element>(&self, offset: usize, len: usize) -> Result<&[T], DeviceError> {
        let first = self.locate::<T>(offset, len)?;
        // SAFETY: `locate` proved that `len` aligned values lie inside this block; they are initialised, since the
        // block began as zeros and every bit pattern is a value of `T`; `&self` keeps them from being written or
        // freed while the view lives.
        Ok(unsafe { slice::from_raw_parts(first.as_ptr(), len) })
    }

    pub(crate) fn view_mut<T: Element>(
        &mut self,
        offset: usize,
        len: usize,
    ) -> Result<&mut [T], DeviceError> {
        let first = self.locate::<T>(offset, len)?;
        // SAFETY: as in `view`; because of `&mut self` no other view exists while this one lives.
        Ok(unsafe { slice::from_raw_parts_mut(first.as_ptr(), len) })
    }

    /// Pointer to `len` values from byte `offset` on, which lie inside the block.
    fn locate<T: Element>(&self, offset: usize, len: usize) -> Result<NonNull<T>, DeviceError> {
        spans::check_inside::<T>(self.bytes, offset, len)?;
        // SAFETY: `offset` is at most `bytes`, so the result stays inside the allocation or one past its end.
        Ok(unsafe { self.start.add(offset) }.cast())
    }
}

impl Drop for CpuBlock {
    fn drop(&mut self) {
        if let Memory::Heap(layout) = self.memory {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and nothing else frees it.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// A non-zero multiple of the alignment: an empty block is legal, too.
fn layout(bytes: usize) -> Option<Layout> {
    let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
    Layout::from_size_align(size, ALIGNMENT).ok()
}

/// Splits `blocks` into the values that one operation reads and the values that it writes.
#[allow(clippy::type_complexity)]
pub(crate) fn split<T: Element, const R: usize, const W: usize>(
    blocks: &mut [CpuBlock],
    reads: [Span; R],
    writes: [Span; W],
) -> Result<([&[T]; R], [&mut [T]; W]), DeviceError> {
    spans::check_apart(&reads, &writes)?;
    let mut sources = [NonNull::dangling(); R];
    for (source, span) in sources.iter_mut().zip(&reads) {
        *source = locate(blocks, span)?;
    }
    let mut targets = [NonNull::dangling(); W];
    for (target, span) in targets.iter_mut().zip(&writes) {
        *target = locate(blocks, span)?;
    }
    // SAFETY: `locate` proved that each span holds aligned, initialised values inside one block. The blocks are
    // borrowed mutably while the views live, so nothing else touches or frees them. No written span overlaps another
    // span, and distinct blocks are distinct allocations, so no value that is read here is written through another
    // view.
    let inputs = std::array::from_fn(|i| unsafe {
        slice::from_raw_parts(sources[i].as_ptr(), reads[i].bytes / size_of::<T>())
    });
    // SAFETY: as above; each written span is handed out once.
    let outputs = std::array::from_fn(|i| unsafe {
        slice::from_raw_parts_mut(targets[i].as_ptr(), writes[i].bytes / size_of::<T>())
    });
    Ok((inputs, outputs))
}

fn locate<T: Element>(blocks: &[CpuBlock], span: &Span) -> Result<NonNull<T>, DeviceError> {
    let (block, len) = spans::block_of::<T, _>(blocks, span)?;
    block.locate(span.offset, len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(block: usize, offset: usize, bytes: usize) -> Span {
        Span { block, offset, bytes }
    }

    #[test]
    fn blocks_are_aligned_and_zero() {
        for bytes in [0, 1, 255, 256, 4096, 100_001, HUGE - 4, HUGE, 3 * HUGE + 5] {
            let block = CpuBlock::zeroed(bytes).unwrap();
            let values = block.view::<f32>(0, bytes / 4).unwrap();
            assert_eq!(values.as_ptr().addr() % ALIGNMENT, 0);
            assert!(values.iter().all(|v| *v == 0.0));
        }
    }

    #[test]
    fn impossible_sizes_are_out_of_memory() {
        for bytes in [usize::MAX, usize::MAX - ALIGNMENT, isize::MAX as usize] {
            assert!(
                matches!(CpuBlock::zeroed(bytes), Err(DeviceError::OutOfMemory { bytes: b }) if b == bytes)
            );
        }
    }

    #[test]
    fn views_outside_are_refused() {
        let block = CpuBlock::zeroed(16).unwrap();
        assert!(block.view::<u32>(16, 0).unwrap().is_empty());
        assert!(matches!(
            block.view::<f32>(4, 4),
            Err(DeviceError::Bounds { offset: 4, end: 20, block_bytes: 16 })
        ));
        assert!(matches!(block.view::<f32>(4, usize::MAX), Err(DeviceError::Bounds { .. })));
        assert!(matches!(block.view::<f32>(2, 1), Err(DeviceError::Misaligned { offset: 2, alignment: 4 })));
        let mut blocks = [block];
        let missing = split::<f32, 1, 0>(&mut blocks, [span(1, 0, 4)], []).unwrap_err();
        assert_eq!(missing.to_string(), "there is no block 1, expected a number below 1");
        assert!(matches!(
            split::<f32, 0, 1>(&mut blocks, [], [span(0, 0, 6)]),
            Err(DeviceError::PartialElement { bytes: 6, element_bytes: 4 })
        ));
    }

    proptest! {
        /// Spans of two small blocks: `split` succeeds exactly if no written span shares a byte with another span, and
        /// then each view holds the values of its span.
        #[test]
        fn splits_are_disjoint(spans in prop::array::uniform4((0..2usize, 0..8usize, 0..5usize))) {
            let [a, b, c, d] = spans.map(|(block, first, len)| span(block, first * 4, len * 4));
            let mut blocks = [CpuBlock::zeroed(64).unwrap(), CpuBlock::zeroed(64).unwrap()];
            for (i, block) in blocks.iter_mut().enumerate() {
                let values = block.view_mut::<f32>(0, 16).unwrap();
                values.iter_mut().enumerate().for_each(|(j, v)| *v = (100 * i + j) as f32);
            }
            let bytes = |s: Span| (s.offset..s.offset + s.bytes).map(move |byte| (s.block, byte));
            let share = |x: Span, y: Span| bytes(x).any(|byte| bytes(y).any(|other| other == byte));
            let clash = share(c, a) || share(c, b) || share(d, a) || share(d, b) || share(c, d);
            match split::<f32, 2, 2>(&mut blocks, [a, b], [c, d]) {
                Err(error) => {
                    let refused = matches!(error, DeviceError::Overlap { .. });
                    prop_assert!(clash && refused);
                }
                Ok((reads, writes)) => {
                    prop_assert!(!clash);
                    let views = reads.into_iter().chain(writes.map(|w| &*w));
                    for (view, span) in views.zip([a, b, c, d]) {
                        let want: Vec<f32> = bytes(span).step_by(4).map(|(i, byte)| (100 * i + byte / 4) as f32).collect();
                        prop_assert_eq!(view, &want[..]);
                    }
                }
            }
        }
    }
}
