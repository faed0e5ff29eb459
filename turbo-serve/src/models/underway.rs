//! Requests that make several engine requests: a stopping server lets them end before it stops its engines.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::EngineError;

/// All such requests, to all models of a server. Clones share the count.
#[derive(Clone, Default)]
pub(super) struct Underway(Arc<watch::Sender<bool>>);

/// Such a request, which ends when this and its clones are dropped.
#[must_use = "engines may stop once it is dropped"]
#[derive(Clone, Debug)]
pub struct Begun {
    _counted: watch::Receiver<bool>,
}

impl Underway {
    /// Counts a request.
    ///
    /// # Errors
    /// [`EngineError::Stopping`], if the server is stopping.
    pub(super) fn begin(&self) -> Result<Begun, EngineError> {
        // Subscribed before the check: either this sees that the server stops, or `end` waits for this.
        let counted = self.0.subscribe();
        if *counted.borrow() {
            return Err(EngineError::Stopping);
        }
        Ok(Begun { _counted: counted })
    }

    /// Lets no request begin from now on, and waits until the last one ends.
    pub(super) async fn end(&self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}
