//! Progress on standard error: bars on a terminal, plain lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How progress is shown; chosen once, from the command line.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    bars: bool,
}

impl Progress {
    /// Shows bars, unless they are refused or standard error is not a terminal.
    pub(crate) fn new(refused: bool) -> Self {
        Self { bars: !refused && !ProgressDrawTarget::stderr().is_hidden() }
    }

    /// A bar that fills up to `total` bytes and is removed at the end.
    pub(crate) fn bytes(self, what: &str, total: u64) -> ProgressBar {
        let style = "{msg} [{bar:30}] {bytes:>9}/{total_bytes} {bytes_per_sec} {eta}";
        self.start(what, ProgressBar::new(total), style)
    }

    /// A sign of life for work of unknown length.
    pub(crate) fn spinner(self, what: &str) -> ProgressBar {
        let bar = self.start(what, ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})");
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    fn start(self, what: &str, bar: ProgressBar, style: &str) -> ProgressBar {
        if !self.bars {
            eprintln!("{what}");
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.set_style(ProgressStyle::with_template(style).expect("the templates above are valid"));
        bar.with_message(what.to_owned())
    }
}
