//! Answers in a folder, kept across restarts, within a number of bytes that is never exceeded.
//!
//! ```text
//! answers-7.redb   older    read; answers found there are written to the current one
//! answers-8.redb   current  written, until it has grown to a quarter of the bytes
//! ```
//!
//! Then the older file is removed, the current one becomes the older one, and a new one is begun. So answers that are
//! asked for again stay, others go with their generation, and nothing is ever deleted inside a file. A file grows by
//! doubling: a file of a quarter of the bytes may grow to half of them, and two such halves are all of them.
//!
//! One process at a time uses a folder (`lock`). A damaged file is set aside (`answers.damaged`, only the last one).
//! After an error of the system all files are closed, and opened again after a while. Meanwhile nothing is found there,
//! and serving goes on.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use super::{
    Key,
    behind::{Found, Store},
    generation::{Generation, Trouble},
    memory::Values,
    metrics::HeldMetrics,
    record::Wanted,
};
use crate::metric_names::tier;

/// A generation ends when its file has more than one part in this many of the bytes.
const FULL: u64 = 4;
/// One commit needs at most one part in this many of the bytes, so that a file never doubles past half of them.
const COMMIT: u64 = 8;
/// The time from an error of the system until the files are opened again.
const RETRY: Duration = Duration::from_secs(60);

const DAMAGED: &str = "answers.damaged";

/// A folder of answers, of any number of models.
pub(super) struct Folder {
    dir: PathBuf,
    bytes: u64,
    page_cache: usize,
    generations: RwLock<Generations>,
    /// Held while a generation is ended.
    ending: Mutex<()>,
    /// When files that could not be used are opened again; `None` once answers were written again.
    retry_at: Mutex<Option<Instant>>,
    metrics: HeldMetrics,
    /// Locked for as long as it is open.
    _lock: File,
}

#[derive(Default)]
struct Generations {
    /// Where answers are written; `None` while files cannot be used.
    current: Option<Generation>,
    older: Option<Generation>,
    /// The number of the current one.
    number: u64,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("another server uses it")]
    InUse,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Failed(String),
}

impl Folder {
    /// The fewest bytes that are of use.
    pub(super) const LEAST_BYTES: u64 = 1 << 20;

    /// Opens the folder `dir`, created if missing, for files of at most `bytes` together. Their pages take `page_cache`
    /// bytes of memory.
    ///
    /// # Errors
    /// [`FolderError`]: another process uses the folder, or it or one of its files cannot be used.
    pub(super) fn open(dir: &Path, bytes: u64, page_cache: usize) -> Result<Self, FolderError> {
        make(dir)?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let folder = Self {
            dir: dir.to_owned(),
            bytes,
            page_cache: page_cache / 2,
            generations: RwLock::default(),
            ending: Mutex::default(),
            retry_at: Mutex::new(None),
            metrics: HeldMetrics::new(tier::FOLDER),
            _lock: lock,
        };
        folder.open_files(&mut folder.write()).map_err(FolderError::Failed)?;
        folder.end_generation().map_err(FolderError::Failed)?;
        folder.report();
        Ok(folder)
    }

    /// Opens the last two generations and removes all others.
    fn open_files(&self, generations: &mut Generations) -> Result<(), String> {
        let mut numbers = self.numbers().map_err(|error| error.to_string())?;
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        *generations =
            Generations { number: numbers.first().copied().unwrap_or(0), ..Generations::default() };
        let mut opened = Vec::new();
        for number in numbers {
            let file = self.file(number);
            if opened.len() == 2 {
                remove_file(&file)?;
                continue;
            }
            match Generation::open(file.clone(), self.page_cache) {
                Ok(generation) => opened.push(generation),
                Err(Trouble::Damaged(why)) => self.set_aside(&file, &why),
                Err(Trouble::Failed(why)) => return Err(why),
            }
        }
        let mut opened = opened.into_iter();
        (generations.current, generations.older) = (opened.next(), opened.next());
        // Files may be too large, since the limit may have been larger at the last start.
        for slot in [&mut generations.older, &mut generations.current] {
            if slot.as_ref().is_some_and(|generation| generation.bytes() > self.bytes / 2) {
                remove(slot.take())?;
            }
        }
        match generations.current {
            Some(_) => Ok(()),
            None => self.begin_generation(generations),
        }
    }

    /// Numbers of the generations in the folder.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("answers-")?.strip_suffix(".redb"));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        Ok(numbers)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.dir.join(format!("answers-{number}.redb"))
    }

    /// Begins a new current file.
    fn begin_generation(&self, generations: &mut Generations) -> Result<(), String> {
        generations.number += 1;
        generations.current = Some(self.new_generation(generations.number)?);
        Ok(())
    }

    fn new_generation(&self, number: u64) -> Result<Generation, String> {
        let begun = Generation::open(self.file(number), self.page_cache);
        begun.map_err(|(Trouble::Damaged(why) | Trouble::Failed(why))| why)
    }

    /// Begins another file if the current one is full. While files cannot be used, there is no current one.
    ///
    /// Files are removed and created while nothing is locked, so that lookups do not wait for the disk.
    fn end_generation(&self) -> Result<(), String> {
        let _alone = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut generations = self.write();
        let full = generations.current.as_ref().is_some_and(|current| current.bytes() > self.bytes / FULL);
        if !full {
            return Ok(());
        }
        generations.number += 1;
        let (oldest, number) = (generations.older.take(), generations.number);
        drop(generations);
        self.metrics.evicted(oldest.as_ref().map_or(0, Generation::entries));
        remove(oldest)?;
        let next = self.new_generation(number)?;
        let mut generations = self.write();
        // no file is begun anew before its time where all were given up meanwhile
        if let Some(full) = generations.current.take() {
            (generations.older, generations.current) = (Some(full), Some(next));
        }
        Ok(())
    }

    /// Renames a damaged file to one that is never read.
    fn set_aside(&self, file: &Path, why: &str) {
        let aside = self.dir.join(DAMAGED);
        tracing::warn!(file = %file.display(), why, aside = %aside.display(), "a file of answers is damaged: it is set aside");
        if fs::rename(file, &aside).is_err() {
            // If it cannot be removed either, the next start finds it damaged again.
            drop(fs::remove_file(file));
        }
    }

    /// Handles trouble with `file`: sets it aside if it is damaged, else closes all files for a while.
    fn troubled(&self, file: &Path, trouble: Trouble) {
        let mut generations = self.write();
        let in_use =
            |generation: &Option<Generation>| generation.as_ref().is_some_and(|it| it.file() == file);
        let (of_current, of_older) = (in_use(&generations.current), in_use(&generations.older));
        let failed = match trouble {
            Trouble::Damaged(why) => {
                if of_current {
                    generations.current = None;
                } else if of_older {
                    generations.older = None;
                } else {
                    return; // another thread has handled it
                }
                self.set_aside(file, &why);
                if of_current { self.begin_generation(&mut generations).err() } else { None }
            }
            Trouble::Failed(why) => (of_current || of_older).then_some(why),
        };
        if let Some(why) = failed {
            self.give_up(&mut generations, &why);
        }
    }

    /// Closes all files for a while. The log warns once until a write succeeds, even if files can be opened meanwhile.
    fn give_up(&self, generations: &mut Generations, why: &str) {
        (generations.current, generations.older) = (None, None);
        let dir = self.dir.display();
        match self.retry_at().replace(Instant::now() + RETRY) {
            None => {
                tracing::warn!(%dir, why, "answers are not kept in the folder now: it is tried again every minute");
            }
            Some(_) => tracing::debug!(%dir, why, "answers are not kept in the folder yet"),
        }
    }

    /// Opens the files again when [`RETRY`] is over.
    fn try_again(&self) {
        let due = self.retry_at().is_some_and(|at| at <= Instant::now());
        if !due {
            return;
        }
        let mut generations = self.write();
        if generations.current.is_some() {
            return;
        }
        let opened = self.open_files(&mut generations);
        drop(generations);
        if let Err(why) = opened.and_then(|()| self.end_generation()) {
            self.give_up(&mut self.write(), &why);
        }
    }

    /// How many of `answers` go into one commit; at least one.
    fn at_once(&self, answers: &[(Key, Values)]) -> usize {
        let mut cost = 0;
        let mut fits = |(_, values): &(Key, Values)| {
            cost += Generation::cost(values.len());
            cost <= self.bytes / COMMIT
        };
        answers.iter().take_while(|answer| fits(answer)).count().max(1)
    }

    /// Writes `answers` to the current generation, and ends it if it is full; returns whether they were written.
    fn commit(&self, answers: &[(Key, Values)]) -> bool {
        let generations = self.read();
        let Some(current) = &generations.current else { return false };
        let (written, file) = (current.put(answers), current.file().to_owned());
        drop(generations);
        if let Err(trouble) = written {
            self.troubled(&file, trouble);
            return false;
        }
        if self.retry_at().take().is_some() {
            tracing::info!(dir = %self.dir.display(), "answers are kept in the folder again");
        }
        if let Err(why) = self.end_generation() {
            self.give_up(&mut self.write(), &why);
        }
        true
    }

    fn report(&self) {
        let generations = self.read();
        let all = [&generations.current, &generations.older].into_iter().flatten();
        let sums = all.fold((0, 0), |(bytes, entries), it| (bytes + it.bytes(), entries + it.entries()));
        self.metrics.held(sums.0 as f64, sums.1 as f64);
    }

    fn retry_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.retry_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Panics of the database are caught where it is called, so no lock is poisoned half-way through a change.
    fn read(&self) -> RwLockReadGuard<'_, Generations> {
        self.generations.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Generations> {
        self.generations.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a generation and removes its file.
fn remove(generation: Option<Generation>) -> Result<(), String> {
    let Some(file) = generation.map(|generation| generation.file().to_owned()) else { return Ok(()) };
    remove_file(&file)
}

fn remove_file(file: &Path) -> Result<(), String> {
    fs::remove_file(file).map_err(|error| format!("{}: {error}", file.display()))
}

impl Store for Folder {
    fn get(&self, wanted: &[Wanted]) -> Vec<Option<Found>> {
        let generations = self.read();
        let mut found: Vec<Option<Found>> = wanted.iter().map(|_| None).collect();
        let mut troubles = Vec::new();
        for (generation, renew) in [(&generations.current, false), (&generations.older, true)] {
            let Some(generation) = generation else { continue };
            let missing: Vec<usize> = (0..wanted.len()).filter(|&at| found[at].is_none()).collect();
            let asked: Vec<Wanted> = missing.iter().map(|&at| wanted[at]).collect();
            match generation.get(&asked) {
                Ok(values) => {
                    for (at, values) in missing.into_iter().zip(values) {
                        found[at] = values.map(|values| Found { values, renew });
                    }
                }
                Err(trouble) => troubles.push((generation.file().to_owned(), trouble)),
            }
        }
        drop(generations);
        troubles.into_iter().for_each(|(file, trouble)| self.troubled(&file, trouble));
        found
    }

    fn put(&self, answers: &[(Key, Values)]) -> usize {
        self.try_again();
        let (mut rest, mut written) = (answers, 0);
        while let Some((_, first)) = rest.first() {
            let now;
            (now, rest) = rest.split_at(self.at_once(rest));
            // A larger answer could make the file grow past half of the bytes.
            let fits = Generation::cost(first.len()) <= self.bytes / COMMIT;
            if fits && self.commit(now) {
                written += now.len();
            }
        }
        self.report();
        written
    }
}

/// Creates the folder `dir` if missing, readable only by its owner: rows reveal much about their texts.
fn make(dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(dir)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::Scope;

    const BYTES: u64 = 4 << 20;

    fn open(dir: &Path) -> Result<Folder, FolderError> {
        Folder::open(dir, BYTES, 256 << 10)
    }

    /// Answer number `n`, of `len` values.
    fn answer(n: u32, len: usize) -> (Key, Values) {
        (Scope::of("test").key("pooled", &[&[n]]), (0..len).map(|at| (n as usize + at) as f32).collect())
    }

    fn get(folder: &Folder, (key, values): &(Key, Values)) -> bool {
        let found = folder.get(&[Wanted { key: *key, len: values.len() }]).remove(0);
        let found = found.map(|found| found.values);
        assert!(found.as_ref().is_none_or(|found| found == values), "another answer was found");
        found.is_some()
    }

    /// Bytes of all files in the folder, as the system counts them.
    fn disk(dir: &Path) -> u64 {
        fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    fn only_file(dir: &Path) -> PathBuf {
        let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.filter(|file| file.extension() == Some("redb".as_ref())).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_is_made_is_its_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made");
        let _folder = open(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o077, 0);
    }

    #[test]
    fn what_was_written_is_there_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made");
        let folder = open(&dir).unwrap();
        let answers = [answer(1, 3), answer(2, 0), answer(3, 3000)];
        assert!(!answers.iter().any(|answer| get(&folder, answer)));
        folder.put(&answers);
        folder.put(&answers);
        let still_there = |folder: &Folder| {
            assert!(answers.iter().all(|answer| get(folder, answer)));
            assert!(!get(folder, &answer(4, 3)));
            let other_len = Wanted { key: answers[0].0, len: 4 };
            assert!(folder.get(&[other_len])[0].is_none());
        };
        still_there(&folder);
        drop(folder);
        still_there(&open(&dir).unwrap());
    }

    #[test]
    fn one_server_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        assert!(matches!(open(dir.path()), Err(FolderError::InUse)));
        drop(first);
        open(dir.path()).unwrap();
    }

    #[test]
    fn a_place_that_is_no_folder_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(open(file.path()), Err(FolderError::Io(_))));
        assert!(matches!(open(&file.path().join("below")), Err(FolderError::Io(_))));
    }

    #[test]
    fn growth_never_passes_the_bytes_and_what_is_asked_again_stays() {
        for len in [1, 300, 1000, 1100, 5000, 20_000] {
            let dir = tempfile::tempdir().unwrap();
            let folder = open(dir.path()).unwrap();
            let (wanted, count) = (answer(0, len), (2 * BYTES as usize / (4 * len + 512)) as u32);
            folder.put(std::slice::from_ref(&wanted));
            let mut most = 0;
            let at_once = (BYTES / COMMIT / Generation::cost(len)) as u32;
            for first in (1..=count).step_by(at_once as usize) {
                let answers: Vec<_> = (first..first + at_once).map(|n| answer(n, len)).collect();
                folder.put(&answers);
                let disk = disk(dir.path());
                assert!(disk <= BYTES, "{disk} of {BYTES} after {first} answers of {len} values");
                most = most.max(disk);
                // As the reading thread does.
                let found =
                    folder.get(&[Wanted { key: wanted.0, len }]).remove(0).expect("it is asked all the time");
                if found.renew {
                    folder.put(&[(wanted.0, found.values)]);
                }
                assert!(
                    answers.last().is_some_and(|last| get(&folder, last)),
                    "the last one, number {first} of {len} values"
                );
            }
            assert!(most > BYTES / FULL, "{most} of {BYTES} were used for answers of {len} values");
            assert!(!get(&folder, &answer(1, len)), "what nobody asks again goes");
        }
    }

    #[test]
    fn fewer_bytes_than_the_last_time_are_kept_to() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path()).unwrap();
        for first in (0..1200).step_by(20) {
            folder.put(&(first..first + 20).map(|n| answer(n, 500)).collect::<Vec<_>>());
        }
        assert!(disk(dir.path()) > Folder::LEAST_BYTES);
        drop(folder);
        let folder = Folder::open(dir.path(), Folder::LEAST_BYTES, 256 << 10).unwrap();
        assert!(disk(dir.path()) <= Folder::LEAST_BYTES);
        folder.put(&[answer(1, 10)]);
        assert!(get(&folder, &answer(1, 10)));
    }

    #[test]
    fn an_answer_that_is_too_large_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path()).unwrap();
        let large = (BYTES / COMMIT) as usize / 4;
        let answers = [answer(1, 10), answer(2, large), answer(3, 10)];
        assert_eq!(folder.put(&answers), 2);
        assert_eq!(answers.each_ref().map(|answer| get(&folder, answer)), [true, false, true]);
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        for damage in [
            (|_| b"no database".to_vec()) as fn(Vec<u8>) -> Vec<u8>,
            |whole| whole[..whole.len() / 2].to_vec(),
            |whole| whole[..100].to_vec(),
            |whole| vec![0; whole.len()],
            |whole| vec![0xff; whole.len()],
        ] {
            let dir = tempfile::tempdir().unwrap();
            let folder = open(dir.path()).unwrap();
            folder.put(&(0..200).map(|n| answer(n, 100)).collect::<Vec<_>>());
            drop(folder);
            let file = only_file(dir.path());
            fs::write(&file, damage(fs::read(&file).unwrap())).unwrap();
            let folder = open(dir.path()).unwrap();
            assert!(!get(&folder, &answer(1, 100)));
            assert!(dir.path().join(DAMAGED).exists());
            folder.put(&[answer(1, 100)]);
            assert!(get(&folder, &answer(1, 100)));
        }
    }

    #[test]
    fn what_stands_where_a_file_should_be_does_not_stop_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("answers-x.redb"), "somebody else's").unwrap();
        fs::write(dir.path().join("answers-3.redb"), "damaged, and cannot be set aside").unwrap();
        fs::create_dir_all(dir.path().join(DAMAGED)).unwrap();
        let folder = open(dir.path()).unwrap();
        folder.put(&[answer(1, 100)]);
        assert!(get(&folder, &answer(1, 100)));
    }

    #[test]
    fn what_the_system_does_not_allow_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path()).unwrap();
        folder.put(&[answer(1, 100)]);
        let file = only_file(dir.path());
        folder.troubled(&file, Trouble::Failed("no space left".into()));
        assert!(!get(&folder, &answer(1, 100)));
        assert_eq!(folder.put(&[answer(2, 100)]), 0, "it is not time yet");
        *folder.retry_at() = Some(Instant::now());
        assert_eq!(folder.put(&[answer(2, 100)]), 1);
        assert!(folder.retry_at().is_none());
        assert!(get(&folder, &answer(1, 100)) && get(&folder, &answer(2, 100)));
    }

    /// Two commits at a time: one fails and closes the files, and the other finds them closed.
    #[test]
    fn what_was_given_up_is_not_begun_anew_before_it_is_time() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path()).unwrap();
        folder.put(&[answer(1, 3)]);
        folder.give_up(&mut folder.write(), "the disk is full");
        folder.end_generation().unwrap();
        assert!(folder.read().current.is_none());
        drop(folder);
        assert!(get(&open(dir.path()).unwrap(), &answer(1, 3)));
    }

    /// A crash leaves what was on disk at that moment. It is simulated by copying the files while they are written.
    #[test]
    fn what_a_crash_leaves_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path()).unwrap();
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let folder = &folder;
            scope.spawn(move || {
                for first in (0..).step_by(10) {
                    folder.put(&(first..first + 10).map(|n| answer(n, 200)).collect::<Vec<_>>());
                    if stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                        return;
                    }
                }
            });
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(20));
                let left = tempfile::tempdir().unwrap();
                for file in fs::read_dir(dir.path()).unwrap() {
                    let file = file.unwrap().path();
                    // A file that was removed meanwhile would not be there after a crash.
                    drop(fs::copy(&file, left.path().join(file.file_name().unwrap())));
                }
                let after = open(left.path()).unwrap();
                (0..2000).for_each(|n| _ = get(&after, &answer(n, 200)));
                after.put(&[answer(5000, 200)]);
                assert!(get(&after, &answer(5000, 200)));
            }
            drop(stop);
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

        /// While there is room, a folder is a map that outlives its process.
        #[test]
        fn it_is_a_map_across_starts(
            steps in prop::collection::vec((0_u32..40, 0_usize..300, 0_u8..4), 1..60),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut folder, mut map) = (open(dir.path()).unwrap(), std::collections::HashMap::new());
            for (n, len, step) in steps {
                match step {
                    0 => {
                        drop(folder);
                        folder = open(dir.path()).unwrap();
                    }
                    1 => prop_assert!(map.get(&n).is_none_or(|written| get(&folder, written))),
                    _ => {
                        folder.put(&[answer(n, len)]);
                        map.insert(n, answer(n, len));
                    }
                }
            }
            for n in 0..40 {
                let expected = map.get(&n).map(|(_, values)| values.clone());
                let (key, len) = (answer(n, 0).0, expected.as_ref().map_or(0, |values| values.len()));
                let found = folder.get(&[Wanted { key, len }]).remove(0).map(|found| found.values);
                prop_assert_eq!(found, expected);
            }
        }

        /// Whatever bytes are damaged, an answer is right or is not found, and new ones are kept afterwards.
        #[test]
        fn damage_anywhere_costs_answers_only(
            damage in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..64, any::<u8>()), 1..8),
            open_already in any::<bool>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let folder = open(dir.path()).unwrap();
            let answers: Vec<_> = (0..100).map(|n| answer(n, 1 + n as usize * 13 % 900)).collect();
            folder.put(&answers);
            let file = only_file(dir.path());
            let spoil = || {
                let mut bytes = fs::read(&file).unwrap();
                for (at, len, value) in &damage {
                    let at = at.index(bytes.len());
                    let end = bytes.len().min(at + len);
                    bytes[at..end].iter_mut().for_each(|byte| *byte ^= value | 1);
                }
                // In place, so that an open database keeps reading the same file.
                let mut to = File::options().write(true).open(&file).unwrap();
                io::Write::write_all(&mut to, &bytes).unwrap();
            };
            let folder = if open_already {
                spoil();
                folder
            } else {
                drop(folder);
                spoil();
                open(dir.path()).unwrap()
            };
            answers.iter().for_each(|answer| _ = get(&folder, answer));
            folder.put(&answers);
            folder.put(&[answer(5000, 200)]);
            answers.iter().for_each(|answer| _ = get(&folder, answer));
            prop_assert!(disk(dir.path()) <= 2 * BYTES);
            drop(folder);
            let folder = open(dir.path()).unwrap();
            answers.iter().for_each(|answer| _ = get(&folder, answer));
            folder.put(&[answer(5001, 200)]);
            prop_assert!(get(&folder, &answer(5001, 200)));
        }
    }
}
