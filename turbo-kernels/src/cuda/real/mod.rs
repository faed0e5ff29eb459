//! GPUs themselves: CUDA behind the seam of [`super::driver`].
//!
//! ```text
//! gate: driver, GPU, NVRTC and cuBLASLt are there, or one line that says what is not
//!   └─▶ Gpu: memory · modules (NVRTC, kept on disk) · streams: launches, copies, products (cuBLASLt), recordings
//! ```
//!
//! The bindings hold answers of CUDA as enums of Rust, so an error that a newer driver invents would be undefined
//! behaviour: their version is pinned, and their newest are taken.

mod compiler;
mod context;
mod cubins;
mod cublas_lt;
mod error;
mod gate;
mod gpu;
mod landing;
mod libraries;
mod modules;
mod products;
mod recording;
mod remainder;
mod staging;
mod stream;
mod symbols;
mod unavailable;

#[cfg(test)]
#[cfg(target_os = "linux")]
mod fake;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use cudarc::{cublaslt::sys as lt, driver::sys as cu, nvrtc::sys as nvrtc};

pub use gpu::{FoundGpu, Gpu, available};
pub use unavailable::{Unavailable, Version};
