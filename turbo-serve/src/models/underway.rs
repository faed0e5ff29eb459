//! Requests that ask their models more than once: a server that stops lets them end before its engines do.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::EngineError;

/// All of them, of all models of a server. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Underway(Arc<watch::Sender<bool>>);

/// Such a request, until this and its clones are dropped.
#[must_use = "engines may stop once it is dropped"]
#[derive(Clone, Debug)]
pub struct Begun {
    _counted: watch::Receiver<bool>,
}

impl Underway {
    /// Counts a request.
    ///
    /// # Errors
    /// [`EngineError::Stopping`], when the server is.
    pub(super) fn begin(&self) -> Result<Begun, EngineError> {
        // Counted before the look: either this sees the end, or the end sees this.
        let counted = self.0.subscribe();
        if *counted.borrow() {
            return Err(EngineError::Stopping);
        }
        Ok(Begun { _counted: counted })
    }

    /// Lets none begin from now on, and waits for the last one.
    pub(super) async fn end(&self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}
