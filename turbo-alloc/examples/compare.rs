//! The planner's policies beside the baselines, on the paper's workload: 150 requests of 5 to 500
//! tokens, BERT-base, one sequence each. Prints the table of the README; with `--requests` a line for
//! each request as well.
//!
//! `cargo run -p turbo-alloc --example compare`

#[path = "workload/encoder.rs"]
mod encoder;
#[path = "workload/lengths.rs"]
mod lengths;

use turbo_alloc::baselines::{Arena, CubCaching, CubRules, Gsoc, Naive, TorchCaching};
use turbo_alloc::{AllocError, Planner, PlannerConfig, Policy, Strategy, UsageRecord, report};

fn main() -> Result<(), AllocError> {
    let planner = |policy| Planner::new(PlannerConfig { policy, ..PlannerConfig::default() });
    let strategies: &mut [&mut dyn Strategy] = &mut [
        &mut planner(Policy::Paper)?,
        &mut planner(Policy::RetainFor { plans: 8 })?,
        &mut planner(Policy::RetainFor { plans: 64 })?,
        &mut Gsoc::default(),
        &mut Naive::default(),
        &mut CubCaching::new(CubRules::DEFAULT),
        &mut CubCaching::new(CubRules::UNLIMITED),
        &mut TorchCaching::default(),
        &mut Arena::default(),
    ];
    let records = |seq_len| encoder::encoder(12, seq_len).into_iter().map(|(_, record)| record).collect();
    let requests: Vec<Vec<UsageRecord>> = lengths::mixed_lengths(150).into_iter().map(records).collect();
    let report = report::compare(strategies, &requests)?;
    println!("{report}");
    if std::env::args().any(|arg| arg == "--requests") {
        println!("{}", report.per_request());
    }
    Ok(())
}
