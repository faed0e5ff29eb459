//! A load generator: an open loop that keeps to the times of a trace, and a closed loop that finds a server's capacity.
//!
//! ```text
//! Trace (when, how long) + Texts (of so many tokens) ──▶ Script (when, which bytes) ──play──▶ Tally
//!                                                         bytes ──saturate──▶ Capacity
//! ```
//!
//! Latency counts from the moment at which a request should have been sent, so a server that holds up the generator
//! does not look better for it (no coordinated omission; Tene). The generator is one thread, and another one that keeps
//! the time. It runs in a process of its own on the cores of the server, and takes from them as any client would.
//!
//! | module | what it is about |
//! |---|---|
//! | [`trace`] | when requests come, and how long they are |
//! | [`texts`] | texts of exactly so many tokens |
//! | [`server`] | a server as a process |
//! | [`client`] | connections, and one request over them |
//! | [`plain`] | one request after the other, by a client that costs next to nothing |
//! | [`open`] | playing a trace |
//! | [`closed`] | requests as fast as answers come |
//! | [`tally`] | what came back |

pub mod client;
pub mod closed;
pub mod open;
pub mod plain;
pub mod server;
pub mod tally;
pub mod texts;
pub mod trace;

use std::future::Future;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{runtime::Builder, task::LocalSet};

pub use client::Connections;
pub use open::Script;
pub use plain::Plain;
pub use server::Server;
pub use tally::{Latency, Tally};
pub use texts::Texts;
pub use trace::{Arrival, Trace};

/// Runs the generator's work on this thread.
///
/// # Errors
/// When the system refuses what a runtime needs, or `work` fails.
pub fn on_this_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    LocalSet::new().block_on(&runtime, work)
}

/// Raises the limit of open files and sockets, for this process and those that it starts, to what the system allows.
/// Returns the limit.
pub fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses, the old limit holds and is returned.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    raised.ok().and(limit.maximum).or(limit.current).unwrap_or(u64::MAX)
}
