//! Listening: sockets, TLS, HTTP/1.1 and HTTP/2, and what holds for every protocol spoken over them.
//!
//! In: [`Listener`]s and a router. Out: its answers, until told to stop.
//!
//! ```text
//! port ──────────▶ TLS, if any ─▶ HTTP/1.1 or ─▶ CORS ─▶ key ─▶ bytes in flight ─▶ router
//! unix socket ───────────────────▶ HTTP/2
//! ```
//!
//! HTTP/2 is spoken with clients that begin with it (gRPC's do) or choose it in the TLS handshake. A request of
//! HTTP/1.1 without `Host`, or with two, is refused before all of that.
//!
//! | limit | of a client that |
//! |---|---|
//! | 75 s | asks for nothing: no handshake, no head of a request |
//! | 30 s | takes no byte of an answer, or no thousand bytes a second beyond that; over HTTP/2 one of more than 16 KiB is cut off alone, a smaller one within twice that ends all |
//! | 16 | has stopped reading more of such answers over one HTTP/2 connection, and keeps what was sent of them |
//! | 5 min beyond that | takes an answer of more than 300 kB, once half of the room for answers is taken |
//! | 30 s | sends nothing more of a message over gRPC that it has begun, or no thousand bytes a second beyond that, once half of the room for bodies is taken |
//! | 256 KiB | sends more of a request over HTTP/2 before that is read: the rest stays with it |
//! | 30 s, twice | does not answer a ping over HTTP/2 |
//! | 512 | asks for more at a time over one HTTP/2 connection: the others wait |
//! | 20 | takes back requests over HTTP/2 faster than they are looked at: the connection ends |
//! | a grace | is not answered when the server stops |
//! | 2 s | was let in before the server stopped, and has never asked; 250 ms where it has asked before |

mod answer;
mod connection;
mod cors;
mod host;
mod in_flight;
mod key;
mod listener;
mod rest;
mod serve;
mod stall;
mod tls;
mod underway;
#[cfg(unix)]
mod unix;
mod unread;

pub use cors::{Origin, OriginError, allow_origins};
pub(crate) use in_flight::{Arrived, Held, NoRoom, Planned};
pub use in_flight::{InFlightLimits, bounded};
pub use key::{ApiKey, EmptyKey, protect};
pub use listener::Listener;
pub use serve::{Ending, GRACE, serve};
pub use tls::{Tls, TlsError};
#[cfg(unix)]
pub use unix::{SocketError, UnixSocket};
