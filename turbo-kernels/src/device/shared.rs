//! A slice that the threads of one operation write together, each its own parts.

use std::{marker::PhantomData, slice};

/// A slice whose parts several threads write at once.
///
/// It is for kernels whose pieces are not contiguous; for contiguous pieces there is
/// [`super::CpuQueue::for_each_chunk`].
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a, T> {
    first: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: this type gives threads `&mut T` one part at a time, which needs `T: Send`, or gives several of them `&T`,
// which needs `T: Sync`; callers of `slice` and `read` promise that nothing else uses a part that one thread writes.
unsafe impl<T: Send + Sync> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(values: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { first: values.as_mut_ptr(), len: values.len(), borrow: PhantomData }
    }

    /// Values `start..start + len`, still shared.
    ///
    /// # Panics
    /// When they are not all inside.
    #[inline(always)]
    pub(crate) fn part(&self, start: usize, len: usize) -> SharedMut<'a, T> {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} exceeds {}", self.len);
        SharedMut { first: self.first.wrapping_add(start), len, borrow: PhantomData }
    }

    /// A pointer to the first value.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.first
    }

    /// Values `start..start + len`.
    ///
    /// # Panics
    /// When they are not all inside.
    ///
    /// # Safety
    /// While the result lives, no other live result shares a value with it.
    #[inline(always)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} exceeds {}", self.len);
        // SAFETY: the values lie inside the slice that is borrowed for 'a, and the caller promises to be the only
        // user of them.
        unsafe { slice::from_raw_parts_mut(self.first.add(start), len) }
    }

    /// Values `start..start + len`, to read.
    ///
    /// # Panics
    /// When they are not all inside.
    ///
    /// # Safety
    /// While the result lives, nothing writes any of them.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, start: usize, len: usize) -> &'a [T] {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} exceeds {}", self.len);
        // SAFETY: the values lie inside the slice that is borrowed for 'a, and the caller promises that they stay
        // as they are.
        unsafe { slice::from_raw_parts(self.first.add(start), len) }
    }
}
