//! What holds for every plan, whatever the requests: soundness, the books, and the textbook's answer.

mod twin;

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use turbo_alloc::baselines::{Arena, CubCaching, CubRules, Gsoc, Naive, TorchCaching};
use turbo_alloc::{
    ChunkId, Ledger, MemoryPlan, Planner, PlannerConfig, Policy, Strategy as Rival, UsageRecord, check,
    peak_live_bytes,
};

/// Lives that overlap in many ways; sizes from nothing to several chunks, many of them equal.
fn usage_records(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<UsageRecord>> {
    let size = prop_oneof![
        1 => Just(0usize),
        4 => 1usize..2000,
        4 => (1usize..8).prop_map(|k| k * 1024),
        1 => 1usize..40_000,
    ];
    let record = (0u32..40, prop_oneof![0u32..4, 0u32..40], size)
        .prop_map(|(first_op, span, size)| UsageRecord { first_op, last_op: first_op + span, size });
    vec(record, n)
}

fn configs() -> impl Strategy<Value = PlannerConfig> {
    let policy = prop_oneof![Just(Policy::Paper), (0u32..4).prop_map(|plans| Policy::RetainFor { plans }),];
    let scale = prop_oneof![Just(1.0), Just(1.2), 1.0..3.0f64];
    (policy, 1usize..20_000, scale, 0u32..10).prop_map(|(policy, chunk_bytes, scale, shift)| PlannerConfig {
        policy,
        chunk_bytes,
        scale,
        alignment: 1 << shift,
    })
}

proptest! {
    #[test]
    fn plans_are_sound(config in configs(), requests in vec(usage_records(0..60), 1..8)) {
        let mut planner = Planner::new(config).unwrap(); // one planner across requests of different lengths
        let mut ledger = Ledger::default();
        let mut plan = MemoryPlan::default();
        for records in &requests {
            planner.plan_into(records, &mut plan).unwrap();
            prop_assert_eq!(check(records, &plan, config.alignment), Ok(()));
            prop_assert_eq!(ledger.apply(&plan), Ok(()));
            prop_assert!(plan.footprint() >= peak_live_bytes(records));
            prop_assert!(plan.chunks.iter().all(|chunk| chunk.bytes % config.alignment == 0));
            prop_assert!(planner.chunks().eq(plan.chunks.iter().copied()));
        }
    }

    #[test]
    fn plans_are_the_textbooks(config in configs(), requests in vec(usage_records(0..40), 1..8)) {
        let PlannerConfig { policy, chunk_bytes, scale, alignment } = config;
        let idle_limit = match policy {
            Policy::Paper => 1,
            Policy::RetainFor { plans } => plans.max(1),
        };
        let mut planner = Planner::new(config).unwrap();
        let mut twin =
            twin::Twin { chunk_bytes, scale, alignment, idle_limit, chunk_list: Vec::new(), next_id: 0 };
        for records in &requests {
            let plan = planner.plan(records).unwrap();
            let (assigned, released) = twin.mem_allocate(records);
            let placed: Vec<_> = plan.placements.iter().map(|p| (p.chunk.0, p.offset)).collect();
            prop_assert_eq!(placed, assigned);
            prop_assert_eq!(plan.release.iter().map(|id| id.0).collect::<Vec<_>>(), released);
            let held: Vec<_> = twin.chunk_list.iter().map(|chunk| (chunk.id, chunk.size)).collect();
            prop_assert_eq!(plan.chunks.iter().map(|c| (c.id.0, c.bytes as i128)).collect::<Vec<_>>(), held);
        }
    }

    /// Between plans, random chunks are pinned and unpinned: a pinned one is never released, an
    /// unpinned one goes after exactly the policy's number of idle plans from then on.
    #[test]
    fn pins_hold_chunks(
        plans_to_retain in 0u32..4,
        steps in vec((usage_records(0..20), any::<prop::sample::Index>(), any::<bool>()), 1..16),
    ) {
        let policy = Policy::RetainFor { plans: plans_to_retain };
        let config = PlannerConfig { policy, chunk_bytes: 4096, ..PlannerConfig::default() };
        let mut planner = Planner::new(config).unwrap();
        let mut pins: BTreeMap<ChunkId, u32> = BTreeMap::new();
        let mut idle: BTreeMap<ChunkId, u32> = BTreeMap::new();
        let mut ledger = Ledger::default();
        for (records, index, pin) in &steps {
            let plan = planner.plan(records).unwrap();
            prop_assert_eq!(ledger.apply(&plan), Ok(()));
            idle.extend(plan.grow.iter().map(|chunk| (chunk.id, 0)));
            for (id, plans) in &mut idle {
                let used = plan.placements.iter().any(|placement| placement.chunk == *id);
                *plans = if used || pins.get(id).is_some_and(|&n| n > 0) { 0 } else { *plans + 1 };
            }
            let expected: Vec<_> =
                idle.iter().filter(|(_, plans)| **plans >= plans_to_retain.max(1)).map(|(id, _)| *id).collect();
            prop_assert_eq!(&plan.release, &expected);
            idle.retain(|id, _| !plan.release.contains(id));
            if !plan.chunks.is_empty() {
                let id = plan.chunks[index.index(plan.chunks.len())].id;
                let count = pins.entry(id).or_default();
                if *pin {
                    planner.pin(id).unwrap();
                    *count += 1;
                } else {
                    prop_assert_eq!(planner.unpin(id).is_ok(), *count > 0);
                    if *count > 0 {
                        *count -= 1;
                        idle.insert(id, 0);
                    }
                }
            }
        }
    }

    #[test]
    fn no_strategy_holds_less_than_what_is_alive(requests in vec(usage_records(0..40), 1..8)) {
        let strategies: [&mut dyn Rival; 7] = [
            &mut Planner::new(PlannerConfig::default()).unwrap(),
            &mut Naive::default(),
            &mut CubCaching::new(CubRules::DEFAULT),
            &mut CubCaching::new(CubRules::UNLIMITED),
            &mut TorchCaching::default(),
            &mut Arena::default(),
            &mut Gsoc::default(),
        ];
        for strategy in strategies {
            let mut held = 0;
            for records in &requests {
                let used = strategy.serve(records).unwrap();
                prop_assert!(used.peak_footprint >= peak_live_bytes(records), "{}", strategy.name());
                prop_assert!(used.peak_footprint >= used.footprint, "{}", strategy.name());
                prop_assert!(used.peak_footprint <= held + used.new_bytes, "{}", strategy.name());
                held = used.footprint;
            }
        }
    }
}
