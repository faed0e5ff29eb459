//! What strategies cost on one stream of requests, as text; and one plan as a picture.
//!
//! [`compare`] gives every strategy the same requests and keeps what each did to the device, request
//! by request. The result prints as a table of one line per strategy; [`Report::per_request`] prints
//! one line per request. [`svg`] draws a plan.

pub mod svg;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AllocError, DeviceUse, Strategy, UsageRecord, peak_live_bytes};

/// Several strategies on the same requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`peak_live_bytes`] of each request: no strategy can hold fewer.
    pub peak_live_bytes: Vec<usize>,
    /// One column for each strategy, in the order in which they were given.
    pub columns: Vec<Column>,
}

/// One strategy's way through the requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// [`Strategy::name`].
    pub name: String,
    /// What each request did to the device.
    pub requests: Vec<DeviceUse>,
}

/// Runs every strategy over all requests.
///
/// # Errors
/// The first request that a strategy refuses.
///
/// ```
/// use turbo_alloc::baselines::Naive;
/// use turbo_alloc::{Planner, UsageRecord, report};
///
/// let request = vec![UsageRecord { first_op: 0, last_op: 1, size: 3 << 20 }];
/// let mut planner = Planner::default();
/// let report = report::compare(&mut [&mut planner, &mut Naive::default()], &vec![request; 10])?;
/// assert_eq!(report.columns[0].new_bytes(), report.columns[0].max_footprint()); // obtained once
/// assert_eq!(report.columns[1].new_bytes(), 10 * (3 << 20)); // obtained every time
/// println!("{report}");
/// # Ok::<(), turbo_alloc::AllocError>(())
/// ```
pub fn compare(
    strategies: &mut [&mut dyn Strategy],
    requests: &[Vec<UsageRecord>],
) -> Result<Report, AllocError> {
    let columns = strategies.iter_mut().map(|strategy| {
        let uses = requests.iter().map(|records| strategy.serve(records)).collect::<Result<_, _>>()?;
        Ok(Column { name: strategy.name(), requests: uses })
    });
    Ok(Report {
        columns: columns.collect::<Result<_, _>>()?,
        peak_live_bytes: requests.iter().map(|records| peak_live_bytes(records)).collect(),
    })
}

impl Column {
    /// The most bytes held at any time.
    pub fn max_footprint(&self) -> usize {
        self.requests.iter().map(|request| request.peak_footprint).max().unwrap_or(0)
    }

    /// The highest footprint of a request, in bytes, averaged over the requests.
    pub fn mean_footprint(&self) -> f64 {
        mean(self.requests.iter().map(|request| request.peak_footprint))
    }

    /// Bytes obtained from the device in all. The sum saturates at `usize::MAX`.
    pub fn new_bytes(&self) -> usize {
        self.requests.iter().map(|request| request.new_bytes).fold(0, usize::saturating_add)
    }

    /// Calls that obtained them.
    pub fn allocations(&self) -> usize {
        self.requests.iter().map(|request| request.allocations).sum()
    }
}

fn mean(bytes: impl ExactSizeIterator<Item = usize>) -> f64 {
    let n = bytes.len().max(1) as f64;
    bytes.map(|bytes| bytes as f64).sum::<f64>() / n
}

const MIB: f64 = (1 << 20) as f64;

/// One line for each strategy; sizes in MiB.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.peak_live_bytes.len();
        let heads = ("max MiB", "mean MiB", "new MiB/request", "calls/request");
        writeln!(f, "{:<24} {:>9} {:>9} {:>16} {:>14}", "strategy", heads.0, heads.1, heads.2, heads.3)?;
        let max_live = self.peak_live_bytes.iter().max().copied().unwrap_or(0) as f64;
        let mean_live = mean(self.peak_live_bytes.iter().copied());
        writeln!(f, "{:<24} {:>9.2} {:>9.2}", "alive at once", max_live / MIB, mean_live / MIB)?;
        for column in &self.columns {
            writeln!(
                f,
                "{:<24} {:>9.2} {:>9.2} {:>16.2} {:>14.2}",
                column.name,
                column.max_footprint() as f64 / MIB,
                column.mean_footprint() / MIB,
                column.new_bytes() as f64 / MIB / requests.max(1) as f64,
                column.allocations() as f64 / requests.max(1) as f64,
            )?;
        }
        Ok(())
    }
}

impl Report {
    /// One line for each request: bytes alive at once, then for each strategy its highest footprint
    /// and the bytes it newly obtained, in MiB.
    pub fn per_request(&self) -> impl fmt::Display + '_ {
        PerRequest(self)
    }
}

struct PerRequest<'a>(&'a Report);

impl fmt::Display for PerRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { peak_live_bytes, columns } = self.0;
        write!(f, "{:>7} {:>8}", "request", "alive")?;
        for column in columns {
            write!(f, " | {:>24}", column.name)?;
        }
        writeln!(f)?;
        for (i, &live) in peak_live_bytes.iter().enumerate() {
            write!(f, "{i:>7} {:>8.2}", live as f64 / MIB)?;
            for column in columns {
                let DeviceUse { peak_footprint, new_bytes, .. } = column.requests[i];
                write!(f, " | {:>12.2} new {:>7.2}", peak_footprint as f64 / MIB, new_bytes as f64 / MIB)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Naive, TorchCaching};
    use crate::{Planner, PlannerConfig};

    /// One request of two tensors that are alive together, then one of half their size.
    fn report() -> Report {
        let request = |mib: usize| vec![UsageRecord { first_op: 0, last_op: 0, size: mib << 20 }; 2];
        let mut planner = Planner::new(PlannerConfig { scale: 1.0, ..PlannerConfig::default() }).unwrap();
        compare(&mut [&mut planner, &mut Naive::default()], &[request(4), request(2)]).unwrap()
    }

    #[test]
    fn one_line_for_each_strategy() {
        let expected = "\
strategy                   max MiB  mean MiB  new MiB/request  calls/request
alive at once                 8.00      6.00
planner, paper                8.00      6.00             4.00           1.00
naive                         8.00      6.00             6.00           2.00
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn one_line_for_each_request() {
        let expected = "\
request    alive |           planner, paper |                    naive
      0     8.00 |         8.00 new    8.00 |         8.00 new    8.00
      1     4.00 |         4.00 new    0.00 |         4.00 new    4.00
";
        assert_eq!(report().per_request().to_string(), expected);
    }

    #[test]
    fn an_empty_stream_has_a_report() {
        let report = compare(&mut [&mut Naive::default()], &[]).unwrap();
        assert_eq!((report.columns[0].max_footprint(), report.columns[0].mean_footprint()), (0, 0.0));
        assert!(!report.to_string().contains("NaN"));
    }

    /// Each request is a little too large for the segments of those before it, which are kept.
    #[test]
    fn sums_stay_at_what_can_be_counted() {
        let request =
            |i: usize| vec![UsageRecord { first_op: 0, last_op: 0, size: (usize::MAX >> 6) + (i << 22) }];
        let requests: Vec<_> = (0..100).map(request).collect();
        let report = compare(&mut [&mut TorchCaching::default()], &requests).unwrap();
        let column = &report.columns[0];
        assert_eq!((column.max_footprint(), column.new_bytes()), (usize::MAX, usize::MAX));
    }

    #[test]
    fn a_refused_request_is_an_error() {
        let bad = UsageRecord { first_op: 1, last_op: 0, size: 1 };
        let refused = compare(&mut [&mut Naive::default()], &[vec![bad]]);
        assert_eq!(refused, Err(AllocError::Reversed { record: 0, first_op: 1, last_op: 0 }));
    }
}
