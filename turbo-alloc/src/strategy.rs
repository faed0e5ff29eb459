//! A way of giving tensors their memory, for one request after the other.
//!
//! One narrow trait, so that one report can run the planner beside the [`baselines`](crate::baselines). It counts what
//! the device sees: bytes obtained from it and given back to it.

use serde::{Deserialize, Serialize};

use crate::{AllocError, MemoryPlan, Planner, Policy, UsageRecord};

/// Serves requests of one stream and keeps whatever it keeps between them.
pub trait Strategy {
    /// Its name in tables.
    fn name(&self) -> String;

    /// Holds the tensors of one request during their lives.
    ///
    /// # Errors
    /// A record whose `first_op` is after its `last_op`, or sizes beyond what can be counted.
    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError>;
}

/// What one request did to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Most bytes held at any time of the request.
    pub peak_footprint: usize,
    /// Bytes still held after it.
    pub footprint: usize,
    /// Bytes obtained from the device for it.
    pub new_bytes: usize,
    /// Calls that obtained them: each may stall a device.
    pub allocations: usize,
}

impl Strategy for Planner {
    fn name(&self) -> String {
        match self.config().policy {
            Policy::Paper => "planner, paper".into(),
            Policy::RetainFor { plans } => format!("planner, retain {plans}"),
        }
    }

    fn serve(&mut self, records: &[UsageRecord]) -> Result<DeviceUse, AllocError> {
        let plan: MemoryPlan = self.plan(records)?;
        Ok(DeviceUse {
            // `release` is given back before `grow` is obtained
            peak_footprint: plan.footprint(),
            footprint: plan.footprint(),
            new_bytes: plan.grown_bytes(),
            allocations: plan.grow.len(),
        })
    }
}
