//! Ends a connection whose client stops reading or reads too slowly: otherwise the rest of the answer would stay in
//! memory for as long as the client likes, long after the slots of its request are free.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    in_flight::Room,
    underway::{OneUnderway, Underway},
};
use crate::http::{SLOWEST, patience_at};

/// Seconds that sending an answer may take beyond the stall limit while other requests may be refused for want of its
/// room. An answer is held until its last byte is taken, and at [`SLOWEST`] a large one would take hours.
const ALTOGETHER: usize = 5 * 60;

/// Determines how slowly an answer may be taken.
#[derive(Default)]
pub(super) struct Pace {
    /// Bytes of the answer.
    pub(super) bytes: usize,
    /// The tally in which it is counted.
    pub(super) room: Option<Room>,
}

impl Pace {
    /// Bytes a second that have to be taken.
    fn slowest(&self) -> usize {
        match self.room.as_ref().is_some_and(Room::is_pressed) {
            true => SLOWEST.max(self.bytes / ALTOGETHER),
            false => SLOWEST,
        }
    }
}

/// The pace of the answer that has a connection for itself; clones share it.
#[derive(Clone, Default)]
pub(super) struct PaceOfOne(Arc<Mutex<Pace>>);

impl PaceOfOne {
    pub(super) fn set(&self, pace: Pace) {
        *self.get() = pace;
    }

    fn get(&self) -> MutexGuard<'_, Pace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The deadline for the next byte to be taken of an answer that began to wait at `began` and of which `taken` bytes
/// have been taken since. Request bodies have the same limits, but an answer has less time while room is scarce.
pub(super) fn until(began: Instant, taken: usize, stall: Duration, pace: &Pace) -> Instant {
    let (until, _) = patience_at(began, taken, pace.slowest());
    until.min(Instant::now() + stall)
}

/// A stream on which writes fail when they make no progress for a time, or too little. From the first write that has to
/// wait until the next flush, an answer counts as underway.
pub(super) struct StallLimit<S> {
    stream: S,
    limit: Duration,
    underway: Underway,
    pace: PaceOfOne,
    /// Set when a write has to wait; cleared by a flush, which comes when all is written. What TLS still has to send
    /// then is not watched: a client that stops reading there counts as idle.
    stalled: Option<Stalled>,
}

struct Stalled {
    began: Instant,
    /// Bytes written since then.
    written: usize,
    limit: Pin<Box<Sleep>>,
    #[expect(dead_code, reason = "held until all is written")]
    underway: OneUnderway,
}

impl Stalled {
    fn begin(stall: Duration, pace: &Pace, underway: OneUnderway) -> Self {
        let began = Instant::now();
        Self { began, written: 0, limit: Box::pin(sleep_until(until(began, 0, stall, pace))), underway }
    }

    fn goes_on(&mut self, bytes: usize, stall: Duration, pace: &Pace) {
        self.written += bytes;
        self.limit.as_mut().reset(until(self.began, self.written, stall, pace));
    }
}

impl<S> StallLimit<S> {
    pub(super) fn new(stream: S, limit: Duration, underway: Underway, pace: PaceOfOne) -> Self {
        Self { stream, limit, underway, pace, stalled: None }
    }

    /// Passes on the result of a write, or an error once it has waited for too long.
    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let (Some(stalled), Ok(bytes)) = (&mut self.stalled, &written) {
                stalled.goes_on(*bytes, self.limit, &self.pace.get());
            }
            return Poll::Ready(written);
        }
        let begin = || Stalled::begin(self.limit, &self.pace.get(), self.underway.begin());
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

    /// Whether `answers` answers of `bytes` bytes each reach a client that reads `some` bytes after every `pause`; no
    /// more than those are buffered.
    async fn come(answers: usize, bytes: usize, (some, pause): (usize, Duration), pace: Pace) -> bool {
        let (ours, mut theirs) = duplex(some);
        let pace_of_one = PaceOfOne::default();
        pace_of_one.set(pace);
        let mut ours = StallLimit::new(ours, 30 * SECOND, Underway::default(), pace_of_one);
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
            let comes = come(1, 200_000, (some, pause), Pace::default()).await;
            assert_eq!(comes, expected, "{some} bytes, {pause:?}");
        }
        assert!(come(20, 1000, (1000, 20 * SECOND), Pace::default()).await, "each has its own time");
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_little_room_an_answer_has_five_minutes() {
        for (bytes, expected) in [(3_000_000, false), (200_000, true)] {
            let pace = || Pace { bytes, room: Some(Room::pressed()) };
            let taken_slowly = (5000, 5 * SECOND);
            assert_eq!(come(1, bytes, taken_slowly, pace()).await, expected, "{bytes} at 1000 a second");
            assert!(come(1, bytes, (20_000, SECOND), pace()).await, "{bytes} at 20000 a second");
            let pace = Pace { bytes, room: None };
            assert!(come(1, bytes, taken_slowly, pace).await, "{bytes}: there is room");
        }
    }
}
