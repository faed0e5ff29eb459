//! Memory of a device, checked views into it, and the queue on which kernels run.

mod block;
mod cores;
mod course;
mod cpu;
mod float;
mod helpers;
mod pages;
mod shared;
pub(crate) mod spans;
mod team;
mod values;

use std::fmt::Debug;

pub use block::CpuBlock;
#[cfg(test)]
pub(crate) use block::split;
pub(crate) use course::{Course, Group, MOST_TRACKS, OneRoom, Piece, RING, Stage};
#[cfg(test)]
pub(crate) use cpu::shared_values;
pub use cpu::{Cpu, CpuOptions, CpuQueue};
pub use float::Float;
pub(crate) use helpers::Helpers;
pub(crate) use pages::Slabs;
pub(crate) use shared::SharedMut;
pub(crate) use team::{Team, look};
pub(crate) use values::Values;

use half::{bf16, f16};

use crate::{DType, simd::Isa};

/// Blocks and planned offsets are multiples of this many bytes: vector loads and CUDA both want it.
pub const ALIGNMENT: usize = 256;

/// A type that tensors hold.
pub trait Element: sealed::Sealed + Copy + Default + Debug + Send + Sync + 'static {
    /// Its name in messages and kernel names.
    const NAME: &'static str;
}

impl Element for f32 {
    const NAME: &'static str = "f32";
}

impl Element for f16 {
    const NAME: &'static str = "f16";
}

impl Element for bf16 {
    const NAME: &'static str = "bf16";
}

impl Element for u32 {
    const NAME: &'static str = "u32";
}

impl Element for u8 {
    const NAME: &'static str = "u8";
}

mod sealed {
    use half::{bf16, f16};

    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}
    impl Sealed for u32 {}
    impl Sealed for u8 {}
}

/// Bytes `offset..offset + bytes` of block number `block` in a slice of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the block.
    pub block: usize,
    /// First byte, a multiple of the size of a value.
    pub offset: usize,
    /// Length in bytes, a multiple of the size of a value.
    pub bytes: usize,
}

/// A place where kernels run: it owns memory and makes queues. Cheap to clone.
///
/// A queue takes views of its own device's blocks. Given those of another GPU, a kernel may find no such memory, and this
/// process has lost the GPU ([`DeviceError::Lost`]). CPU devices share the host's memory.
pub trait Device: Clone + Send + Sync + 'static {
    /// What activations and the constants of row kernels (gains, biases, tables) are stored as. Kernels compute in f32.
    type Float: Float;
    /// One allocation, aligned to [`ALIGNMENT`]; freed when dropped.
    type Block: Send;
    /// What a kernel is enqueued on: the thread team and its scratch, or a stream with its handles.
    type Queue: Send;
    /// Values that a kernel reads.
    type View<'a, T: Element>: Copy + Send + Sync;
    /// Values that a kernel writes.
    type ViewMut<'a, T: Element>: Send;
    /// Operations of a queue that were recorded, to be enqueued all at once; [`Infallible`](std::convert::Infallible)
    /// where nothing is recorded.
    type Recording: Send;
    /// Host memory that copies of one queue land in while the host does something else;
    /// [`Infallible`](std::convert::Infallible) where the device's memory is the host's.
    type Landing: Send;

    /// What a person calls it: `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// What the bits of results depend on where weights are `dtype`, as text: devices that say the same compute the same,
    /// even if one of them has more threads.
    fn rounding(&self, dtype: DType) -> String {
        format!("{}, {dtype}", self.name())
    }

    /// A new execution queue.
    ///
    /// # Errors
    /// When the device cannot give one.
    fn queue(&self) -> Result<Self::Queue, DeviceError>;

    /// Does `work`, whose kernels follow each other closely: on the CPU the team's threads stay at hand meanwhile, so
    /// that handing them an operation costs a fraction of a microsecond. Regions may be nested.
    fn region<T>(&self, queue: &mut Self::Queue, work: impl FnOnce(&mut Self::Queue) -> T) -> T {
        work(queue)
    }

    /// Rows of a batch whose kernels need as much beside their arguments as those of any other of at most `rows` rows with
    /// as long a sequence.
    fn rows_of_most_scratch(&self, rows: usize) -> usize {
        rows
    }

    /// Bytes that kernels keep to themselves on `queue`: scratch that grows to what the largest operation so far took.
    fn scratch_bytes(&self, queue: &Self::Queue) -> usize {
        _ = queue;
        0
    }

    /// Whether [`Device::record`] may record what it is given: whether enqueuing one operation after another costs so
    /// much that it is worth while.
    fn records(&self) -> bool {
        false
    }

    /// Records the kernels that `work` enqueues, instead of doing them; on a device that records nothing they are done,
    /// and there is no recording. Within `work` copies are refused, as are waiting and replays. All blocks that it uses
    /// are of the queue's device.
    ///
    /// # Errors
    /// Those of `work`, or a device failure.
    fn record<E: From<DeviceError>>(
        &self,
        queue: &mut Self::Queue,
        work: impl FnOnce(&mut Self::Queue) -> Result<(), E>,
    ) -> Result<Option<Self::Recording>, E> {
        work(queue).map(|()| None)
    }

    /// Enqueues what was recorded of this queue, with the same views and sizes. `false`, and nothing is enqueued, when a
    /// block has been freed since, or when it was recorded of another queue: then it has to be recorded anew.
    ///
    /// # Errors
    /// A device failure; within [`Device::record`] on the same queue.
    fn replay(&self, _queue: &mut Self::Queue, _recording: &Self::Recording) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits until everything is done that was enqueued. The CPU computes as it enqueues.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn finish(&self, _queue: &mut Self::Queue) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Memory that is not allocated, in bytes; `None` where the device has what the system has.
    ///
    /// # Errors
    /// A device failure.
    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// A block of at least `bytes` bytes, zeroed.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Self::Block, DeviceError>;

    /// `len` values of `block`, from byte `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::Bounds`], [`DeviceError::Misaligned`].
    fn view<'a, T: Element>(
        &self,
        block: &'a Self::Block,
        offset: usize,
        len: usize,
    ) -> Result<Self::View<'a, T>, DeviceError>;

    /// `len` values of `block`, from byte `offset` on, to write.
    ///
    /// # Errors
    /// [`DeviceError::Bounds`], [`DeviceError::Misaligned`].
    fn view_mut<'a, T: Element>(
        &self,
        block: &'a mut Self::Block,
        offset: usize,
        len: usize,
    ) -> Result<Self::ViewMut<'a, T>, DeviceError>;

    /// Views of several spans of [`Device::Float`]s in one set of blocks at once: what one operation reads and writes.
    ///
    /// Reads may overlap each other; a written span overlaps nothing. That is checked here, so that everything above
    /// is safe code.
    ///
    /// # Errors
    /// [`DeviceError::NoBlock`], [`DeviceError::Bounds`], [`DeviceError::Misaligned`], [`DeviceError::PartialElement`],
    /// [`DeviceError::Overlap`].
    #[allow(clippy::type_complexity)]
    fn views<'a, const R: usize, const W: usize>(
        &self,
        blocks: &'a mut [Self::Block],
        reads: [Span; R],
        writes: [Span; W],
    ) -> Result<([Self::View<'a, Self::Float>; R], [Self::ViewMut<'a, Self::Float>; W]), DeviceError>;

    /// The values themselves, where the device's memory is the host's.
    fn on_host<'a, T: Element>(&self, _values: Self::View<'a, T>) -> Option<&'a [T]> {
        None
    }

    /// Copies host values to the device, in queue order. `from` and `to` have the same length.
    ///
    /// # Errors
    /// [`DeviceError::CopyLength`] when the lengths differ, or a device failure.
    fn upload<T: Element>(
        &self,
        queue: &mut Self::Queue,
        from: &[T],
        to: Self::ViewMut<'_, T>,
    ) -> Result<(), DeviceError>;

    /// Copies device values to the host, after everything queued before. `from` and `to` have the same length.
    ///
    /// # Errors
    /// [`DeviceError::CopyLength`] when the lengths differ, or a device failure.
    fn download<T: Element>(
        &self,
        queue: &mut Self::Queue,
        from: Self::View<'_, T>,
        to: &mut [T],
    ) -> Result<(), DeviceError>;

    /// Memory for copies of `queue` to land in; `None` where [`Device::on_host`] gives the values themselves, or where each
    /// read is a [`Device::download`], for which the reader waits.
    ///
    /// # Errors
    /// A device failure.
    fn landing(&self, _queue: &mut Self::Queue) -> Result<Option<Self::Landing>, DeviceError> {
        Ok(None)
    }

    /// Makes room in `landing` for copies of up to `bytes` bytes; what it holds may be lost.
    ///
    /// # Errors
    /// A device failure, or that the host has no such memory left.
    fn reserve_landing(&self, _landing: &mut Self::Landing, _bytes: usize) -> Result<(), DeviceError> {
        Err(no_landings())
    }

    /// Copies device values to `to` after everything that its queue has so far, and returns before that is done. What
    /// landed there before is lost.
    ///
    /// # Errors
    /// A device failure, or that the host has no such memory left.
    fn fetch<T: Element>(
        &self,
        _from: Self::View<'_, T>,
        _to: &mut Self::Landing,
    ) -> Result<(), DeviceError> {
        Err(no_landings())
    }

    /// Whether the values that were fetched last are there. Does not wait.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn has_landed(&self, _landing: &mut Self::Landing) -> Result<bool, DeviceError> {
        Err(no_landings())
    }

    /// The values that were fetched last; waits until they are there.
    ///
    /// # Errors
    /// [`DeviceError::PartialElement`] where they were of another type, or a device failure, which an operation before may
    /// have met.
    fn landed<'a, T: Element>(&self, _landing: &'a mut Self::Landing) -> Result<&'a [T], DeviceError> {
        Err(no_landings())
    }
}

/// The error of a device whose memory is the host's. Unreachable: such a device gives out no landing.
fn no_landings() -> DeviceError {
    let why = "the device's memory is the host's".to_owned();
    DeviceError::Failed { what: "copy values to the host", why }
}

/// Activations or constants in memory of device `D`, to be read.
pub type FloatsOn<'a, D> = <D as Device>::View<'a, <D as Device>::Float>;

/// Why an operation of a device failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No memory left.
    #[error("out of device memory: {bytes} bytes asked for")]
    OutOfMemory {
        /// Size of the refused allocation.
        bytes: usize,
    },
    /// A view reaches outside its block.
    #[error("bytes {offset}..{end} lie outside a block of {block_bytes} bytes")]
    Bounds {
        /// First byte of the view.
        offset: usize,
        /// One past its last byte.
        end: usize,
        /// Size of the block.
        block_bytes: usize,
    },
    /// A span of a block that there is not.
    #[error("there is no block {block}, expected a number below {blocks}")]
    NoBlock {
        /// Number of the block.
        block: usize,
        /// Blocks that there are.
        blocks: usize,
    },
    /// A view does not start on a boundary of its element.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// First byte of the view.
        offset: usize,
        /// What it must be a multiple of.
        alignment: usize,
    },
    /// A view ends inside an element.
    #[error("{bytes} bytes are no whole number of elements of {element_bytes} bytes")]
    PartialElement {
        /// Size of the view.
        bytes: usize,
        /// Size of one of its elements.
        element_bytes: usize,
    },
    /// What is copied is longer or shorter than where it goes to.
    #[error("{from} bytes are copied to a place of {to} bytes, expected as many")]
    CopyLength {
        /// Bytes that are read.
        from: usize,
        /// Bytes that are written.
        to: usize,
    },
    /// A span that is written overlaps another span of the same operation.
    #[error("{written:?} is written and overlaps {other:?}")]
    Overlap {
        /// The span that is written.
        written: Span,
        /// The other one.
        other: Span,
    },
    /// A name that no instruction set has.
    #[error("unknown instruction set {name:?}, expected amx, avx512, avx2 or portable")]
    UnknownIsa {
        /// The name.
        name: String,
    },
    /// An instruction set that this machine lacks.
    #[error("this machine does not have the instruction set {isa}, it has {}", available())]
    UnsupportedIsa {
        /// The requested set.
        isa: Isa,
    },
    /// An environment variable that says what cannot be.
    #[error("{variable}: {why}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong with its value.
        why: Box<DeviceError>,
    },
    /// More threads than a [`Cpu`] takes.
    #[error("{threads} threads are too many to share an operation, ask for {most} at most")]
    TooManyThreads {
        /// The requested number.
        threads: usize,
        /// The largest number that is possible.
        most: usize,
    },
    /// The device or its driver failed.
    #[error("{what}: {why}")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// What the device said.
        why: String,
    },
    /// The GPU is lost: every later operation of this process on it fails.
    #[error("{what}: {why}; this process can use the GPU no more")]
    Lost {
        /// What was being done.
        what: &'static str,
        /// What the device said.
        why: String,
    },
}

/// The instruction sets of this machine, for a message.
fn available() -> String {
    Isa::available().map(|isa| isa.to_string()).collect::<Vec<_>>().join(", ")
}
