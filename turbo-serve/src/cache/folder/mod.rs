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

mod files;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::Path,
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use self::files::{Files, close_and_remove};
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

/// A folder of answers, of any number of models.
pub(super) struct Folder {
    bytes: u64,
    generations: RwLock<Generations>,
    /// Held while generations turn over.
    turning_over: Mutex<()>,
    /// When files that could not be used are opened again; `None` once answers were written again.
    retry_at: Mutex<Option<Instant>>,
    metrics: HeldMetrics,
    /// Dropped last, since it holds the lock: another process may come once all files are closed.
    files: Files,
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
        let files = Files::open(dir, page_cache / 2)?;
        let folder = Self {
            bytes,
            generations: RwLock::default(),
            turning_over: Mutex::default(),
            retry_at: Mutex::new(None),
            metrics: HeldMetrics::new(tier::FOLDER),
            files,
        };
        folder.open_files(&mut folder.write()).map_err(FolderError::Failed)?;
        folder.turn_over_if_full().map_err(FolderError::Failed)?;
        folder.report();
        Ok(folder)
    }

    /// Opens the last two generations and removes all others.
    fn open_files(&self, generations: &mut Generations) -> Result<(), String> {
        let numbers = self.files.numbers().map_err(|error| error.to_string())?;
        *generations =
            Generations { number: numbers.first().copied().unwrap_or(0), ..Generations::default() };
        let mut opened = Vec::new();
        for number in numbers {
            match opened.len() {
                2 => self.files.remove(number)?,
                _ => opened.extend(self.files.open_or_set_aside(number)?),
            }
        }
        let mut opened = opened.into_iter();
        (generations.current, generations.older) = (opened.next(), opened.next());
        // Files may be too large, since the limit may have been larger at the last start.
        for slot in [&mut generations.older, &mut generations.current] {
            if slot.as_ref().is_some_and(|generation| generation.bytes() > self.bytes / 2) {
                close_and_remove(slot.take())?;
            }
        }
        match generations.current {
            Some(_) => Ok(()),
            None => self.begin_generation(generations),
        }
    }

    /// Begins a new current file.
    fn begin_generation(&self, generations: &mut Generations) -> Result<(), String> {
        generations.number += 1;
        generations.current = Some(self.files.create(generations.number)?);
        Ok(())
    }

    /// Begins another file if the current one is full. While files cannot be used, there is no current one.
    ///
    /// Files are removed and created while nothing is locked, so that lookups do not wait for the disk.
    fn turn_over_if_full(&self) -> Result<(), String> {
        let _alone = self.turning_over.lock().unwrap_or_else(PoisonError::into_inner);
        let mut generations = self.write();
        let full = generations.current.as_ref().is_some_and(|current| current.bytes() > self.bytes / FULL);
        if !full {
            return Ok(());
        }
        generations.number += 1;
        let (oldest, number) = (generations.older.take(), generations.number);
        drop(generations);
        self.metrics.evicted(oldest.as_ref().map_or(0, Generation::entries));
        close_and_remove(oldest)?;
        let next = self.files.create(number)?;
        let mut generations = self.write();
        // no file is begun anew before its time where all were given up meanwhile
        if let Some(full) = generations.current.take() {
            (generations.older, generations.current) = (Some(full), Some(next));
        }
        Ok(())
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
                self.files.set_aside(file, &why);
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
        let dir = self.files.dir().display();
        match self.retry_at().replace(Instant::now() + RETRY) {
            None => {
                tracing::warn!(%dir, why, "answers are not kept in the folder now: it is tried again every minute");
            }
            Some(_) => tracing::debug!(%dir, why, "answers are not kept in the folder yet"),
        }
    }

    /// Gives up if the files could not be used.
    fn or_give_up(&self, used: Result<(), String>) {
        if let Err(why) = used {
            self.give_up(&mut self.write(), &why);
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
        self.or_give_up(opened.and_then(|()| self.turn_over_if_full()));
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
            tracing::info!(dir = %self.files.dir().display(), "answers are kept in the folder again");
        }
        self.or_give_up(self.turn_over_if_full());
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
