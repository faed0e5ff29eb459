//! What planning costs: 150 requests of BERT-base, lengths uniform in 5..=500, as the paper's Figure
//! 13 measures it. A run of the bench plans all 150 once, by one planner that keeps its chunks.
//!
//! `twelve layers` plans every tensor of the model; `one layer` is the plan of an executor that reuses the offsets of a
//! repeated layer.

#[path = "../examples/workload/encoder.rs"]
mod encoder;
#[path = "../examples/workload/lengths.rs"]
mod lengths;

use criterion::{Criterion, criterion_group, criterion_main};
use turbo_alloc::{MemoryPlan, Planner, PlannerConfig, Policy, UsageRecord};

fn plan_mixed_lengths(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan 150 mixed lengths of BERT-base");
    for (layers, num_layers) in [("one layer", 1), ("twelve layers", 12)] {
        let records =
            |seq_len| encoder::encoder(num_layers, seq_len).into_iter().map(|(_, record)| record).collect();
        let requests: Vec<Vec<UsageRecord>> = lengths::mixed_lengths(150).into_iter().map(records).collect();
        for (policy_name, policy) in [("paper", Policy::Paper), ("retain 8", Policy::RetainFor { plans: 8 })]
        {
            let config = PlannerConfig { policy, ..PlannerConfig::default() };
            let mut planner = Planner::new(config).expect("the default is valid");
            let mut plan = MemoryPlan::default();
            group.bench_function(format!("{layers}, {policy_name}"), |b| {
                b.iter(|| {
                    for records in &requests {
                        planner.plan_into(records, &mut plan).expect("the records are valid");
                    }
                    plan.footprint()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plan_mixed_lengths);
criterion_main!(benches);
