//! Listening: sockets, TLS, HTTP/1.1 and HTTP/2, and the rules that hold for every protocol spoken over them.
//!
//! In: [`Listener`]s and a router. Out: its answers, until told to stop.
//!
//! ```text
//! port ──────────▶ TLS, if any ─▶ HTTP/1.1 or ─▶ CORS ─▶ key ─▶ bytes in flight ─▶ router
//! unix socket ───────────────────▶ HTTP/2
//! ```
//!
//! HTTP/2 is spoken with a client that begins with it (gRPC clients do) or chooses it in the TLS handshake. An HTTP/1.1
//! request with no `Host` header, or with several, is refused before all of these layers.
//!
//! | limit | for a client that |
//! |---|---|
//! | 75 s | sends no request: no handshake, no request head |
//! | 30 s | takes no byte of an answer, or less than a thousand bytes a second after that. Over HTTP/2 an answer of more than 16 KiB is cut off alone; a smaller one ends the connection within twice that time |
//! | 16 | has stopped reading more than this many such answers on one HTTP/2 connection, whose sent pieces stay in memory |
//! | 5 min beyond that | takes an answer of more than 300 kB, once half of the room for answers is taken |
//! | 30 s | sends nothing more of a gRPC message that it has begun, or less than a thousand bytes a second after that, once half of the room for bodies is taken |
//! | 64 KiB | sends more than this of a request over HTTP/2 before it is read: the client has to hold the rest back |
//! | 30 s, twice | does not answer a ping over HTTP/2 |
//! | 512 | sends more requests than this at a time over one HTTP/2 connection: the rest wait |
//! | 20 | cancels more requests than this on one HTTP/2 connection before they are accepted: the connection ends |
//! | the grace period | waits for an answer when the server stops |
//! | 2 s | connected before the server stopped and has sent no request; 250 ms if it has sent one before |

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
#[cfg(test)]
mod tests;
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
