//! A cache never takes more bytes than it may: keys, values, tables and all, at any moment.
//!
//! A test of its own, because it counts every byte that the process has allocated.
#![allow(unsafe_code)]

mod counted;

use std::sync::atomic::Ordering::Relaxed;

use counted::{ALLOCATED, PEAK};
use turbo_serve::cache::{ResponseCache, Scope};

/// What a few handles, a lock and a test's own thread take beside the answers.
const BESIDE: usize = 4 << 10;

#[test]
fn growth_never_passes_the_budget() {
    let scope = Scope::of("test");
    for budget in [ResponseCache::LEAST_BYTES, 1 << 20, 16 << 20] {
        let values = vec![0.5_f32; budget / 256];
        let before = ALLOCATED.load(Relaxed);
        PEAK.store(before, Relaxed);
        let cache = ResponseCache::in_memory(budget).unwrap();
        // Large answers fill it, small ones the tables; then all sizes at once.
        let mut number = 0;
        for lens in [values.len() - 1..values.len(), 1..2, 8..9, 1..values.len()] {
            for _ in 0..budget / 300 {
                number += 1;
                let len = lens.start + number as usize * 7919 % lens.len();
                cache.put(scope.key("pooled", &[&[number]]), &values[..len]);
                let peak = PEAK.load(Relaxed) - before;
                assert!(
                    peak <= budget + BESIDE,
                    "{peak} of {budget} after {number} answers, of {len} values"
                );
            }
        }
        drop(cache);
        let left = ALLOCATED.load(Relaxed) - before;
        assert!(left < BESIDE, "{left} bytes are left");
    }
}
