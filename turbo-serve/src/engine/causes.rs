//! What an error and its causes, or a panic, say: one line for logs and clients.

use std::{any::Any, error::Error, iter};

/// An error and its causes as one line. Some errors quote their cause; such a cause is not repeated.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    for cause in causes(error).skip(1) {
        let said = cause.to_string();
        if !line.ends_with(&said) {
            line = format!("{line}: {said}");
        }
    }
    line
}

/// An error and its causes.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// The message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("model.safetensors: {source}")]
        Read { source: io::Error },
        #[error("models/x")]
        Open(#[source] Box<Failed>),
    }

    #[test]
    fn a_cause_is_said_once() {
        let read = Failed::Read { source: io::Error::other("no such file") };
        let error = Failed::Open(Box::new(read));
        assert_eq!(with_causes(&error), "models/x: model.safetensors: no such file");
    }
}
