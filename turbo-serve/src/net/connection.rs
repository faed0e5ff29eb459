//! One client's connection, HTTP/1.1 or HTTP/2, from its first byte to its end.

use std::{error::Error, future::Future, io, pin::pin, sync::Arc};

use axum::{Router, http::Version, middleware};
use hyper::service::{Service, service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::timeout,
};

use super::{
    answer, host, rest,
    serve::Waits,
    stall::{PaceOfOne, StallLimit},
    underway::Underway,
    unread::Unread,
};

/// Concurrent requests on one HTTP/2 connection: as many as the inputs that a server holds by default, so that a single
/// client can keep it busy.
const MOST_STREAMS: u32 = 512;

/// Bytes of one request that an HTTP/2 client may send before they are read: at a round trip of 50 ms, 1.3 megabytes a
/// second. This is not more than HTTP/2's own default, since unread bytes are in memory without being counted among the
/// bytes in flight, which are those that were read.
const STREAM_WINDOW: u32 = 64 << 10;

/// The same for a connection: more than all of its streams may send, 32 MiB. A gRPC stream that waits for room is not
/// read, and must not block other requests of its connection, health checks among them.
///
/// It is twice as much, since h2 ends a connection whose unread DATA frames are short: each frame counts as what it
/// lacks to 256 bytes, and all of them may count as half of this window. A stream of texts of ten letters, one in each
/// frame, may count for a megabyte before its own window ends, and a stream of empty texts for three.
const CONNECTION_WINDOW: u32 = 2 * MOST_STREAMS * STREAM_WINDOW;

/// Requests that one HTTP/2 connection may cancel before they are accepted. It is bounded, because sending and
/// cancelling requests costs a client next to nothing.
const MOST_RESETS: usize = 20;

/// What all connections of a server have in common.
pub(super) struct Connections {
    http: auto::Builder<TokioExecutor>,
    service: TowerToHyperService<Router>,
    waits: Waits,
    stopping: Stopping,
}

/// Resolves when the server stops.
struct Stopping(watch::Receiver<bool>);

impl Stopping {
    async fn told(&self) {
        // An error means that the sender was dropped: then the server has stopped, too.
        let _ = self.0.clone().wait_for(|&stopping| stopping).await;
    }
}

impl Connections {
    /// Connections end when `stopping` says so, and hold a receiver until they have.
    pub(super) fn new(router: Router, waits: Waits, stopping: watch::Receiver<bool>) -> Arc<Self> {
        let mut http = auto::Builder::new(TokioExecutor::new());
        // `talk` limits the wait for heads, whatever the version. A client that closes only its writing side counts as
        // gone: closing the whole connection looks the same at first, and abandoned requests must leave the queue at
        // once.
        http.http1().header_read_timeout(None).half_close(false);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(waits.stall)
            .keep_alive_timeout(waits.stall)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MOST_STREAMS)
            .max_pending_accept_reset_streams(MOST_RESETS);
        Arc::new(Self {
            http,
            service: TowerToHyperService::new(router.layer(middleware::from_fn(host::check))),
            waits,
            stopping: Stopping(stopping),
        })
    }

    /// Waits until the server stops, and then until a request is being answered here, which is the last one, or until a
    /// moment has passed in which one may still arrive: closing before it was read would reset the connection.
    async fn nothing_to_come(&self, underway: &Underway) {
        self.stopping.told().await;
        let wait = if underway.has_begun() { self.waits.moment } else { self.waits.first };
        let _ = timeout(wait, underway.some()).await;
    }

    /// Serves a connection on a task of its own, once `opening` resolves to its stream.
    pub(super) fn begin<S>(self: &Arc<Self>, opening: impl Future<Output = io::Result<S>> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = connections.open(opening).await {
                tracing::debug!(error, "a connection broke");
            }
        });
    }

    async fn open<S>(
        &self,
        opening: impl Future<Output = io::Result<S>>,
    ) -> Result<(), Box<dyn Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let nothing = Underway::default();
        tokio::select! {
            opened = timeout(self.waits.head, opening) => self.talk(opened??).await,
            () = self.nothing_to_come(&nothing) => Ok(()),
        }
    }

    /// Answers requests until the client disconnects, sends no request for too long, or the server stops.
    async fn talk<S>(&self, stream: S) -> Result<(), Box<dyn Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Waits { head, stall, farewell, .. } = self.waits;
        let (underway, unread, pace) = (Underway::default(), Unread::default(), PaceOfOne::default());
        let service = service_fn(|request: hyper::Request<_>| {
            let (version, underway) = (request.version(), underway.begin());
            let (request, rest) = rest::noted(request);
            let answering = self.service.clone().call(request);
            let (unread, pace) = (unread.clone(), pace.clone());
            async move {
                let mut answer = answering.await?;
                // HTTP/2 ends each stream separately, and has no `Connection` header
                if version < Version::HTTP_2 {
                    rest.tell(&mut answer, version);
                }
                let sent = answer::sent(answer, version, stall, underway, &unread, &pace);
                Ok::<_, std::convert::Infallible>(sent)
            }
        });
        let io = TokioIo::new(StallLimit::new(stream, stall, underway.clone(), pace.clone()));
        let mut connection = pin!(self.http.serve_connection(io, service));
        let mut stays = pin!(unread.stays(stall));
        let mut patience = head;
        let mut told_to_end = false;
        loop {
            tokio::select! {
                biased; // what has arrived is read before a timeout counts
                ended = connection.as_mut() => return ended,
                () = stays.as_mut() => return Err("the client does not read its answers".into()),
                () = underway.none_for(patience) => {
                    if told_to_end {
                        return Err("the client sends no request, and does not disconnect".into());
                    }
                }
                () = self.nothing_to_come(&underway), if !told_to_end => {}
            }
            // Requests underway are still answered. HTTP/2 announces the end (GOAWAY), so that no request is lost on
            // the way.
            connection.as_mut().graceful_shutdown();
            (told_to_end, patience) = (true, farewell);
        }
    }
}
