//! The operations of a GPU, real or emulated: the seam between [`super::Cuda`] and CUDA itself.
//!
//! ```text
//! Cuda<F> ──▶ Driver: memory, streams ──▶ Stream: kernels, products, copies, in order
//!                 ├─ the real one (feature `cuda`)
//!                 └─ the emulator (tests): the same kernels on the processor
//! ```
//!
//! Launch shapes, arguments and the order of operations are made above this seam, so they are tested without a GPU.

use std::{ffi::c_void, fmt::Debug};

use super::Freed;
use crate::{
    Activation,
    device::{DeviceError, Element},
    matmul::Rhs,
};

/// Where a kernel's bytes are; 0 is no memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No memory: what a kernel is given for an argument that is not there.
    pub const NULL: Address = Address(0);

    /// The address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// What a driver knows of its device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// What its maker calls it.
    pub name: String,
    /// Major and minor: `(9, 0)` for an H200.
    pub compute_capability: (u32, u32),
    /// How many blocks run at once, at least.
    pub multiprocessors: u32,
    /// All memory of the device.
    pub memory_bytes: u64,
}

/// A GPU, or the processor acting as one.
///
/// # Safety
/// Callers rely on what is said below: memory has as many bytes as were requested, belongs to nothing else until it is
/// freed, and goes after what uses it; all blocks of it are counted in one place; and operations of streams, their
/// landings and their recordings touch only what they are given, in order.
pub unsafe trait Driver: Debug + Send + Sync + 'static {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// Device memory that is not allocated; what was freed is not, once no stream records.
    ///
    /// # Errors
    /// A device failure.
    fn free_bytes(&self) -> Result<u64, DeviceError>;

    /// `bytes` bytes of device memory, all zero, aligned to [`crate::device::ALIGNMENT`]. An allocation of no bytes has
    /// an address, too.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory back, once what was enqueued on any stream so far is done. [`Driver::allocate`] has it from then
    /// on, or when the recordings that are under way have ended; other processes may have to wait.
    ///
    /// # Safety
    /// `address` came from [`Driver::allocate`] with as many `bytes`, is freed once, and nothing is enqueued that uses it after.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// Where blocks of this device are counted that are freed: always the same place.
    fn freed(&self) -> &Freed;

    /// A new stream.
    ///
    /// # Errors
    /// When the device gives no more.
    fn stream(&self) -> Result<Box<dyn Stream>, DeviceError>;
}

/// Operations of one device, done in the order in which they are enqueued. What an operation reads and writes must live
/// until it is done, which [`Driver::free`] waits for.
pub trait Stream: Send {
    /// Enqueues a kernel. `args` point to its arguments, in order; they are read before this returns.
    ///
    /// # Errors
    /// When the kernel does not compile or does not exist, or the shape is more than the device has.
    ///
    /// # Safety
    /// `args` are as many as the kernel has parameters, and of their types; each address among them holds what the
    /// kernel reads and writes there.
    unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError>;

    /// Says what the next kernel may touch at most, so many bytes from each address on: a driver for tests finds kernels
    /// that touch more. The call is optional.
    fn confine(&mut self, _spans: &[(Address, usize)]) {}

    /// Enqueues a product.
    ///
    /// # Errors
    /// A device failure.
    ///
    /// # Safety
    /// The addresses hold what the sizes and strides say, `y` shares no bytes with the others, and no two values of
    /// `y` share an element.
    unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError>;

    /// Enqueues a copy to the device. `from` is read before this returns.
    ///
    /// # Errors
    /// A device failure.
    ///
    /// # Safety
    /// `to` holds `from.len()` bytes.
    unsafe fn upload(&mut self, from: &[u8], to: Address) -> Result<(), DeviceError>;

    /// Copies to the host, and returns when that is done.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    ///
    /// # Safety
    /// `from` holds `to.len()` bytes.
    unsafe fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Host memory that this stream can copy into while the host does something else; it has no bytes yet.
    ///
    /// # Errors
    /// A device failure.
    fn landing(&mut self) -> Result<Box<dyn Landing>, DeviceError>;

    /// Waits until all is done that was enqueued.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// From now on records kernels and products, instead of doing them, until [`Stream::end_recording`]. `false` when
    /// this driver records nothing, and then all is done as ever.
    ///
    /// Copies cannot be recorded: meanwhile they are refused, and so is waiting. The caller has run the same operations
    /// once before: then kernels are loaded, algorithms chosen, and scratch memory has its size, so that none is freed
    /// which the recording uses.
    ///
    /// # Errors
    /// When a recording is under way, or a device failure.
    fn begin_recording(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// What was recorded since [`Stream::begin_recording`].
    ///
    /// # Errors
    /// When no recording is under way, or a device failure. Either way none is after.
    fn end_recording(&mut self) -> Result<Box<dyn Recording>, DeviceError> {
        let why = "no recording is under way".to_owned();
        Err(DeviceError::Failed { what: "end a recording", why })
    }
}

/// Host memory of one stream, which its copies land in.
pub trait Landing: Debug + Send {
    /// Makes room for copies of up to `bytes` bytes. What it holds may be lost.
    ///
    /// # Errors
    /// A device failure, or that the host has no such memory left.
    fn reserve(&mut self, bytes: usize) -> Result<(), DeviceError>;

    /// Enqueues a copy of `bytes` bytes, behind all that the stream has; what was fetched before is lost. Makes room where
    /// there is too little.
    ///
    /// # Errors
    /// As of [`Landing::reserve`]; while a recording is under way.
    ///
    /// # Safety
    /// `from` holds as many bytes until the copy is done.
    unsafe fn fetch(&mut self, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Whether the last copy is there. Does not wait.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn has_landed(&mut self) -> Result<bool, DeviceError>;

    /// What was fetched last; waits until it is there.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn bytes(&mut self) -> Result<&[u8], DeviceError>;
}

/// Operations that were recorded once, to be enqueued all at once: that costs the host less than one after another.
pub trait Recording: Debug + Send {
    /// Enqueues them on the stream on which they were recorded, with the same addresses and sizes.
    ///
    /// # Errors
    /// A device failure; while a recording of that stream is under way.
    ///
    /// # Safety
    /// As for each of the operations; so the memory that they use has not been freed.
    unsafe fn replay(&self) -> Result<(), DeviceError>;
}

/// Device code of one family of kernels. Compiled behind `common.cuh`, to which it may refer, without any `#include`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// The name of the file without its ending: `softmax`.
    pub name: &'static str,
    /// CUDA C++.
    pub source: &'static str,
}

impl Module {
    /// What the emulator compiles. For a GPU a line stands between both parts, so that messages name the file.
    #[must_use]
    pub fn unit(&self) -> String {
        [include_str!("common.cuh"), self.source].concat()
    }
}

/// A kernel: `extern "C" __global__ void name(..)` of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Where it is.
    pub module: &'static Module,
    /// `<op>_<dtype>[_variant]`, see `named!`.
    pub name: &'static str,
}

/// The name of a kernel for activations of type `$float`: `named!(F, "softmax", "_warp")` is `"softmax_f32_warp"`,
/// `"softmax_f16_warp"` or `"softmax_bf16_warp"`.
macro_rules! named {
    ($float:ty, $op:literal $(, $variant:literal)?) => {
        match $crate::cuda::FloatType::of::<$float>() {
            $crate::cuda::FloatType::F32 => concat!($op, "_f32" $(, $variant)?),
            $crate::cuda::FloatType::F16 => concat!($op, "_f16" $(, $variant)?),
            $crate::cuda::FloatType::Bf16 => concat!($op, "_bf16" $(, $variant)?),
        }
    };
}
pub(crate) use named;

/// How many blocks of how many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks along x, y and z, each at least 1; y and z are at most 65535.
    pub grid: [u32; 3],
    /// Threads of a block, in one dimension: 1 to 1024.
    pub block: u32,
    /// Dynamic shared memory of a block. Above 48 KiB the driver raises the kernel's limit itself.
    pub shared_bytes: u32,
}

/// What a floating-point value is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// `float`.
    F32,
    /// `half_t`.
    F16,
    /// `bf16_t`.
    Bf16,
}

impl FloatType {
    /// The type of elements `T`.
    ///
    /// # Panics
    /// When they are no floats.
    #[must_use]
    pub fn of<T: Element>() -> FloatType {
        match T::NAME {
            "f32" => FloatType::F32,
            "f16" => FloatType::F16,
            "bf16" => FloatType::Bf16,
            name => panic!("{name} is no type of floats"),
        }
    }

    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::Bf16 => 2,
        }
    }
}

/// `batch` row-major matrices: value `(b, i, j)` is element `b · batch_stride + i · row_stride + j` from `first` on, which is
/// aligned to an element and no more.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Value `(0, 0, 0)`.
    pub first: Address,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one matrix to the next; 0 for one matrix that all products share.
    pub batch_stride: usize,
}

/// `y = activation(x · w + bias + add)`, `batch` times: summed in f32 in any order. A `y` of f32, and the sum with a bias
/// alone, is rounded once; a driver may round to a 16-bit `y` before each step where an activation or `add` follow. What `y`
/// held before does not matter, be it NaN.
///
/// A product of which `m`, `n` or `batch` is 0 is nothing; with `k` = 0 the sum is 0.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// What `x`, `w` and `bias` hold.
    pub input: FloatType,
    /// What `y` holds: the same, or f32.
    pub output: FloatType,
    /// Products.
    pub batch: usize,
    /// Rows of `x` and `y`.
    pub m: usize,
    /// Columns of `y`.
    pub n: usize,
    /// Summed dimension.
    pub k: usize,
    /// `[m, k]`.
    pub x: Matrices,
    /// `[k, n]`, or `[n, k]` when it is [`Rhs::Transposed`], as weights are.
    pub w: Matrices,
    /// How `w` is read.
    pub w_order: Rhs,
    /// `[m, n]`.
    pub y: Matrices,
    /// `[n]`, or [`Address::NULL`]; added to every row.
    pub bias: Address,
    /// What is done to the sum. A driver must take [`Activation::GeluTanh`] and [`Activation::Relu`].
    pub activation: Option<Activation>,
    /// `[m, n]`, of the type of `y`; shares no bytes with it.
    pub add: Option<Matrices>,
    /// Whether f32 inputs may be rounded to TF32, of 11 bits.
    pub tf32: bool,
}
