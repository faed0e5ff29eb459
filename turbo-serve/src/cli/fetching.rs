//! The progress of a download from the Hub, on a terminal and in the log.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use turbo_serve::hub::Watch;

/// A bar on standard error if that is a terminal, and a line in the log.
pub(super) struct Fetching {
    name: String,
    bar: ProgressBar,
}

impl Fetching {
    pub(super) fn new(name: &str) -> Self {
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is always this one");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden()).with_style(style);
        Self { name: name.to_owned(), bar: bar.with_message(name.to_owned()) }
    }
}

impl Watch for Fetching {
    /// Called for what describes the model, and again for its weights.
    fn begin(&mut self, files: usize, bytes: u64) {
        tracing::info!(model = self.name, files, bytes, "fetching from the Hub");
        if std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc_length(bytes);
    }

    fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}
