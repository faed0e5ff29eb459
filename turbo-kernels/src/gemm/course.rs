//! The order in which the pieces of a product, or of several that follow each other, are claimed.
//!
//! ```text
//! pack 0 │ multiply 0 │ pack 1 │ normalise 0 │ multiply 1 │ pack 2 │ normalise 1 │ …
//! ```
//!
//! Rows are cut into groups; each goes through the same stages, and a stage has the same number of pieces in every
//! group. A piece begins when the stage before it is done in its group, so nobody waits for all threads between stages,
//! and the first stage of the next group fills what waiting there is. Pieces are claimed in ascending order and wait
//! for earlier ones only, so somebody always gets on.

use std::sync::atomic::{AtomicUsize, Ordering::*};

use crate::device::{Team, look};

/// Groups whose intermediate results are alive at once: the one being finished, the one being worked on, and the next.
pub(crate) const RING: usize = 3;
/// A piece of a [`Course`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which rows.
    pub(crate) group: usize,
    /// Which stage.
    pub(crate) stage: usize,
    /// Which part of the stage.
    pub(crate) index: usize,
}

/// Groups that go through `STAGES` stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course<const STAGES: usize> {
    /// How many groups.
    pub(crate) groups: usize,
    /// Pieces of each stage in each group; a stage may have none.
    pub(crate) pieces: [usize; STAGES],
    /// A stage whose results have room for one group, and the stage that is the last to read them: the first waits for
    /// the second to be done in the group before.
    pub(crate) one_room: Option<[usize; 2]>,
}

impl<const STAGES: usize> Course<STAGES> {
    /// Calls `work(thread, piece)` once for each piece, with all threads of the team. A piece runs when the stages before
    /// its own are done in its group, and all of them in the group [`RING`] before; [`Course::one_room`] may say more.
    ///
    /// # Panics
    /// When `work` panicked, with its payload.
    pub(crate) fn run(&self, team: &mut Team, work: impl Fn(usize, Piece) + Sync) {
        let done = [const { Done([const { AtomicUsize::new(0) }; STAGES]) }; RING];
        team.for_each_piece(self.count(), |thread, number| {
            let Some(piece) = self.piece(number) else { return };
            self.wait(&done, piece);
            // counted even if the work panics: who waits for it must not wait forever
            let _finished = Count(&done[piece.group % RING].0[piece.stage]);
            work(thread, piece);
        });
    }

    /// Numbers of pieces, of which some stand for none.
    fn count(&self) -> usize {
        if self.groups == 0 {
            return 0;
        }
        self.pieces[0] + self.groups * self.pieces.iter().sum::<usize>()
    }

    /// Piece `number` in the order of claiming; none behind the last group.
    fn piece(&self, number: usize) -> Option<Piece> {
        let first = self.pieces[0];
        let Some(number) = number.checked_sub(first) else {
            return Some(Piece { group: 0, stage: 0, index: number });
        };
        let of_group: usize = self.pieces.iter().sum();
        let (group, mut index) = (number / of_group, number % of_group);
        for stage in 1..STAGES {
            if index < self.pieces[stage] {
                return Some(Piece { group, stage, index });
            }
            index -= self.pieces[stage];
            if stage == 1 {
                if index < first {
                    let group = group + 1;
                    return (group < self.groups).then_some(Piece { group, stage: 0, index });
                }
                index -= first;
            }
        }
        unreachable!("a group has {of_group} pieces")
    }

    /// Returns when what `piece` needs is there.
    fn wait(&self, done: &[Done<STAGES>; RING], piece: Piece) {
        let Piece { group, stage, .. } = piece;
        let slot = &done[group % RING].0;
        // the counters of a slot go on counting from one of its groups to the next
        let laps = group / RING;
        let earlier = slot[..stage].iter().zip(&self.pieces);
        earlier.for_each(|(count, &pieces)| wait_for(count, (laps + 1) * pieces));
        let all = slot.iter().zip(&self.pieces);
        all.for_each(|(count, &pieces)| wait_for(count, laps * pieces));
        if let (Some([writer, reader]), Some(before)) = (self.one_room, group.checked_sub(1))
            && stage == writer
        {
            wait_for(&done[before % RING].0[reader], (before / RING + 1) * self.pieces[reader]);
        }
    }
}

/// Finished pieces of each stage of one slot of the ring.
#[repr(align(128))]
struct Done<const STAGES: usize>([AtomicUsize; STAGES]);

/// Counts when it is dropped.
struct Count<'a>(&'a AtomicUsize);

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Release);
    }
}

fn wait_for(count: &AtomicUsize, target: usize) {
    let mut looks = 0;
    while count.load(Acquire) < target {
        look(&mut looks);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, num::NonZeroUsize, sync::Mutex, thread::yield_now};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In the order of claiming everything that a piece waits for comes before it, so a course cannot hang.
        #[test]
        fn pieces_come_once_and_after_what_they_need(
            groups in 0..9usize, pieces in prop::array::uniform4(0..5usize),
        ) {
            prop_assume!(pieces.iter().sum::<usize>() > 0);
            let course = Course { groups, pieces, one_room: None };
            let all: Vec<Piece> = (0..course.count()).filter_map(|number| course.piece(number)).collect();
            prop_assert_eq!(all.len(), groups * pieces.iter().sum::<usize>());
            for (at, piece) in all.iter().enumerate() {
                prop_assert!(piece.group < groups && piece.index < pieces[piece.stage]);
                prop_assert!(!all[..at].contains(piece));
                for later in &all[..at] {
                    prop_assert!(later.group != piece.group || later.stage <= piece.stage);
                    prop_assert!(later.group < piece.group + RING);
                }
            }
        }

        #[test]
        fn stages_wait_for_the_stages_before(
            threads in 1..4usize, groups in 1..9usize, pieces in prop::array::uniform3(0..4usize),
        ) {
            prop_assume!(pieces.iter().sum::<usize>() > 0);
            let mut team = Team::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let seen = Mutex::new(HashSet::new());
            Course { groups, pieces, one_room: Some([1, 2]) }.run(&mut team, |_, Piece { group, stage, index }| {
                let before = {
                    let seen = seen.lock().unwrap();
                    let of = |group: usize, stages: usize| {
                        (0..stages).all(|s| (0..pieces[s]).all(|i| seen.contains(&(group, s, i))))
                    };
                    let room = stage != 1 || group == 0 || pieces[2] == 0 || of(group - 1, 3);
                    of(group, stage) && room && (group < RING || of(group - RING, 3))
                };
                assert!(before, "{group} {stage} {index}");
                yield_now();
                assert!(seen.lock().unwrap().insert((group, stage, index)));
            });
            prop_assert_eq!(seen.lock().unwrap().len(), groups * pieces.iter().sum::<usize>());
        }
    }

    #[test]
    fn a_panic_hangs_nobody() {
        for threads in 1..4 {
            let mut team = Team::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let course = Course { groups: 5, pieces: [2, 3, 1], one_room: None };
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                course.run(&mut team, |_, piece| assert!(piece.stage != 1, "a bad piece"));
            }));
            assert!(caught.is_err());
        }
    }
}
