//! How much other processes use the machine during a measurement.

use std::{fs, iter::Sum, ops::AddAssign};

use serde::{Deserialize, Serialize};

/// The system's load average before and after a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Mean number of runnable threads in the minute before.
    pub before: Option<f64>,
    /// The same at the end, which includes the measurement itself.
    pub after: Option<f64>,
}

/// The load average of the last minute; `None` where the system does not report one.
pub fn average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Processor ticks since the machine started.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    all: u64,
    /// Used by processes other than this one and those named in [`Ticks::now`].
    others: i64,
}

impl Ticks {
    /// Reads the ticks now. This process and those in `ours` do not count as others. `None` where the system does not
    /// report ticks.
    pub fn now(ours: &[u32]) -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).map_while(|it| it.parse().ok()).collect();
        let all: u64 = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let own: u64 = ours.iter().copied().chain([std::process::id()]).filter_map(used_by).sum();
        Some(Self { all, others: (all - idle) as i64 - own as i64 })
    }

    /// The ticks used since `start`.
    pub fn since(&self, start: &Self) -> Used {
        Used { all: self.all.saturating_sub(start.all), others: self.others - start.others }
    }
}

/// The sum of the ticks of several spans of time. The clocks of the machine and of a process advance in steps of their
/// own, so a short span may show negative use by others; over many spans that evens out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    all: u64,
    others: i64,
}

impl Used {
    /// The share of the machine that others used, to three decimals; `None` if no time passed.
    pub fn share(&self) -> Option<f64> {
        let share = (self.others as f64 / self.all as f64).clamp(0.0, 1.0);
        (self.all > 0).then(|| (share * 1e3).round() / 1e3)
    }
}

impl AddAssign for Used {
    fn add_assign(&mut self, more: Self) {
        self.all += more.all;
        self.others += more.others;
    }
}

impl Sum for Used {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, it| {
            sum += it;
            sum
        })
    }
}

/// Ticks that a process has used.
fn used_by(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_this_process_uses_is_not_foreign() {
        let before = used_by(std::process::id()).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(used_by(std::process::id()).unwrap() > before);
        let ticks = Ticks::now(&[]).unwrap();
        assert!(Ticks::now(&[]).unwrap().since(&ticks).share().is_none_or(|it| (0.0..=1.0).contains(&it)));
        assert!(average().unwrap() >= 0.0);
    }

    #[test]
    fn what_a_short_span_says_too_little_another_makes_up_for() {
        let used = |all, others| Used { all, others };
        let spans = [used(40, 2), used(40, -2), used(20, 1)];
        assert_eq!(spans.iter().copied().sum::<Used>().share(), Some(0.01));
        assert_eq!(
            [used(40, -1), used(10, 11), used(0, 0)].map(|it| it.share()),
            [Some(0.0), Some(1.0), None]
        );
    }
}
