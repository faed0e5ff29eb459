//! What those do who ask: where their answers came from, and how long they took.

use std::time::Duration;

use super::{Latencies, latencies::Recorder, seconds::Seconds};
use crate::cache::Tier;

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is kept there.
    Kept(Tier),
    /// It is being computed for another input.
    Others,
    /// It has to be computed, though answers are kept.
    Nowhere,
}

/// How many answers came from where, while answers are kept.
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

/// What came of the inputs of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSecond {
    /// Where their answers came from.
    pub origins: Origins,
    /// Inputs that were answered, whatever with.
    pub answered: u64,
}

pub(super) struct Requests {
    /// Of all seconds.
    answered: u64,
    origins: Origins,
    seconds: Seconds<RequestSecond>,
    latencies: Recorder,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            answered: 0,
            origins: Origins::default(),
            seconds: Seconds::default(),
            latencies: Recorder::new(),
        }
    }

    pub(super) fn recalled(&mut self, now: Duration, origin: Origin, inputs: u64) {
        self.origins.add(origin, inputs);
        self.seconds.at(now.as_secs()).origins.add(origin, inputs);
    }

    pub(super) fn answered(&mut self, now: Duration, inputs: u64, total: Duration) {
        self.answered += inputs;
        self.seconds.at(now.as_secs()).answered += inputs;
        self.latencies.record(now, inputs, total);
    }

    /// Inputs that were answered since the beginning, and where their answers came from.
    pub(super) fn totals(&self) -> (u64, Origins) {
        (self.answered, self.origins)
    }

    pub(super) fn look(&mut self, now: Duration) -> (Vec<(u64, RequestSecond)>, Latencies) {
        (self.seconds.until(now.as_secs()), self.latencies.look(now))
    }
}
