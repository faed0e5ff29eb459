//! The GPU as a device: memory, views, copies.

use std::{
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use super::{CudaBlock, CudaQueue, CudaView, CudaViewMut, Driver, Landing, Recording, Stream};
use crate::{
    DType,
    device::{Device, DeviceError, Element, Float, Span, spans},
};

/// How a [`Cuda`] is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Whether f32 products may round their inputs to TF32, which has 11 bits and which tensor cores multiply.
    pub tf32: bool,
}

/// A GPU whose activations are of type `F`: f32, f16 or bf16. Cheap to clone.
#[derive(Clone)]
pub struct Cuda<F> {
    driver: Arc<dyn Driver>,
    options: CudaOptions,
    /// The stream that uploads constants.
    constants: Arc<Mutex<Option<Box<dyn Stream>>>>,
    float: PhantomData<F>,
}

impl<F: Float> Cuda<F> {
    /// The GPU behind `driver`.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, options: CudaOptions) -> Cuda<F> {
        Cuda { driver, options, constants: Arc::default(), float: PhantomData }
    }

    /// The same GPU with activations of another type. Blocks are interchangeable.
    #[must_use]
    pub fn with_float<G: Float>(&self) -> Cuda<G> {
        Cuda::new(Arc::clone(&self.driver), self.options)
    }

    /// The driver of the GPU.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Whether f32 products may round their inputs to TF32.
    pub(crate) fn tf32(&self) -> bool {
        self.options.tf32
    }

    /// A block that holds `values` and that any queue may read right away.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or a device failure.
    pub(crate) fn constants(&self, values: &[F]) -> Result<CudaBlock, DeviceError> {
        let mut block = self.allocate(size_of_val(values))?;
        let mut stream = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match &mut *stream {
            Some(stream) => stream,
            none => none.insert(self.driver.stream()?),
        };
        let view = block.view_mut::<F>(0, values.len())?;
        // SAFETY: the view holds that many values.
        unsafe { stream.upload(bytes_of(values), view.address()) }?;
        stream.synchronize()?;
        Ok(block)
    }
}

impl<F> fmt::Debug for Cuda<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("driver", &self.driver)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Recorded kernels of one queue.
#[derive(Debug)]
pub struct CudaRecording {
    recorded: Box<dyn Recording>,
    /// The queue's id: it orders the operations and owns their scratch.
    queue: u64,
    /// The queue's driver, whose blocks the kernels use.
    driver: Arc<dyn Driver>,
    /// How many of the driver's blocks had been freed before the recording.
    freed: u64,
}

/// Host memory that receives copies of one queue.
#[derive(Debug)]
pub struct CudaLanding(Box<dyn Landing>);

impl<F: Float> Device for Cuda<F> {
    type Float = F;
    type Recording = CudaRecording;
    type Landing = CudaLanding;
    type Block = CudaBlock;
    type Queue = CudaQueue;
    type View<'a, T: Element> = CudaView<'a, T>;
    type ViewMut<'a, T: Element> = CudaViewMut<'a, T>;

    fn name(&self) -> String {
        format!("cuda ({}, {})", self.driver.info().name, F::NAME)
    }

    fn rounding(&self, dtype: DType) -> String {
        let products = if self.options.tf32 { ", tf32" } else { "" };
        format!("{}, {dtype}{products}", self.name())
    }

    fn queue(&self) -> Result<CudaQueue, DeviceError> {
        CudaQueue::new(&self.driver)
    }

    fn scratch_bytes(&self, queue: &CudaQueue) -> usize {
        queue.bytes()
    }

    fn records(&self) -> bool {
        true
    }

    fn record<E: From<DeviceError>>(
        &self,
        queue: &mut CudaQueue,
        work: impl FnOnce(&mut CudaQueue) -> Result<(), E>,
    ) -> Result<Option<CudaRecording>, E> {
        let driver = Arc::clone(queue.driver());
        let freed = *driver.freed().hold();
        if !queue.stream().begin_recording()? {
            return work(queue).map(|()| None);
        }
        let worked = catch_unwind(AssertUnwindSafe(|| work(queue)));
        // also after a panic: a caller that catches it finds a queue that runs its operations again
        let recorded = queue.stream().end_recording();
        worked.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Some(CudaRecording { recorded: recorded?, queue: queue.id(), driver, freed }))
    }

    fn replay(&self, queue: &mut CudaQueue, recording: &CudaRecording) -> Result<bool, DeviceError> {
        let freed = recording.driver.freed().hold();
        if *freed != recording.freed || queue.id() != recording.queue {
            return Ok(false);
        }
        // SAFETY: no block of the device was freed since before the first operation was recorded, and none is freed
        // while `freed` is held; blocks freed afterwards wait until everything is done. A queue never uses blocks of
        // another device, recorded or not.
        unsafe { recording.recorded.replay() }?;
        Ok(true)
    }

    fn finish(&self, queue: &mut CudaQueue) -> Result<(), DeviceError> {
        queue.synchronize()
    }

    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        self.driver.free_bytes().map(Some)
    }

    fn allocate(&self, bytes: usize) -> Result<CudaBlock, DeviceError> {
        CudaBlock::zeroed(&self.driver, bytes)
    }

    fn view<'a, T: Element>(
        &self,
        block: &'a CudaBlock,
        offset: usize,
        len: usize,
    ) -> Result<CudaView<'a, T>, DeviceError> {
        block.view(offset, len)
    }

    fn view_mut<'a, T: Element>(
        &self,
        block: &'a mut CudaBlock,
        offset: usize,
        len: usize,
    ) -> Result<CudaViewMut<'a, T>, DeviceError> {
        block.view_mut(offset, len)
    }

    fn views<'a, const R: usize, const W: usize>(
        &self,
        blocks: &'a mut [CudaBlock],
        reads: [Span; R],
        writes: [Span; W],
    ) -> Result<([CudaView<'a, F>; R], [CudaViewMut<'a, F>; W]), DeviceError> {
        spans::check_apart(&reads, &writes)?;
        let blocks = &*blocks;
        let mut views = [CudaView::NOTHING; R];
        for (view, span) in views.iter_mut().zip(&reads) {
            let (block, len) = spans::block_of::<F, _>(blocks, span)?;
            *view = block.view(span.offset, len)?;
        }
        let mut written = [CudaView::NOTHING; W];
        for (view, span) in written.iter_mut().zip(&writes) {
            let (block, len) = spans::block_of::<F, _>(blocks, span)?;
            *view = block.view(span.offset, len)?;
        }
        // the blocks are borrowed mutably, and no written span shares bytes with another
        Ok((views, written.map(CudaViewMut::alone)))
    }

    fn upload<T: Element>(
        &self,
        queue: &mut CudaQueue,
        from: &[T],
        to: CudaViewMut<'_, T>,
    ) -> Result<(), DeviceError> {
        check_lengths::<T>(from.len(), to.len())?;
        // SAFETY: the view holds that many values.
        unsafe { queue.stream().upload(bytes_of(from), to.address()) }
    }

    fn download<T: Element>(
        &self,
        queue: &mut CudaQueue,
        from: CudaView<'_, T>,
        to: &mut [T],
    ) -> Result<(), DeviceError> {
        check_lengths::<T>(from.len(), to.len())?;
        // SAFETY: elements have no padding, and every bit pattern is a valid element.
        let bytes = unsafe { slice::from_raw_parts_mut(to.as_mut_ptr().cast(), size_of_val(to)) };
        // SAFETY: the view holds that many values.
        unsafe { queue.stream().download(from.address(), bytes) }
    }

    fn landing(&self, queue: &mut CudaQueue) -> Result<Option<CudaLanding>, DeviceError> {
        Ok(Some(CudaLanding(queue.stream().landing()?)))
    }

    fn reserve_landing(&self, landing: &mut CudaLanding, bytes: usize) -> Result<(), DeviceError> {
        landing.0.reserve(bytes)
    }

    fn fetch<T: Element>(&self, from: CudaView<'_, T>, to: &mut CudaLanding) -> Result<(), DeviceError> {
        // SAFETY: the view holds that many values; its block is freed only after the copy.
        unsafe { to.0.fetch(from.address(), from.len() * size_of::<T>()) }
    }

    fn has_landed(&self, landing: &mut CudaLanding) -> Result<bool, DeviceError> {
        landing.0.has_landed()
    }

    fn landed<'a, T: Element>(&self, landing: &'a mut CudaLanding) -> Result<&'a [T], DeviceError> {
        let bytes = landing.0.bytes()?;
        // SAFETY: every bit pattern is a valid element.
        match unsafe { bytes.align_to() } {
            ([], values, []) => Ok(values),
            _ => Err(DeviceError::PartialElement { bytes: bytes.len(), element_bytes: size_of::<T>() }),
        }
    }
}

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, so all of their bytes are initialised.
    unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn check_lengths<T>(from: usize, to: usize) -> Result<(), DeviceError> {
    if from == to {
        return Ok(());
    }
    Err(DeviceError::CopyLength { from: from * size_of::<T>(), to: to * size_of::<T>() })
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{
        BiasAct, KernelError,
        cuda::emulator::{Emulator, Order},
    };

    fn cuda() -> Option<Cuda<bf16>> {
        Some(Cuda::new(Arc::new(Emulator::or_skip(Order::Forward)?), CudaOptions::default()))
    }

    #[test]
    fn values_come_back() {
        let Some(cuda) = cuda() else { return };
        assert_eq!(cuda.name(), "cuda (emulated GPU, bf16)");
        let mut queue = cuda.queue().unwrap();
        let mut block = cuda.allocate(16).unwrap();
        cuda.upload(&mut queue, &[1u32, 2, 3], cuda.view_mut(&mut block, 4, 3).unwrap()).unwrap();
        let mut back = [9u32; 4];
        cuda.download(&mut queue, cuda.view(&block, 0, 4).unwrap(), &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3], "a block begins as zeros");
        let error = cuda.upload(&mut queue, &back, cuda.view_mut(&mut block, 0, 3).unwrap()).unwrap_err();
        assert!(matches!(error, DeviceError::CopyLength { from: 16, to: 12 }));
    }

    /// Answers kept from one start to the next come only from products that round the same.
    #[test]
    fn products_that_round_more_are_told_apart() {
        let Some(cuda) = cuda() else { return };
        let rounding = |tf32| {
            let cuda = Cuda::<f32>::new(Arc::clone(cuda.driver()), CudaOptions { tf32 });
            cuda.rounding(DType::F32)
        };
        assert_eq!(rounding(false), "cuda (emulated GPU, f32), f32");
        assert_ne!(rounding(true), rounding(false));
    }

    #[test]
    fn values_land_while_the_host_goes_on() {
        let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
        let emulator = Arc::new(emulator);
        let cuda = Cuda::<f32>::new(emulator.clone(), CudaOptions::default());
        let mut queue = cuda.queue().unwrap();
        let mut block = cuda.allocate(16).unwrap();
        let mut landings = [(); 2].map(|()| cuda.landing(&mut queue).unwrap().unwrap());
        emulator.lag();
        for (landing, value) in landings.iter_mut().zip([1.0_f32, 2.0]) {
            cuda.upload(&mut queue, &[value; 4], cuda.view_mut(&mut block, 0, 4).unwrap()).unwrap();
            cuda.fetch::<f32>(cuda.view(&block, 0, 4).unwrap(), landing).unwrap();
        }
        assert_eq!(emulator.waiting(), 4, "nobody waited, so nothing is done");
        let [first, second] = &mut landings;
        let looks: Vec<bool> = (0..3).map(|_| cuda.has_landed(first).unwrap()).collect();
        assert_eq!((looks, emulator.waiting()), (vec![false, false, true], 2));
        assert_eq!(cuda.landed::<f32>(first).unwrap(), [1.0; 4]);
        assert_eq!(emulator.waiting(), 2, "it waited for nothing else");
        assert!(!cuda.has_landed(second).unwrap());
        assert_eq!(cuda.landed::<f32>(second).unwrap(), [2.0; 4]);
        assert_eq!(cuda.landed::<f32>(first).unwrap(), [1.0; 4]);
    }

    #[test]
    fn memory_is_given_back_behind_what_uses_it() {
        let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
        let emulator = Arc::new(emulator);
        let cuda = Cuda::<f32>::new(emulator.clone(), CudaOptions::default());
        let mut queue = cuda.queue().unwrap();
        let mut block = cuda.allocate(16).unwrap();
        let mut landing = cuda.landing(&mut queue).unwrap().unwrap();
        emulator.lag();
        cuda.upload(&mut queue, &[7.0_f32; 4], cuda.view_mut(&mut block, 0, 4).unwrap()).unwrap();
        cuda.fetch::<f32>(cuda.view(&block, 0, 4).unwrap(), &mut landing).unwrap();
        drop(block);
        assert_eq!(emulator.waiting(), 0);
        assert_eq!(cuda.landed::<f32>(&mut landing).unwrap(), [7.0; 4]);
    }

    /// `to = 2 · from`, four values.
    fn double(
        cuda: &Cuda<f32>,
        queue: &mut CudaQueue,
        from: &CudaBlock,
        to: &mut CudaBlock,
    ) -> Result<(), KernelError> {
        cuda.scale(queue, cuda.view(from, 0, 4)?, 2.0, cuda.view_mut(to, 0, 4)?)
    }

    /// A recording holds addresses, and freed memory may belong to another block by now.
    #[test]
    fn a_recording_is_not_replayed_once_memory_was_freed() {
        let new = || Some(cuda()?.with_float::<f32>());
        let (Some(cuda), Some(other)) = (new(), new()) else { return };
        let mut queue = cuda.queue().unwrap();
        let (mut from, mut to) = (cuda.allocate(16).unwrap(), cuda.allocate(16).unwrap());
        let set = |queue: &mut CudaQueue, from: &mut CudaBlock, value: f32| {
            cuda.upload(queue, &[value; 4], cuda.view_mut(from, 0, 4).unwrap()).unwrap();
        };
        let get = |queue: &mut CudaQueue, to: &CudaBlock| {
            let mut values = [0.0_f32; 4];
            cuda.download(queue, cuda.view(to, 0, 4).unwrap(), &mut values).unwrap();
            values
        };
        set(&mut queue, &mut from, 3.0);
        let recorded =
            cuda.record(&mut queue, |queue| double(&cuda, queue, &from, &mut to)).unwrap().unwrap();
        assert_eq!(get(&mut queue, &to), [0.0; 4], "it is recorded and not done");
        drop(other.allocate(16).unwrap());
        assert!(
            cuda.replay(&mut queue, &recorded).unwrap(),
            "what another device frees is none of its memory"
        );
        assert_eq!(get(&mut queue, &to), [6.0; 4]);
        set(&mut queue, &mut from, 5.0);
        assert!(
            !cuda.replay(&mut cuda.queue().unwrap(), &recorded).unwrap(),
            "another queue would not wait for it"
        );
        assert_eq!(get(&mut queue, &to), [6.0; 4]);
        // the same memory, through another device type
        drop(cuda.with_float::<bf16>().allocate(16).unwrap());
        assert!(!cuda.replay(&mut queue, &recorded).unwrap());
        // whichever device replays, the memory of the queue counts
        let again = other.record(&mut queue, |queue| double(&cuda, queue, &from, &mut to)).unwrap().unwrap();
        drop(cuda.allocate(16).unwrap());
        assert!(!other.replay(&mut queue, &again).unwrap());
        assert_eq!(get(&mut queue, &to), [6.0; 4], "nothing is enqueued");
    }

    #[test]
    fn a_recording_ends_where_its_work_panics() {
        let Some(cuda) = cuda() else { return };
        let mut queue = cuda.queue().unwrap();
        let mut block = cuda.allocate(4).unwrap();
        let recorded = catch_unwind(AssertUnwindSafe(|| {
            cuda.record(&mut queue, |_| -> Result<(), DeviceError> { panic!("a bug") })
        }));
        assert_eq!(recorded.unwrap_err().downcast_ref::<&str>(), Some(&"a bug"));
        cuda.upload(&mut queue, &[7_u32], cuda.view_mut(&mut block, 0, 1).unwrap()).unwrap();
    }

    #[test]
    fn views_are_of_what_is_there_and_written_ones_apart() {
        let Some(cuda) = cuda() else { return };
        let mut blocks = [cuda.allocate(64).unwrap(), cuda.allocate(64).unwrap()];
        let span = |block, offset, bytes| Span { block, offset, bytes };
        let mut views = |reads, writes| cuda.views::<1, 1>(&mut blocks, [reads], [writes]).map(|_| ());
        assert!(views(span(0, 0, 32), span(0, 32, 32)).is_ok());
        assert!(views(span(0, 0, 64), span(1, 0, 64)).is_ok());
        assert!(matches!(views(span(0, 0, 34), span(0, 32, 2)), Err(DeviceError::Overlap { .. })));
        assert!(matches!(views(span(0, 32, 34), span(1, 0, 2)), Err(DeviceError::Bounds { .. })));
        assert!(matches!(views(span(2, 0, 2), span(1, 0, 2)), Err(DeviceError::NoBlock { .. })));
        assert!(matches!(views(span(0, 1, 2), span(1, 0, 2)), Err(DeviceError::Misaligned { .. })));
        assert!(matches!(views(span(0, 0, 3), span(1, 0, 2)), Err(DeviceError::PartialElement { .. })));
        assert!(cuda.view::<f32>(&blocks[0], 60, 2).is_err());
        assert!(cuda.view_mut::<f32>(&mut blocks[0], 2, 1).is_err());
    }

    #[test]
    fn a_block_is_given_back_when_it_is_dropped() {
        let Some(cuda) = cuda() else { return };
        let free = || cuda.driver().free_bytes().unwrap();
        let before = free();
        let block = cuda.allocate(1 << 20).unwrap();
        assert_eq!(free(), before - (1 << 20));
        drop(block);
        assert_eq!(free(), before);
        let error = cuda.allocate(usize::MAX / 2).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { bytes } if bytes == usize::MAX / 2));
    }
}
