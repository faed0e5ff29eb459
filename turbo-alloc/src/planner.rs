//! The planner: one request's records in, offsets out, chunks kept from request to request.
//!
//! Source: Fang et al., *TurboTransformers*, PPoPP'21, Algorithm 1 (`MemAllocate`); the search
//! inside one chunk is in [`shelf`]. Where the paper is silent or wrong:
//!
//! * Every plan starts with empty chunks: offsets of the last request mean nothing to this one.
//! * Chunks are tried in the order in which they were appended, as the paper says; its code keeps
//!   them sorted by size, which changes which of them fall idle.
//! * Ids are names, not positions in a list: a release does not rename the chunks behind it.
//! * Sizes are rounded up to the alignment before they are placed, so that offsets stay aligned.
//!   The order of placement and the size of new chunks come from the sizes as given.
//! * Chunks can be pinned, for addresses that outlive a plan.

mod shelf;

use std::cmp::Reverse;

pub(crate) use self::shelf::{Record, Shelf, Shelves};
use crate::{AllocError, Chunk, ChunkId, MemoryPlan, Placement, PlannerConfig, UsageRecord};

/// Plans one request after the other and remembers which chunks exist.
///
/// It owns no memory: it decides, the caller allocates. After [`plan`](Self::plan) has returned, the planner assumes
/// that `grow` was obtained and `release` given back. A caller that cannot obtain a chunk gives back all that it has and
/// starts over with a new planner.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlannerConfig,
    /// In the order in which they were appended, so ascending by id.
    chunks: Vec<Held>,
    next_id: u32,
    /// What this plan has placed so far.
    shelves: Shelves,
    /// Records in order of placement; kept for its buffer.
    order: Vec<u32>,
}

/// A chunk and what the planner knows of it.
#[derive(Clone, Debug)]
struct Held {
    chunk: Chunk,
    /// What this plan has placed in it.
    shelf: Shelf,
    /// How many of the last plans in a row neither used it nor found it pinned, counted from its last unpin.
    idle: u32,
    pins: u32,
}

/// A planner without chunks, from the default config.
impl Default for Planner {
    fn default() -> Self {
        Self::new(PlannerConfig::default()).expect("the default config is valid")
    }
}

impl Planner {
    /// A planner without chunks.
    ///
    /// # Errors
    /// An alignment that is no power of two, `chunk_bytes` of 0, a scale below 1 or not finite.
    pub fn new(config: PlannerConfig) -> Result<Self, AllocError> {
        config.validate()?;
        Ok(Self { config, chunks: Vec::new(), next_id: 0, shelves: Shelves::default(), order: Vec::new() })
    }

    /// The config that it was built from.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// The chunks that the device holds now, in the order in which they were appended.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Chunk> + '_ {
        self.chunks.iter().map(|held| held.chunk)
    }

    /// Places the tensors of one request; [`plan_into`](Self::plan_into) with new buffers.
    ///
    /// # Errors
    /// As [`plan_into`](Self::plan_into).
    pub fn plan(&mut self, records: &[UsageRecord]) -> Result<MemoryPlan, AllocError> {
        let mut plan = MemoryPlan::default();
        self.plan_into(records, &mut plan)?;
        Ok(plan)
    }

    /// Places the tensors of one request and overwrites `plan` with the answer.
    ///
    /// The largest are placed first (of equals the earlier record first), each in the first chunk with a gap during its
    /// whole life, and there in the smallest such gap. If no chunk has one, the record gets a new chunk of
    /// `max(chunk_bytes, size · scale)` bytes. Then the policy decides which idle chunks are released.
    ///
    /// Allocates nothing once the buffers of `self` and `plan` have seen requests of this size.
    /// Time O(n²) in the number of records.
    ///
    /// # Errors
    /// A record whose `first_op` is after its `last_op`, sizes whose chunks could pass `usize::MAX`
    /// bytes in all, or no ids left after four billion chunks. Then neither `self` nor `plan` has changed.
    pub fn plan_into(&mut self, records: &[UsageRecord], plan: &mut MemoryPlan) -> Result<(), AllocError> {
        self.admit(records)?;
        plan.clear();
        self.shelves.clear();
        self.chunks.iter_mut().for_each(|held| held.shelf = Shelf::default());

        self.order.clear();
        self.order.extend(0..records.len() as u32);
        // with the position in the key an unstable sort is stable, and it needs no buffer
        self.order.sort_unstable_by_key(|&i| (Reverse(records[i as usize].size), i));

        plan.placements.resize(records.len(), Placement { chunk: ChunkId(0), offset: 0 });
        for at in 0..self.order.len() {
            let i = self.order[at] as usize;
            plan.placements[i] = self.place(&records[i], &mut plan.grow);
        }
        self.retire(&mut plan.release);
        plan.chunks.extend(self.chunks());
        Ok(())
    }

    /// Keeps the chunk, used or not, until as many [`unpin`](Self::unpin)s have followed.
    ///
    /// For callers that keep addresses into it beyond one plan: a cached binding, a captured CUDA graph. A pin does not
    /// reserve the bytes: later plans still place tensors there.
    ///
    /// # Errors
    /// The planner does not hold the chunk.
    pub fn pin(&mut self, chunk: ChunkId) -> Result<(), AllocError> {
        self.held(chunk)?.pins += 1;
        Ok(())
    }

    /// Takes one [`pin`](Self::pin) back. The chunk's idle plans are counted from here.
    ///
    /// # Errors
    /// The planner does not hold the chunk, or it has no pin.
    pub fn unpin(&mut self, chunk: ChunkId) -> Result<(), AllocError> {
        let held = self.held(chunk)?;
        held.pins = held.pins.checked_sub(1).ok_or(AllocError::NotPinned { chunk })?;
        held.idle = 0;
        Ok(())
    }

    fn held(&mut self, chunk: ChunkId) -> Result<&mut Held, AllocError> {
        let found = self.chunks.binary_search_by_key(&chunk, |held| held.chunk.id);
        found.map(|at| &mut self.chunks[at]).map_err(|_| AllocError::UnknownChunk { chunk })
    }

    /// Refuses bad input before anything has changed: after this a plan cannot fail.
    fn admit(&self, records: &[UsageRecord]) -> Result<(), AllocError> {
        let left = u32::MAX - self.next_id;
        if records.len() > left as usize {
            return Err(AllocError::IdsSpent { records: records.len(), left });
        }
        let mut bytes: usize = self.chunks.iter().map(|held| held.chunk.bytes).sum();
        for (record, &UsageRecord { first_op, last_op, size }) in records.iter().enumerate() {
            if first_op > last_op {
                return Err(AllocError::Reversed { record, first_op, last_op });
            }
            // at worst every record appends a chunk
            let worst = self.config.new_chunk_bytes(size).and_then(|grown| bytes.checked_add(grown));
            bytes = worst.ok_or(AllocError::TooLarge { record, size, limit: usize::MAX })?;
        }
        Ok(())
    }

    /// Finds the record a place, appending a chunk if there is none.
    fn place(&mut self, record: &UsageRecord, grow: &mut Vec<Chunk>) -> Placement {
        let size = record.size.next_multiple_of(self.config.alignment);
        let record_at = |offset| Record {
            first_op: record.first_op,
            last_op: record.last_op,
            offset,
            end: offset + size,
        };
        for held in &mut self.chunks {
            let gap =
                self.shelves.find_gap(held.shelf, held.chunk.bytes, record.first_op..=record.last_op, size);
            if let Some(offset) = gap {
                self.shelves.insert(&mut held.shelf, record_at(offset));
                return Placement { chunk: held.chunk.id, offset };
            }
        }
        let bytes = self.config.new_chunk_bytes(record.size).expect("admitted, so its chunk has a size");
        let chunk = Chunk { id: ChunkId(self.next_id), bytes };
        self.next_id += 1;
        let mut shelf = Shelf::default();
        self.shelves.insert(&mut shelf, record_at(0));
        self.chunks.push(Held { chunk, shelf, idle: 0, pins: 0 });
        grow.push(chunk);
        Placement { chunk: chunk.id, offset: 0 }
    }

    /// Counts idle plans and drops the chunks that have reached the policy's limit.
    fn retire(&mut self, release: &mut Vec<ChunkId>) {
        let limit = self.config.policy.idle_limit();
        self.chunks.retain_mut(|held| {
            let in_use = held.pins > 0 || !held.shelf.is_empty();
            held.idle = if in_use { 0 } else { held.idle + 1 };
            let keep = held.idle < limit;
            if !keep {
                release.push(held.chunk.id);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    const MIB: usize = 1 << 20;

    /// `first_op`, `last_op`, `size`.
    type Row = (u32, u32, usize);

    fn record((first_op, last_op, size): Row) -> UsageRecord {
        UsageRecord { first_op, last_op, size }
    }

    fn records(table: &[Row]) -> Vec<UsageRecord> {
        table.iter().copied().map(record).collect()
    }

    fn planner(policy: Policy) -> Planner {
        Planner::new(PlannerConfig { policy, ..PlannerConfig::default() }).unwrap()
    }

    /// `(chunk, offset)` of each record, in units of `unit` bytes.
    fn places(plan: &MemoryPlan, unit: usize) -> Vec<(u32, usize)> {
        plan.placements.iter().map(|p| (p.chunk.0, p.offset / unit)).collect()
    }

    /// A planner that has exactly one chunk, of `units` times 256 bytes.
    fn one_chunk(units: usize) -> Planner {
        let config = PlannerConfig { chunk_bytes: units * 256, scale: 1.0, ..PlannerConfig::default() };
        let mut planner = Planner::new(config).unwrap();
        planner.plan(&[record((0, 0, 1))]).unwrap();
        planner
    }

    /// Plans worked by hand; sizes and offsets in units of 256 bytes, in a chunk of 16.
    #[test]
    fn places_worked_by_hand() {
        type Case = (&'static str, &'static [Row], &'static [(u32, usize)]);
        let cases: &[Case] = &[
            ("nothing", &[], &[]),
            ("lives apart share bytes", &[(0, 1, 8), (2, 3, 8)], &[(0, 0), (0, 0)]),
            ("lives that touch do not", &[(0, 1, 8), (1, 2, 8)], &[(0, 0), (0, 8)]),
            ("largest first", &[(0, 0, 2), (0, 0, 6), (0, 0, 4)], &[(0, 10), (0, 0), (0, 6)]),
            ("equals in input order", &[(0, 0, 4), (0, 0, 4), (0, 0, 4)], &[(0, 0), (0, 4), (0, 8)]),
            // A 6 at 0, B 5 at 6, C 4 at 11 (tail); 3 meets only A and C: gap 6..11
            (
                "an inner gap before the tail",
                &[(0, 9, 6), (0, 4, 5), (0, 9, 4), (5, 9, 3)],
                &[(0, 0), (0, 6), (0, 11), (0, 6)],
            ),
            // 6 at 0 and 5 at 6 and 3 at 11 live in op 0; in op 2 only the 5 does: 0..6 and 11.. are
            // free and 6 is the only inner gap
            (
                "the gap at the start of the chunk",
                &[(0, 0, 6), (0, 2, 5), (2, 2, 4)],
                &[(0, 0), (0, 6), (0, 0)],
            ),
            // 5 at 0, 4 at 5, 3 at 9, 2 at 12 in op 0. During op 1 the 4 and the 2 are alive: the
            // gaps are 0..5 and 9..12, and the 3-unit gap is the smaller
            (
                "the smallest inner gap",
                &[(0, 0, 5), (0, 1, 4), (0, 0, 3), (0, 1, 2), (1, 1, 2)],
                &[(0, 0), (0, 5), (0, 9), (0, 12), (0, 9)],
            ),
            // op 1: the gaps 0..3 and 6..9 are equal, the lower one wins
            (
                "of equal gaps the lower",
                &[(0, 0, 3), (0, 1, 3), (0, 0, 3), (0, 1, 3), (1, 1, 2)],
                &[(0, 0), (0, 3), (0, 6), (0, 9), (0, 0)],
            ),
            ("the tail to the last byte", &[(0, 0, 10), (0, 0, 6)], &[(0, 0), (0, 10)]),
            ("one unit too many for the tail", &[(0, 0, 10), (0, 0, 7)], &[(0, 0), (1, 0)]),
            // the 9 opens chunk 1; the 6 goes back to chunk 0, whose tail has room
            (
                "chunks in the order of appending",
                &[(0, 0, 10), (0, 0, 9), (0, 0, 6)],
                &[(0, 0), (1, 0), (0, 10)],
            ),
            (
                "first chunk that fits, not the best",
                &[(0, 0, 9), (0, 0, 12), (0, 0, 4)],
                &[(1, 0), (0, 0), (0, 12)],
            ),
            ("nothing takes no room", &[(0, 0, 16), (0, 0, 0)], &[(0, 0), (0, 0)]),
        ];
        for (what, table, expected) in cases {
            let scaled: Vec<_> = table.iter().map(|&(a, b, units)| record((a, b, units * 256))).collect();
            let plan = one_chunk(16).plan(&scaled).unwrap();
            assert_eq!(places(&plan, 256), *expected, "{what}");
        }
    }

    #[test]
    fn sizes_are_rounded_up_to_the_alignment() {
        let plan = planner(Policy::Paper).plan(&records(&[(0, 0, 1), (0, 0, 257), (0, 0, 100)])).unwrap();
        assert_eq!(places(&plan, 1), [(0, 768), (0, 0), (0, 512)]);
    }

    #[test]
    fn chunks_grow_to_the_scaled_size() {
        let plan = planner(Policy::Paper).plan(&records(&[(0, 1, 614_400), (1, 2, 2_457_600)])).unwrap();
        assert_eq!(places(&plan, 1), [(1, 0), (0, 0)], "491520 bytes are left in chunk 0");
        let bytes: Vec<_> = plan.grow.iter().map(|c| (c.id.0, c.bytes)).collect();
        assert_eq!(bytes, [(0, 2_949_120), (1, 2_097_152)]);
        assert_eq!((plan.footprint(), plan.grown_bytes()), (5_046_272, 5_046_272));
        assert_eq!(plan.chunks, plan.grow);
    }

    /// `(grow, release, held afterwards)` of each request in a row; a request is its sizes in MiB,
    /// all alive together.
    fn history(planner: &mut Planner, requests: &[&[usize]]) -> Vec<(Vec<u32>, Vec<u32>, Vec<u32>)> {
        let step = |sizes: &&[usize]| {
            let table: Vec<_> = sizes.iter().map(|mib| record((0, 0, mib * MIB))).collect();
            let plan = planner.plan(&table).unwrap();
            let ids = |chunks: &[Chunk]| chunks.iter().map(|c| c.id.0).collect::<Vec<_>>();
            (ids(&plan.grow), plan.release.iter().map(|id| id.0).collect(), ids(&plan.chunks))
        };
        requests.iter().map(step).collect()
    }

    #[test]
    fn the_paper_releases_at_once_and_never_reuses_an_id() {
        let seen = history(&mut planner(Policy::Paper), &[&[4, 4], &[4], &[4, 4], &[], &[1]]);
        let expected = [
            (vec![0, 1], vec![], vec![0, 1]),
            (vec![], vec![1], vec![0]),
            (vec![2], vec![], vec![0, 2]),
            (vec![], vec![0, 2], vec![]),
            (vec![3], vec![], vec![3]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_later_chunk_survives_the_release_of_an_earlier_one() {
        // 8 MiB do not fit chunk 0 (2 MiB): chunk 1 is appended, chunk 0 idles and goes
        let seen = history(&mut planner(Policy::Paper), &[&[1], &[8], &[8, 1]]);
        let expected = [(vec![0], vec![], vec![0]), (vec![1], vec![0], vec![1]), (vec![], vec![], vec![1])];
        assert_eq!(seen, expected);
    }

    #[test]
    fn retained_chunks_go_with_the_nth_idle_plan() {
        let seen = history(
            &mut planner(Policy::RetainFor { plans: 2 }),
            &[&[4, 4], &[4], &[4, 4], &[4], &[4], &[4]],
        );
        let expected = [
            (vec![0, 1], vec![], vec![0, 1]),
            (vec![], vec![], vec![0, 1]), // idle once
            (vec![], vec![], vec![0, 1]), // used: the count starts anew
            (vec![], vec![], vec![0, 1]),
            (vec![], vec![1], vec![0]), // idle twice in a row
            (vec![], vec![], vec![0]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn to_retain_for_none_or_one_plan_is_the_papers_policy() {
        let requests: &[&[usize]] = &[&[4, 4], &[4], &[8], &[4, 1], &[]];
        let paper = history(&mut planner(Policy::Paper), requests);
        for plans in [0, 1] {
            assert_eq!(history(&mut planner(Policy::RetainFor { plans }), requests), paper);
        }
    }

    #[test]
    fn pinned_chunks_stay_and_do_not_age() {
        let mut planner = planner(Policy::RetainFor { plans: 2 });
        planner.plan(&records(&[(0, 0, 4 * MIB), (0, 0, 4 * MIB)])).unwrap();
        planner.pin(ChunkId(1)).unwrap();
        planner.pin(ChunkId(1)).unwrap();
        let releases = |planner: &mut Planner| planner.plan(&[record((0, 0, 4 * MIB))]).unwrap().release;
        for _ in 0..5 {
            assert_eq!(releases(&mut planner), []);
        }
        planner.unpin(ChunkId(1)).unwrap();
        assert_eq!(releases(&mut planner), [], "one pin is left");
        planner.unpin(ChunkId(1)).unwrap();
        assert_eq!(releases(&mut planner), [], "idle for the first time");
        assert_eq!(releases(&mut planner), [ChunkId(1)]);
        assert_eq!(planner.pin(ChunkId(1)), Err(AllocError::UnknownChunk { chunk: ChunkId(1) }));
    }

    /// A pin counts as use of the chunk until it ends, also when nothing was planned meanwhile.
    #[test]
    fn idle_plans_are_counted_from_the_unpin() {
        let mut planner = planner(Policy::RetainFor { plans: 2 });
        planner.plan(&records(&[(0, 0, 4 * MIB), (0, 0, 4 * MIB)])).unwrap();
        let releases = |planner: &mut Planner| planner.plan(&[record((0, 0, 4 * MIB))]).unwrap().release;
        assert_eq!(releases(&mut planner), []);
        planner.pin(ChunkId(1)).unwrap();
        planner.unpin(ChunkId(1)).unwrap();
        assert_eq!(releases(&mut planner), [], "idle for the first time since");
        assert_eq!(releases(&mut planner), [ChunkId(1)]);
    }

    #[test]
    fn unbalanced_pins_are_errors() {
        let mut planner = planner(Policy::Paper);
        assert_eq!(planner.unpin(ChunkId(0)), Err(AllocError::UnknownChunk { chunk: ChunkId(0) }));
        planner.plan(&records(&[(0, 0, 1)])).unwrap();
        assert_eq!(planner.unpin(ChunkId(0)), Err(AllocError::NotPinned { chunk: ChunkId(0) }));
    }

    #[test]
    fn bad_records_change_nothing() {
        let mut planner = planner(Policy::Paper);
        let mut plan = planner.plan(&records(&[(0, 0, 4 * MIB)])).unwrap();
        let before = (plan.clone(), planner.chunks().collect::<Vec<_>>());
        let cases: [(&[Row], &str); 3] = [
            (&[(0, 0, 1), (3, 2, 8)], "record 1: first_op 3 must not be after last_op 2"),
            (
                &[(0, 0, usize::MAX)],
                "record 0: with its 18446744073709551615 bytes the total could pass 18446744073709551615",
            ),
            (
                &[(0, 0, usize::MAX / 2), (1, 1, usize::MAX / 2)],
                "record 1: with its 9223372036854775807 bytes the total could pass 18446744073709551615",
            ),
        ];
        for (table, message) in cases {
            let error = planner.plan_into(&records(table), &mut plan).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!((plan.clone(), planner.chunks().collect()), before);
        }
    }

    #[test]
    fn spent_ids_are_an_error() {
        let mut planner = planner(Policy::Paper);
        planner.next_id = u32::MAX - 1;
        assert_eq!(planner.plan(&records(&[(0, 0, 1)])).unwrap().placements[0].chunk, ChunkId(u32::MAX - 1));
        let refused = planner.plan(&records(&[(0, 0, 1)]));
        assert_eq!(refused, Err(AllocError::IdsSpent { records: 1, left: 0 }));
    }
}
