//! Launches of small batches, recorded once and enqueued all at once from then on.
//!
//! A GPU computes a small batch in less time than the host takes to enqueue its kernels one by one. So the launches for
//! a bucket of sizes are recorded when the bucket occurs a second time, and replayed after that. A recording fixes
//! addresses and sizes: a batch runs with the sizes of its bucket, which has at most an eighth more rows (or is rounded
//! up to a multiple of 16). The sequences that the batch lacks are empty, and the rows that it lacks belong to no
//! sequence. The lengths themselves are read from memory.

use std::collections::HashMap;

use turbo_kernels::Device;

use super::OutputSet;
use crate::{GraphError, bind::Capacity, dim::Extents, program::LayoutKind};

/// Batches of more rows keep a device busy for longer than their launches take.
const MOST_ROWS: usize = 4096;
/// The most recordings kept; when there are this many, all are dropped.
const MOST_RECORDINGS: usize = 256;

/// The recordings, by the sizes that they were made for and the outputs that they compute.
pub(super) struct Recordings<D: Device> {
    known: HashMap<(Capacity, OutputSet), Known<D::Recording>>,
}

enum Known<R> {
    /// Such a batch ran once. The first is launched without recording, so that scratch has grown and code has been
    /// compiled when the second is recorded.
    Once,
    Recorded(R),
    /// The device could not record it, or replay what it had recorded.
    Never,
}

impl<D: Device> Recordings<D> {
    pub(super) fn new() -> Self {
        Recordings { known: HashMap::new() }
    }

    /// The sizes that a batch runs with if it is recorded; `bucket` is what it is planned for. One sequence may have
    /// all the rows, so that is the longest length.
    pub(super) fn fixed(device: &D, layout: LayoutKind, bucket: Capacity, batch: Extents) -> Option<Extents> {
        let is_small = bucket.total_tokens <= MOST_ROWS && batch.selected_rows == 0;
        (device.records() && layout == LayoutKind::Packed && is_small).then_some(Extents {
            batch_size: bucket.batch_size,
            total_tokens: bucket.total_tokens,
            padded_len: bucket.total_tokens,
            ..batch
        })
    }

    /// Computes a batch that was planned for `bucket`, by `work` or by its recording. If it cannot be recorded or
    /// replayed, `work` launches it, and all later ones like it: a recording saves time and nothing else.
    pub(super) fn run(
        &mut self,
        device: &D,
        queue: &mut D::Queue,
        (bucket, outputs): (Capacity, OutputSet),
        mut work: impl FnMut(&mut D::Queue) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let key = (bucket, outputs);
        match self.known.get(&key) {
            Some(Known::Once | Known::Recorded(_)) => {}
            Some(Known::Never) => return work(queue),
            None => {
                work(queue)?;
                self.keep(key, Known::Once);
                return Ok(());
            }
        }
        match self.replay(device, queue, key, &mut work) {
            Ok(true) => Ok(()),
            // memory moved during the recording; for the next batch of this kind it will have settled
            Ok(false) => work(queue),
            Err(lost) if lost.is_lost_device() => Err(lost),
            Err(_) => {
                // an error of the work itself recurs here, and then recording may be tried again
                work(queue)?;
                self.keep(key, Known::Never);
                Ok(())
            }
        }
    }

    /// Replays the recording for `key`, or makes and replays it; returns whether the work is done.
    fn replay(
        &mut self,
        device: &D,
        queue: &mut D::Queue,
        key: (Capacity, OutputSet),
        work: impl FnOnce(&mut D::Queue) -> Result<(), GraphError>,
    ) -> Result<bool, GraphError> {
        if let Some(Known::Recorded(recording)) = self.known.get(&key)
            && device.replay(queue, recording)?
        {
            return Ok(true);
        }
        // a device that does not record has done the work by now
        let Some(recording) = device.record(queue, work)? else { return Ok(true) };
        let is_done = device.replay(queue, &recording)?;
        if is_done {
            self.keep(key, Known::Recorded(recording));
        }
        Ok(is_done)
    }

    fn keep(&mut self, key: (Capacity, OutputSet), known: Known<D::Recording>) {
        if self.known.len() >= MOST_RECORDINGS && !self.known.contains_key(&key) {
            self.known.clear();
        }
        self.known.insert(key, known);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use turbo_kernels::{DeviceError, Element, Span};

    use super::*;

    /// What a device cannot do.
    #[derive(Clone, Copy)]
    enum Fails {
        Record,
        Replay,
        Everything,
    }

    impl Fails {
        fn error(self) -> DeviceError {
            let (what, why) = ("replay a recording", "it cannot".to_owned());
            match self {
                Fails::Everything => DeviceError::Lost { what, why },
                Fails::Record | Fails::Replay => DeviceError::Failed { what, why },
            }
        }
    }

    /// A device that only records. Its queue is a log; a recording is what the log would have had.
    #[derive(Clone, Default)]
    pub(in crate::execute) struct Recorder {
        records: bool,
        fails: Option<Fails>,
        frees: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    }

    impl Recorder {
        fn frees(&self) -> usize {
            self.frees.load(std::sync::atomic::Ordering::Relaxed)
        }

        fn free(&self) {
            self.frees.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    pub(in crate::execute) struct Recorded {
        done: Vec<&'static str>,
        frees: usize,
    }

    impl Device for Recorder {
        type Float = f32;
        type Block = ();
        type Queue = Vec<&'static str>;
        type View<'a, T: Element> = ();
        type ViewMut<'a, T: Element> = ();
        type Recording = Recorded;
        type Landing = std::convert::Infallible;

        fn name(&self) -> String {
            "recorder".to_owned()
        }

        fn queue(&self) -> Result<Self::Queue, DeviceError> {
            Ok(Vec::new())
        }

        fn records(&self) -> bool {
            true
        }

        fn record<E: From<DeviceError>>(
            &self,
            queue: &mut Self::Queue,
            work: impl FnOnce(&mut Self::Queue) -> Result<(), E>,
        ) -> Result<Option<Recorded>, E> {
            if !self.records {
                return work(queue).map(|()| None);
            }
            let (mut done, frees) = (Vec::new(), self.frees());
            work(&mut done)?;
            if let Some(fails @ Fails::Record) = self.fails {
                return Err(fails.error().into());
            }
            Ok(Some(Recorded { done, frees }))
        }

        fn replay(&self, queue: &mut Self::Queue, recording: &Recorded) -> Result<bool, DeviceError> {
            if let Some(fails) = self.fails {
                return Err(fails.error());
            }
            let fresh = recording.frees == self.frees();
            if fresh {
                queue.push("replay");
                queue.extend(&recording.done);
            }
            Ok(fresh)
        }

        fn allocate(&self, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }

        fn view<'a, T: Element>(
            &self,
            (): &'a (),
            _: usize,
            _: usize,
        ) -> Result<Self::View<'a, T>, DeviceError> {
            Ok(())
        }

        fn view_mut<'a, T: Element>(
            &self,
            (): &'a mut (),
            _: usize,
            _: usize,
        ) -> Result<Self::ViewMut<'a, T>, DeviceError> {
            Ok(())
        }

        fn views<'a, const R: usize, const W: usize>(
            &self,
            _: &'a mut [()],
            _: [Span; R],
            _: [Span; W],
        ) -> Result<([Self::View<'a, f32>; R], [Self::ViewMut<'a, f32>; W]), DeviceError> {
            Ok(([(); R], [(); W]))
        }

        fn upload<T: Element>(&self, _: &mut Self::Queue, _: &[T], (): ()) -> Result<(), DeviceError> {
            Ok(())
        }

        fn download<T: Element>(
            &self,
            queue: &mut Self::Queue,
            (): (),
            _: &mut [T],
        ) -> Result<(), DeviceError> {
            queue.push("download");
            Ok(())
        }
    }

    fn bucket(total_tokens: usize) -> Capacity {
        Capacity { batch_size: 4, total_tokens, ..Capacity::default() }
    }

    /// What a batch of `bucket` does on the queue.
    fn run(recordings: &mut Recordings<Recorder>, device: &Recorder, bucket: Capacity) -> Vec<&'static str> {
        let mut queue = Vec::new();
        let work = |queue: &mut Vec<&'static str>| {
            queue.push("launch");
            Ok(())
        };
        recordings.run(device, &mut queue, (bucket, OutputSet::ALL), work).unwrap();
        queue
    }

    #[test]
    fn the_second_batch_of_a_bucket_is_recorded_and_later_ones_are_replayed() {
        let (device, mut recordings) = (Recorder { records: true, ..Recorder::default() }, Recordings::new());
        for tokens in [16, 32] {
            assert_eq!(run(&mut recordings, &device, bucket(tokens)), ["launch"]);
            for _ in 0..3 {
                assert_eq!(run(&mut recordings, &device, bucket(tokens)), ["replay", "launch"]);
            }
        }
        // memory was given back: recorded anew, once
        device.free();
        let recorded = Cell::new(0);
        let mut queue = Vec::new();
        for _ in 0..2 {
            let work = |queue: &mut Vec<&'static str>| {
                recorded.set(recorded.get() + 1);
                queue.push("anew");
                Ok(())
            };
            recordings.run(&device, &mut queue, (bucket(16), OutputSet::ALL), work).unwrap();
        }
        assert_eq!((queue, recorded.get()), (vec!["replay", "anew", "replay", "anew"], 1));
    }

    #[test]
    fn what_frees_memory_while_it_is_recorded_is_done_as_ever() {
        let (device, mut recordings) = (Recorder { records: true, ..Recorder::default() }, Recordings::new());
        run(&mut recordings, &device, bucket(16));
        let mut queue = Vec::new();
        let work = |queue: &mut Vec<&'static str>| {
            device.free();
            queue.push("grows");
            Ok(())
        };
        recordings.run(&device, &mut queue, (bucket(16), OutputSet::ALL), work).unwrap();
        assert_eq!(queue, ["grows"]);
        assert_eq!(run(&mut recordings, &device, bucket(16)), ["replay", "launch"]);
    }

    #[test]
    fn a_device_that_notes_nothing_computes_every_time() {
        let (device, mut recordings) = (Recorder::default(), Recordings::new());
        for _ in 0..3 {
            assert_eq!(run(&mut recordings, &device, bucket(16)), ["launch"]);
        }
    }

    #[test]
    fn what_cannot_be_recorded_is_done_as_ever() {
        let device = Recorder { records: true, ..Recorder::default() };
        let failing = |fails| Recorder { fails: Some(fails), ..device.clone() };
        for fails in [Fails::Record, Fails::Replay] {
            let mut recordings = Recordings::new();
            for _ in 0..3 {
                assert_eq!(run(&mut recordings, &failing(fails), bucket(16)), ["launch"]);
            }
            // nor is it tried again
            assert_eq!(run(&mut recordings, &device, bucket(16)), ["launch"]);
        }
        // one that was replayed before
        let mut recordings = Recordings::new();
        for _ in 0..2 {
            run(&mut recordings, &device, bucket(16));
        }
        for device in [&failing(Fails::Replay), &device] {
            assert_eq!(run(&mut recordings, device, bucket(16)), ["launch"]);
        }
    }

    #[test]
    fn a_lost_device_and_work_that_fails_are_errors() {
        let (mut device, mut recordings) =
            (Recorder { records: true, ..Recorder::default() }, Recordings::new());
        run(&mut recordings, &device, bucket(16));
        let mut fail = |device: &Recorder, error: fn() -> GraphError| {
            let (mut queue, mut launched) = (Vec::new(), 0);
            let work = |_: &mut Vec<&'static str>| {
                launched += 1;
                Err(error())
            };
            let failed = recordings.run(device, &mut queue, (bucket(16), OutputSet::ALL), work);
            (failed.unwrap_err().is_lost_device(), launched)
        };
        assert_eq!(fail(&device, || DeviceError::OutOfMemory { bytes: 1 }.into()), (false, 2));
        assert_eq!(
            fail(&device, || Fails::Everything.error().into()),
            (true, 1),
            "nothing is launched after"
        );
        // neither was the recording's fault
        assert_eq!(run(&mut recordings, &device, bucket(16)), ["replay", "launch"]);
        device.fails = Some(Fails::Everything);
        let mut queue = Vec::new();
        let lost = recordings.run(&device, &mut queue, (bucket(16), OutputSet::ALL), |_| Ok(()));
        assert!(lost.unwrap_err().is_lost_device() && queue.is_empty());
    }

    #[test]
    fn recordings_do_not_pile_up() {
        let (device, mut recordings) = (Recorder { records: true, ..Recorder::default() }, Recordings::new());
        for tokens in 0..3 * MOST_RECORDINGS {
            run(&mut recordings, &device, bucket(tokens));
            assert!(recordings.known.len() <= MOST_RECORDINGS);
        }
    }

    #[test]
    fn only_small_packed_batches_run_with_other_sizes() {
        let batch = Extents::of(&[5, 7]);
        let fixed = |tokens, layout| Recordings::fixed(&Recorder::default(), layout, bucket(tokens), batch);
        let sizes = fixed(16, LayoutKind::Packed).map(|extents| (extents.batch_size, extents.total_tokens));
        assert_eq!(sizes, Some((4, 16)));
        assert_eq!(
            fixed(16, LayoutKind::Packed).map(|extents| extents.padded_len),
            Some(16),
            "of one sequence"
        );
        assert_eq!(fixed(16, LayoutKind::Padded), None);
        assert_eq!(fixed(MOST_ROWS + 1, LayoutKind::Packed), None);
    }
}
