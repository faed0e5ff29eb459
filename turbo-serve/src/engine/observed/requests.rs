//! Statistics of requests: where their answers came from, how long they took, and why they had none in time.

use std::time::Duration;

use super::{Latencies, Percentiles, latencies::Recorder, seconds::Seconds};
use crate::{
    cache::Tier,
    engine::{Priority, admit::waiting::ByClass},
};

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is cached in this tier.
    Kept(Tier),
    /// It is being computed for another input already.
    Others,
    /// It has to be computed, though there is a cache.
    Nowhere,
}

/// The numbers of answers by where they came from, for engines with a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// They were kept in memory.
    pub memory: u64,
    /// They were kept in a folder.
    pub folder: u64,
    /// They were kept in Redis.
    pub redis: u64,
    /// They were being computed for others.
    pub shared: u64,
    /// They had to be computed.
    pub misses: u64,
}

impl Origins {
    pub(super) fn add(&mut self, origin: Origin, inputs: u64) {
        let count = match origin {
            Origin::Kept(Tier::Memory) => &mut self.memory,
            Origin::Kept(Tier::Folder) => &mut self.folder,
            Origin::Kept(Tier::Redis) => &mut self.redis,
            Origin::Others => &mut self.shared,
            Origin::Nowhere => &mut self.misses,
        };
        *count += inputs;
    }
}

/// Why a request had no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// It was rejected for want of slots.
    Slots,
    /// It was rejected: its answer would have come too late.
    Deadline,
    /// Its deadline passed, or allowed less time than it takes alone.
    Expired,
    /// It was admitted, and answered after its deadline.
    Late,
}

/// The numbers of requests that had no answer in time, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// They were rejected for want of slots.
    pub slots: u64,
    /// They were rejected: their answers would have come too late.
    pub deadline: u64,
    /// Their deadlines passed, or allowed less time than they take alone.
    pub expired: u64,
    /// They were admitted, and answered after their deadlines.
    pub late: u64,
}

impl Misses {
    fn add(&mut self, miss: Miss) {
        let count = match miss {
            Miss::Slots => &mut self.slots,
            Miss::Deadline => &mut self.deadline,
            Miss::Expired => &mut self.expired,
            Miss::Late => &mut self.late,
        };
        *count += 1;
    }
}

/// The inputs and requests of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSecond {
    /// Where their answers came from.
    pub origins: Origins,
    /// Inputs that were answered, wherever their rows came from.
    pub answered: u64,
    /// Requests that had no answer in time.
    pub misses: Misses,
}

/// The requests of one priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The class.
    pub priority: Priority,
    /// Its inputs that wait for their batch.
    pub waiting: usize,
    /// Its inputs that were answered since the beginning.
    pub answered: u64,
    /// Its inputs that were answered in the last minute.
    pub inputs: u64,
    /// Percentiles of those; `None` without any.
    pub minute: Option<Percentiles>,
}

pub(super) struct Requests {
    totals: Counts,
    seconds: Seconds<RequestSecond>,
    latencies: Recorder,
    by_class: [Recorder; Priority::ALL.len()],
}

/// What was counted since the beginning.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Inputs that were answered, by class.
    pub answered: [u64; Priority::ALL.len()],
    /// Where their answers came from.
    pub origins: Origins,
    pub misses: Misses,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            totals: Counts::default(),
            seconds: Seconds::default(),
            latencies: Recorder::new(),
            by_class: std::array::from_fn(|_| Recorder::new()),
        }
    }

    pub(super) fn recalled(&mut self, now: Duration, origin: Origin, inputs: u64) {
        self.totals.origins.add(origin, inputs);
        self.seconds.at(now.as_secs()).origins.add(origin, inputs);
    }

    pub(super) fn missed(&mut self, now: Duration, miss: Miss) {
        self.totals.misses.add(miss);
        self.seconds.at(now.as_secs()).misses.add(miss);
    }

    pub(super) fn answered(&mut self, now: Duration, inputs: u64, class: Priority, total: Duration) {
        self.totals.answered[class as usize] += inputs;
        self.seconds.at(now.as_secs()).answered += inputs;
        self.latencies.record(now, inputs, total);
        self.by_class[class as usize].record(now, inputs, total);
    }

    pub(super) fn totals(&self) -> Counts {
        self.totals
    }

    pub(super) fn look(&mut self, now: Duration) -> (Vec<(u64, RequestSecond)>, Latencies) {
        (self.seconds.until(now.as_secs()), self.latencies.look(now))
    }

    /// The statistics of each class, the highest first; `waiting` counts the waiting inputs of each.
    pub(super) fn classes(&mut self, now: Duration, waiting: ByClass) -> Vec<Class> {
        let Self { totals, by_class, .. } = self;
        let class = |priority: Priority| {
            let at = priority as usize;
            let Latencies { inputs, minute, .. } = by_class[at].look(now);
            Class { priority, waiting: waiting[at], answered: totals.answered[at], inputs, minute }
        };
        Priority::ALL.into_iter().rev().map(class).collect()
    }
}
