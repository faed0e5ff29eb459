//! Freed blocks are cached by size class and given out whole.
//!
//! Rules (NVIDIA cub, `CachingDeviceAllocator`, its class documentation): a request is rounded up to the smallest
//! `growth^bin` bytes from `growth^min_bin` on. A cached block of that class is reused, else a new one is obtained. A
//! freed block goes to the cache, unless the cache would exceed `max_cached_bytes`: then it is given back. A request
//! larger than `growth^max_bin` is neither rounded nor cached. Blocks are never split or merged.

use std::collections::BTreeMap;

use super::device::{Device, OnDemand, replay};
use crate::strategy::{DeviceUse, Strategy};
use crate::{AllocError, UsageRecord};

/// The four numbers that a cub allocator is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CubRules {
    /// Ratio of one size class to the next; 2 to 16. Below 2 there are no classes, and nothing is cached.
    pub growth: usize,
    /// The smallest class is `growth^min_bin` bytes.
    pub min_bin: u32,
    /// The largest class is `growth^max_bin` bytes.
    pub max_bin: u32,
    /// Most free bytes that stay cached.
    pub max_cached_bytes: usize,
}

impl CubRules {
    /// cub's defaults: classes from 512 bytes to 2 MiB, at most 6 MB cached.
    pub const DEFAULT: Self =
        Self { growth: 8, min_bin: 3, max_bin: 7, max_cached_bytes: 6 * 1024 * 1024 - 1 };
    /// As TurboTransformers builds its own baseline: growth 8, everything is cached, without limit.
    pub const UNLIMITED: Self =
        Self { growth: 8, min_bin: 1, max_bin: u32::MAX, max_cached_bytes: usize::MAX };

    /// Bytes of the class of a request of `size` bytes; `None` if it is too large to be cached, or if there are no
    /// classes. There is no class either if it would be larger than 4 GiB and more than sixteen times the request: such
    /// rules would ask for more than can be counted.
    fn class(&self, size: usize) -> Option<usize> {
        const LARGE: usize = u32::MAX as usize;
        if self.growth < 2 {
            return None;
        }
        let mut bytes = self.growth.checked_pow(self.min_bin)?;
        let mut bin = self.min_bin;
        while bytes < size {
            (bytes, bin) = (bytes.checked_mul(self.growth)?, bin + 1);
        }
        let counts = bytes / 16 <= size || bytes <= LARGE;
        (bin <= self.max_bin && counts).then_some(bytes)
    }
}

/// cub's caching allocator.
#[derive(Clone, Debug)]
pub struct CubCaching {
    device: Device,
    cache: Cache,
}

#[derive(Clone, Debug)]
struct Cache {
    rules: CubRules,
    /// Free blocks of each class.
    free: BTreeMap<usize, usize>,
    free_bytes: usize,
}

impl CubCaching {
    /// An allocator with an empty cache.
    pub fn new(rules: CubRules) -> Self {
        let cache = Cache { rules, free: BTreeMap::new(), free_bytes: 0 };
        Self { device: Device::default(), cache }
    }
}

#[derive(Clone, Copy)]
enum Block {
    OfClass(usize),
    TooLarge(usize),
}

impl OnDemand for Cache {
    type Block = Block;

    fn allocate(&mut self, size: usize, device: &mut Device) -> Block {
        let Some(class) = self.rules.class(size) else {
            device.obtain(size);
            return Block::TooLarge(size);
        };
        match self.free.get_mut(&class).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                self.free_bytes -= class;
            }
            None => device.obtain(class),
        }
        Block::OfClass(class)
    }

    fn free(&mut self, block: Block, device: &mut Device) {
        match block {
            Block::OfClass(class) if class <= self.rules.max_cached_bytes.saturating_sub(self.free_bytes) => {
                *self.free.entry(class).or_default() += 1;
                self.free_bytes += class;
            }
            Block::OfClass(bytes) | Block::TooLarge(bytes) => device.give_back(bytes),
        }
    }
}

impl Strategy for CubCaching {
    fn name(&self) -> String {
        match self.cache.rules {
            CubRules::DEFAULT => "caching, cub".into(),
            CubRules::UNLIMITED => "caching, cub unlimited".into(),
            CubRules { growth, min_bin, max_bin, .. } => {
                format!("caching, cub {growth}^{min_bin}..{growth}^{max_bin}")
            }
        }
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        replay(&mut self.cache, &mut self.device, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn classes_are_powers_of_the_growth() {
        let growing = |growth| CubRules { growth, ..CubRules::DEFAULT };
        let cases = [
            (growing(0), 513, None),
            (growing(1), 513, None),
            (growing(2), 100, Some(128)),
            (CubRules::DEFAULT, 1, Some(512)),
            (CubRules::DEFAULT, 512, Some(512)),
            (CubRules::DEFAULT, 513, Some(4096)),
            (CubRules::DEFAULT, 2 * MIB, Some(2 * MIB)),
            (CubRules::DEFAULT, 2 * MIB + 1, None),
            (CubRules::UNLIMITED, 1, Some(8)),
            (CubRules::UNLIMITED, 2 * MIB + 1, Some(16 * MIB)),
        ];
        for (rules, size, class) in cases {
            assert_eq!(rules.class(size), class, "{size}");
        }
    }

    #[test]
    fn rules_that_ask_for_more_than_can_be_counted_have_no_class() {
        let smallest = |min_bin| CubRules { growth: 16, min_bin, ..CubRules::UNLIMITED };
        assert_eq!(smallest(7).class(1), Some(1 << 28));
        assert_eq!(smallest(8).class(1), None, "4 GiB and a byte more than counts");
        assert_eq!(smallest(8).class(1 << 28), Some(1 << 32), "no more than sixteen times");
        assert_eq!(CubRules { growth: 1 << 20, ..smallest(1) }.class((1 << 20) + 1), None, "a million times");
        let records = [UsageRecord { first_op: 0, last_op: 0, size: 1 }; 16];
        let used = CubCaching::new(smallest(15)).serve(&records).unwrap();
        assert_eq!(used.peak_footprint, 16);
    }

    #[test]
    fn reuses_a_class_and_caches_up_to_the_limit() {
        // four tensors at once, of the 2 MiB class: 8 MiB held, two blocks (4 MiB) stay cached
        let records = [UsageRecord { first_op: 0, last_op: 0, size: MIB }; 4];
        let mut cub = CubCaching::new(CubRules::DEFAULT);
        let first = cub.serve(&records).unwrap();
        let expected =
            DeviceUse { peak_footprint: 8 * MIB, footprint: 4 * MIB, new_bytes: 8 * MIB, allocations: 4 };
        assert_eq!(first, expected);
        let second = cub.serve(&records).unwrap();
        assert_eq!(second, DeviceUse { new_bytes: 4 * MIB, allocations: 2, ..expected });
    }

    #[test]
    fn large_tensors_are_not_cached() {
        let records = [UsageRecord { first_op: 0, last_op: 0, size: 3 * MIB }];
        let mut cub = CubCaching::new(CubRules::DEFAULT);
        for _ in 0..2 {
            let used = cub.serve(&records).unwrap();
            let expected =
                DeviceUse { peak_footprint: 3 * MIB, footprint: 0, new_bytes: 3 * MIB, allocations: 1 };
            assert_eq!(used, expected);
        }
    }
}
