//! Real GPUs: CUDA behind the seam of [`super::driver`].
//!
//! ```text
//! gate: driver, GPU, NVRTC and cuBLASLt are there, or one line that says what is not
//!   └─▶ Gpu: memory · modules (NVRTC, kept on disk) · streams: launches, copies, products (cuBLASLt), recordings
//! ```
//!
//! The bindings represent CUDA's status codes as Rust enums, so a code that only a newer driver knows would be
//! undefined behaviour. Their version is therefore pinned, and their newest set of codes is used.

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
