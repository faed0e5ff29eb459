//! The operations of a GPU, real or emulated: the seam between [`super::Cuda`] and CUDA itself.
//!
//! ```text
//! Cuda<F> ──▶ Driver: memory, streams ──▶ Stream: kernels, products, copies, in order
//!                 ├─ the real one (feature `cuda`)
//!                 └─ the emulator (tests): the same kernels on the processor
//! ```
//!
//! Launch shapes, arguments and the order of operations are decided above this seam, so they are tested without a GPU.

use std::{ffi::c_void, fmt::Debug};

use super::Freed;
use crate::{
    Activation,
    device::{DeviceError, Element},
    matmul::Rhs,
};

/// An address in device memory; 0 stands for no memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No memory: passed to a kernel for an absent argument.
    pub const NULL: Address = Address(0);

    /// The address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// A driver's description of its device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The name that its maker gives it.
    pub name: String,
    /// Major and minor: `(9, 0)` for an H200.
    pub compute_capability: (u32, u32),
    /// The least number of blocks that run at once.
    pub multiprocessors: u32,
    /// The device's total memory.
    pub memory_bytes: u64,
}

/// A GPU, or the processor acting as one.
///
/// # Safety
/// Callers rely on the documentation below. An allocation has as many bytes as were requested, belongs to nothing else
/// until it is freed, and is released only after everything that uses it. All freed blocks of a device are counted in
/// one place. The operations of streams, their landings and their recordings touch only the memory that they are given,
/// in order.
pub unsafe trait Driver: Debug + Send + Sync + 'static {
    /// The description of the device.
    fn info(&self) -> &DeviceInfo;

    /// Device memory that is not allocated. Freed memory counts as free once no stream records.
    ///
    /// # Errors
    /// A device failure.
    fn free_bytes(&self) -> Result<u64, DeviceError>;

    /// Allocates `bytes` bytes of device memory, all zero, aligned to [`crate::device::ALIGNMENT`]. An allocation of no
    /// bytes has an address, too.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory back once everything enqueued on any stream so far is done. [`Driver::allocate`] can use it from
    /// then on, or once the recordings under way have ended; other processes may have to wait longer.
    ///
    /// # Safety
    /// `address` came from [`Driver::allocate`] with the same `bytes` and is freed once, and nothing that uses it is
    /// enqueued afterwards.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// The count of this device's freed blocks: always the same object.
    fn freed(&self) -> &Freed;

    /// A new stream.
    ///
    /// # Errors
    /// When the device can create no more.
    fn stream(&self) -> Result<Box<dyn Stream>, DeviceError>;
}

/// Operations of one device, done in the order in which they are enqueued. The memory that an operation reads and
/// writes must live until the operation is done; [`Driver::free`] waits for that.
pub trait Stream: Send {
    /// Enqueues a kernel. `args` point to its arguments, in order; they are read before this returns.
    ///
    /// # Errors
    /// When the kernel does not compile or does not exist, or the device cannot run the shape.
    ///
    /// # Safety
    /// `args` match the kernel's parameters in number and type; each address among them holds the values that the
    /// kernel reads and writes there.
    unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError>;

    /// Limits the memory that the next kernel may touch: the given number of bytes from each address on. A driver for
    /// tests reports kernels that touch more. The call is optional.
    fn confine(&mut self, _spans: &[(Address, usize)]) {}

    /// Enqueues a product.
    ///
    /// # Errors
    /// A device failure.
    ///
    /// # Safety
    /// The addresses hold the matrices that the sizes and strides describe, `y` shares no bytes with the others, and no
    /// two values of `y` share an element.
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

    /// Creates host memory that this stream can copy into while the host does other work; it has no bytes yet.
    ///
    /// # Errors
    /// A device failure.
    fn landing(&mut self) -> Result<Box<dyn Landing>, DeviceError>;

    /// Waits until everything that was enqueued is done.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// Records kernels and products from now on, instead of running them, until [`Stream::end_recording`]. Returns
    /// `false` when this driver records nothing, and then everything runs as usual.
    ///
    /// Copies cannot be recorded: they are refused meanwhile, and so is waiting. The caller has run the same operations
    /// once before, so that kernels are loaded, algorithms are chosen, and scratch memory has its size: no scratch that
    /// the recording uses is freed.
    ///
    /// # Errors
    /// When a recording is under way, or a device failure.
    fn begin_recording(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Ends the recording, and returns everything recorded since [`Stream::begin_recording`].
    ///
    /// # Errors
    /// When no recording is under way, or a device failure. In both cases no recording is under way afterwards.
    fn end_recording(&mut self) -> Result<Box<dyn Recording>, DeviceError> {
        let why = "no recording is under way".to_owned();
        Err(DeviceError::Failed { what: "end a recording", why })
    }
}

/// Host memory that receives copies of one stream.
pub trait Landing: Debug + Send {
    /// Makes room for copies of up to `bytes` bytes. The bytes that it holds may be lost.
    ///
    /// # Errors
    /// A device failure, or that the host has no such memory left.
    fn reserve(&mut self, bytes: usize) -> Result<(), DeviceError>;

    /// Enqueues a copy of `bytes` bytes, behind everything on the stream. Previously fetched bytes are lost. Makes more
    /// room if needed.
    ///
    /// # Errors
    /// The errors of [`Landing::reserve`], or a recording is under way.
    ///
    /// # Safety
    /// `from` holds `bytes` bytes until the copy is done.
    unsafe fn fetch(&mut self, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Whether the last copy has arrived. Does not wait.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn has_landed(&mut self) -> Result<bool, DeviceError>;

    /// The bytes of the last fetch; waits until they have arrived.
    ///
    /// # Errors
    /// A device failure, which an operation before may have met.
    fn bytes(&mut self) -> Result<&[u8], DeviceError>;
}

/// Operations that were recorded once and can be enqueued all at once, which costs the host less than one after
/// another.
pub trait Recording: Debug + Send {
    /// Enqueues the operations on the stream on which they were recorded, with the same addresses and sizes.
    ///
    /// # Errors
    /// A device failure, or a recording of that stream is under way.
    ///
    /// # Safety
    /// The conditions of each operation hold; in particular, the memory that they use has not been freed.
    unsafe fn replay(&self) -> Result<(), DeviceError>;
}

/// Device code of one family of kernels. It is compiled behind `common.cuh`, to which it may refer, and has no
/// `#include`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// The name of the file without its extension: `softmax`.
    pub name: &'static str,
    /// CUDA C++.
    pub source: &'static str,
}

impl Module {
    /// The source that the emulator compiles. For a GPU a `#line` directive stands between both parts, so that messages
    /// name the file.
    #[must_use]
    pub fn unit(&self) -> String {
        [include_str!("common.cuh"), self.source].concat()
    }
}

/// A kernel: `extern "C" __global__ void name(..)` of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The module that has the kernel.
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

/// The number of blocks that run a kernel, and of threads in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks along x, y and z, each at least 1; y and z are at most 65535.
    pub grid: [u32; 3],
    /// Threads of a block, in one dimension: 1 to 1024.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes. Above 48 KiB the driver raises the kernel's limit itself.
    pub shared_bytes: u32,
}

/// The type in which a floating-point value is stored.
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
    /// When `T` is no type of floats.
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

/// `batch` row-major matrices: value `(b, i, j)` is element `b · batch_stride + i · row_stride + j` from `first` on.
/// `first` is aligned to an element, and need not be aligned to more.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Value `(0, 0, 0)`.
    pub first: Address,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one matrix to the next; 0 for one matrix that all products share.
    pub batch_stride: usize,
}

/// `y = activation(x · w + bias + add)`, `batch` times: summed in f32 in any order. A `y` of f32 is rounded once. A driver
/// may round to a 16-bit `y` before each step: before an activation, before `add`, and before a bias where rows are not
/// multiples of sixteen bytes. The previous contents of `y` do not matter, even if they are NaN.
///
/// A product whose `m`, `n` or `batch` is 0 does nothing; if `k` is 0, the sum is 0.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The type of `x`, `w` and `bias`.
    pub input: FloatType,
    /// The type of `y`: the same, or f32.
    pub output: FloatType,
    /// The number of products.
    pub batch: usize,
    /// Rows of `x` and `y`.
    pub m: usize,
    /// Columns of `y`.
    pub n: usize,
    /// The dimension that is summed over.
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
    /// The function applied to the sum. A driver must support [`Activation::GeluTanh`] and [`Activation::Relu`].
    pub activation: Option<Activation>,
    /// `[m, n]`, of the type of `y`; shares no bytes with it.
    pub add: Option<Matrices>,
    /// Whether f32 inputs may be rounded to TF32, which has 11 bits.
    pub tf32: bool,
}
