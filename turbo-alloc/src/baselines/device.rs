//! The device as the models see it: a counter of bytes; and a request as they see it: births and
//! deaths, one after the other, the future unknown.

use crate::strategy::DeviceUse;
use crate::{AllocError, UsageRecord};

/// Bytes that a request's sizes may add up to: every model can round each of them up to sixteen
/// times its size, or small ones up to 4 GiB, without an overflow.
const LIMIT: usize = usize::MAX >> 5;

/// Counts what is obtained and given back. Caches that grow from request to request may come to hold more than can be
/// counted: the sums saturate at `usize::MAX`.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    held: usize,
    so_far: DeviceUse,
}

impl Device {
    pub(super) fn obtain(&mut self, bytes: usize) {
        self.held = self.held.saturating_add(bytes);
        self.so_far.new_bytes = self.so_far.new_bytes.saturating_add(bytes);
        self.so_far.allocations += 1;
        self.so_far.peak_footprint = self.so_far.peak_footprint.max(self.held);
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// What happened since the last report.
    pub(super) fn report(&mut self) -> DeviceUse {
        let next = DeviceUse { peak_footprint: self.held, ..DeviceUse::default() };
        DeviceUse { footprint: self.held, ..std::mem::replace(&mut self.so_far, next) }
    }
}

/// Gives out the memory of one tensor at a time, and takes it back.
pub(super) trait OnDemand {
    /// What it needs to know to take a tensor's memory back.
    type Block: Clone;
    /// `size` is above 0.
    fn allocate(&mut self, size: usize, device: &mut Device) -> Self::Block;
    fn free(&mut self, block: Self::Block, device: &mut Device);
}

/// Runs a request: a tensor is allocated at the start of its `first_op` and freed at the end of its
/// `last_op`. Those of the same operator go in the order of their records; empty ones are left out.
pub(super) fn replay<A: OnDemand>(
    allocator: &mut A,
    device: &mut Device,
    records: &[UsageRecord],
) -> Result<DeviceUse, AllocError> {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Birth,
        Death, // after the births of the same operator: both ends are inclusive
    }
    admit(records)?;
    let real = records.iter().enumerate().filter(|(_, record)| record.size > 0);
    let mut events: Vec<_> =
        real.flat_map(|(i, r)| [(r.first_op, Event::Birth, i), (r.last_op, Event::Death, i)]).collect();
    events.sort_unstable();
    let mut blocks: Vec<Option<A::Block>> = vec![None; records.len()];
    for (_, event, i) in events {
        match event {
            Event::Birth => blocks[i] = Some(allocator.allocate(records[i].size, device)),
            Event::Death => allocator.free(blocks[i].take().expect("born before it died"), device),
        }
    }
    Ok(device.report())
}

/// Refuses what the models cannot count.
pub(super) fn admit(records: &[UsageRecord]) -> Result<(), AllocError> {
    let mut total = 0usize;
    for (record, &UsageRecord { first_op, last_op, size }) in records.iter().enumerate() {
        if first_op > last_op {
            return Err(AllocError::Reversed { record, first_op, last_op });
        }
        total = total.checked_add(size).filter(|&total| total <= LIMIT).ok_or(AllocError::TooLarge {
            record,
            size,
            limit: LIMIT,
        })?;
    }
    Ok(())
}
