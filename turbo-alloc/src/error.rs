//! Everything a caller can get wrong.

use crate::ChunkId;

/// Why a planner was not built, a plan not made, or a pin not moved. The planner is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocError {
    /// [`PlannerConfig::alignment`](crate::PlannerConfig::alignment) cannot be aligned to.
    #[error("alignment must be a power of two, got {alignment}")]
    Alignment {
        /// The given value, bytes.
        alignment: usize,
    },
    /// [`PlannerConfig::chunk_bytes`](crate::PlannerConfig::chunk_bytes) cannot be the size of a chunk.
    #[error("chunk_bytes must be 1 or more and leave room to align, got {chunk_bytes}")]
    ChunkBytes {
        /// The given value, bytes.
        chunk_bytes: usize,
    },
    /// [`PlannerConfig::scale`](crate::PlannerConfig::scale) would make a chunk too small.
    #[error("scale must be finite and 1 or more, got {scale}")]
    Scale {
        /// The given value.
        scale: f64,
    },
    /// A tensor that dies before it is born.
    #[error("record {record}: first_op {first_op} must not be after last_op {last_op}")]
    Reversed {
        /// Its position in the request.
        record: usize,
        /// As given.
        first_op: u32,
        /// As given.
        last_op: u32,
    },
    /// With this record the bytes held could exceed what can be counted.
    #[error("record {record}: with its {size} bytes the total could pass {limit}")]
    TooLarge {
        /// Its position in the request.
        record: usize,
        /// Its size in bytes.
        size: usize,
        /// Bytes that can be counted.
        limit: usize,
    },
    /// Chunk ids are never reused and four billion are spent; start a new planner.
    #[error("{records} records could need more chunk ids than the {left} that are left")]
    IdsSpent {
        /// Records of the request.
        records: usize,
        /// Ids not yet given.
        left: u32,
    },
    /// The planner holds no such chunk: never created, or released.
    #[error("{chunk} is not held by the planner")]
    UnknownChunk {
        /// The name that was given.
        chunk: ChunkId,
    },
    /// `unpin` without its `pin`.
    #[error("{chunk} is not pinned")]
    NotPinned {
        /// The chunk.
        chunk: ChunkId,
    },
}
