//! The progress of a figure, on standard error.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `steps`. Where standard error is not a terminal, prints a line that says what has begun.
///
/// # Errors
/// None in practice: the template is fixed.
pub fn bar(what: &str, steps: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len}, {eta} left")?;
    let bar = ProgressBar::new(steps as u64).with_style(style).with_message(what.to_owned());
    if bar.is_hidden() {
        eprintln!("{what}");
    }
    Ok(bar)
}

/// The shortest time between two progress lines of a part, where standard error is not a terminal.
const SAY: Duration = Duration::from_secs(20);

/// The progress of a run of several parts, and how long the rest takes, from estimates of each part's time.
pub struct Timeline {
    bar: ProgressBar,
    /// When it began.
    begin: Instant,
    /// Estimated seconds of all parts that are done.
    past: f64,
    /// Estimated seconds of this part, and of all later ones.
    here: f64,
    rest: f64,
    /// The share of this part that is done.
    share: f64,
    /// When a line was last printed.
    said: Instant,
}

impl Timeline {
    /// A run of which nothing is done yet.
    ///
    /// # Errors
    /// None in practice: the template is fixed.
    pub fn new() -> Result<Self> {
        let style = ProgressStyle::with_template("{msg:30} {bar:30} {prefix}")?;
        let bar = ProgressBar::new(1000).with_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        let now = Instant::now();
        Ok(Self { bar, begin: now, past: 0.0, here: 0.0, rest: 0.0, share: 0.0, said: now })
    }

    /// Begins a part that takes about `seconds`; all later parts take about `rest`. Where standard error is not a
    /// terminal, prints a line that says so.
    pub fn begin(&mut self, what: &str, seconds: f64, rest: f64) {
        self.past += self.here;
        (self.here, self.rest, self.share, self.said) = (seconds, rest, 0.0, Instant::now());
        self.bar.set_message(what.to_owned());
        if self.bar.is_hidden() {
            eprintln!("{what}: about {seconds:.0} s, {} left in all", minutes(self.left()));
        }
        self.show();
    }

    /// Adds to the share of the part that is done. Where standard error is not a terminal, prints the total from time
    /// to time.
    pub fn done(&mut self, share: f64) {
        self.share = (self.share + share).min(1.0);
        if self.bar.is_hidden() && self.said.elapsed() >= SAY {
            self.said = Instant::now();
            let (what, share) = (self.bar.message(), 100.0 * self.share);
            eprintln!("{what}: {share:.0} % done, {} left in all", minutes(self.left()));
        }
        self.show();
    }

    /// Prints a line about this part, above the bar where there is one.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Seconds since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Seconds until everything is done. If the parts so far took longer than estimated, so will the rest.
    fn left(&self) -> f64 {
        let done = self.past + self.share * self.here;
        let pace = if done > 30.0 { self.elapsed() / done } else { 1.0 };
        pace * ((1.0 - self.share) * self.here + self.rest)
    }

    fn show(&self) {
        let done = self.past + self.share * self.here;
        let all = self.past + self.here + self.rest;
        self.bar.set_position((1000.0 * done / all.max(1e-9)) as u64);
        self.bar.set_prefix(format!("{} left", minutes(self.left())));
    }
}

/// A time as `3 min`, or in seconds below two minutes.
#[must_use]
pub fn minutes(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_rest_of_this_part_and_those_behind_it() {
        let mut timeline = Timeline::new().unwrap();
        timeline.begin("first", 10.0, 20.0);
        timeline.done(0.5);
        assert_eq!(timeline.left(), 25.0);
        timeline.begin("second", 20.0, 0.0);
        timeline.done(0.75);
        timeline.done(0.75);
        assert_eq!(timeline.left(), 0.0);
        assert_eq!([minutes(59.6), minutes(180.0)], ["60 s", "3 min"]);
    }
}
