//! onnxruntime's way: one arena that doubles and never shrinks.
//!
//! Rules (`BFCArena` with its default extension strategy, "next power of two"; the same allocator as TensorFlow's):
//! sizes are rounded up to 256 bytes; the best-fitting free block is taken, and split if it is at least twice the size
//! or 128 MiB would be lost. Free neighbours merge. If no block fits, a region is added. Its size starts at 1 MiB and
//! doubles until the request fits; if the request fitted at once, the size doubles after the region was added.
//! Shrinking on demand exists there, is off by default, and is not modelled.

use super::blocks::{Address, Blocks};
use super::device::{Device, OnDemand, replay};
use crate::strategy::{DeviceUse, Strategy};
use crate::{AllocError, UsageRecord};

const ROUND: usize = 256;
const FIRST_REGION: usize = 1 << 20;
const MAX_LOST: usize = 128 << 20;

/// onnxruntime's BFC ("best fit with coalescing") arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    device: Device,
    regions: Regions,
}

#[derive(Clone, Debug)]
struct Regions {
    blocks: Blocks,
    next_region: usize,
}

impl Default for Regions {
    fn default() -> Self {
        Self { blocks: Blocks::default(), next_region: FIRST_REGION }
    }
}

impl Regions {
    fn extend(&mut self, size: usize, device: &mut Device) {
        let fitted = size <= self.next_region;
        while size > self.next_region {
            self.next_region *= 2;
        }
        device.obtain(self.next_region);
        self.blocks.add_region(self.next_region);
        if fitted {
            self.next_region *= 2;
        }
    }
}

impl OnDemand for Regions {
    type Block = Address;

    fn allocate(&mut self, size: usize, device: &mut Device) -> Address {
        let size = size.next_multiple_of(ROUND);
        let split = |bytes: usize| bytes >= 2 * size || bytes - size >= MAX_LOST;
        self.blocks.take_best_fit(size, split).unwrap_or_else(|| {
            self.extend(size, device);
            self.blocks.take_best_fit(size, split).expect("the new region is large enough")
        })
    }

    fn free(&mut self, address: Address, _: &mut Device) {
        self.blocks.give_back(address);
    }
}

impl Strategy for Arena {
    fn name(&self) -> String {
        "arena, onnxruntime".into()
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        replay(&mut self.regions, &mut self.device, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// New regions, in MiB, of tensors of these sizes that are all alive together.
    fn new_mib(arena: &mut Arena, sizes: &[usize]) -> (usize, usize) {
        let records: Vec<_> =
            sizes.iter().map(|&size| UsageRecord { first_op: 0, last_op: 0, size }).collect();
        let used = arena.serve(&records).unwrap();
        (used.new_bytes / MIB, used.allocations)
    }

    #[test]
    fn regions_double() {
        let mut arena = Arena::default();
        assert_eq!(new_mib(&mut arena, &[1000]), (1, 1)); // it fitted: the next is 2 MiB
        assert_eq!(new_mib(&mut arena, &[MIB, 2 * MIB]), (2, 1));
        assert_eq!(new_mib(&mut arena, &[5 * MIB]), (8, 1)); // from 4 to 8; it did not fit
        assert_eq!(new_mib(&mut arena, &[8 * MIB, 7 * MIB]), (8, 1));
        assert_eq!(arena.serve(&[]).unwrap().footprint, 19 * MIB);
    }

    #[test]
    fn blocks_below_twice_the_size_are_given_whole() {
        let mut arena = Arena::default();
        // 0.6 of 1 MiB takes the whole block: 0.3 more needs a region
        assert_eq!(new_mib(&mut arena, &[600 << 10, 300 << 10]), (1 + 2, 2));
        let mut arena = Arena::default();
        assert_eq!(new_mib(&mut arena, &[512 << 10, 512 << 10]), (1, 1));
    }
}
