//! Algorithm 1 as the paper prints it, with its corrections and nothing clever: fresh lists for every
//! plan, records sorted before each visit, signed arithmetic. What the planner is compared with.

use turbo_alloc::UsageRecord;

/// One chunk of the paper's `chunk_list`.
#[derive(Clone, Debug)]
pub(crate) struct TwinChunk {
    pub(crate) id: u32,
    pub(crate) size: i128,
    /// Plans in a row that left it empty.
    idle: u32,
    /// `(record, offset)`; the record's size is rounded up to the alignment.
    records: Vec<(UsageRecord, i128)>,
}

/// What the paper calls `MemAllocate`, with its list of chunks.
#[derive(Clone, Debug)]
pub(crate) struct Twin {
    pub(crate) chunk_bytes: usize,
    pub(crate) scale: f64,
    pub(crate) alignment: usize,
    /// Plans that an unused chunk survives, plus one.
    pub(crate) idle_limit: u32,
    pub(crate) chunk_list: Vec<TwinChunk>,
    pub(crate) next_id: u32,
}

fn round_up(bytes: usize, alignment: usize) -> usize {
    let rest = bytes % alignment;
    if rest == 0 { bytes } else { bytes + alignment - rest }
}

/// Lines 1 to 22.
fn find_gap_from_chunk(t: &UsageRecord, chunk: &TwinChunk) -> Option<i128> {
    let size_t = t.size as i128;
    let mut smallest_gap = i128::MAX;
    let mut prev_offset = 0;
    let mut best_offset = None;
    let mut by_offset = chunk.records.clone();
    by_offset.sort_by_key(|&(_, offset)| offset);
    for (x, offset_x) in by_offset {
        let max_first_op = t.first_op.max(x.first_op);
        let min_last_op = t.last_op.min(x.last_op);
        if max_first_op <= min_last_op {
            let gap = offset_x - prev_offset;
            if gap >= size_t && gap < smallest_gap {
                smallest_gap = gap;
                best_offset = Some(prev_offset);
            }
            prev_offset = prev_offset.max(offset_x + x.size as i128);
        }
    }
    if best_offset.is_none() && chunk.size - prev_offset >= size_t {
        best_offset = Some(prev_offset);
    }
    best_offset
}

impl Twin {
    /// Lines 23 to 42: `(chunk, offset)` of each record, and the ids that are released.
    pub(crate) fn mem_allocate(&mut self, records: &[UsageRecord]) -> (Vec<(u32, usize)>, Vec<u32>) {
        for chunk in &mut self.chunk_list {
            chunk.records.clear();
        }
        let mut by_size: Vec<usize> = (0..records.len()).collect();
        by_size.sort_by(|&a, &b| records[b].size.cmp(&records[a].size)); // stable
        let mut assigned = vec![(u32::MAX, usize::MAX); records.len()];
        for t in by_size {
            let aligned = UsageRecord { size: round_up(records[t].size, self.alignment), ..records[t] };
            let mut is_assigned = false;
            for chunk in &mut self.chunk_list {
                if let Some(offset) = find_gap_from_chunk(&aligned, chunk) {
                    assigned[t] = (chunk.id, offset as usize);
                    chunk.records.push((aligned, offset));
                    is_assigned = true;
                    break;
                }
            }
            if !is_assigned {
                let scaled = (records[t].size as f64 * self.scale).ceil() as usize;
                let size = round_up(scaled.max(self.chunk_bytes), self.alignment) as i128;
                assigned[t] = (self.next_id, 0);
                self.chunk_list.push(TwinChunk {
                    id: self.next_id,
                    size,
                    idle: 0,
                    records: vec![(aligned, 0)],
                });
                self.next_id += 1;
            }
        }
        for chunk in &mut self.chunk_list {
            chunk.idle = if chunk.records.is_empty() { chunk.idle + 1 } else { 0 };
        }
        let limit = self.idle_limit;
        let (gone, kept) = self.chunk_list.drain(..).partition(|chunk| chunk.idle >= limit);
        self.chunk_list = kept;
        let gone: Vec<TwinChunk> = gone;
        (assigned, gone.iter().map(|chunk| chunk.id).collect())
    }
}
