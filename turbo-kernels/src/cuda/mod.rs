//! NVIDIA GPUs.
//!
//! ```text
//! family traits ──▶ Cuda<F>: views, launch shapes, arguments ──▶ Driver ──▶ CUDA, or the processor in tests
//! ```

mod driver;

pub(crate) use driver::named;
pub use driver::{
    Address, DeviceInfo, Driver, FloatType, Kernel, LaunchShape, Matrices, Module, Product, Stream,
};
