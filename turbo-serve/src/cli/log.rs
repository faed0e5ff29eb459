//! Logs: on standard error, as lines for people or as JSON for machines.

use tracing_subscriber::{EnvFilter, fmt};

/// Starts logging. `RUST_LOG` says what is shown; without it, `info` and what is worse.
pub(super) fn start(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if json {
        builder.json().init();
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}
