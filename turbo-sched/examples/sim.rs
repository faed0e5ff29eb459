//! Which policy carries how much traffic: answers per second, latency and utilisation by policy and rate.
//!
//! ```text
//! cargo run --release -p turbo-sched --example sim
//! ```
//! The shape is that of Fang et al., PPoPP'21, Figure 15 and Table 4: Poisson arrivals, lengths uniform over
//! 2..=100, padded batches of at most 20, hungry. **The machine is invented** (2.7 ms per batch, 30 µs per padded
//! token, chosen so that serving one by one saturates near the 237 answers per second of the paper); the numbers
//! compare policies and say nothing about any hardware.

use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use turbo_sched::{BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Limits, Policy, sim};

const SECONDS: u64 = 60;
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let buckets = Policy::LengthBuckets { width: NonZeroU32::new(20).ok_or("a bucket is not empty")? };
    let policies = [
        ("none", Policy::OneByOne),
        ("naive", Policy::WholeQueue),
        ("buckets", buckets),
        ("sorted", Policy::SortedWindow),
        ("dp", Policy::OptimalSplit),
    ];
    println!("SYNTHETIC machine: 2.7 ms per batch + 30 us per padded token; {SECONDS} s, seed {SEED}");
    println!("policy    offered/s  answered/s    rho    mean ms     p99 ms     max ms  batch  waiting");
    for rate in [100.0, 200.0, 250.0, 300.0, 350.0, 400.0, 500.0, 600.0] {
        for (name, policy) in policies {
            let report = serve(policy, rate)?;
            let answered = report.latencies.len();
            let millis = |latency: Duration| latency.as_secs_f64() * 1e3;
            println!(
                "{name:8} {rate:10.0} {:11.1} {:6.2} {:10.2} {:10.2} {:10.2} {:6.2} {:8}",
                report.throughput(),
                report.utilisation(),
                millis(report.mean_latency()),
                millis(report.latency_at(0.99)),
                millis(report.latency_at(1.0)),
                answered as f64 / report.batches as f64,
                report.waiting,
            );
        }
        println!();
    }
    Ok(())
}

fn serve(policy: Policy, rate: f64) -> Result<sim::Report, Box<dyn Error>> {
    let horizon = Duration::from_secs(SECONDS);
    let limits = Limits::batch_size(NonZeroUsize::new(20).ok_or("a batch is not empty")?);
    let config = BatcherConfig { policy, ..BatcherConfig::with_limits(limits) };
    let grid = [1, 25, 50, 75, 100].into_iter().flat_map(|len| [1, 5, 20].map(|size| (len, size)));
    let table = CostTable::from_measurements(grid.map(|(len, size)| (len, size, machine(len, size))))?;
    let arrivals = sim::poisson(rate, 2..=100, horizon, SEED);
    let mut batcher = Batcher::new(config, CostModel::Padded(table));
    let time = |batch: &Candidate| machine(batch.max_seq_len, batch.batch_size).as_duration();
    Ok(sim::run(&mut batcher, &arrivals, time, horizon)?)
}

/// Seconds that a padded batch takes.
fn machine(max_seq_len: u32, batch_size: usize) -> BatchTotal {
    BatchTotal(2.7e-3 + 30e-6 * f64::from(max_seq_len) * batch_size as f64)
}
