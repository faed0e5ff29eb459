//! The blocks of a device that hold what a program computes: one per output, one per chunk of the planner.

use turbo_alloc::{ChunkId, MemoryPlan};
use turbo_kernels::{Device, FloatsOn};

use crate::GraphError;

/// All blocks that operators write, in one list, so that an operation can view several at once.
pub(crate) struct Memory<D: Device> {
    /// Outputs first, then chunks in any order.
    pub(crate) blocks: Vec<D::Block>,
    output_bytes: Vec<usize>,
    /// Block of each chunk that exists.
    chunks: Vec<(ChunkId, usize)>,
}

impl<D: Device> Memory<D> {
    pub(crate) fn new(device: &D, outputs: usize) -> Result<Self, GraphError> {
        let blocks = (0..outputs).map(|_| device.allocate(0)).collect::<Result<_, _>>()?;
        Ok(Memory { blocks, output_bytes: vec![0; outputs], chunks: Vec::new() })
    }

    /// Makes output `index` hold at least `bytes`; its contents are lost when it grows.
    pub(crate) fn grow_output(&mut self, device: &D, index: usize, bytes: usize) -> Result<(), GraphError> {
        if self.output_bytes[index] < bytes {
            self.blocks[index] = device.allocate(bytes)?;
            self.output_bytes[index] = bytes;
        }
        Ok(())
    }

    /// Bytes of all outputs.
    pub(crate) fn output_bytes(&self) -> usize {
        self.output_bytes.iter().sum()
    }

    /// Releases and allocates the chunks that `plan` names.
    pub(crate) fn apply(&mut self, device: &D, plan: &MemoryPlan) -> Result<(), GraphError> {
        for chunk in &plan.release {
            let position = self.chunks.iter().position(|(id, _)| id == chunk);
            let (_, block) = self.chunks.swap_remove(position.expect("the planner releases what it grew"));
            self.remove_block(block);
        }
        for chunk in &plan.grow {
            self.blocks.push(device.allocate(chunk.bytes)?);
            self.chunks.push((chunk.id, self.blocks.len() - 1));
        }
        Ok(())
    }

    /// Gives all chunks back.
    pub(crate) fn release_chunks(&mut self) {
        self.chunks.clear();
        self.blocks.truncate(self.output_bytes.len());
    }

    /// The block that holds `chunk`.
    pub(crate) fn block(&self, chunk: ChunkId) -> usize {
        let found = self.chunks.iter().find(|(id, _)| *id == chunk);
        found.expect("a bound plan pins its chunks").1
    }

    /// `len` values of output `index`, from value `first` on.
    pub(crate) fn output<'a>(
        &'a self,
        device: &D,
        index: usize,
        first: usize,
        len: usize,
    ) -> Result<FloatsOn<'a, D>, GraphError> {
        Ok(device.view(&self.blocks[index], first * size_of::<D::Float>(), len)?)
    }

    fn remove_block(&mut self, block: usize) {
        self.blocks.swap_remove(block);
        let moved = self.blocks.len();
        if let Some((_, index)) = self.chunks.iter_mut().find(|(_, index)| *index == moved) {
            *index = block;
        }
    }
}
