//! Every tensor its own device allocation, from its first use to its last.
//!
//! The least footprint there is, and the most calls: PPoPP'21 §4.2 saw half the time of a request
//! go into waiting for them.

use super::device::{Device, OnDemand, replay};
use crate::strategy::{DeviceUse, Strategy};
use crate::{AllocError, UsageRecord};

/// Allocates each tensor when it is needed and frees it when it is not.
#[derive(Clone, Debug, Default)]
pub struct Naive {
    device: Device,
}

struct Direct;

impl OnDemand for Direct {
    type Block = usize;

    fn allocate(&mut self, size: usize, device: &mut Device) -> usize {
        device.obtain(size);
        size
    }

    fn free(&mut self, size: usize, device: &mut Device) {
        device.give_back(size);
    }
}

impl Strategy for Naive {
    fn name(&self) -> String {
        "naive".into()
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        replay(&mut Direct, &mut self.device, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_exactly_what_is_alive() {
        let records = [(0, 1, 300), (1, 2, 200), (2, 3, 100), (2, 2, 0)]
            .map(|(first_op, last_op, size)| UsageRecord { first_op, last_op, size });
        let mut naive = Naive::default();
        for _ in 0..2 {
            let used = naive.serve(&records).unwrap();
            let expected = DeviceUse { peak_footprint: 500, footprint: 0, new_bytes: 600, allocations: 3 };
            assert_eq!(used, expected);
        }
    }
}
