//! The planner's answer: an offset in a chunk for every record, and what to do to the device.
//!
//! Plain values: the caller gives back the memory of `release`, obtains that of `grow`, and runs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a chunk for as long as the planner lives; ascending in order of creation, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId(pub u32);

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}

/// A block of device memory that is kept between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// Its name in placements.
    pub id: ChunkId,
    /// Its size; a multiple of the planner's alignment.
    pub bytes: usize,
}

/// Where one tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The chunk that holds it.
    pub chunk: ChunkId,
    /// Bytes from the start of the chunk; a multiple of the planner's alignment.
    pub offset: usize,
}

/// The answer to one request.
///
/// In order: give back `release`, obtain `grow`, then run with `placements`. `release` never names a chunk of this
/// plan, so it is also sound to obtain first; the device then holds both for a while, which no footprint reported here
/// includes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// One for each record, in the order of the records.
    pub placements: Vec<Placement>,
    /// All chunks that remain after this plan, in the order in which they were appended.
    pub chunks: Vec<Chunk>,
    /// Those of `chunks` that are new in this plan.
    pub grow: Vec<Chunk>,
    /// Chunks of earlier plans that are to be given back: no later plan names them.
    pub release: Vec<ChunkId>,
}

impl MemoryPlan {
    /// Bytes of all chunks that remain after this plan, used by it or not. The sum saturates at `usize::MAX`, which no
    /// planner exceeds.
    pub fn footprint(&self) -> usize {
        sum(&self.chunks)
    }

    /// Bytes to obtain from the device for this plan; summed as [`MemoryPlan::footprint`].
    pub fn grown_bytes(&self) -> usize {
        sum(&self.grow)
    }

    /// Empties the plan and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.placements.clear();
        self.chunks.clear();
        self.grow.clear();
        self.release.clear();
    }
}

/// Saturates, since a plan may have been read from a text, which can say anything.
fn sum(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.bytes).fold(0, usize::saturating_add)
}
