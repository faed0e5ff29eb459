//! Where clients come in.

use std::{future::ready, sync::Arc, time::Duration};

use axum::serve::Listener as Accept;
use futures_util::FutureExt;
use tokio::{
    net::{TcpListener, TcpStream},
    task::unconstrained,
    time::sleep,
};

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

/// The least time that the runtime sleeps, in which it looks who has come.
const LOOK: Duration = Duration::from_millis(1);
/// As many as the system may have let in before the server stops; more than that are a crowd that never ends.
const MOST_AT_THE_DOOR: usize = 4096;

impl Listener {
    /// Begins a connection for every client that comes, until the server stops.
    pub(super) async fn accept(self, connections: Arc<Connections>) {
        let begin = |stream| connections.begin(ready(Ok(without_delay(stream))));
        match self {
            Self::Tcp(listener) => take_in(listener, &connections, begin).await,
            Self::Tls(listener, tls) => {
                let begin = |stream| connections.begin(tls.handshake(without_delay(stream)));
                take_in(listener, &connections, begin).await;
            }
            #[cfg(unix)]
            Self::Unix(socket) => {
                take_in(socket, &connections, |stream| connections.begin(ready(Ok(stream)))).await;
            }
        }
    }
}

/// Takes in whoever comes until the server stops, and then those who had come by then: the system has told them that
/// they are connected, and closing the listener would cut them off.
async fn take_in<L: Accept>(mut listener: L, connections: &Connections, begin: impl Fn(L::Io) + Send) {
    // axum's `accept` waits a second where the process has no file descriptor left, and goes on.
    loop {
        tokio::select! {
            (stream, _) = listener.accept() => begin(stream),
            () = connections.told_to_stop() => break,
        }
    }
    // Until the runtime has looked, it believes that nobody is there.
    sleep(LOOK).await;
    for _ in 0..MOST_AT_THE_DOOR {
        let Some((stream, _)) = unconstrained(listener.accept()).now_or_never() else { break };
        begin(stream);
    }
}

/// Small answers must not wait for the acknowledgement of earlier ones.
fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY is not set");
    }
    stream
}
