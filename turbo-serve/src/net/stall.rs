//! A connection that gives up on a reader who has stopped reading, or drips: what is still to be sent would stay in memory
//! for as long as the client likes, and the slots of its request are long free.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::underway::{OneUnderway, Underway};
use crate::http::patience;

/// Until when the next byte has to be taken of what began to wait then, if so many are taken by now: a body that comes is
/// waited for as long.
pub(super) fn until(began: Instant, taken: usize, stall: Duration) -> Instant {
    let (until, _) = patience(began, taken);
    until.min(Instant::now() + stall)
}

/// A stream on which writes that make no progress for a time, or drip, are an error. From the first one that waits until
/// all is written, an answer is underway.
pub(super) struct StallLimit<S> {
    stream: S,
    limit: Duration,
    underway: Underway,
    /// Since a write has waited; who writes flushes when all is written. What TLS has yet to send then is not watched: who
    /// stops there counts as asking for nothing.
    stalled: Option<Stalled>,
}

struct Stalled {
    began: Instant,
    /// Bytes since then.
    written: usize,
    limit: Pin<Box<Sleep>>,
    #[expect(dead_code, reason = "held until all is written")]
    underway: OneUnderway,
}

impl Stalled {
    fn begin(stall: Duration, underway: OneUnderway) -> Self {
        let began = Instant::now();
        Self { began, written: 0, limit: Box::pin(sleep_until(until(began, 0, stall))), underway }
    }

    fn goes_on(&mut self, bytes: usize, stall: Duration) {
        self.written += bytes;
        self.limit.as_mut().reset(until(self.began, self.written, stall));
    }
}

impl<S> StallLimit<S> {
    pub(super) fn new(stream: S, limit: Duration, underway: Underway) -> Self {
        Self { stream, limit, underway, stalled: None }
    }

    /// Passes on how a write went, unless it has waited for too long.
    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let (Some(stalled), Ok(bytes)) = (&mut self.stalled, &written) {
                stalled.goes_on(*bytes, self.limit);
            }
            return Poll::Ready(written);
        }
        let begin = || Stalled::begin(self.limit, self.underway.begin());
        let stalled = self.stalled.get_or_insert_with(begin);
        ready!(stalled.limit.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stalled = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::sleep,
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Whether so many answers of so many bytes come to who takes some every so often; no more than those lie ready.
    async fn come(answers: usize, bytes: usize, (some, pause): (usize, Duration)) -> bool {
        let (ours, mut theirs) = duplex(some);
        let mut ours = StallLimit::new(ours, 30 * SECOND, Underway::default());
        let written = async {
            for _ in 0..answers {
                ours.write_all(&vec![7; bytes]).await?;
                ours.flush().await?;
            }
            Ok::<_, io::Error>(())
        };
        let taken = async {
            let mut to = vec![0; some];
            for _ in 0..1000 {
                sleep(pause).await;
                theirs.read_exact(&mut to).await.unwrap();
            }
        };
        tokio::select! {
            written = written => written.is_ok(),
            () = taken => panic!("it is never all written"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_drips_is_not_waited_for() {
        for (some, pause, expected) in [
            (1000, 29 * SECOND, false),
            (1000, 2 * SECOND, false),
            (1000, SECOND, true),
            (25_000, 25 * SECOND, true),
            (50_000, 31 * SECOND, false), // it stops
        ] {
            assert_eq!(come(1, 200_000, (some, pause)).await, expected, "{some} bytes, {pause:?}");
        }
        assert!(come(20, 1000, (1000, 20 * SECOND)).await, "each has its own time");
    }
}
