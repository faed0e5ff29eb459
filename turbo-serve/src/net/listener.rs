//! Accepts connections, and closes a listener without resetting any.

use std::{
    convert::Infallible,
    future::ready,
    io::{self, ErrorKind},
    sync::Arc,
};

use axum::serve::Listener as Accept;
use tokio::net::{TcpListener, TcpStream};

use super::{Tls, connection::Connections};

/// A socket that accepts connections.
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A port at which only TLS is spoken.
    Tls(TcpListener, Tls),
    /// A socket file, for processes on this machine.
    #[cfg(unix)]
    Unix(super::UnixSocket),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// Most connections that are accepted while a listener closes: those that the kernel has queued by then. The bound
/// keeps a steady stream of new connections from keeping the server from stopping.
const MOST_AT_THE_DOOR: usize = 4096;

/// Time in which TCP handshakes that have begun may complete: enough within a machine or a rack. New connections are
/// dropped meanwhile in any case.
#[cfg(target_os = "linux")]
const HANDSHAKE: std::time::Duration = std::time::Duration::from_millis(1);

impl Listener {
    /// Accepts connections for ever, and begins to serve each.
    pub(super) async fn take_in(&mut self, connections: &Arc<Connections>) -> Infallible {
        // axum's `accept` waits a second where the process has no file descriptor left, and goes on.
        match self {
            Self::Tcp(listener) => loop {
                begin(Accept::accept(listener).await.0, connections);
            },
            Self::Tls(listener, tls) => loop {
                begin_tls(Accept::accept(listener).await.0, tls, connections);
            },
            #[cfg(unix)]
            Self::Unix(socket) => loop {
                connections.begin(ready(Ok(Accept::accept(socket).await.0)));
            },
        }
    }

    /// Accepts the connections that are queued by now, then closes. Their clients have been told by the kernel that
    /// they are connected, and closing alone would reset them.
    pub(super) fn close(self, connections: &Arc<Connections>) {
        let closed = match self {
            Self::Tcp(listener) => the_last_at(listener, |stream| begin(stream, connections)),
            Self::Tls(listener, tls) => the_last_at(listener, |stream| begin_tls(stream, &tls, connections)),
            #[cfg(unix)]
            Self::Unix(socket) => socket.close(|stream| connections.begin(ready(Ok(stream)))),
        };
        if let Err(error) = closed {
            tracing::warn!(%error, "connections that were queued when the server stopped are cut off");
        }
    }
}

fn begin(stream: TcpStream, connections: &Arc<Connections>) {
    connections.begin(ready(Ok(without_delay(stream))));
}

fn begin_tls(stream: TcpStream, tls: &Tls, connections: &Arc<Connections>) {
    connections.begin(tls.handshake(without_delay(stream)));
}

fn the_last_at(listener: TcpListener, begin: impl Fn(TcpStream)) -> io::Result<()> {
    let listener = listener.into_std()?;
    let accept = || {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        begin(TcpStream::from_std(stream)?);
        Ok(())
    };
    #[cfg(target_os = "linux")]
    match turn_newcomers_away(&listener) {
        Ok(()) => {
            take_in_the_last(accept);
            std::thread::sleep(HANDSHAKE);
        }
        Err(error) => tracing::debug!(%error, "clients that connect while the listener closes may be reset"),
    }
    take_in_the_last(accept);
    Ok(())
}

/// Has the kernel drop new connection attempts (SYN segments) from now on. The kernel completes handshakes by itself,
/// even between the last `accept` and the close, and would reset those connections. A client whose SYN was dropped
/// sends it again and is refused.
#[cfg(target_os = "linux")]
fn turn_newcomers_away(listener: &std::net::TcpListener) -> io::Result<()> {
    // A classic Berkeley packet filter, which sees a segment from its TCP header on.
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    const NOTHING: u32 = 0;
    const ALL: u32 = u32::MAX;
    socket2::SockRef::from(listener).attach_filter(&[
        socket2::SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_AT),
        socket2::SockFilter::new(JUMP_IF_SET, 0, 1, SYN),
        socket2::SockFilter::new(RETURN, 0, 0, NOTHING),
        socket2::SockFilter::new(RETURN, 0, 0, ALL),
    ])
}

/// Calls `accept` until no connection is queued. It blocks the calling thread on purpose: a busy runtime would poll
/// late.
pub(super) fn take_in_the_last(mut accept: impl FnMut() -> io::Result<()>) {
    for _ in 0..MOST_AT_THE_DOOR {
        match accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => tracing::debug!(%error, "a queued connection is not accepted"),
            Ok(()) => {}
        }
    }
}

/// Small answers must not wait for the acknowledgement of earlier ones.
fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY is not set");
    }
    stream
}
