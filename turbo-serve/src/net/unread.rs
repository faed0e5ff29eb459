//! Counts what HTTP/2 holds of answers that a client does not read: small answers, which were handed over whole, and
//! the pieces of larger answers that were handed over before these were cancelled. Only the end of the connection
//! releases them.
//!
//! A small answer fits into the window of any stream that is meant to be read, so one that stays means that the client
//! reads nothing at all. A client may stop reading a large answer and go on with the others, but only for a few of
//! them.
//!
//! No answer has a timer of its own: small answers are counted by whether they were handed over before or after the
//! last check.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use axum::body::Bytes;

/// Most cancelled answers of which pieces are left: half a megabyte of pieces.
const MOST_GIVEN_UP: usize = 16;

/// The counts of one connection; clones share them.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<Counts>);

#[derive(Default)]
struct Counts {
    looks: AtomicUsize,
    /// Small answers that are held, by whether the number of checks was even or odd when they were handed over.
    small: [AtomicUsize; 2],
    given_up: AtomicUsize,
}

impl Unread {
    /// Counts a small answer until the result and all its [`Handed::data`] are dropped.
    pub(super) fn small(&self) -> Handed {
        let parity = self.0.looks.load(SeqCst) % 2;
        self.0.small[parity].fetch_add(1, SeqCst);
        self.handed(Answer::Small { parity })
    }

    /// The same for a large answer, which counts only once it is cancelled.
    pub(super) fn large(&self) -> Handed {
        self.handed(Answer::Large { given_up: AtomicBool::new(false) })
    }

    fn handed(&self, answer: Answer) -> Handed {
        Handed(Arc::new(One { answer, counts: Arc::clone(&self.0) }))
    }

    /// Waits until a small answer has not been taken for between `limit` and twice that, or too many large ones were
    /// cancelled.
    pub(super) async fn stays(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            let Counts { looks, small, given_up } = &*self.0;
            let before = (looks.load(SeqCst) + 1) % 2;
            if small[before].load(SeqCst) > 0 || given_up.load(SeqCst) > MOST_GIVEN_UP {
                return;
            }
            looks.fetch_add(1, SeqCst);
        }
    }
}

/// An answer that is handed over; clones stand for the same answer.
#[derive(Clone)]
pub(super) struct Handed(Arc<One>);

struct One {
    answer: Answer,
    counts: Arc<Counts>,
}

enum Answer {
    Small { parity: usize },
    Large { given_up: AtomicBool },
}

impl Handed {
    /// A part of the answer; hyper drops it once the socket has taken it.
    pub(super) fn data(&self, data: Bytes) -> Bytes {
        Bytes::from_owner(Part { data, _of: self.clone() })
    }

    /// Records that a large answer is cancelled: what was not handed over by now never will be.
    pub(super) fn give_up(&self) {
        if let Answer::Large { given_up } = &self.0.answer
            && !given_up.swap(true, Relaxed)
        {
            self.0.counts.given_up.fetch_add(1, SeqCst);
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        match &self.answer {
            Answer::Small { parity } => _ = self.counts.small[*parity].fetch_sub(1, SeqCst),
            Answer::Large { given_up } if given_up.load(Relaxed) => {
                self.counts.given_up.fetch_sub(1, SeqCst);
            }
            Answer::Large { .. } => {}
        }
    }
}

struct Part {
    data: Bytes,
    _of: Handed,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn stays(unread: &Unread, time: Duration) -> bool {
        tokio::time::timeout(time, unread.stays(LIMIT)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn small_answers_that_are_taken_in_time_do_not_stay() {
        let unread = Unread::default();
        let taken = async {
            for _ in 0..20 {
                let answer = unread.small();
                let part = answer.data(Bytes::from_static(b"here"));
                drop(answer);
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
                assert_eq!(part, b"here"[..]);
            }
        };
        tokio::select! {
            () = unread.stays(LIMIT) => panic!("none was there for so long"),
            () = taken => {}
        }
        let _part = unread.small().data(Bytes::from_static(b"here"));
        assert!(stays(&unread, 3 * LIMIT).await);
    }

    #[tokio::test(start_paused = true)]
    async fn some_large_answers_may_be_given_up() {
        let unread = Unread::default();
        let mut answers: Vec<Handed> = (0..=MOST_GIVEN_UP).map(|_| unread.large()).collect();
        assert!(!stays(&unread, 3 * LIMIT).await, "they are being sent");
        answers.iter().for_each(Handed::give_up);
        let last = answers.pop();
        drop(last);
        assert!(!stays(&unread, 3 * LIMIT).await, "not more than may be");
        answers.push(unread.large());
        answers.iter().for_each(Handed::give_up);
        assert!(stays(&unread, 3 * LIMIT).await);
    }
}
