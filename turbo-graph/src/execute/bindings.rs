//! The bindings of a program that is run: which are kept, and the planner and the chunks that they share.

use std::collections::HashMap;

use turbo_alloc::{Planner, UsageRecord};
use turbo_kernels::Device;

use super::{ExecutorConfig, memory::Memory};
use crate::{BoundProgram, Capacity, GraphError, Program, dim::Extents, program::LayoutKind};

pub(super) struct Bindings {
    config: ExecutorConfig,
    planner: Planner,
    /// The usage records of the last plan, whose memory the next one reuses.
    records: Vec<UsageRecord>,
    kept: HashMap<Capacity, BoundProgram>,
    /// The binding of the last batch when none are kept.
    unkept: BoundProgram,
}

impl Bindings {
    pub(super) fn new(config: ExecutorConfig) -> Result<Self, GraphError> {
        Ok(Bindings {
            planner: Planner::new(config.planner)?,
            config,
            records: Vec::new(),
            kept: HashMap::new(),
            unkept: BoundProgram::default(),
        })
    }

    /// Whether bindings are kept, so that batches of one bucket share one.
    pub(super) fn keeps_any(&self) -> bool {
        self.config.cached_bindings > 0
    }

    /// The sizes that a batch of these extents is planned for.
    pub(super) fn sizes(&self, extents: &Extents, layout: LayoutKind) -> Capacity {
        match self.keeps_any() {
            true => Capacity::bucket(extents, layout),
            false => Capacity::of(extents),
        }
    }

    /// Raises the number of bindings that are kept, if need be, so that `count` more fit.
    pub(super) fn make_room(&mut self, count: usize) {
        self.config.cached_bindings = self.config.cached_bindings.max(self.kept.len() + count);
    }

    /// Makes sure that there is a binding for `sizes`, with its chunks in `memory`.
    pub(super) fn bind<D: Device>(
        &mut self,
        device: &D,
        program: &Program,
        memory: &mut Memory<D>,
        sizes: Capacity,
    ) -> Result<(), GraphError> {
        if self.kept.contains_key(&sizes) {
            return Ok(());
        }
        if !self.keeps_any() {
            let mut bound = std::mem::take(&mut self.unkept);
            let planned = self.plan(device, program, memory, sizes, &mut bound);
            self.unkept = bound;
            return planned;
        }
        if self.kept.len() >= self.config.cached_bindings {
            self.forget_kept()?;
        }
        let mut bound = BoundProgram::default();
        self.plan(device, program, memory, sizes, &mut bound)?;
        for placement in &bound.plan().placements {
            self.planner.pin(placement.chunk)?;
        }
        self.kept.insert(sizes, bound);
        Ok(())
    }

    /// The binding for `sizes`, the last that were given to [`Bindings::bind`].
    pub(super) fn get(&self, sizes: Capacity) -> &BoundProgram {
        self.kept.get(&sizes).unwrap_or(&self.unkept)
    }

    /// Bytes of all chunks that are allocated now.
    pub(super) fn bytes(&self) -> usize {
        self.planner.chunks().map(|chunk| chunk.bytes).sum()
    }

    /// The footprint of a binding for `sizes`, planned without any chunks to reuse.
    pub(super) fn footprint_alone(&self, program: &Program, sizes: Capacity) -> Result<usize, GraphError> {
        let (mut planner, mut bound) = (Planner::new(self.config.planner)?, BoundProgram::default());
        bound.bind_into(program, sizes, &mut planner, &mut Vec::new())?;
        Ok(bound.plan().footprint())
    }

    /// Plans for `sizes` and allocates the chunks of the plan.
    fn plan<D: Device>(
        &mut self,
        device: &D,
        program: &Program,
        memory: &mut Memory<D>,
        sizes: Capacity,
        bound: &mut BoundProgram,
    ) -> Result<(), GraphError> {
        bound.bind_into(program, sizes, &mut self.planner, &mut self.records)?;
        let applied = memory.apply(device, bound.plan());
        if applied.is_err() {
            // The planner counts on chunks that could not be allocated: start over with none.
            self.kept.clear();
            self.planner = Planner::new(self.config.planner)?;
            memory.release_chunks();
        }
        applied
    }

    fn forget_kept(&mut self) -> Result<(), GraphError> {
        for (_, bound) in self.kept.drain() {
            for placement in &bound.plan().placements {
                self.planner.unpin(placement.chunk)?;
            }
        }
        Ok(())
    }
}
