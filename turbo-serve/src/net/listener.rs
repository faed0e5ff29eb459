//! Where clients come in.

use std::{future::ready, sync::Arc};

use axum::serve::Listener as Accept;
use tokio::net::{TcpListener, TcpStream};

use super::{Tls, connection::Connections};

/// A place where clients come in.
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A port at which only TLS is spoken.
    Tls(TcpListener, Tls),
    /// A file through which processes of this machine talk.
    #[cfg(unix)]
    Unix(super::UnixSocket),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    /// Begins a connection for every client that comes, for ever.
    pub(super) async fn accept(self, connections: Arc<Connections>) {
        // axum's `accept` waits a second where the process has no file descriptor left, and goes on.
        match self {
            Self::Tcp(mut listener) => loop {
                let (stream, _) = Accept::accept(&mut listener).await;
                connections.begin(ready(Ok(without_delay(stream))));
            },
            Self::Tls(mut listener, tls) => loop {
                let (stream, _) = Accept::accept(&mut listener).await;
                connections.begin(tls.handshake(without_delay(stream)));
            },
            #[cfg(unix)]
            Self::Unix(mut socket) => loop {
                connections.begin(ready(Ok(socket.accept().await)));
            },
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
