//! Counts Ctrl-C, SIGTERM and SIGHUP: a waiting loop polls the count, and cleans up before the program ends.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};

static LISTENING: AtomicBool = AtomicBool::new(false);
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// Makes signals be counted from now on, instead of ending the process. May be called more than once.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn listen() -> Result<()> {
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        RECEIVED.fetch_add(1, Ordering::SeqCst);
    })
    .context("cannot listen for Ctrl-C")
}

/// How many signals came since [`listen`].
pub(crate) fn received() -> usize {
    RECEIVED.load(Ordering::SeqCst)
}

/// The error of work that a signal interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Fails if work was interrupted.
///
/// # Errors
/// [`Interrupted`] if a signal came since [`listen`].
pub(crate) fn check() -> Result<(), Interrupted> {
    if received() > 0 { Err(Interrupted) } else { Ok(()) }
}
