//! What others do, as models of a few dozen lines: the same requests in, the same counts out.
//!
//! | Model | Knows lives in advance | Between requests keeps | After |
//! |---|---|---|---|
//! | [`Naive`] | no | nothing | `cudaMalloc` and `cudaFree` around every tensor |
//! | [`CubCaching`] | no | freed blocks, by size class | NVIDIA cub, `CachingDeviceAllocator` |
//! | [`TorchCaching`] | no | segments, split and merged | PyTorch, `CUDACachingAllocator` |
//! | [`Arena`] | no | regions, split and merged | onnxruntime, `BFCArena` |
//! | [`Gsoc`] | yes | its arena, for a request of the same size | Pisarchyk and Lee, 2020 |
//!
//! They are models: one stream, no memory limit, so nothing is ever given back for want of memory,
//! and ties between equal blocks go to the older region. Written from the documented behaviour of
//! the originals; none of their code is here.

mod arena;
mod blocks;
mod cub;
mod device;
mod gsoc;
mod naive;
mod torch;

pub use arena::Arena;
pub use cub::{CubCaching, CubRules};
pub use gsoc::Gsoc;
pub use naive::Naive;
pub use torch::TorchCaching;
