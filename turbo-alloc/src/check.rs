//! Checks whether a plan is sound, from the records alone; nothing here is shared with the planner.
//!
//! [`check`] looks at one plan: every tensor lies inside a chunk that exists, aligned, and apart from every tensor that
//! is alive with it. [`Ledger`] follows the chunks from plan to plan: the chunks that remain are those held before,
//! plus those that grew, minus those released, and no id occurs twice. Time O(n²): every pair of records is compared,
//! because that is what soundness means.

use std::collections::BTreeMap;

use crate::{ChunkId, MemoryPlan, UsageRecord};

/// The first thing found wrong with a plan. Records are named by their position in the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not one placement per record.
    #[error("{records} records but {placements} placements")]
    Count {
        /// Records of the request.
        records: usize,
        /// Placements of the plan.
        placements: usize,
    },
    /// The chunk is not among those that remain after the plan.
    #[error("record {record} lies in {chunk}, which does not exist")]
    NoSuchChunk {
        /// Index of the record.
        record: usize,
        /// The chunk it was placed in.
        chunk: ChunkId,
    },
    /// The tensor passes the end of its chunk.
    #[error("record {record} ends at byte {end} of {chunk}, which has {bytes}")]
    OutsideChunk {
        /// Index of the record.
        record: usize,
        /// The chunk it was placed in.
        chunk: ChunkId,
        /// One past its last byte.
        end: u128,
        /// Size of the chunk.
        bytes: usize,
    },
    /// The offset is no multiple of the alignment.
    #[error("record {record} starts at byte {offset}, no multiple of {alignment}")]
    Unaligned {
        /// Index of the record.
        record: usize,
        /// Bytes from the start of its chunk.
        offset: usize,
        /// Bytes it should be a multiple of.
        alignment: usize,
    },
    /// Two tensors that are alive during the same operator share bytes.
    #[error("records {first} and {second} are alive together and overlap in {chunk}")]
    Overlap {
        /// The earlier record.
        first: usize,
        /// The later record.
        second: usize,
        /// The chunk it was placed in.
        chunk: ChunkId,
    },
    /// A new chunk whose id is not above all ids before it.
    #[error("{chunk} grew, but {newest} was given before")]
    IdReused {
        /// The new chunk.
        chunk: ChunkId,
        /// The highest id so far.
        newest: ChunkId,
    },
    /// A release of a chunk that was not held before the plan.
    #[error("{chunk} was released, but not held")]
    ReleasedUnheld {
        /// The chunk.
        chunk: ChunkId,
    },
    /// `chunks` is not what was held, plus `grow`, minus `release`.
    #[error("the plan lists {listed:?}, but held are {held:?}")]
    Books {
        /// Id and bytes of each chunk of the plan, in its order.
        listed: Vec<(ChunkId, usize)>,
        /// Id and bytes of each chunk that the device holds, ascending.
        held: Vec<(ChunkId, usize)>,
    },
}

/// Checks one plan against the records it was made for.
///
/// # Errors
/// The first [`Violation`] found.
///
/// ```
/// use turbo_alloc::{Planner, UsageRecord, Violation, check};
///
/// let records = [0, 1].map(|op| UsageRecord { first_op: op, last_op: op + 1, size: 1024 });
/// let mut plan = Planner::default().plan(&records)?;
/// assert_eq!(check(&records, &plan, 256), Ok(()));
///
/// plan.placements[1] = plan.placements[0]; // both are alive during operator 1
/// assert!(matches!(check(&records, &plan, 256), Err(Violation::Overlap { first: 0, second: 1, .. })));
/// # Ok::<(), turbo_alloc::AllocError>(())
/// ```
pub fn check(records: &[UsageRecord], plan: &MemoryPlan, alignment: usize) -> Result<(), Violation> {
    if records.len() != plan.placements.len() {
        return Err(Violation::Count { records: records.len(), placements: plan.placements.len() });
    }
    for record in 0..records.len() {
        check_place(record, records, plan, alignment)?;
        for other in 0..record {
            check_pair(other, record, records, plan)?;
        }
    }
    Ok(())
}

fn check_place(
    record: usize,
    records: &[UsageRecord],
    plan: &MemoryPlan,
    alignment: usize,
) -> Result<(), Violation> {
    let (chunk, offset) = (plan.placements[record].chunk, plan.placements[record].offset);
    let Some(home) = plan.chunks.iter().find(|candidate| candidate.id == chunk) else {
        return Err(Violation::NoSuchChunk { record, chunk });
    };
    let end = offset as u128 + records[record].size as u128;
    if end > home.bytes as u128 {
        return Err(Violation::OutsideChunk { record, chunk, end, bytes: home.bytes });
    }
    if !offset.is_multiple_of(alignment) {
        return Err(Violation::Unaligned { record, offset, alignment });
    }
    Ok(())
}

fn check_pair(
    first: usize,
    second: usize,
    records: &[UsageRecord],
    plan: &MemoryPlan,
) -> Result<(), Violation> {
    let (a, b) = (&records[first], &records[second]);
    let (at_a, at_b) = (plan.placements[first], plan.placements[second]);
    let share_time = a.first_op <= b.last_op && b.first_op <= a.last_op;
    let share_bytes = at_a.chunk == at_b.chunk
        && a.size > 0
        && b.size > 0
        && at_a.offset < at_b.offset + b.size
        && at_b.offset < at_a.offset + a.size;
    if share_time && share_bytes {
        return Err(Violation::Overlap { first, second, chunk: at_a.chunk });
    }
    Ok(())
}

/// Follows one planner's chunks from plan to plan.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    held: BTreeMap<ChunkId, usize>,
    newest: Option<ChunkId>,
}

impl Ledger {
    /// Applies the next plan's `grow` and `release` and compares the result with its `chunks`.
    ///
    /// # Errors
    /// The first [`Violation`] found; then the ledger is of no further use.
    pub fn apply(&mut self, plan: &MemoryPlan) -> Result<(), Violation> {
        for &chunk in &plan.release {
            self.held.remove(&chunk).ok_or(Violation::ReleasedUnheld { chunk })?;
        }
        for grown in &plan.grow {
            if let Some(newest) = self.newest.filter(|&newest| grown.id <= newest) {
                return Err(Violation::IdReused { chunk: grown.id, newest });
            }
            self.newest = Some(grown.id);
            self.held.insert(grown.id, grown.bytes);
        }
        let listed: Vec<_> = plan.chunks.iter().map(|chunk| (chunk.id, chunk.bytes)).collect();
        let held: Vec<_> = self.held.iter().map(|(&id, &bytes)| (id, bytes)).collect();
        if listed == held { Ok(()) } else { Err(Violation::Books { listed, held }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chunk, Placement};

    fn chunk(id: u32) -> Chunk {
        Chunk { id: ChunkId(id), bytes: 1024 }
    }

    /// Two tensors of 512 bytes, alive together, at the given places of two chunks of 1024.
    fn verdict(places: &[(u32, usize)]) -> Result<(), String> {
        let records = [UsageRecord { first_op: 0, last_op: 1, size: 512 }; 2];
        let placements =
            places.iter().map(|&(chunk, offset)| Placement { chunk: ChunkId(chunk), offset }).collect();
        let plan = MemoryPlan { placements, chunks: vec![chunk(0), chunk(1)], ..MemoryPlan::default() };
        check(&records, &plan, 256).map_err(|violation| violation.to_string())
    }

    #[test]
    fn every_kind_of_unsound_plan_is_named() {
        assert_eq!(verdict(&[(0, 0), (0, 512)]), Ok(()));
        assert_eq!(verdict(&[(0, 0), (1, 0)]), Ok(()));
        let cases: [(&[(u32, usize)], &str); 6] = [
            (&[(0, 0)], "2 records but 1 placements"),
            (&[(0, 0), (7, 0)], "record 1 lies in chunk 7, which does not exist"),
            (&[(0, 0), (1, 768)], "record 1 ends at byte 1280 of chunk 1, which has 1024"),
            (&[(0, 8), (1, 0)], "record 0 starts at byte 8, no multiple of 256"),
            (&[(0, 0), (0, 256)], "records 0 and 1 are alive together and overlap in chunk 0"),
            (&[(1, 512), (1, 512)], "records 0 and 1 are alive together and overlap in chunk 1"),
        ];
        for (places, message) in cases {
            assert_eq!(verdict(places), Err(message.into()));
        }
    }

    #[test]
    fn bytes_may_be_shared_by_lives_apart_and_by_nothing() {
        let at = |first_op, last_op, size| UsageRecord { first_op, last_op, size };
        let placements = vec![Placement { chunk: ChunkId(0), offset: 0 }; 2];
        let plan = MemoryPlan { placements, chunks: vec![chunk(0)], ..MemoryPlan::default() };
        assert_eq!(check(&[at(0, 1, 512), at(2, 3, 512)], &plan, 256), Ok(()));
        assert_eq!(check(&[at(0, 1, 512), at(1, 3, 0)], &plan, 256), Ok(()));
        assert!(check(&[at(0, 1, 512), at(1, 3, 512)], &plan, 256).is_err());
    }

    #[test]
    fn the_ledger_finds_every_wrong_entry() {
        let plan = |chunks: &[u32], grow: &[u32], release: &[u32]| MemoryPlan {
            placements: Vec::new(),
            chunks: chunks.iter().copied().map(chunk).collect(),
            grow: grow.iter().copied().map(chunk).collect(),
            release: release.iter().copied().map(ChunkId).collect(),
        };
        let mut ledger = Ledger::default();
        for sound in [plan(&[0, 1], &[0, 1], &[]), plan(&[0, 1], &[], &[]), plan(&[1, 2], &[2], &[0])] {
            assert_eq!(ledger.apply(&sound), Ok(()));
        }
        let cases = [
            (plan(&[1, 2], &[0], &[]), "chunk 0 grew, but chunk 2 was given before"),
            (plan(&[1, 2], &[2], &[]), "chunk 2 grew, but chunk 2 was given before"),
            (plan(&[1, 2], &[], &[0]), "chunk 0 was released, but not held"),
            (
                plan(&[1], &[], &[]),
                "the plan lists [(ChunkId(1), 1024)], but held are [(ChunkId(1), 1024), (ChunkId(2), 1024)]",
            ),
            (
                plan(&[1, 2], &[], &[1]),
                "the plan lists [(ChunkId(1), 1024), (ChunkId(2), 1024)], but held are [(ChunkId(2), 1024)]",
            ),
        ];
        for (wrong, message) in cases {
            assert_eq!(ledger.clone().apply(&wrong).unwrap_err().to_string(), message);
        }
    }
}
