//! The progress of a command on files, on a terminal.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use turbo_serve::files::{pipeline::Watch, read::Rows};

use crate::cli::output;

/// Rows without an answer that are told one by one.
pub(super) const TOLD: u64 = 20;

/// A bar on standard error if that is a terminal, and a line for each of the first bad rows.
pub(super) struct Progress {
    bar: ProgressBar,
    file: String,
    bad: u64,
    meter: Meter,
}

/// Counts rows against the clock.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    started: Instant,
    /// Rows of earlier runs.
    rows_before: u64,
}

impl Meter {
    /// Rows per second up to now.
    pub(super) fn rate(&self, rows: u64) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        format!("{} rows/s", output::rate((rows - self.rows_before) as f64 / seconds.max(1e-9)))
    }
}

impl Progress {
    pub(super) fn start(rows: &Rows, rows_before: u64, quiet: bool) -> Self {
        let bar = match rows.total {
            Some(total) => {
                ProgressBar::new(total).with_style(style("{wide_bar} {percent:>3}%  {msg}, {eta} left"))
            }
            None => ProgressBar::no_length().with_style(style("{spinner} {msg}")),
        };
        if quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        } else {
            // A thread, which nothing that is hidden needs.
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar, file: rows.name.clone(), bad: 0, meter: Meter { started: Instant::now(), rows_before } }
    }

    pub(super) fn meter(&self) -> Meter {
        self.meter
    }

    fn line(&self, line: &str) {
        self.bar.suspend(|| output::note(line));
    }
}

impl Watch for Progress {
    fn written(&mut self, rows: u64, end: u64) {
        self.bar.set_position(end);
        if rows.is_multiple_of(64) {
            self.bar.set_message(format!("{rows} rows, {}", self.meter.rate(rows)));
        }
    }

    fn bad_row(&mut self, number: u64, why: &str) {
        self.bad += 1;
        if self.bad <= TOLD {
            self.line(&format!("{}:{number}: {why}", self.file));
        } else if self.bad == TOLD + 1 {
            self.line("further rows without an answer are only counted");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are the few of this program")
}
