//! What to compute, in which order, in which bytes: graphs of transformer models, fused, planned and run.
//!
//! ```text
//! Graph ──passes──▶ Program ──bind(Capacity)──▶ BoundProgram ──run(batch)──▶ outputs
//! textbook          fused, ordered,              every activation             kernels in order,
//! drawing           laid out                     has an offset                nothing allocated
//! ```
//!
//! You draw a model once with a [`GraphBuilder`], as a textbook draws it. [`passes`] fuse it, and choosing the packed
//! [`LayoutKind`] takes the padding away. A [`Program`] knows the lifetimes of its values, with repeated layers folded
//! into one. An [`Executor`] binds it to sizes, plans the bytes with `turbo-alloc`, and runs it on any device of
//! `turbo-kernels`.
//!
//! | module | what it is about |
//! |---|---|
//! | [`builder`], [`graph`], [`op`], [`dim`], [`rotary`] | the drawing: values, operators, symbolic sizes, computed constants |
//! | [`passes`] | fusion, as a list to be read |
//! | [`program`], [`fold`] | order, layout, lifetimes |
//! | [`bind`], [`execute`], [`staging`] | bytes and runs |
//! | [`cost`], [`memory`], [`print`](mod@print) | FLOPs and bytes per operator; what is planned; text and pictures |
//!
#![doc = include_str!("../README.md")]

pub mod bind;
pub mod builder;
pub mod cost;
pub mod dim;
pub mod execute;
pub mod fold;
pub mod graph;
pub mod memory;
pub mod op;
pub mod passes;
pub mod print;
pub mod program;
pub mod rotary;
pub mod staging;

mod error;
mod precision;
mod shape;
mod verify;

pub use bind::{BoundProgram, Capacity};
pub use builder::GraphBuilder;
pub use error::GraphError;
pub use execute::{Executor, ExecutorConfig, OutputId, OutputSet, PackedStore, WeightBytes, WeightSource};
pub use graph::{Graph, Input, Positions, ValueId};
pub use op::{HeadColumns, Op};
pub use passes::Pass;
pub use program::{LayoutKind, Program, TraceStep};
pub use staging::Staging;

// The layers below, exported so that a user of this crate need not depend on them.
pub use turbo_alloc as alloc;
pub use turbo_kernels as kernels;

pub use turbo_alloc::{PlannerConfig, Policy};
pub use turbo_kernels::{
    Activation, AttentionMask, DType, Hidden, Pooling, PositionBuckets, Routing, matmul::Rhs,
};
