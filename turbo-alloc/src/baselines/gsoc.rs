//! Greedy by size for offset calculation: one arena, planned anew for every request.
//!
//! Source: Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020: tensors by falling
//! size, each in the smallest gap that is free during its life, else behind all that are alive with it. Near the
//! optimum for one fixed length. If lengths change, the arena is given back and obtained again whenever its size
//! differs: that is what the paper measured against. Offsets are aligned to 256 bytes, like the planner's.

use std::cmp::Reverse;

use super::device::admit;
use crate::planner::{Record, Shelf, Shelves};
use crate::strategy::{DeviceUse, Strategy};
use crate::{AllocError, UsageRecord};

const ALIGNMENT: usize = 256;

/// One arena of exactly the size that the request needs.
#[derive(Clone, Debug, Default)]
pub struct Gsoc {
    arena_bytes: usize,
}

/// Bytes of the arena that holds the records.
fn arena_bytes(records: &[UsageRecord]) -> usize {
    let mut order: Vec<&UsageRecord> = records.iter().collect();
    order.sort_by_key(|record| Reverse(record.size));
    let (mut shelves, mut shelf) = (Shelves::default(), Shelf::default());
    let mut arena = 0;
    for &UsageRecord { first_op, last_op, size } in order {
        let size = size.next_multiple_of(ALIGNMENT);
        let offset = shelves.find_gap(shelf, usize::MAX, first_op..=last_op, size).expect("no end, so room");
        let end = offset + size;
        shelves.insert(&mut shelf, Record { first_op, last_op, offset, end });
        arena = arena.max(end);
    }
    arena
}

impl Strategy for Gsoc {
    fn name(&self) -> String {
        "GSOC".into()
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        admit(records)?;
        let bytes = arena_bytes(records);
        // the old arena is given back before the new one is obtained
        let new_bytes = if bytes == self.arena_bytes { 0 } else { bytes };
        self.arena_bytes = bytes;
        let allocations = usize::from(new_bytes > 0);
        Ok(DeviceUse { peak_footprint: bytes, footprint: bytes, new_bytes, allocations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `first_op`, `last_op`, size in units of 256 bytes.
    type Row = (u32, u32, usize);

    fn records(table: &[Row]) -> Vec<UsageRecord> {
        table
            .iter()
            .map(|&(first_op, last_op, units)| UsageRecord { first_op, last_op, size: units * 256 })
            .collect()
    }

    #[test]
    fn arenas_worked_by_hand() {
        let cases: [(&[Row], usize); 4] = [
            (&[], 0),
            (&[(0, 1, 3), (1, 2, 4)], 7),
            (&[(0, 1, 3), (2, 3, 4)], 4),
            (&[(0, 9, 6), (0, 4, 5), (0, 9, 4), (5, 9, 3)], 15), // the 3 fits where the 5 was
        ];
        for (table, units) in cases {
            assert_eq!(arena_bytes(&records(table)), units * 256, "{table:?}");
        }
    }

    #[test]
    fn the_arena_follows_the_request() {
        let mut gsoc = Gsoc::default();
        let used = |bytes, new: bool| DeviceUse {
            peak_footprint: bytes,
            footprint: bytes,
            new_bytes: if new { bytes } else { 0 },
            allocations: usize::from(new),
        };
        assert_eq!(gsoc.serve(&records(&[(0, 0, 4)])), Ok(used(1024, true)));
        assert_eq!(gsoc.serve(&records(&[(0, 0, 2), (0, 0, 2)])), Ok(used(1024, false)));
        assert_eq!(gsoc.serve(&records(&[(0, 0, 8)])), Ok(used(2048, true)));
    }
}
