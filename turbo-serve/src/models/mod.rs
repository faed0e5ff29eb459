//! What is served, by name and version: several models in one process, loaded and unloaded while they serve.
//!
//! In: [`Declared`] models, each with a [`Source`] that opens its versions. Out: [`Served`], a lease on the engine that
//! a request is for. Every protocol finds its model here, once per request, and holds the lease until its answer is
//! made.
//!
//! ```text
//! Declared ─▶ Models ──find(Wanted)──▶ Served ─▶ engine
//!    │          ▲   load, unload          │
//!    └ Source ──┘                         └ the last one gone: the engine stops, its memory is free
//! ```
//!
//! * A version that is unloaded is not found from then on; requests with a lease are answered, then its engine ends.
//!   So no request that was accepted fails.
//! * Loading happens on a thread of its own, while ready versions keep serving.
//! * A model without a version in its name is the one its declaration pins, else the latest: the greatest number.

pub mod ensemble;
mod error;
mod health;
mod names;
mod registry;
mod served;
mod slot;
mod source;
mod statistics;
mod table;
mod underway;
mod versions;

pub use error::{ChangeError, DeclareError, NotServed};
pub use names::Wanted;
pub use registry::{Entry, Models, WeakModels};
pub use served::{Served, Stop};
pub use slot::State;
pub use source::{Alias, Composition, Declared, Load, LoadWhen, Loaded, Source, SourceError};
pub use statistics::Statistics;
pub use underway::Begun;
