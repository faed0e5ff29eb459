//! The last batches, and the sums of each second's batches.

use std::{collections::VecDeque, time::Duration};

use turbo_sched::{Candidate, Layout};

use super::{Ran, seconds::Seconds};

/// Most batches that are kept.
const BATCHES: usize = 128;
/// Most sequences of a batch whose lengths are kept.
pub const SEQUENCES: usize = 256;
/// Most seconds that are planned after one read: each plan delays the worker by a few dozen microseconds.
const PLANNED_AT_ONCE: usize = 24;

/// A batch that was computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Its number in its engine, from 0. Batches that were not recorded are not counted.
    pub number: u64,
    /// When it was done.
    pub done: Duration,
    /// Tokens of each of its first [`SEQUENCES`] sequences, in their order in the batch.
    pub seq_lens: Vec<u32>,
    /// Its size: inputs, tokens, and the longest sequence.
    pub candidate: Candidate,
    /// Inputs that waited when it was formed, its own among them.
    pub waiting: usize,
    /// The time that it was predicted to take.
    pub predicted: Duration,
    /// The time that it took.
    pub took: Duration,
    /// The longest time that one of its inputs had waited when it began.
    pub longest_wait: Duration,
    /// The mean time that its inputs had waited when it began.
    pub mean_wait: Duration,
}

/// The sums of the batches of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSecond {
    /// Batches that were done in it.
    pub batches: u64,
    /// Their inputs.
    pub inputs: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Their tokens if each input were padded to the longest of its batch.
    pub padded_tokens: u64,
    /// The time that they took; all of a batch's time counts in the second in which the batch ended.
    pub took: Duration,
    /// Most inputs that waited when a batch was formed.
    pub most_waiting: usize,
    /// The batch with the most tokens, as the layout counts them.
    pub largest: Candidate,
    /// Bytes of activations that were planned for that batch; `None` until the plan is read.
    pub planned_bytes: Option<usize>,
}

/// The last batches and the seconds, in memory that does not grow.
pub(super) struct Batches {
    last: VecDeque<Batch>,
    /// Buffers for the lengths of future batches.
    room: Vec<Vec<u32>>,
    next: u64,
    seconds: Seconds<BatchSecond>,
}

impl Default for Batches {
    fn default() -> Self {
        let room = std::iter::repeat_with(|| Vec::with_capacity(SEQUENCES)).take(BATCHES).collect();
        Self { last: VecDeque::with_capacity(BATCHES), room, next: 0, seconds: Seconds::default() }
    }
}

impl Batches {
    /// Records a batch that ended at `done`. Allocates nothing.
    pub(super) fn push(
        &mut self,
        done: Duration,
        layout: Layout,
        ran: Ran<'_, impl Iterator<Item = (u32, Duration)>>,
    ) {
        let Ran { candidate, waiting, predicted, took, inputs } = ran;
        self.seconds.at(done.as_secs()).add(layout, candidate, waiting, took);

        if self.room.is_empty()
            && let Some(oldest) = self.last.pop_front()
        {
            self.room.push(oldest.seq_lens);
        }
        let mut seq_lens = self.room.pop().expect("the ring gives back what it has taken");
        seq_lens.clear();
        let (mut all, mut longest_wait) = (Duration::ZERO, Duration::ZERO);
        for (seq_len, wait) in inputs {
            if seq_lens.len() < SEQUENCES {
                seq_lens.push(seq_len);
            }
            (all, longest_wait) = (all + wait, longest_wait.max(wait));
        }
        let mean_wait = all / u32::try_from(candidate.batch_size).unwrap_or(u32::MAX).max(1);
        let (number, candidate) = (self.next, *candidate);
        self.next += 1;
        self.last.push_back(Batch {
            number,
            done,
            seq_lens,
            candidate,
            waiting,
            predicted,
            took,
            longest_wait,
            mean_wait,
        });
    }

    /// Reads the footprints of the largest batches of a few seconds, the newest first.
    pub(super) fn plan(&mut self, mut footprint: impl FnMut(&Candidate) -> Option<usize>) {
        let mut open: [Option<(u64, &mut BatchSecond)>; PLANNED_AT_ONCE] = Default::default();
        for (second, value) in self.seconds.iter_mut().filter(|(_, value)| value.planned_bytes.is_none()) {
            let oldest = open.iter_mut().min_by_key(|slot| slot.as_ref().map(|(second, _)| *second));
            if let Some(slot) = oldest.filter(|slot| slot.as_ref().is_none_or(|(other, _)| *other < second)) {
                *slot = Some((second, value));
            }
        }
        for (_, value) in open.into_iter().flatten() {
            value.planned_bytes = footprint(&value.largest);
        }
    }

    pub(super) fn last(&self) -> Vec<Batch> {
        self.last.iter().cloned().collect()
    }

    pub(super) fn seconds(&self, now: Duration) -> Vec<(u64, BatchSecond)> {
        self.seconds.until(now.as_secs())
    }
}

impl BatchSecond {
    fn add(&mut self, layout: Layout, batch: &Candidate, waiting: usize, took: Duration) {
        self.batches += 1;
        self.inputs += batch.batch_size as u64;
        self.tokens += batch.total_tokens;
        self.padded_tokens += batch.padded_tokens();
        self.took += took;
        self.most_waiting = self.most_waiting.max(waiting);
        if self.batches == 1 || layout.tokens(batch) > layout.tokens(&self.largest) {
            (self.largest, self.planned_bytes) = (*batch, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::seconds::SECONDS, *};

    const MS: Duration = Duration::from_millis(1);

    fn ran(batches: &mut Batches, done: Duration, lens: &[u32], waiting: usize) {
        let candidate = lens.iter().copied().collect();
        let inputs = lens.iter().map(|&len| (len, MS * len));
        let ran = Ran { candidate: &candidate, waiting, predicted: MS * 3, took: MS * 4, inputs };
        batches.push(done, Layout::Packed, ran);
    }

    #[test]
    fn a_batch_is_told_as_it_was() {
        let mut batches = Batches::default();
        ran(&mut batches, MS * 1500, &[3, 9, 6], 5);
        let batch = &batches.last()[0];
        assert_eq!((batch.number, batch.done, batch.waiting), (0, MS * 1500, 5));
        assert_eq!(batch.seq_lens, [3, 9, 6]);
        assert_eq!((batch.predicted, batch.took), (MS * 3, MS * 4));
        assert_eq!((batch.longest_wait, batch.mean_wait), (MS * 9, MS * 6));
    }

    #[test]
    fn the_ring_is_bounded_and_so_is_a_batch() {
        let mut batches = Batches::default();
        let capacity = batches.last.capacity();
        let lengths = |batches: &Batches| {
            batches.last.iter().map(|batch| batch.seq_lens.as_ptr()).collect::<BTreeSet<_>>()
        };
        let mut places = BTreeSet::new();
        for number in 0..3 * BATCHES {
            ran(&mut batches, MS, &vec![number as u32 + 1; SEQUENCES + number % 2], 0);
            places.extend(lengths(&batches));
        }
        assert_eq!(
            (batches.last.capacity(), places.len()),
            (capacity, BATCHES),
            "all memory is taken at start"
        );
        let last = batches.last();
        assert_eq!(last.len(), BATCHES);
        assert_eq!((last[0].number, last[BATCHES - 1].number), (2 * BATCHES as u64, 3 * BATCHES as u64 - 1));
        for batch in last {
            let number = batch.number as usize;
            assert_eq!(batch.seq_lens, [number as u32 + 1; SEQUENCES]);
            assert_eq!(batch.candidate.batch_size, SEQUENCES + number % 2);
        }
    }

    #[test]
    fn seconds_add_up_and_plans_are_of_their_largest_batch() {
        let mut batches = Batches::default();
        ran(&mut batches, MS * 1100, &[4, 2], 2);
        ran(&mut batches, MS * 1900, &[5, 5, 1], 7);
        ran(&mut batches, MS * 1950, &[1], 1);
        batches.plan(|batch| Some(batch.total_tokens as usize * 10));
        let (second, sum) = batches.seconds(MS * 2000)[0];
        assert_eq!(second, 1);
        let largest: Candidate = [5, 5, 1].into_iter().collect();
        let expected = BatchSecond {
            batches: 3,
            inputs: 6,
            tokens: 18,
            padded_tokens: 8 + 15 + 1,
            took: MS * 12,
            most_waiting: 7,
            largest,
            planned_bytes: Some(110),
        };
        assert_eq!(sum, expected);
        ran(&mut batches, MS * 1960, &[12], 1);
        assert_eq!(batches.seconds(MS * 2000)[0].1.planned_bytes, None, "another one is the largest");
    }

    #[test]
    fn the_newest_seconds_are_planned_first() {
        let mut batches = Batches::default();
        let seconds = 3 * PLANNED_AT_ONCE as u64;
        // from the middle of the ring on, so that the oldest is not its first
        for second in 0..seconds {
            ran(&mut batches, Duration::from_secs(SECONDS - 10 + second), &[1], 1);
        }
        let planned = |batches: &Batches| {
            let of = batches.seconds(Duration::from_secs(SECONDS - 10 + seconds));
            of.iter().rev().map(|(_, sum)| sum.planned_bytes.is_some()).collect::<Vec<_>>()
        };
        for look in 1..=3 {
            batches.plan(|_| Some(1));
            let expected: Vec<_> = (0..seconds as usize).map(|age| age < look * PLANNED_AT_ONCE).collect();
            assert_eq!(planned(&batches), expected);
        }
    }
}
