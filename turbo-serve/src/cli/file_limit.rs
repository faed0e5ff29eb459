//! How many connections there may be: each is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process have as many files open as the system allows it; shells start programs with far fewer.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(limit = limit.current, %error, "the limit on open files could not be raised");
    }
}
