//! Blocks of device memory, and views into them.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use super::{Address, Driver};
use crate::device::{DeviceError, Element, Values, spans};

/// One allocation of a driver, freed when dropped.
pub struct CudaBlock {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

/// The number of blocks of a device that were freed so far.
#[derive(Debug, Default)]
pub struct Freed(RwLock<u64>);

impl Freed {
    /// The number. While it is held, no block of the device is freed. Code that uses memory by its address, rather than
    /// through a view, compares the number to make sure that all of the memory is still allocated.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one block, which is freed before the guard is dropped.
    fn one_more(&self) -> RwLockWriteGuard<'_, u64> {
        let mut freed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *freed += 1;
        freed
    }
}

impl CudaBlock {
    /// `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(super) fn zeroed(driver: &Arc<dyn Driver>, bytes: usize) -> Result<CudaBlock, DeviceError> {
        let address = driver.allocate(bytes)?;
        Ok(CudaBlock { driver: Arc::clone(driver), address, bytes })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn view<T: Element>(&self, offset: usize, len: usize) -> Result<CudaView<'_, T>, DeviceError> {
        spans::check_inside::<T>(self.bytes, offset, len)?;
        Ok(CudaView { address: self.address.offset(offset), len, values: PhantomData })
    }

    pub(super) fn view_mut<T: Element>(
        &mut self,
        offset: usize,
        len: usize,
    ) -> Result<CudaViewMut<'_, T>, DeviceError> {
        spans::check_inside::<T>(self.bytes, offset, len)?;
        Ok(CudaViewMut { address: self.address.offset(offset), len, values: PhantomData })
    }
}

impl Drop for CudaBlock {
    fn drop(&mut self) {
        let _counted = self.driver.freed().one_more();
        // SAFETY: `zeroed` allocated it from this driver, with the same size. It is freed only here, and no view
        // outlives the block; the driver waits for operations that are enqueued.
        unsafe { self.driver.free(self.address, self.bytes) }
    }
}

impl fmt::Debug for CudaBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBlock")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Values on the device that a kernel reads: `len` of them from `address` on, which is aligned for their type.
#[derive(Clone, Copy, Debug)]
pub struct CudaView<'a, T: Element> {
    address: Address,
    len: usize,
    values: PhantomData<&'a [T]>,
}

/// Values on the device that a kernel writes and that nothing else uses meanwhile.
#[derive(Debug)]
pub struct CudaViewMut<'a, T: Element> {
    address: Address,
    len: usize,
    values: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> CudaView<'a, T> {
    /// No values.
    pub(super) const NOTHING: CudaView<'a, T> =
        CudaView { address: Address::NULL, len: 0, values: PhantomData };

    /// Where the first value is.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// How many values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The values from number `first` on.
    pub(crate) fn behind(self, first: usize) -> CudaView<'a, T> {
        let first = first.min(self.len);
        let address = self.address.offset(first * size_of::<T>());
        CudaView { address, len: self.len - first, values: PhantomData }
    }

    pub(super) fn address_mut(&mut self) -> &mut Address {
        &mut self.address
    }
}

impl<'a, T: Element> CudaViewMut<'a, T> {
    /// The values of `view`, to be written. The caller has checked that no other view has a value in common with it.
    /// Only kernels write device memory, so this must hold when they are launched.
    pub(super) fn alone(view: CudaView<'a, T>) -> CudaViewMut<'a, T> {
        CudaViewMut { address: view.address, len: view.len, values: PhantomData }
    }

    /// Where the first value is.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// How many values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address_mut(&mut self) -> &mut Address {
        &mut self.address
    }

    /// The values from number `first` on.
    pub(crate) fn behind(self, first: usize) -> CudaViewMut<'a, T> {
        CudaViewMut::alone(
            CudaView { address: self.address, len: self.len, values: PhantomData }.behind(first),
        )
    }

    /// The same values for a shorter time, for the first of several kernels that write them.
    pub(crate) fn reborrow(&mut self) -> CudaViewMut<'_, T> {
        CudaViewMut { address: self.address, len: self.len, values: PhantomData }
    }

    /// The same values, to be read after a previous kernel has written them.
    pub(crate) fn as_view(&self) -> CudaView<'_, T> {
        CudaView { address: self.address, len: self.len, values: PhantomData }
    }

    /// The same values, to be read and written, for kernels in which each thread reads the values that it writes before
    /// it writes them.
    pub(crate) fn in_place(&mut self) -> (CudaView<'_, T>, CudaViewMut<'_, T>) {
        let view = CudaView { address: self.address, len: self.len, values: PhantomData };
        (view, CudaViewMut::alone(view))
    }
}

impl<T: Element> Values for CudaView<'_, T> {
    fn len(&self) -> usize {
        self.len
    }
}

impl<T: Element> Values for CudaViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len
    }
}
