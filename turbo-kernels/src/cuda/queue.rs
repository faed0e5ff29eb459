//! A stream, and the memory that its kernels need between them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{Arguments, CudaBlock, CudaViewMut, Driver, Kernel, LaunchShape, Product, Stream};
use crate::{
    KernelError,
    device::{DeviceError, Element},
};

/// A stream, and scratch memory that is kept between operations.
pub struct CudaQueue {
    driver: Arc<dyn Driver>,
    stream: Box<dyn Stream>,
    /// Blocks that no operation uses at the moment; the one for the outermost use is last.
    scratch: Vec<CudaBlock>,
    /// Unique among the queues of this process.
    id: u64,
}

impl CudaQueue {
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Result<CudaQueue, DeviceError> {
        static QUEUES: AtomicU64 = AtomicU64::new(0);
        let id = QUEUES.fetch_add(1, Ordering::Relaxed);
        Ok(CudaQueue { driver: Arc::clone(driver), stream: driver.stream()?, scratch: Vec::new(), id })
    }

    /// The id that distinguishes it from all other queues.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Bytes of scratch that the queue holds, which grow to what the largest operation so far needed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.scratch.iter().map(CudaBlock::bytes).sum()
    }

    /// Waits until everything that was enqueued is done.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    pub fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.stream.synchronize()
    }

    /// Enqueues a kernel. A grid without blocks does nothing.
    ///
    /// # Errors
    /// As for [`Stream::launch`].
    ///
    /// # Safety
    /// `args` match the kernel's parameters in number and type; the views among them hold the values that it reads and
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
        // SAFETY: the caller's promise; views live at least until this returns, and their blocks are freed only after
        // the kernel.
        args.with_pointers(|args| unsafe { self.stream.launch(kernel, shape, args) })
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// As for [`Stream::product`].
    ///
    /// # Safety
    /// As for [`Stream::product`].
    pub(crate) unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.product(product) }
    }

    /// Does `work` with `len` values of scratch, which may hold anything. Uses may be nested; the memory is kept for
    /// later uses and only grows.
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
            // the smaller block is freed first, so that memory need not have room for both
            smaller => {
                drop(smaller);
                CudaBlock::zeroed(&self.driver, bytes)?
            }
        };
        let result = work(self, block.view_mut(0, len)?);
        self.scratch.push(block);
        result
    }

    /// The driver of the queue's device.
    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    pub(super) fn stream(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::{
            Address, Cuda,
            emulator::{Emulator, Order},
        },
        device::Device,
    };

    /// The addresses of `outer` values of scratch, and of `inner` values in a nested use.
    fn addresses(queue: &mut CudaQueue, outer: usize, inner: usize) -> [Address; 2] {
        let nested = queue.with_scratch::<f32, _>(outer, |queue, outer| {
            let outer = outer.address();
            queue.with_scratch::<u8, _>(inner, |_, inner| Ok([outer, inner.address()]))
        });
        nested.unwrap()
    }

    #[test]
    fn scratch_is_kept_and_grows() {
        let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
        let cuda = Cuda::<f32>::new(Arc::new(emulator), Default::default());
        let mut queue = cuda.queue().unwrap();
        let first = addresses(&mut queue, 100, 1000);
        assert_ne!(first[0], first[1]);
        assert_eq!(queue.bytes(), 1400);
        assert_eq!(addresses(&mut queue, 50, 1000), first, "what is there is enough");
        assert_eq!(addresses(&mut queue, 100, 0), first);
        assert_eq!(queue.bytes(), 1400);
        addresses(&mut queue, 200, 1000);
        assert_eq!(queue.bytes(), 1800, "only the outer one has grown");
        drop(queue);
        assert_eq!(cuda.driver().free_bytes().unwrap(), cuda.driver().info().memory_bytes);
    }

    #[test]
    fn an_operation_that_fails_gives_its_scratch_back() {
        let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
        let mut queue = Cuda::<f32>::new(Arc::new(emulator), Default::default()).queue().unwrap();
        let error = DeviceError::OutOfMemory { bytes: 0 };
        let failed = queue.with_scratch::<f32, ()>(100, |_, _| Err(error.into()));
        assert!(failed.is_err());
        assert_eq!(queue.bytes(), 400);
    }
}
