//! What a plan has placed in each chunk so far, and the search for the best gap.
//!
//! Source: Fang et al., PPoPP'21, Algorithm 1, `FindGapFromChunk`, after "greedy by size for offset
//! calculation" (Pisarchyk and Lee, 2020). What the paper leaves unsaid: records are visited by
//! ascending offset, and a placed record is inserted among them. Its tail test (line 15) must read
//! `chunk_size − prev_offset ≥ size`; the arXiv version prints ≤.
//!
//! All chunks share one buffer: a shelf is a list linked through it. So chunks may come and go
//! without a buffer of their own, and planning allocates nothing once the buffer is large enough.

use std::ops::RangeInclusive;

/// A record with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) first_op: u32,
    pub(crate) last_op: u32,
    /// Bytes from the start of the chunk.
    pub(crate) offset: usize,
    /// `offset` plus the aligned size.
    pub(crate) end: usize,
}

/// Position in [`Shelves::records`].
type Link = Option<u32>;

/// One chunk's records by ascending offset: the head of their list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shelf {
    lowest: Link,
}

impl Shelf {
    pub(crate) fn is_empty(self) -> bool {
        self.lowest.is_none()
    }
}

/// The records of all chunks, in order of placement, each linked to the next higher one of its chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelves {
    records: Vec<(Record, Link)>,
}

impl Shelves {
    /// Forgets all records; every `Shelf` has to be emptied too.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
    }

    /// Offset of the smallest gap of at least `size` bytes that is free during all of `life`, of
    /// equals the lowest; the room behind the last record counts only when no gap before it fits.
    pub(crate) fn find_gap(
        &self,
        shelf: Shelf,
        chunk_bytes: usize,
        life: RangeInclusive<u32>,
        size: usize,
    ) -> Option<usize> {
        let mut smallest_gap = usize::MAX;
        let mut best_offset = None;
        let mut prev_end = 0; // everything below is taken, or was offered as a gap
        for record in self.iter(shelf) {
            if record.first_op > *life.end() || record.last_op < *life.start() {
                continue; // never alive together
            }
            // records that do not meet each other may overlap: then there is no gap at all
            if let Some(gap) = record.offset.checked_sub(prev_end)
                && gap >= size
                && gap < smallest_gap
            {
                smallest_gap = gap;
                best_offset = Some(prev_end);
            }
            prev_end = prev_end.max(record.end);
        }
        best_offset.or_else(|| (chunk_bytes - prev_end >= size).then_some(prev_end))
    }

    /// Links the record behind those of its chunk that do not lie higher.
    pub(crate) fn insert(&mut self, shelf: &mut Shelf, record: Record) {
        let new = Some(self.records.len() as u32);
        let (mut below, mut above) = (None, shelf.lowest);
        while let Some(at) = above {
            let (other, next) = self.records[at as usize];
            if other.offset > record.offset {
                break;
            }
            (below, above) = (Some(at), next);
        }
        self.records.push((record, above));
        match below {
            Some(at) => self.records[at as usize].1 = new,
            None => shelf.lowest = new,
        }
    }

    fn iter(&self, shelf: Shelf) -> impl Iterator<Item = &Record> {
        let mut link = shelf.lowest;
        std::iter::from_fn(move || {
            let (record, next) = &self.records[link? as usize];
            link = *next;
            Some(record)
        })
    }
}
