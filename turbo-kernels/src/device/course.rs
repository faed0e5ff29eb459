//! The order in which threads claim the pieces of an operator that has one step, or several that follow each other.
//!
//! ```text
//! pack 0 │ multiply 0 │ pack 1 │ normalise 0 │ multiply 1 │ pack 2 │ normalise 1 │ …
//! ```
//!
//! Rows are cut into groups. Each group goes through the same stages, and a stage has the same number of pieces in
//! every group. A piece begins when the earlier stages of its group are done, so stages need no barrier of all threads,
//! and the first stage of the next group fills the remaining waits. Stages are claimed in ascending order and wait for
//! earlier ones only, so some thread always makes progress.
//!
//! Where there are enough rows, each thread has a track, that is, groups of its own, and finds what one stage left in
//! its caches when it runs the next. A thread that has finished its track helps on the others, as far as the course
//! allows.
//!
//! Where several threads share a track, the piece that a claim stands for depends on the thread. Each thread has a run
//! of neighbouring pieces, and takes from the far end of the others' runs when its own is used up. So one thread reads
//! panels that follow each other in memory, and its prefetches reach into the panel that it reads next.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use super::team::{Team, look};

/// Groups whose intermediate results are alive at once: the one being finished, the one being worked on, and the next.
pub(crate) const RING: usize = 3;
/// The most shares of pieces: each thread has its own, unless there are more threads than shares.
const SHARES: usize = 16;
/// The most tracks of a course.
pub(crate) const MOST_TRACKS: usize = SHARES;

/// Rows that go through the stages together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// The track that the rows are on.
    pub(crate) track: usize,
    /// The group's number on the track.
    pub(crate) number: usize,
}

/// A piece of a [`Course`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    /// Which rows.
    pub(crate) group: Group,
    /// Which stage.
    pub(crate) stage: usize,
    /// Which part of the stage.
    pub(crate) index: usize,
}

/// Pieces of a stage in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stage {
    /// The first pieces: each thread of the track has a run of them.
    pub(crate) shared: usize,
    /// The last pieces, which go in order to the next free thread.
    pub(crate) free: usize,
}

impl Stage {
    /// A stage whose pieces are all shared out.
    pub(crate) fn shared(pieces: usize) -> Stage {
        Stage { shared: pieces, free: 0 }
    }

    /// The number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        self.shared + self.free
    }
}

/// A stage whose results have room for one group only. It waits until the stage that reads them last is done in the
/// group before. Writer and last reader may be one stage, whose groups then run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneRoom {
    /// The stage that waits. It has pieces: without one, no thread would wait.
    pub(crate) writer: usize,
    /// The writer, or a stage behind it.
    pub(crate) last_reader: usize,
}

/// Tracks of groups that go through `STAGES` stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course<const STAGES: usize> {
    /// The number of tracks, from 1 to [`MOST_TRACKS`].
    pub(crate) tracks: usize,
    /// The number of groups on each track.
    pub(crate) groups: usize,
    /// The pieces of each stage in one group. A stage may have none.
    pub(crate) stages: [Stage; STAGES],
    /// The stage with room for one group only, if there is one.
    pub(crate) one_room: Option<OneRoom>,
    /// How many of the last pieces of a track helpers leave to the threads whose track it is.
    pub(crate) left_to_owners: usize,
}

impl<const STAGES: usize> Course<STAGES> {
    /// A course in which every stage has room for several groups, and helpers leave nothing.
    pub(crate) fn new(tracks: usize, groups: usize, stages: [Stage; STAGES]) -> Self {
        Course { tracks, groups, stages, one_room: None, left_to_owners: 0 }
    }

    /// Calls `work(thread, piece)` once for each piece, on all threads of the team. A piece runs when the earlier
    /// stages of its group are done, and all stages of the group [`RING`] before; [`Course::one_room`] may add a
    /// condition.
    ///
    /// # Panics
    /// When `work` panicked, with its payload. When a stage has 2²⁴ pieces or more that are shared out.
    pub(crate) fn run(&self, team: &mut Team, work: impl Fn(usize, Piece) + Sync) {
        for stage in self.stages {
            let (shared, most) = (stage.shared as u64, Share::<STAGES>::COUNT);
            assert!(
                shared <= most,
                "a stage of {shared} pieces that are shared out, at most {most} are possible"
            );
        }
        debug_assert!(
            self.one_room.is_none_or(|room| self.stages[room.writer].pieces() > 0),
            "who has no pieces does not wait"
        );
        let tracks = [const { Track::<STAGES>::new() }; MOST_TRACKS];
        let shares = [const { Share::<STAGES>::new() }; SHARES];
        let shares = &shares[..team.threads().min(SHARES)];
        // a worker that comes late finds nothing to do
        let workers = shares.len().min(self.tracks * self.count());
        team.for_each_piece(if workers > 1 { team.threads() } else { workers }, |thread, _| {
            let share = thread % shares.len();
            let own = share * self.tracks / shares.len();
            tracks[own].has_owner.store(true, Relaxed);
            for number in (own..self.tracks).chain(0..own) {
                let track = &tracks[number];
                // an owner follows its track to the end; a track whose owner has not come is done by whoever helps
                let helps = number != own && track.has_owner.load(Relaxed);
                let left = if helps { self.left_to_owners } else { 0 };
                self.follow((number, left), track, shares, share, |piece| work(thread, piece));
            }
        });
    }

    /// Works on a track until at most `left` claims are left.
    fn follow(
        &self,
        (number, left): (usize, usize),
        track: &Track<STAGES>,
        shares: &[Share<STAGES>],
        own: usize,
        work: impl Fn(Piece),
    ) {
        while track.claims.load(Relaxed) + left < self.count() {
            let Some(claim) = self.claim(number, track.claims.fetch_add(1, Relaxed)) else { continue };
            self.wait(&track.done, claim);
            let piece = self.piece(claim, shares, own);
            // counted even if the work panics, or threads that wait for it would wait forever
            let _finished = CountWhenDropped(&track.done[piece.group.number % RING].0[piece.stage]);
            work(piece);
        }
    }

    /// The number of claims of a track, some of which stand for no piece.
    fn count(&self) -> usize {
        if self.groups == 0 {
            return 0;
        }
        self.stages[0].pieces() + self.groups * self.pieces_of_group()
    }

    fn pieces_of_group(&self) -> usize {
        self.stages.iter().map(Stage::pieces).sum()
    }

    /// Claim `number` of a track. Its index is the number of claims of its stage and group before it. `None` behind the
    /// last group.
    fn claim(&self, track: usize, number: usize) -> Option<Piece> {
        let piece = |number, stage, index| Piece { group: Group { track, number }, stage, index };
        let first = self.stages[0].pieces();
        let Some(number) = number.checked_sub(first) else {
            return Some(piece(0, 0, number));
        };
        let of_group = self.pieces_of_group();
        let (group, mut index) = (number / of_group, number % of_group);
        if group >= self.groups {
            return None;
        }
        for stage in 1..STAGES {
            let pieces = self.stages[stage].pieces();
            if index < pieces {
                return Some(piece(group, stage, index));
            }
            index -= pieces;
            if stage == 1 {
                if index < first {
                    return (group + 1 < self.groups).then_some(piece(group + 1, 0, index));
                }
                index -= first;
            }
        }
        unreachable!("a group has {of_group} pieces")
    }

    /// The piece that a claim stands for when the thread with share `own` makes it.
    fn piece(&self, claim: Piece, shares: &[Share<STAGES>], own: usize) -> Piece {
        let Group { track, number: group } = claim.group;
        let pieces = self.stages[claim.stage].shared;
        if claim.index >= pieces {
            return claim;
        }
        // the shares of the threads that own this track
        let first = |track: usize| (track * shares.len()).div_ceil(self.tracks);
        let of_track = first(track)..first(track + 1);
        let from = if of_track.contains(&own) { own } else { of_track.start };
        for share in (from..of_track.end).chain(of_track.start..from) {
            let start = |share: usize| pieces * (share - of_track.start) / of_track.len();
            let range = start(share)..start(share + 1);
            if let Some(index) = shares[share].take(group, claim.stage, range, share == own) {
                return Piece { index, ..claim };
            }
        }
        unreachable!("{pieces} pieces for as many claims")
    }

    /// Waits until everything that `claim` needs is done.
    fn wait(&self, done: &[Done<STAGES>; RING], claim: Piece) {
        let (group, stage) = (claim.group.number, claim.stage);
        let slot = &done[group % RING].0;
        // a slot's counters are not reset from one of its groups to the next
        let laps = group / RING;
        let earlier = slot[..stage].iter().zip(&self.stages);
        earlier.for_each(|(count, stage)| wait_for(count, (laps + 1) * stage.pieces()));
        let all = slot.iter().zip(&self.stages);
        all.for_each(|(count, stage)| wait_for(count, laps * stage.pieces()));
        if let (Some(OneRoom { writer, last_reader }), Some(before)) = (self.one_room, group.checked_sub(1))
            && stage == writer
        {
            let pieces = self.stages[last_reader].pieces();
            wait_for(&done[before % RING].0[last_reader], (before / RING + 1) * pieces);
        }
    }
}

/// The progress of a track.
#[repr(align(128))]
struct Track<const STAGES: usize> {
    claims: AtomicUsize,
    /// Whether a thread that owns the track has come.
    has_owner: AtomicBool,
    done: [Done<STAGES>; RING],
}

impl<const STAGES: usize> Track<STAGES> {
    const fn new() -> Self {
        let done = [const { Done([const { AtomicUsize::new(0) }; STAGES]) }; RING];
        Track { claims: AtomicUsize::new(0), has_owner: AtomicBool::new(false), done }
    }
}

/// Finished pieces of each stage of one slot of the ring.
#[repr(align(128))]
struct Done<const STAGES: usize>([AtomicUsize; STAGES]);

/// How many of one thread's pieces are taken, for each slot of the ring and each stage: the lap, the number taken from
/// the front, and the number taken from the back. A word of another lap counts as nothing taken: the ring has come
/// round.
#[repr(align(128))]
struct Share<const STAGES: usize>([[AtomicU64; STAGES]; RING]);

impl<const STAGES: usize> Share<STAGES> {
    const BACK: u32 = 24;
    const LAP: u32 = 2 * Self::BACK;
    const COUNT: u64 = (1 << Self::BACK) - 1;

    const fn new() -> Self {
        Share([const { [const { AtomicU64::new(0) }; STAGES] }; RING])
    }

    /// Takes one of the pieces of `range`, from the front or from the back, if one is left.
    fn take(&self, group: usize, stage: usize, range: std::ops::Range<usize>, front: bool) -> Option<usize> {
        let word = &self.0[group % RING][stage];
        let lap = (group / RING) as u64 & 0xffff;
        let counts = |word: u64| {
            if word >> Self::LAP == lap {
                [word & Self::COUNT, (word >> Self::BACK) & Self::COUNT]
            } else {
                [0; 2]
            }
        };
        let taken = |word| {
            let [from_front, from_back] = counts(word);
            if (from_front + from_back) as usize == range.len() {
                return None;
            }
            let taken = if front {
                (from_front + 1) | (from_back << Self::BACK)
            } else {
                from_front | ((from_back + 1) << Self::BACK)
            };
            Some((lap << Self::LAP) | taken)
        };
        // Relaxed, since the team's claims order everything else; this only chooses a piece.
        let before = word.fetch_update(Relaxed, Relaxed, taken).ok()?;
        let [from_front, from_back] = counts(before).map(|count| count as usize);
        Some(if front { range.start + from_front } else { range.end - 1 - from_back })
    }
}

/// Counts a piece when it is done or its work has panicked.
struct CountWhenDropped<'a>(&'a AtomicUsize);

impl Drop for CountWhenDropped<'_> {
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
    use std::{
        collections::HashSet,
        num::NonZeroUsize,
        sync::Mutex,
        thread::yield_now,
        time::{Duration, Instant},
    };

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Everything that a piece waits for is claimed before it, so a course cannot hang.
        #[test]
        fn pieces_come_once_and_after_what_they_need(
            groups in 0..9usize, pieces in prop::array::uniform4(0..5usize),
        ) {
            prop_assume!(pieces.iter().sum::<usize>() > 0);
            let course = Course::new(1, groups, pieces.map(Stage::shared));
            let all: Vec<Piece> = (0..course.count()).filter_map(|number| course.claim(0, number)).collect();
            prop_assert_eq!(all.len(), groups * pieces.iter().sum::<usize>());
            for (at, piece) in all.iter().enumerate() {
                let group = piece.group.number;
                prop_assert!(group < groups && piece.index < pieces[piece.stage]);
                prop_assert!(!all[..at].contains(piece));
                for before in &all[..at] {
                    prop_assert!(before.group != piece.group || before.stage <= piece.stage);
                    prop_assert!(before.group.number < group + RING);
                }
            }
        }

        #[test]
        fn stages_wait_for_the_stages_before(
            threads in 1..5usize, tracks in 1..5usize, groups in 0..9usize,
            shared in prop::array::uniform3(0..4usize), free in prop::array::uniform3(0..3usize),
            left_to_owners in 0..9usize,
        ) {
            let stages = [0, 1, 2].map(|i| Stage { shared: shared[i], free: free[i] });
            let pieces = stages.map(|stage| stage.pieces());
            prop_assume!(pieces.iter().sum::<usize>() > 0);
            let mut team = Team::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let seen = Mutex::new(HashSet::new());
            let tracks = tracks.min(threads);
            let one_room = Some(OneRoom { writer: 1, last_reader: 2 }).filter(|_| pieces[1] > 0);
            let course = Course { tracks, groups, stages, one_room, left_to_owners };
            course.run(&mut team, |_, Piece { group, stage, index }| {
                let before = {
                    let seen = seen.lock().unwrap();
                    let of = |number: usize, stages: usize| {
                        let group = Group { number, ..group };
                        (0..stages).all(|s| (0..pieces[s]).all(|i| seen.contains(&Piece { group, stage: s, index: i })))
                    };
                    let room = stage != 1 || group.number == 0 || pieces[2] == 0 || of(group.number - 1, 3);
                    of(group.number, stage) && room && (group.number < RING || of(group.number - RING, 3))
                };
                assert!(before, "{group:?} {stage} {index}");
                yield_now();
                assert!(seen.lock().unwrap().insert(Piece { group, stage, index }));
            });
            prop_assert_eq!(seen.lock().unwrap().len(), tracks * groups * pieces.iter().sum::<usize>());
        }
    }

    /// The pieces that threads get when they claim in this order.
    fn pieces(course: Course<1>, shares: &[Share<1>], group: Group, threads: &[usize]) -> Vec<usize> {
        let claims = threads.iter().enumerate();
        claims
            .map(|(index, &own)| course.piece(Piece { group, stage: 0, index }, shares, own).index)
            .collect()
    }

    #[test]
    fn each_thread_has_neighbours_of_its_own() {
        let course = Course::new(1, 7, [Stage { shared: 10, free: 2 }]);
        let shares = [const { Share::new() }; 2];
        for number in 0..course.groups {
            // thread 0 is called away for a while
            let threads = [0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0];
            let expected = [0, 5, 1, 6, 7, 8, 9, 4, 3, 2, 10, 11];
            assert_eq!(pieces(course, &shares, Group { track: 0, number }, &threads), expected);
        }
    }

    #[test]
    fn who_helps_on_a_track_takes_from_its_far_end() {
        let course = Course::new(2, 1, [Stage::shared(4)]);
        let shares = [const { Share::new() }; 2];
        assert_eq!(pieces(course, &shares, Group { track: 0, number: 0 }, &[0, 0, 0, 0]), [0, 1, 2, 3]);
        assert_eq!(pieces(course, &shares, Group { track: 1, number: 0 }, &[1, 0, 1, 0]), [0, 3, 1, 2]);
        // three threads on two tracks: the last one is alone on its own
        let shares = [const { Share::new() }; 3];
        assert_eq!(pieces(course, &shares, Group { track: 0, number: 0 }, &[1, 0, 0, 1]), [2, 0, 1, 3]);
        assert_eq!(pieces(course, &shares, Group { track: 1, number: 0 }, &[2, 0, 2, 2]), [0, 3, 1, 2]);
    }

    #[test]
    fn who_helps_leaves_the_last_pieces_to_an_owner_that_has_come() {
        let (pieces, left_to_owners) = (20, 4);
        let stages = [Stage::default(), Stage::shared(pieces)];
        let course = Course { left_to_owners, ..Course::new(2, 1, stages) };
        let done = [const { AtomicUsize::new(0) }; 2];
        let worker_has_come = AtomicBool::new(false);
        // all pieces of its own track, and those of the other that its owner neither claims nor keeps
        let by_caller = 2 * pieces - 1 - left_to_owners;
        let mut team = Team::new(NonZeroUsize::new(2).unwrap()).unwrap();
        let begin = Instant::now();
        course.run(&mut team, |thread, _| {
            worker_has_come.fetch_or(thread == 1, Release);
            let waits = || match thread {
                0 => !worker_has_come.load(Acquire),
                _ => done[0].load(Relaxed) < by_caller,
            };
            while waits() && begin.elapsed() < Duration::from_secs(60) {
                yield_now();
            }
            done[thread].fetch_add(1, Relaxed);
        });
        assert_eq!(done.map(AtomicUsize::into_inner), [by_caller, 1 + left_to_owners]);
    }

    #[test]
    fn a_panic_hangs_nobody() {
        for (threads, tracks) in [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3)] {
            let mut team = Team::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let course = Course::new(tracks, 5, [2, 3, 1].map(Stage::shared));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                course.run(&mut team, |_, piece| assert!(piece.stage != 1, "a bad piece"));
            }));
            assert!(caught.is_err());
        }
    }
}
