//! One operation on device memory, with a CPU twin: the kernels of transformer inference.
//!
//! A [`Device`] owns memory and hands out an execution queue. Every kernel takes the queue, typed views into that memory,
//! and the sizes. Each family of kernels is one narrow trait, so a device may offer only some of them.
//!
//! ```text
//! Block (bytes on a device) ──views──▶ View / ViewMut ──▶ gemm · attention · layer_norm · … ──▶ Block
//!                                                   queue (thread team or stream)
//! ```
//!
//! | module | kernels |
//! |---|---|
//! | [`device`] | memory, views, what values are stored as, the execution queue, the CPU |
//! | [`gemm`] | `x · weightᵀ` with packed constant weights and fused epilogues |
//! | [`feed_forward`] | two of these with an activation or a gate between them, whose values stay in cache |
//! | [`experts`] | many feed-forward layers side by side, of which each row takes a few |
//! | [`matmul`] | the two batched products of attention, unfused |
//! | [`attention`] | packed or padded multi-head attention, fused |
//! | [`rotary`] | positions as rotations of queries and keys |
//! | [`softmax`], [`norm`], [`bias_act`], [`embed`], [`gather`], [`pool`] | what stands between the products |
//! | [`topk`] | the greatest values of rows, where decoding begins |
//! | [`slices`] | the row kernels as plain functions on slices |
//!
//! Plain helpers: [`limits`] measures what the machine can do at most, and [`MappedFile`] is a memory-mapped file.
//!
//! # Bits
//! On the CPU, the answer for one sequence has the same bits alone, with any batch mates and with any number of threads:
//!
//! * Every output is one chain of multiply-adds over ascending `k`, whatever the row count; nothing is split over `k`.
//!   ([`Isa::Amx`] adds up 32 products of bf16 before they become a link of the chain.)
//! * Attention counts stretches of keys from the start of the sequence.
//!
//! This holds per instruction set and [`DType`]. Products of [`DType::Int8`] are exact sums, scaled, and have the same
//! bits on all instruction sets.

// This crate wraps vector instructions, memory shared by threads and mapped files, so it may use what the rest of the
// workspace may not. Every block says why it is sound.
#![allow(unsafe_code)]

pub mod attention;
pub mod bias_act;
#[cfg(any(feature = "cuda", feature = "testing", test))]
pub mod cuda;
pub mod device;
pub mod embed;
pub mod experts;
pub mod feed_forward;
pub mod gather;
pub mod gemm;
pub mod limits;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod rotary;
pub mod slices;
pub mod softmax;
pub mod topk;

#[cfg(any(test, feature = "testing"))]
pub mod suite;

mod columns;
mod dtype;
mod error;
mod lanes;
mod layout;
mod mapped_file;
mod math;
mod sequences;
mod simd;

pub use attention::{
    Attention, AttentionMask, PositionBuckets, Queries, RelativeBias, RelativeBiasOn, alibi_slope,
    relative_bucket,
};
pub use bias_act::{Activation, BiasAct, Routing};
pub use columns::{Columns, ColumnsOn, HeadSizes};
pub use device::{Cpu, CpuOptions, Device, DeviceError, Element, Float, FloatsOn, Span};
pub use dtype::{DType, UnknownDType};
pub use embed::Embed;
pub use error::KernelError;
pub use experts::Experts;
pub use feed_forward::{FeedForward, Hidden};
pub use gather::Gather;
pub use gemm::{Epilogue, Gemm};
pub use half::{bf16, f16};
pub use layout::Layout;
pub use mapped_file::MappedFile;
pub use matmul::BatchedMatMul;
pub use norm::Norm;
pub use pool::{Pool, Pooling};
pub use rotary::Rotary;
pub use simd::Isa;
pub use softmax::Softmax;
pub use topk::TopK;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Everything an encoder needs of a device.
pub trait EncoderKernels:
    Gemm + BatchedMatMul + Softmax + Norm + BiasAct + Embed + Attention + Gather + Pool + Rotary
{
}

impl<D: Gemm + BatchedMatMul + Softmax + Norm + BiasAct + Embed + Attention + Gather + Pool + Rotary>
    EncoderKernels for D
{
}
