//! 150 requests of 5 to 500 tokens, BERT-base, one sequence each, through every strategy.

#[path = "../workload/encoder.rs"]
mod encoder;
#[path = "../workload/lengths.rs"]
mod lengths;

use turbo_alloc::baselines::{Arena, CubCaching, CubRules, Gsoc, Naive, TorchCaching};
use turbo_alloc::report::{Report, compare};
use turbo_alloc::{AllocError, Planner, PlannerConfig, Policy, Strategy, UsageRecord};

/// Runs them all.
pub(crate) fn report() -> Result<Report, AllocError> {
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
    let requests: Vec<_> = lengths::mixed_lengths(150).into_iter().map(request).collect();
    compare(strategies, &requests)
}

fn request(seq_len: usize) -> Vec<UsageRecord> {
    encoder::encoder(12, seq_len).into_iter().map(|(_, record)| record).collect()
}
