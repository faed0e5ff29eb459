//! What is served, by name and version: several models in one process, loaded and unloaded while others serve.
//!
//! In: [`Declared`] models, each with a [`Source`] that opens its versions. Out: [`Served`], a lease on the engine that
//! answers a request. Every protocol looks its model up here, once per request, and holds the lease until the answer is
//! made.
//!
//! ```text
//! Declared ─▶ Models ──find(Wanted)──▶ Served ─▶ engine
//!    │          ▲   load, unload          │
//!    └ Source ──┘                         └ when an unloaded version's last lease is dropped, its engine stops
//! ```
//!
//! * A version that is being unloaded is not found any more. Requests with a lease are answered, and then its engine
//!   ends: no accepted request fails.
//! * Loading happens on a thread of its own, while ready versions keep serving.
//! * A name without a version stands for the version that the declaration pins, else for the latest: the greatest
//!   number among those that are ready or loaded on demand.

mod changes;
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
