//! Folders of answers, across starts, crashes and damage.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use proptest::prelude::*;

use super::{files::DAMAGED, *};
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
    folder.turn_over_if_full().unwrap();
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
