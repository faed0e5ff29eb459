//! Answers in memory, within a number of bytes that is never exceeded.
//!
//! ```text
//! |<──────────────────────────── budget ────────────────────────────>|
//! | tables (⅛)  | values                                             | one more value
//! ```
//!
//! The memory that a cache takes in addition to its values is easily forgotten: tables double as they grow, with the
//! old and the new one in memory for a moment, and never shrink. So they are allocated at start, for as many answers as
//! there may ever be: [`Memory::open`] gives them an eighth of the budget, and an answer counts at least as one entry's
//! share of the rest. The last piece is for the copy of a value that is being inserted, before others are evicted for
//! it.
//!
//! `quick_cache` evicts while it inserts, under the same lock, so the bound holds after every call. It resists scans of
//! keys that are asked for only once, and lookups run concurrently. (`moka`, which is better known, queues insertions
//! until its maintenance runs, as it documents: it exceeds its bound in between.)

use std::{
    collections::hash_map::RandomState,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, unsync};

use super::Key;

/// The rows of one answer, as the model leaves them.
pub(super) type Values = Arc<[f32]>;

/// The tables' share of the budget: one part in this many.
const TABLES: usize = 8;
/// The largest answer that is kept: one part in this many of the budget. A larger one would evict many others.
const LARGEST: usize = 64;
/// Bytes reserved for the hash map, in multiples of its present size. A map more than half full doubles once removed
/// entries have left tombstones everywhere, and the old and the new one are in memory for a moment; after that it is
/// less than half full.
const MAPS: usize = 3;

/// Answers in memory, within a budget of bytes.
pub(super) struct Memory {
    held: RwLock<Held>,
    /// Allows one insertion at a time: each needs the last piece of the budget for its copy.
    inserting: Mutex<()>,
    largest: usize,
}

struct Held {
    answers: Answers,
    /// Bytes of the slots, all of which are allocated at start.
    slot_bytes: usize,
    value_bytes: usize,
}

type Answers = unsync::Cache<Key, Values, Weight, RandomState, Evict>;

/// Memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Bytes of values, keys and tables.
    pub bytes: usize,
    /// Number of answers.
    pub entries: usize,
}

impl Memory {
    /// Allocates the tables of a cache that takes `budget` bytes at most.
    pub(super) fn open(budget: usize) -> Self {
        let (most_in_tables, largest) = (budget / TABLES, budget / LARGEST);
        let mut entries = most_in_tables / slot_bytes();
        loop {
            let (answers, slot_bytes) = tables(entries, budget - most_in_tables - largest);
            if slot_bytes + MAPS * answers.memory_used().map <= most_in_tables {
                let held = RwLock::new(Held { answers, slot_bytes, value_bytes: 0 });
                return Self { held, inserting: Mutex::new(()), largest };
            }
            entries -= entries.div_ceil(16);
        }
    }

    /// The values that are held under `key`.
    pub(super) fn get(&self, key: &Key) -> Option<Values> {
        self.read().answers.get(key).cloned()
    }

    /// Whether an answer of this many values is small enough to be held.
    pub(super) fn holds(&self, values: usize) -> bool {
        heap_bytes(values) <= self.largest
    }

    /// Holds a copy of `values` under `key`, unless that key is held already, and evicts others for it; `None` if the
    /// copy is too large.
    pub(super) fn insert(&self, key: Key, values: &[f32]) -> Option<Inserted> {
        if !self.holds(values.len()) {
            return None;
        }
        let _one = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
        let values = Values::from(values);
        let mut held = self.write();
        let mut evicted = Evicted::default();
        if held.answers.peek(&key).is_none() {
            held.value_bytes += heap_bytes(values.len());
            held.answers.insert_with_lifecycle(key, Arc::clone(&values), &mut evicted);
            held.value_bytes -= evicted.bytes;
        }
        Some(Inserted { values, evicted: evicted.entries, usage: held.usage() })
    }

    /// The memory in use now.
    pub(super) fn usage(&self) -> Usage {
        self.read().usage()
    }

    // Nothing panics here between two calls of the library. A lock poisoned by a panic of the library still guards
    // whole answers, each under its key.
    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of an insertion.
pub(super) struct Inserted {
    /// The copy.
    pub values: Values,
    /// Number of answers evicted for it.
    pub evicted: u64,
    pub usage: Usage,
}

impl Held {
    fn usage(&self) -> Usage {
        let tables = self.slot_bytes + self.answers.memory_used().map;
        Usage { bytes: tables + self.value_bytes, entries: self.answers.len() }
    }
}

/// An empty cache for `entries` answers that take `bytes` together, and the bytes of its slots.
fn tables(entries: usize, bytes: usize) -> (Answers, usize) {
    let options = OptionsBuilder::new()
        .estimated_items_capacity(entries)
        .weight_capacity(bytes as u64)
        .build()
        .expect("both capacities are set");
    let weight = Weight { least: bytes.div_ceil(entries.max(1)) as u64 };
    let mut answers = unsync::Cache::with_options(options, weight, RandomState::new(), Evict);
    // It also remembers the keys of half as many evicted answers, and inserts an answer before it evicts another.
    let slots = entries + entries / 2 + 2;
    answers.reserve(entries + 2);
    (answers, slots * slot_bytes())
}

/// Bytes of one slot: `quick_cache` reports them for used slots only, so one is used here.
fn slot_bytes() -> usize {
    let mut one = Answers::with(1, 1024, Weight { least: 1 }, RandomState::new(), Evict);
    one.insert(Key::default(), Values::default());
    one.memory_used().entries
}

/// Bytes of heap that `values` values take, with the two counters of the `Arc` and the allocator's overhead.
pub(super) fn heap_bytes(values: usize) -> usize {
    const COUNTERS: usize = 2 * size_of::<usize>();
    const ALLOCATOR: usize = 16;
    (COUNTERS + values * size_of::<f32>() + size_of::<usize>()).next_multiple_of(ALLOCATOR)
}

/// The weight of an answer: its bytes, or one entry's share of the budget for values if that is more.
#[derive(Clone)]
struct Weight {
    least: u64,
}

impl Weighter<Key, Values> for Weight {
    fn weight(&self, _: &Key, values: &Values) -> u64 {
        self.least.max(heap_bytes(values.len()) as u64)
    }
}

/// Drops evicted answers at once, and counts them.
#[derive(Clone)]
struct Evict;

#[derive(Default)]
struct Evicted {
    entries: u64,
    bytes: usize,
}

impl Lifecycle<Key, Values> for Evict {
    type RequestState = Evicted;

    fn on_evict(&self, evicted: &mut Evicted, _: Key, values: Values) {
        evicted.entries += 1;
        evicted.bytes += heap_bytes(values.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::Scope;

    const BUDGET: usize = 1 << 20;

    fn key(n: u32) -> Key {
        Scope::of("test").key("pooled", &[&[n]])
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let memory = Memory::open(BUDGET);
        assert!(memory.get(&key(1)).is_none());
        memory.insert(key(1), &[1.0, f32::NAN, -0.0]).unwrap();
        let bits: Vec<u32> = memory.get(&key(1)).unwrap().iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, [1.0_f32, f32::NAN, -0.0].map(f32::to_bits));
        assert!(memory.get(&key(2)).is_none());
    }

    #[test]
    fn what_is_too_large_is_not_held() {
        let memory = Memory::open(BUDGET);
        let values = vec![1.0; BUDGET / LARGEST / 4];
        assert!(memory.insert(key(1), &values).is_none());
        assert!(memory.insert(key(1), &values[..values.len() - 16]).is_some());
        assert_eq!(memory.usage().entries, 1);
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let memory = Memory::open(BUDGET);
        let first = memory.insert(key(1), &[1.0; 100]).unwrap();
        let again = memory.insert(key(1), &[1.0; 100]).unwrap();
        assert_eq!((again.evicted, again.usage), (0, first.usage));
    }

    #[test]
    fn the_budget_is_used_and_the_tables_never_grow() {
        // Values of many sizes, small ones first and last: tables that grow would show it.
        for sizes in [[1, 384, 1024], [1024, 1, 384], [384, 8, 8]] {
            let memory = Memory::open(BUDGET);
            for (round, size) in sizes.into_iter().enumerate() {
                for n in 0..20_000 {
                    let inserted = memory.insert(key(n * 3 + round as u32), &vec![0.5; size]).unwrap();
                    assert!(inserted.usage.bytes <= BUDGET, "{:?}", inserted.usage);
                }
                let held = memory.read();
                let used = held.answers.memory_used();
                assert!(used.entries <= held.slot_bytes, "{used:?} over values of {size}");
                assert!(used.total() <= BUDGET / TABLES, "{used:?} over values of {size}");
                drop(held);
                if round == 0 && size > 256 {
                    let used = memory.usage().bytes;
                    assert!(used > BUDGET / 10 * 8, "{used} of {BUDGET} for values of {size}");
                }
            }
        }
    }

    #[test]
    fn what_is_asked_again_outlives_what_is_asked_once() {
        let memory = Memory::open(BUDGET);
        memory.insert(key(0), &[7.0; 384]).unwrap();
        for n in 1..5_000 {
            memory.insert(key(n), &[0.0; 384]).unwrap();
            assert!(memory.get(&key(0)).is_some(), "gone after {n} others");
        }
    }

    #[test]
    fn what_was_asked_once_makes_room_for_what_is_asked_again() {
        let memory = Memory::open(BUDGET);
        for n in 1_000..5_000 {
            memory.insert(key(n), &[0.0; 384]).unwrap();
        }
        let ask = |n| {
            let known = memory.get(&key(n)).is_some();
            memory.insert(key(n), &[0.0; 384]).unwrap();
            known
        };
        for _ in 0..4 {
            (0..100).for_each(|n| _ = ask(n));
        }
        assert_eq!((0..100).filter(|&n| ask(n)).count(), 100);
    }

    proptest! {
        #[test]
        fn it_is_what_was_put_in_or_nothing(
            steps in prop::collection::vec((0_u32..400, 1_usize..4000, any::<bool>()), 1..400),
        ) {
            let memory = Memory::open(BUDGET / 4);
            let mut lens = std::collections::HashMap::new();
            let (mut put_in, mut evicted) = (0, 0);
            for (n, len, insert) in steps {
                if insert {
                    let len = *lens.entry(n).or_insert(len);
                    let before = memory.get(&key(n)).is_some();
                    if let Some(inserted) = memory.insert(key(n), &vec![n as f32; len]) {
                        put_in += u64::from(!before);
                        evicted += inserted.evicted;
                        prop_assert!(inserted.usage.bytes <= BUDGET / 4);
                        prop_assert_eq!(inserted.usage.entries as u64, put_in - evicted);
                    }
                }
                if let Some(values) = memory.get(&key(n)) {
                    prop_assert_eq!(&values[..], &vec![n as f32; lens[&n]][..]);
                }
            }
        }
    }
}
