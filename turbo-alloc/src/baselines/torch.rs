//! PyTorch's way: large segments are cut into blocks, which are cached for ever.
//!
//! Rules (`CUDACachingAllocator`, its head comment and constants, unchanged since 1.5, which the
//! paper compares with): sizes are rounded up to 512 bytes. Up to 1 MiB they come from the small
//! pool, whose segments are 2 MiB; above, from the large pool, whose segments are 20 MiB, or from
//! 10 MiB on the size itself, rounded up to 2 MiB. The best-fitting free block of the pool is taken
//! and split if the rest is at least 512 bytes (small) or more than 1 MiB (large). Free neighbours
//! merge. Segments go back to the device only when it is full, which is not modelled.

use super::blocks::{Address, Blocks};
use super::device::{Device, OnDemand, replay};
use crate::strategy::{DeviceUse, Strategy};
use crate::{AllocError, UsageRecord};

const MIN_BLOCK: usize = 512;
const SMALL_SIZE: usize = 1 << 20;
const SMALL_SEGMENT: usize = 2 << 20;
const LARGE_SEGMENT: usize = 20 << 20;
const MIN_OWN_SEGMENT: usize = 10 << 20;
const ROUND_OWN_SEGMENT: usize = 2 << 20;

/// PyTorch's caching allocator.
#[derive(Clone, Debug, Default)]
pub struct TorchCaching {
    device: Device,
    pools: Pools,
}

#[derive(Clone, Debug, Default)]
struct Pools {
    small: Blocks,
    large: Blocks,
}

#[derive(Clone, Copy)]
enum Pool {
    Small,
    Large,
}

fn segment_bytes(size: usize) -> usize {
    if size <= SMALL_SIZE {
        SMALL_SEGMENT
    } else if size < MIN_OWN_SEGMENT {
        LARGE_SEGMENT
    } else {
        size.next_multiple_of(ROUND_OWN_SEGMENT)
    }
}

impl Pools {
    fn get(&mut self, pool: Pool) -> &mut Blocks {
        match pool {
            Pool::Small => &mut self.small,
            Pool::Large => &mut self.large,
        }
    }
}

impl OnDemand for Pools {
    type Block = (Pool, Address);

    fn allocate(&mut self, size: usize, device: &mut Device) -> (Pool, Address) {
        let size = size.next_multiple_of(MIN_BLOCK);
        let pool = if size <= SMALL_SIZE { Pool::Small } else { Pool::Large };
        let split = |bytes: usize| match pool {
            Pool::Small => bytes - size >= MIN_BLOCK,
            Pool::Large => bytes - size > SMALL_SIZE,
        };
        let blocks = self.get(pool);
        let address = blocks.take_best_fit(size, split).unwrap_or_else(|| {
            let bytes = segment_bytes(size);
            device.obtain(bytes);
            blocks.add_region(bytes);
            blocks.take_best_fit(size, split).expect("the new segment is large enough")
        });
        (pool, address)
    }

    fn free(&mut self, (pool, address): (Pool, Address), _: &mut Device) {
        self.get(pool).give_back(address);
    }
}

impl Strategy for TorchCaching {
    fn name(&self) -> String {
        "caching, PyTorch".into()
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        replay(&mut self.pools, &mut self.device, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn segments_have_the_documented_sizes() {
        let cases = [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
        ];
        for (size, bytes) in cases {
            assert_eq!(segment_bytes(size), bytes, "{size}");
        }
    }

    /// New segments, in MiB, of tensors that are all alive together; sizes in bytes.
    fn new_mib(torch: &mut TorchCaching, sizes: &[usize]) -> usize {
        let records: Vec<_> =
            sizes.iter().map(|&size| UsageRecord { first_op: 0, last_op: 0, size }).collect();
        torch.serve(&records).unwrap().new_bytes / MIB
    }

    /// In a segment of 20 MiB lie 2, 4 and 14; the 4 dies and a tensor of `middle` takes its place;
    /// the 14 dies too. A last tensor of 14 MiB and the rest behind `middle` fits only if there is one.
    fn new_mib_if_the_rest_is_needed(middle: usize) -> usize {
        let rest = 4 * MIB - middle;
        let records =
            [(0, 2, 2 * MIB), (0, 0, 4 * MIB), (0, 1, 14 * MIB), (1, 2, middle), (2, 2, 14 * MIB + rest)]
                .map(|(first_op, last_op, size)| UsageRecord { first_op, last_op, size });
        TorchCaching::default().serve(&records).unwrap().new_bytes / MIB
    }

    #[test]
    fn large_blocks_split_only_when_more_than_a_mebibyte_is_left() {
        assert_eq!(new_mib_if_the_rest_is_needed(3 * MIB - 512), 20);
        assert_eq!(new_mib_if_the_rest_is_needed(3 * MIB), 20 + 16); // 15 MiB, rounded up to 2
    }

    #[test]
    fn pools_are_apart_and_nothing_goes_back() {
        let mut torch = TorchCaching::default();
        assert_eq!(new_mib(&mut torch, &[2 * MIB, 1024]), 22);
        assert_eq!(new_mib(&mut torch, &[19 * MIB, MIB, MIB]), 0);
        assert_eq!(new_mib(&mut torch, &[30 * MIB]), 30);
        assert_eq!(torch.serve(&[]).unwrap().footprint, 52 * MIB);
    }
}
