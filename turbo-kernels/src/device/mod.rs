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

/// Blocks and planned offsets are multiples of this many bytes, which suits both vector loads and CUDA.
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

/// A place where kernels run: it owns memory and creates queues. Cheap to clone.
///
/// A queue takes views of its own device's blocks. If a kernel is given a view of another GPU's block, the address may
/// not exist on its GPU, and this process has then lost the GPU ([`DeviceError::Lost`]). CPU devices share the host's
/// memory.
pub trait Device: Clone + Send + Sync + 'static {
    /// The type in which activations and the constants of row kernels (gains, biases, tables) are stored. Kernels
    /// compute in f32.
    type Float: Float;
    /// One allocation, aligned to [`ALIGNMENT`] and freed when dropped.
    type Block: Send;
    /// Where kernels are enqueued: a thread team and its scratch, or a stream with its handles.
    type Queue: Send;
    /// Values that a kernel reads.
    type View<'a, T: Element>: Copy + Send + Sync;
    /// Values that a kernel writes.
    type ViewMut<'a, T: Element>: Send;
    /// Recorded operations of a queue, which can be enqueued all at once; [`Infallible`](std::convert::Infallible)
    /// where the device records nothing.
    type Recording: Send;
    /// Host memory that receives copies of one queue while the host does other work;
    /// [`Infallible`](std::convert::Infallible) where the device's memory is the host's.
    type Landing: Send;

    /// The device's name for people: `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// Everything that the bits of results depend on where weights are `dtype`, as text. Devices with equal texts
    /// compute equal bits, even if one of them has more threads.
    fn rounding(&self, dtype: DType) -> String {
        format!("{}, {dtype}", self.name())
    }

    /// A new execution queue.
    ///
    /// # Errors
    /// When the device cannot create one.
    fn queue(&self) -> Result<Self::Queue, DeviceError>;

    /// Does `work`, whose kernels follow each other closely. On the CPU the team's threads stay awake meanwhile, so
    /// that handing them an operation costs a fraction of a microsecond. Regions may be nested.
    fn region<T>(&self, queue: &mut Self::Queue, work: impl FnOnce(&mut Self::Queue) -> T) -> T {
        work(queue)
    }

    /// The number of rows in a batch whose kernels need at least as much scratch as those of any other batch of at most
    /// `rows` rows with an equally long sequence.
    fn rows_of_most_scratch(&self, rows: usize) -> usize {
        rows
    }

    /// Bytes of scratch that kernels keep on `queue`, which grows to what the largest operation so far needed.
    fn scratch_bytes(&self, queue: &Self::Queue) -> usize {
        _ = queue;
        0
    }

    /// Whether [`Device::record`] may record its work, that is, whether enqueuing operations one by one is expensive
    /// enough to make recording worthwhile.
    fn records(&self) -> bool {
        false
    }

    /// Records the kernels that `work` enqueues, instead of running them. On a device that records nothing, the kernels
    /// run and there is no recording. Within `work`, copies, waiting and replays are refused. All blocks that `work`
    /// uses belong to the queue's device.
    ///
    /// # Errors
    /// The errors of `work`, or a device failure.
    fn record<E: From<DeviceError>>(
        &self,
        queue: &mut Self::Queue,
        work: impl FnOnce(&mut Self::Queue) -> Result<(), E>,
    ) -> Result<Option<Self::Recording>, E> {
        work(queue).map(|()| None)
    }

    /// Enqueues what was recorded on this queue, with the same views and sizes. Returns `false` and enqueues nothing
    /// when a block has been freed since, or when the recording is of another queue: then the work has to be recorded
    /// again.
    ///
    /// # Errors
    /// A device failure, or a call within [`Device::record`] on the same queue.
    fn replay(&self, _queue: &mut Self::Queue, _recording: &Self::Recording) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits until everything that was enqueued is done. The CPU computes as it enqueues, so it never waits.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn finish(&self, _queue: &mut Self::Queue) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Free memory of the device in bytes; `None` where the device uses the system's memory.
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

    /// Views of several spans of [`Device::Float`]s in one set of blocks: everything that one operation reads and
    /// writes.
    ///
    /// Reads may overlap each other; a written span overlaps no other span. This is checked here, so that everything
    /// above is safe code.
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

    /// Copies host values to the device, in the order of the queue. `from` and `to` have the same length.
    ///
    /// # Errors
    /// [`DeviceError::CopyLength`] when the lengths differ, or a device failure.
    fn upload<T: Element>(
        &self,
        queue: &mut Self::Queue,
        from: &[T],
        to: Self::ViewMut<'_, T>,
    ) -> Result<(), DeviceError>;

    /// Copies device values to the host, after everything enqueued before. `from` and `to` have the same length.
    ///
    /// # Errors
    /// [`DeviceError::CopyLength`] when the lengths differ, or a device failure.
    fn download<T: Element>(
        &self,
        queue: &mut Self::Queue,
        from: Self::View<'_, T>,
        to: &mut [T],
    ) -> Result<(), DeviceError>;

    /// Host memory for copies of `queue` to land in; `None` where [`Device::on_host`] gives the values themselves, or
    /// where each read is a [`Device::download`], for which the reader waits.
    ///
    /// # Errors
    /// A device failure.
    fn landing(&self, _queue: &mut Self::Queue) -> Result<Option<Self::Landing>, DeviceError> {
        Ok(None)
    }

    /// Makes room in `landing` for copies of up to `bytes` bytes. The bytes that it holds may be lost.
    ///
    /// # Errors
    /// A device failure, or that the host has no such memory left.
    fn reserve_landing(&self, _landing: &mut Self::Landing, _bytes: usize) -> Result<(), DeviceError> {
        Err(no_landings())
    }

    /// Enqueues a copy of device values to `to`, behind everything on its queue, and returns before the copy is done.
    /// Values that landed there before are lost.
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

    /// Whether the values of the last fetch have arrived. Does not wait.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn has_landed(&self, _landing: &mut Self::Landing) -> Result<bool, DeviceError> {
        Err(no_landings())
    }

    /// The values of the last fetch; waits until they have arrived.
    ///
    /// # Errors
    /// [`DeviceError::PartialElement`] where the values have another type, or a device failure, which an operation
    /// before may have met.
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
    /// A span refers to a block that does not exist.
    #[error("there is no block {block}, expected a number below {blocks}")]
    NoBlock {
        /// Number of the block.
        block: usize,
        /// How many blocks exist.
        blocks: usize,
    },
    /// A view does not start at a multiple of its element's alignment.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// First byte of the view.
        offset: usize,
        /// The required alignment.
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
    /// The source and the target of a copy have different lengths.
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
    /// No instruction set has this name.
    #[error("unknown instruction set {name:?}, expected amx, avx512, avx2 or portable")]
    UnknownIsa {
        /// The name.
        name: String,
    },
    /// This machine lacks the instruction set.
    #[error("this machine does not have the instruction set {isa}, it has {}", available())]
    UnsupportedIsa {
        /// The requested set.
        isa: Isa,
    },
    /// The value of an environment variable is invalid.
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
