//! The images of one model while one encoder is made: images that the file has are handed out, those it lacks are
//! added.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use turbo_graph::PackedStore;

use super::{
    CacheUse, ModelKey,
    file::{NewFile, PackedFile, digest},
};

/// One file of a [`PackedCache`](super::PackedCache) in use.
pub(crate) struct PackedImages {
    path: PathBuf,
    name: String,
    key: ModelKey,
    /// The file as it was at the start.
    found: Option<PackedFile>,
    state: Mutex<State>,
}

/// Names of a weight and of its packing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Image {
    name: String,
    packing: String,
}

impl Image {
    fn new(name: &str, packing: &str) -> Self {
        Self { name: name.to_owned(), packing: packing.to_owned() }
    }
}

#[derive(Default)]
struct State {
    restored: BTreeSet<Image>,
    packed: BTreeSet<Image>,
    /// The file that will replace the one that was found.
    new: Option<NewFile>,
    /// The first thing that went wrong.
    warning: Option<String>,
}

impl PackedImages {
    pub(super) fn open(path: PathBuf, name: &str, key: ModelKey) -> Self {
        let mut state = State::default();
        let found = PackedFile::open(&path, key).unwrap_or_else(|why| {
            state.warn(why);
            None
        });
        Self { path, name: name.to_owned(), key, found, state: Mutex::new(state) }
    }

    /// Writes what the file lacked. Images of the model's other programs stay, if they are in the file now or were at
    /// the start.
    pub(crate) fn finish(self) -> CacheUse {
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut new) = state.new.take() {
            // the file as other processes have left it meanwhile, if it can be read
            let latest = PackedFile::open(&self.path, self.key).ok().flatten();
            let mut files = latest.iter().chain(&self.found);
            let kept = files.try_for_each(|file| keep(file, &state.restored, &mut new));
            drop((latest, self.found)); // some systems do not rename over a mapped file
            let written = kept.and_then(|()| new.finish(&self.path, self.name, self.key));
            written.unwrap_or_else(|error| state.cannot_write(&error));
        }
        let State { restored, packed, warning, .. } = state;
        let warning = warning.map(|why| format!("{}: {why}", self.path.display()));
        CacheUse { file: self.path, restored: restored.len(), packed: packed.len(), warning }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // each change of the state is complete by itself
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies the intact images that `new` lacks. A weight that was packed now needs no other packing, unless that one was
/// `restored`: one program may multiply by it in two ways.
fn keep(found: &PackedFile, restored: &BTreeSet<Image>, new: &mut NewFile) -> io::Result<()> {
    for (name, packing) in found.names() {
        let in_use = restored.contains(&Image::new(name, packing));
        let replaced =
            new.packings(name).is_some_and(|mut packings| !in_use || packings.any(|p| p == packing));
        if !replaced && let Ok(Some(image)) = found.image(name, packing) {
            new.add(name, packing, image, digest(image))?;
        }
    }
    Ok(())
}

impl State {
    fn warn(&mut self, why: String) {
        self.warning.get_or_insert(format!("{why}; packed anew"));
    }

    fn cannot_write(&mut self, error: &io::Error) {
        self.new = None;
        self.warning.get_or_insert(format!("packed weights are not kept: {error}"));
    }
}

impl PackedStore for PackedImages {
    fn load(&self, name: &str, packing: &str) -> Option<Cow<'_, [u8]>> {
        // hashes the whole image, so not while others wait
        match self.found.as_ref()?.image(name, packing) {
            Ok(image) => {
                let image = image?;
                self.state().restored.insert(Image::new(name, packing));
                Some(Cow::Borrowed(image))
            }
            Err(why) => {
                self.state().warn(why);
                None
            }
        }
    }

    fn store(&self, name: &str, packing: &str, image: &[u8]) {
        let digest = digest(image); // not while others wait
        let mut state = self.state();
        let (first, stored) = (state.packed.is_empty(), Image::new(name, packing));
        state.restored.remove(&stored); // in vain: the executor did not like it
        state.packed.insert(stored);
        if first {
            match NewFile::create(&self.path) {
                Ok(new) => state.new = Some(new),
                Err(error) => state.cannot_write(&error),
            }
        }
        if let Some(new) = &mut state.new
            && let Err(error) = new.add(name, packing, image, digest)
        {
            state.cannot_write(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        thread,
        time::{Duration, SystemTime},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::packed::{KeyMaker, PackedCache};

    const F32: &str = "f32-1";

    fn key(model: &str) -> ModelKey {
        let mut key = KeyMaker::new();
        key.bytes(model.as_bytes());
        key.finish()
    }

    fn images(dir: &Path) -> PackedImages {
        PackedCache::open(dir).unwrap().images("model", key("a"), F32)
    }

    /// Does what an encoder does: weights of these names and lengths are restored, or else packed. Panics if the bytes
    /// differ.
    fn start(images: PackedImages, packing: &str, weights: &[(&str, usize)]) -> CacheUse {
        for (name, bytes) in weights {
            let expected: Vec<u8> = (0..*bytes).map(|i| (i + name.len()) as u8).collect();
            match images.load(name, packing) {
                Some(image) => assert_eq!(*image, expected, "{name}"),
                None => images.store(name, packing, &expected),
            }
        }
        images.finish()
    }

    /// Restored, packed, and whether there was a warning.
    fn counts(used: &CacheUse) -> (usize, usize, bool) {
        (used.restored, used.packed, used.warning.is_some())
    }

    const WEIGHTS: [(&str, usize); 4] = [("q|k|v", 10_000), ("down", 4096), ("empty", 0), ("up", 1)];

    #[test]
    fn the_second_start_packs_nothing_and_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = start(images(dir.path()), F32, &WEIGHTS);
        assert_eq!(counts(&first), (0, 4, false));
        let mut marked = fs::read(&first.file).unwrap();
        marked[4095] = 1; // between header and images: a new file would have 0
        fs::write(&first.file, &marked).unwrap();
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (4, 0, false));
        assert!(fs::read(&first.file).unwrap() == marked);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn images_begin_at_pages() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::read(start(images(dir.path()), F32, &WEIGHTS).file).unwrap();
        assert_eq!(file[4096..4096 + 10_000], (0..10_000).map(|i| (i + 5) as u8).collect::<Vec<_>>());
        assert_eq!(file[4 * 4096..5 * 4096], (0..4096).map(|i| (i + 4) as u8).collect::<Vec<_>>());
    }

    #[test]
    fn programs_of_one_model_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        start(images(dir.path()), F32, &WEIGHTS[..2]);
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (2, 2, false));
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (4, 0, false));
    }

    #[test]
    fn what_others_have_added_since_the_start_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| images(dir.path()));
        assert_eq!(counts(&start(one, F32, &WEIGHTS[..2])), (0, 2, false));
        assert_eq!(counts(&start(other, F32, &WEIGHTS[1..])), (0, 3, false));
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (4, 0, false));
    }

    #[cfg(unix)]
    #[test]
    fn what_was_found_stays_though_the_file_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        start(images(dir.path()), F32, &WEIGHTS[..2]);
        let found = images(dir.path());
        fs::remove_file(&found.path).unwrap();
        assert_eq!(counts(&start(found, F32, &WEIGHTS)), (2, 2, false));
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (4, 0, false));
    }

    #[test]
    fn another_packing_of_a_weight_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        start(images(dir.path()), F32, &WEIGHTS);
        let length = || fs::metadata(images(dir.path()).finish().file).unwrap().len();
        let before = length();
        assert_eq!(counts(&start(images(dir.path()), "f32-2", &WEIGHTS)), (0, 4, false));
        assert_eq!(counts(&start(images(dir.path()), "f32-2", &WEIGHTS)), (4, 0, false));
        assert_eq!(length(), before);
    }

    #[test]
    fn one_program_may_pack_a_weight_twice() {
        let dir = tempfile::tempdir().unwrap();
        let both = |expected: (usize, usize)| {
            let images = images(dir.path());
            for packing in ["f32-1", "bf16-1"] {
                if images.load("words", packing).is_none() {
                    images.store("words", packing, packing.as_bytes());
                }
            }
            let used = images.finish();
            assert_eq!((used.restored, used.packed, used.warning), (expected.0, expected.1, None));
        };
        both((0, 2));
        both((2, 0));
        // and what one of them lacks costs the other nothing
        let images = images(dir.path());
        assert!(images.load("words", "bf16-1").is_some());
        images.store("words", "f32-2", b"newer");
        images.finish();
        both((1, 1));
    }

    #[test]
    fn the_file_of_another_model_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PackedCache::open(dir.path()).unwrap();
        let [a, b] = ["a", "b"].map(|model| start(cache.images("model", key(model), F32), F32, &WEIGHTS));
        assert_ne!(a.file, b.file);
        fs::copy(&a.file, &b.file).unwrap();
        let used = start(cache.images("model", key("b"), F32), F32, &WEIGHTS);
        assert_eq!(counts(&used), (0, 4, true));
        let warning = used.warning.unwrap();
        assert!(warning.ends_with(".packed: it holds weights of another model; packed anew"), "{warning}");
        assert_eq!(counts(&start(cache.images("model", key("b"), F32), F32, &WEIGHTS)), (4, 0, false));
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PackedCache::open(&dir.path().join("deeper/down")).unwrap();
        fs::remove_dir(cache.dir()).unwrap();
        let used = start(cache.images("model", key("a"), F32), F32, &WEIGHTS);
        assert_eq!(counts(&used), (0, 4, true));
        assert!(used.warning.unwrap().contains("packed weights are not kept: "));
        fs::write(cache.dir(), "no folder").unwrap();
        let error = PackedCache::open(cache.dir()).unwrap_err().to_string();
        assert!(error.contains("down: "), "{error}");
    }

    #[test]
    fn what_killed_processes_left_is_removed_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let [old, young, other] = [".packing-a", ".packing-b", "precious"].map(|name| dir.path().join(name));
        [&old, &young, &other].into_iter().for_each(|file| fs::write(file, "half").unwrap());
        let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
        for file in [&old, &other] {
            fs::File::options().write(true).open(file).unwrap().set_modified(two_days_ago).unwrap();
        }
        start(images(dir.path()), F32, &WEIGHTS);
        assert_eq!([old, young, other].map(|file| file.exists()), [false, true, true]);
    }

    #[test]
    fn what_nobody_has_used_for_a_month_is_removed_when_there_is_something_new() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PackedCache::open(dir.path()).unwrap();
        let of = |model: &str| start(cache.images("model", key(model), F32), F32, &WEIGHTS).file;
        let [old, used, young] = ["old", "used", "young"].map(of);
        let other = dir.path().join("precious.packed");
        fs::write(&other, "no weights").unwrap();
        let days_ago = |days: u64| SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        for (file, days) in [(&old, 31), (&used, 31), (&young, 29), (&other, 31)] {
            fs::File::options().write(true).open(file).unwrap().set_modified(days_ago(days)).unwrap();
        }
        assert_eq!(of("used"), used);
        assert!(old.exists(), "nothing was written");
        of("new");
        assert_eq!([old, used, young, other].map(|file| file.exists()), [false, true, true, true]);
    }

    #[cfg(unix)]
    #[test]
    fn whom_the_umask_lets_read_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(mode(&start(images(dir.path()), F32, &WEIGHTS).file), mode(&plain));
    }

    #[test]
    fn names_of_models_stand_in_their_files_and_not_in_the_files_names() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PackedCache::open(dir.path()).unwrap();
        for (name, packed) in [("here-a", 4), ("../../x y\n", 0), ("", 0), ("\u{6771}\u{4eac}", 0)] {
            let used = start(cache.images(name, key("a"), F32), F32, &WEIGHTS);
            assert_eq!((used.file.parent(), used.packed, used.warning), (Some(dir.path()), packed, None));
            let file = fs::read(used.file).unwrap();
            assert!(file.windows(17).any(|bytes| bytes == br#"{"name":"here-a","#), "{name}");
        }
    }

    #[test]
    fn starts_at_the_same_time_leave_a_sound_file() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            thread::scope(|scope| {
                for some in [&WEIGHTS[..], &WEIGHTS[..2], &WEIGHTS[1..]] {
                    scope.spawn(|| assert_eq!(start(images(dir.path()), F32, some).warning, None));
                }
            });
        }
        assert_eq!(counts(&start(images(dir.path()), F32, &WEIGHTS)), (4, 0, false));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[derive(Clone, Debug)]
    enum Damage {
        Flip(u8),
        Insert(Vec<u8>),
        Cut,
        Zero,
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            4 => (1..=u8::MAX).prop_map(Damage::Flip),
            1 => prop::collection::vec(any::<u8>(), 1..9).prop_map(Damage::Insert),
            1 => Just(Damage::Cut),
            1 => Just(Damage::Zero),
        ]
    }

    fn apply(damage: Damage, at: usize, file: &mut Vec<u8>) {
        match damage {
            Damage::Flip(bits) => file[at] ^= bits,
            Damage::Insert(bytes) => drop(file.splice(at..at, bytes)),
            Damage::Cut => file.truncate(at),
            Damage::Zero => file[at..].fill(0),
        }
    }

    proptest! {
        #[test]
        fn a_damaged_file_gives_the_right_bytes_or_none(damage in damage(), place in any::<prop::sample::Index>()) {
            let weights = [("a", 40), ("b", 300), ("c", 0)];
            let dir = tempfile::tempdir().unwrap();
            let path = start(images(dir.path()), F32, &weights).file;
            let mut file = fs::read(&path).unwrap();
            // header, images and index are a tenth of the file; the rest is padding, of which a few bytes are enough
            let pieces = [0..50, 4096..4146, 8192..8502, 12_288..file.len()];
            let places: Vec<usize> = pieces.into_iter().flatten().collect();
            apply(damage, places[place.index(places.len())], &mut file);
            fs::write(&path, &file).unwrap();
            let used = start(images(dir.path()), F32, &weights);
            prop_assert_eq!(used.restored + used.packed, weights.len());
            prop_assert_eq!(used.packed > 0, used.warning.is_some(), "{:?}", used);
            prop_assert_eq!(counts(&start(images(dir.path()), F32, &weights)), (weights.len(), 0, false));
        }
    }
}
