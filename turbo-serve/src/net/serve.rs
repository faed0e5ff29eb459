//! Serves until told to stop, with time limits for clients that never finish a request or never read their answer.

use std::{future::Future, pin::pin, time::Duration};

use axum::Router;
use futures_util::future::join_all;
use tokio::sync::watch;

use super::{Listener, connection::Connections};

/// How long a server waits for clients.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    /// For a connection's next request. Longer than the minute for which load balancers keep an idle connection, so
    /// that they do not send a request into one that is being closed.
    pub(super) head: Duration,
    /// For a client to take another byte of its answer, which stays in memory meanwhile; also for its answer to a ping.
    pub(super) stall: Duration,
    /// For requests that were sent before the client could know that the server is stopping.
    pub(super) moment: Duration,
    /// The same for a connection without a request so far: its client may just have connected, with the first request
    /// on its way.
    pub(super) first: Duration,
    /// For a client without requests to close a connection after the server has announced its end.
    pub(super) farewell: Duration,
    /// For accepted requests after the server was told to stop.
    pub(super) grace: Duration,
}

/// The default time for accepted requests after a server was told to stop.
pub const GRACE: Duration = Duration::from_secs(30);

const WAITS: Waits = Waits {
    head: Duration::from_secs(75),
    stall: Duration::from_secs(30),
    moment: Duration::from_millis(250),
    first: Duration::from_secs(2),
    farewell: Duration::from_secs(5),
    grace: GRACE,
};

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "requests may still be running"]
pub enum Ending {
    /// All accepted requests are answered.
    Answered,
    /// The grace ended with requests still running.
    OutOfTime,
}

/// Answers requests until `shutdown` resolves; then closes the listeners, answers accepted requests for at most
/// `grace`, and returns. Requests that still run then go on for as long as the runtime does. Closing the listeners
/// blocks the thread that polls this for a moment; if this has a thread of its own, they are closed at once, however
/// busy the other threads are. A client that sends no request for 75 seconds, or takes no byte of its answer for 30
/// seconds, is disconnected.
pub async fn serve(
    listeners: impl IntoIterator<Item = Listener>,
    router: Router,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Ending {
    serve_with(listeners, router, shutdown, Waits { grace, ..WAITS }).await
}

pub(super) async fn serve_with(
    listeners: impl IntoIterator<Item = Listener>,
    router: Router,
    shutdown: impl Future<Output = ()>,
    waits: Waits,
) -> Ending {
    let (stop, stopping) = watch::channel(false);
    let connections = Connections::new(router, waits, stopping);
    let mut listeners: Vec<Listener> = listeners.into_iter().collect();
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        biased;
        () = &mut shutdown => {}
        _ = join_all(listeners.iter_mut().map(|listener| listener.take_in(&connections))) => shutdown.await, // of none
    }
    listeners.into_iter().for_each(|listener| listener.close(&connections));
    drop(connections);
    // Only now, since waking many connections would delay closing the listeners.
    stop.send_replace(true);
    // every connection holds a receiver until it ends
    match tokio::time::timeout(waits.grace, stop.closed()).await {
        Ok(()) => Ending::Answered,
        Err(_) => Ending::OutOfTime,
    }
}
