//! Counts the requests of a connection that are being answered, and watches how long there has been none.

use std::time::Duration;

use tokio::{sync::watch, time::timeout};

/// The requests of one connection that are being answered; clones count together.
#[derive(Clone, Default)]
pub(super) struct Underway(watch::Sender<Count>);

#[derive(Default)]
struct Count {
    now: usize,
    has_begun: bool,
}

impl Underway {
    /// Counts one more request until the result is dropped.
    pub(super) fn begin(&self) -> OneUnderway {
        self.0.send_modify(|count| {
            count.now += 1;
            count.has_begun = true;
        });
        OneUnderway(self.0.clone())
    }

    /// Whether there has ever been a request.
    pub(super) fn has_begun(&self) -> bool {
        self.0.borrow().has_begun
    }

    /// Waits until a request is being answered; also returns if that one has been answered by then.
    pub(super) async fn some(&self) {
        let mut count = self.0.subscribe();
        if count.borrow_and_update().now == 0 {
            // Its sender is here.
            let _ = count.changed().await;
        }
    }

    /// Waits until there has been no request for `patience`.
    pub(super) async fn none_for(&self, patience: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // Its sender is here.
            let _ = count.wait_for(|count| count.now == 0).await;
            if timeout(patience, count.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// A request that is being answered; dropped once its answer is sent.
pub(super) struct OneUnderway(watch::Sender<Count>);

impl Drop for OneUnderway {
    fn drop(&mut self) {
        self.0.send_modify(|count| count.now -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_begins_anew_with_every_request() {
        let (underway, patience) = (Underway::default(), Duration::from_secs(3));
        let started = tokio::time::Instant::now();
        let requests = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                // as short as none
                drop(underway.begin());
            }
            let one = underway.begin();
            tokio::time::sleep(Duration::from_secs(10)).await;
            drop(one);
        };
        tokio::join!(underway.none_for(patience), requests);
        assert_eq!(started.elapsed(), Duration::from_secs(3 * 2 + 10 + 3));
    }
}
