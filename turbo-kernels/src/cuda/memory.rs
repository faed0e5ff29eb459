//! Blocks of device memory, and views into them.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use super::{Address, Driver};
use crate::device::{DeviceError, Element, Values, spans};

/// One allocation of a driver, given back when dropped.
pub struct CudaBlock {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

/// How many blocks of a device were freed so far.
#[derive(Debug, Default)]
pub struct Freed(RwLock<u64>);

impl Freed {
    /// The number. While it is held no block of the device is freed: code that uses memory by its address, not through
    /// a view, compares the number to see that all of it is still there.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one that is freed before this is dropped.
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
        // SAFETY: `zeroed` had it from this driver, with as many bytes. It is freed here alone, and no view outlives the
        // block; the driver waits for what is enqueued.
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

/// Values on the device that a kernel reads: `len` of them from `address` on, which is aligned to one of them.
#[derive(Clone, Copy, Debug)]
pub struct CudaView<'a, T: Element> {
    address: Address,
    len: usize,
    values: PhantomData<&'a [T]>,
}

/// Values on the device that a kernel writes, and nothing else uses meanwhile.
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
    /// The values of `view` to write, for a caller that has checked that no other view shares one with it. Only kernels
    /// write memory of a device, so this must hold where they are launched.
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

    /// The same values to read, once a kernel before has written them.
    pub(crate) fn as_view(&self) -> CudaView<'_, T> {
        CudaView { address: self.address, len: self.len, values: PhantomData }
    }

    /// The same values to read and to write, for kernels of which each thread reads what it writes, before it does.
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
