//! Gathers the parts of one request: the thread that finishes the last part hands on the whole.
//!
//! So a request with one bad part fails as a whole, and the results of a good one stay together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{EngineError, admit::abandoned::Abandoned, answers::ticket::Reply};

/// Parts that can be worked on in any order, by any thread, each once.
pub(super) trait Parts: Send + Sync {
    /// Works on part number `part`.
    fn work(&self, part: usize);

    /// Fails the whole request.
    fn fail(&self, error: EngineError);
}

/// Receives the whole.
pub(super) trait Recipient<T>: Send + Sync {
    /// Whether the client no longer waits for it.
    fn is_withdrawn(&self) -> bool;

    /// Takes the results of the parts, in their order, or the first error. Calls after the first have no effect.
    fn receive(&self, whole: Result<Vec<T>, EngineError>);
}

/// Parts that `make` turns into `T`s for a recipient.
pub(super) struct Gather<T, F, R> {
    make: F,
    recipient: R,
    abandoned: Arc<Abandoned>,
    made: Mutex<Made<T>>,
}

struct Made<T> {
    parts: Vec<Option<T>>,
    missing: usize,
    error: Option<EngineError>,
}

impl<T, F, R> Gather<T, F, R> {
    /// `parts` parts, at least one. Parts that are not begun when requests are `abandoned` are not made.
    pub(in crate::engine) fn new(parts: usize, make: F, recipient: R, abandoned: Arc<Abandoned>) -> Self {
        let none = std::iter::repeat_with(|| None).take(parts).collect();
        let made = Mutex::new(Made { parts: none, missing: parts, error: None });
        Self { make, recipient, abandoned, made }
    }

    fn lock(&self) -> MutexGuard<'_, Made<T>> {
        // No caller's code runs under the lock, so a poisoned one still guards a whole value.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, F, R> Parts for Gather<T, F, R>
where
    T: Send,
    F: Fn(usize) -> Result<T, EngineError> + Send + Sync,
    R: Recipient<T>,
{
    fn work(&self, part: usize) {
        if self.abandoned.is_said() {
            self.fail(EngineError::Stopping);
        }
        let skip = self.lock().error.is_some() || self.recipient.is_withdrawn();
        let made = (!skip).then(|| (self.make)(part));
        let mut all = self.lock();
        all.missing -= 1;
        match made {
            Some(Ok(made)) => all.parts[part] = Some(made),
            Some(Err(error)) => all.error = all.error.take().or(Some(error)),
            None => {}
        }
        if all.missing > 0 {
            return;
        }
        let (parts, error) = (std::mem::take(&mut all.parts), all.error.take());
        drop(all);
        match error {
            Some(error) => self.recipient.receive(Err(error)),
            None if self.recipient.is_withdrawn() => {}
            None => self.recipient.receive(Ok(parts.into_iter().flatten().collect())),
        }
    }

    fn fail(&self, error: EngineError) {
        self.lock().error.get_or_insert(error.clone());
        self.recipient.receive(Err(error));
    }
}

/// A client that wants the whole as it is.
impl<T: Send> Recipient<T> for Mutex<Reply<T>> {
    fn is_withdrawn(&self) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).is_withdrawn()
    }

    fn receive(&self, whole: Result<Vec<T>, EngineError>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).send(whole);
    }
}
