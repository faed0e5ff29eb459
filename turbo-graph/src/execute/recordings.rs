//! Launches of small batches, noted once and enqueued all at once from then on.
//!
//! A small batch on a GPU takes its device less time than enqueuing its kernels one by one takes the host. So what is
//! launched for a bucket of sizes is noted when it comes a second time, and replayed after that. Noted are addresses and
//! sizes: a batch runs with the sizes of its bucket, whose rows are an eighth more at most (or rounded up to 16); the
//! sequences that it lacks are empty, and the rows that it lacks belong to none. The lengths themselves are read from
//! memory.

use std::collections::HashMap;

use turbo_kernels::Device;

use super::OutputSet;
use crate::{GraphError, bind::Capacity, dim::Extents, program::LayoutKind};

/// Batches of more rows keep a device busy for longer than their launches take.
const MOST_ROWS: usize = 4096;
/// Recordings kept; when there are as many, all go.
const MOST_RECORDINGS: usize = 256;

/// What was noted, by the sizes that it was noted for and the outputs that it computes.
pub(super) struct Recordings<D: Device> {
    known: HashMap<(Capacity, OutputSet), Known<D::Recording>>,
}

enum Known<R> {
    /// Such a batch ran once. The first one is launched as ever, so that scratch has grown and code has been compiled
    /// when the second is noted.
    Once,
    Noted(R),
}

impl<D: Device> Recordings<D> {
    pub(super) fn new() -> Self {
        Recordings { known: HashMap::new() }
    }

    /// The sizes that a batch runs with, if it is one that is noted: `bucket` is what it is planned for.
    pub(super) fn fixed(device: &D, layout: LayoutKind, bucket: Capacity, batch: Extents) -> Option<Extents> {
        let is_small = bucket.total_tokens <= MOST_ROWS && batch.selected_rows == 0;
        (device.records() && layout == LayoutKind::Packed && is_small).then_some(Extents {
            batch_size: bucket.batch_size,
            total_tokens: bucket.total_tokens,
            ..batch
        })
    }

    /// Has a batch that was planned for `bucket` computed by `work`, or by what was noted of it.
    pub(super) fn run(
        &mut self,
        device: &D,
        queue: &mut D::Queue,
        (bucket, outputs): (Capacity, OutputSet),
        mut work: impl FnMut(&mut D::Queue) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let key = (bucket, outputs);
        match self.known.get(&key) {
            Some(Known::Noted(recording)) if device.replay(queue, recording)? => return Ok(()),
            None => {
                work(queue)?;
                self.keep(key, Known::Once);
                return Ok(());
            }
            Some(_) => {}
        }
        match device.record(queue, &mut work)? {
            // a device that notes nothing has computed
            None => Ok(()),
            Some(recording) if device.replay(queue, &recording)? => {
                self.keep(key, Known::Noted(recording));
                Ok(())
            }
            // memory moved while it was noted: the next batch like this will find it at rest
            Some(_) => work(queue),
        }
    }

    fn keep(&mut self, key: (Capacity, OutputSet), known: Known<D::Recording>) {
        if self.known.len() >= MOST_RECORDINGS && !self.known.contains_key(&key) {
            self.known.clear();
        }
        self.known.insert(key, known);
    }
}
