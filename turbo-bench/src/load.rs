//! Who else uses the machine while something is measured.

use std::fs;

use serde::{Deserialize, Serialize};

/// How busy the machine was around a measurement: what the system calls its load, before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Mean number of runnable threads in the minute before.
    pub before: Option<f64>,
    /// The same at the end; the measurement itself is in it.
    pub after: Option<f64>,
}

/// The load of the last minute; `None` where the system does not tell.
pub fn average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Ticks of the processors since the start of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    all: u64,
    /// Used by processes other than the ones that were named.
    others: i64,
}

impl Ticks {
    /// Now; processes in `ours` and this one do not count as others. `None` where the system does not tell.
    pub fn now(ours: &[u32]) -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).map_while(|it| it.parse().ok()).collect();
        let all: u64 = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let own: u64 = ours.iter().copied().chain([std::process::id()]).filter_map(used_by).sum();
        Some(Self { all, others: (all - idle) as i64 - own as i64 })
    }

    /// The share of the machine that others used since `start`.
    pub fn others_since(&self, start: &Self) -> f64 {
        let all = self.all.saturating_sub(start.all).max(1);
        ((self.others - start.others) as f64 / all as f64).clamp(0.0, 1.0)
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
        assert!((0.0..=1.0).contains(&Ticks::now(&[]).unwrap().others_since(&ticks)));
        assert!(average().unwrap() >= 0.0);
    }
}
