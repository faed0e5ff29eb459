//! A stream and the memory that its kernels need between them.

use std::sync::Arc;

use super::{Arguments, CudaBlock, CudaViewMut, Driver, Kernel, LaunchShape, Product, Stream};
use crate::{
    KernelError,
    device::{DeviceError, Element},
};

/// A stream, and scratch memory that is kept between operations.
pub struct CudaQueue {
    driver: Arc<dyn Driver>,
    stream: Box<dyn Stream>,
    /// Blocks that no operation uses, the one for the outermost use last.
    scratch: Vec<CudaBlock>,
}

impl CudaQueue {
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Result<CudaQueue, DeviceError> {
        Ok(CudaQueue { driver: Arc::clone(driver), stream: driver.stream()?, scratch: Vec::new() })
    }

    /// Memory it holds, in bytes: scratch that grows to what the largest operation so far took.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.scratch.iter().map(CudaBlock::bytes).sum()
    }

    /// Waits until everything is done that was enqueued.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    pub fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.stream.synchronize()
    }

    /// Enqueues a kernel. A grid without blocks is nothing.
    ///
    /// # Errors
    /// As of [`Stream::launch`].
    ///
    /// # Safety
    /// `args` are as many as the kernel has parameters, and of their types; the views among them hold what it reads and
    /// writes there.
    pub(crate) unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: impl Arguments,
    ) -> Result<(), DeviceError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        args.with_spans(|spans| self.stream.confine(spans));
        // SAFETY: the caller's promise; views live at least until this returns, and their blocks are freed behind it.
        args.with_pointers(|args| unsafe { self.stream.launch(kernel, shape, args) })
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// As of [`Stream::product`].
    ///
    /// # Safety
    /// As of [`Stream::product`].
    pub(crate) unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.product(product) }
    }

    /// Does `work` with `len` values of scratch, in which anything may stand. Uses may be nested; the memory is kept for
    /// the next ones and only grows.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or what `work` returns.
    pub(crate) fn with_scratch<T: Element, R>(
        &mut self,
        len: usize,
        work: impl FnOnce(&mut CudaQueue, CudaViewMut<'_, T>) -> Result<R, KernelError>,
    ) -> Result<R, KernelError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let mut block = match self.scratch.pop() {
            Some(block) if block.bytes() >= bytes => block,
            // the smaller one is freed first, so that both need not fit
            smaller => {
                drop(smaller);
                CudaBlock::zeroed(&self.driver, bytes)?
            }
        };
        let result = work(self, block.view_mut(0, len)?);
        self.scratch.push(block);
        result
    }

    pub(super) fn stream(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }
}
