//! Measured costs on disk: a restarted server begins with the costs of its last run.
//!
//! In: a folder, and everything that a batch's cost depends on (a [`CostKey`]). Out: one small JSON file per key,
//! written aside and renamed. So a reader sees a whole file or none, and servers that share a folder never wait for
//! each other; the last write wins. No error here stops a server: costs that cannot be read are measured again, costs
//! that cannot be written are lost, and the log says so.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use turbo_sched::{
    CostModel, CostTable, Layout, PackedCost, SchedError,
    cost::{load, save},
};
use twox_hash::XxHash3_128;

use crate::engine::{Capacity, with_causes};

/// Time between two writes: a server that is killed loses no more than this, plus the write in progress.
const EVERY: Duration = Duration::from_secs(180);

/// Everything that the cost of a batch depends on. Costs that were kept under another key are not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::engine) struct CostKey {
    /// The model's short name.
    model: String,
    /// Digest of what is computed, operator by operator, with all sizes.
    computes: String,
    dtype: String,
    /// Device, instruction set and threads: `cpu (avx512, 2 threads)`.
    device: String,
    /// The processor as the system names it: a folder may be shared between machines.
    processor: String,
    layout: String,
    /// The capacity up to which batches were measured.
    max_batch_size: usize,
    max_batch_tokens: usize,
    max_seq_len: usize,
    /// Version of turbo.
    version: String,
}

impl CostKey {
    /// * `model`: its short name.
    /// * `computes`: what is computed, as text; the same text has the same costs.
    /// * `device`: device, instruction set and threads.
    pub(in crate::engine) fn new(
        model: &str,
        computes: &str,
        (dtype, device): (&str, &str),
        layout: Layout,
        capacity: Capacity,
    ) -> Self {
        Self {
            model: model.to_owned(),
            computes: digest(computes.as_bytes()),
            dtype: dtype.to_owned(),
            device: device.to_owned(),
            processor: processor(),
            layout: format!("{layout:?}").to_lowercase(),
            max_batch_size: capacity.batch_size,
            max_batch_tokens: capacity.total_tokens,
            max_seq_len: capacity.max_seq_len,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// `minilm-3f2a….json`: a readable name, and a digest of the whole key.
    fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = self.model.chars().take(60).map(plain).collect();
        format!("{}-{}.json", name.trim_start_matches('.'), digest(format!("{self:?}").as_bytes()))
    }
}

/// The file that keeps the costs of one key.
#[derive(Debug)]
pub(in crate::engine) struct CostCache {
    file: PathBuf,
    key: CostKey,
}

/// What the file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    key: CostKey,
    costs: Costs,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Costs {
    Padded(CostTable),
    Packed(Box<PackedCost>),
}

impl CostCache {
    /// The file of `key` in the folder `dir`; neither need exist.
    pub(in crate::engine) fn new(dir: &Path, key: CostKey) -> Self {
        Self { file: dir.join(key.file_name()), key }
    }

    /// The kept costs; `None` where there are none that can be used.
    pub(in crate::engine) fn load(&self) -> Option<CostModel> {
        let file = self.file.display();
        match load::<Kept>(&self.file) {
            Ok(Kept { key, costs }) if key == self.key => {
                tracing::info!(%file, "costs of batches are those of the last run");
                Some(costs.into())
            }
            Ok(_) => {
                tracing::warn!(%file, "the kept costs are of another model or machine: measuring again");
                None
            }
            Err(SchedError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                tracing::info!(%file, "no costs of batches are kept yet: measuring them");
                None
            }
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "the kept costs cannot be used: measuring again");
                None
            }
        }
    }

    /// Writes `costs`; a failure is logged.
    pub(super) fn save(&self, costs: CostModel) {
        let dir = self.file.parent().unwrap_or(Path::new("."));
        let cannot = |error: String| {
            tracing::warn!(error, file = %self.file.display(), "costs of batches are not kept");
        };
        if let Err(error) = fs::create_dir_all(dir) {
            return cannot(with_causes(&error));
        }
        let kept = Kept { key: self.key.clone(), costs: costs.into() };
        match save(&self.file, &kept) {
            Ok(()) => tracing::debug!(file = %self.file.display(), "costs of batches are kept"),
            Err(error) => cannot(with_causes(&error)),
        }
    }
}

impl From<Costs> for CostModel {
    fn from(costs: Costs) -> Self {
        match costs {
            Costs::Padded(table) => Self::Padded(table),
            Costs::Packed(packed) => Self::Packed(packed),
        }
    }
}

impl From<CostModel> for Costs {
    fn from(costs: CostModel) -> Self {
        match costs {
            CostModel::Padded(table) => Self::Padded(table),
            CostModel::Packed(packed) => Self::Packed(packed),
        }
    }
}

/// Writes the costs that the worker learns: every few minutes on another thread, and once more at the end.
#[derive(Debug)]
pub(in crate::engine) struct CostKeeper {
    cache: Option<Arc<CostCache>>,
    every: Duration,
    due: Instant,
    writing: Option<JoinHandle<()>>,
    /// Whether anything was learnt since the last copy was taken.
    learnt: bool,
}

impl CostKeeper {
    /// Writes to `cache`, if there is one.
    pub(in crate::engine) fn new(cache: Option<CostCache>) -> Self {
        Self::writing_every(EVERY, cache)
    }

    fn writing_every(every: Duration, cache: Option<CostCache>) -> Self {
        let cache = cache.map(Arc::new);
        Self { cache, every, due: Instant::now() + every, writing: None, learnt: false }
    }

    /// Called after each batch. Nearly always it checks the clock and returns; when a write is due, it copies `costs`
    /// and writes them on another thread.
    pub(in crate::engine) fn learnt(&mut self, costs: &CostModel) {
        let Some(cache) = &self.cache else { return };
        self.learnt = true;
        let now = Instant::now();
        if now < self.due || self.writing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.due = now + self.every;
        let (cache, costs) = (Arc::clone(cache), costs.clone());
        let thread = std::thread::Builder::new().name("turbo-costs".into());
        match thread.spawn(move || cache.save(costs)) {
            Ok(thread) => (self.writing, self.learnt) = (Some(thread), false),
            Err(error) => tracing::warn!(%error, "costs of batches are not kept now"),
        }
    }

    /// Writes what was learnt since the last write; waits for the disk.
    pub(in crate::engine) fn finish(self, costs: &CostModel) {
        // A panic of the last write was reported there, and the next write does not depend on it.
        drop(self.writing.map(JoinHandle::join));
        if let Some(cache) = self.cache.filter(|_| self.learnt) {
            cache.save(costs.clone());
        }
    }
}

/// XXH3 in hexadecimal, to name a file; no protection against forgery.
fn digest(bytes: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(bytes))
}

fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use turbo_sched::{BatchTotal, Candidate};

    use super::*;

    const CAPACITY: Capacity = Capacity { batch_size: 32, total_tokens: 1024, max_seq_len: 128 };

    fn key(computes: &str) -> CostKey {
        CostKey::new("org/model", computes, ("float32", "cpu (avx2, 2 threads)"), Layout::Packed, CAPACITY)
    }

    fn batch(len: u32, size: usize) -> Candidate {
        std::iter::repeat_n(len, size).collect()
    }

    /// Costs of a machine that takes `per_token` seconds per token.
    fn costs(layout: Layout, per_token: f64) -> CostModel {
        let sizes = [(8, 1), (8, 16), (128, 1), (128, 8)];
        let cost = |len: u32, size: usize| BatchTotal(1e-3 + per_token * f64::from(len) * size as f64);
        match layout {
            Layout::Packed => {
                let measured = sizes.map(|(len, size)| (batch(len, size), cost(len, size)));
                CostModel::Packed(Box::new(PackedCost::fit(measured).unwrap()))
            }
            Layout::Padded => CostModel::Padded(
                CostTable::from_measurements(sizes.map(|(len, size)| (len, size, cost(len, size)))).unwrap(),
            ),
        }
    }

    fn same(a: &CostModel, b: &CostModel) -> bool {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        [(8, 1), (8, 7), (64, 4), (128, 8)]
            .into_iter()
            .all(|(len, size)| near(a.cost(&batch(len, size)).0, b.cost(&batch(len, size)).0))
    }

    #[test]
    fn costs_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CostCache::new(&dir.path().join("made/when/needed"), key("a"));
        assert!(cache.load().is_none());
        for layout in [Layout::Packed, Layout::Padded] {
            cache.save(costs(layout, 1e-5));
            let kept = cache.load().unwrap();
            assert!(kept.layout() == layout && same(&kept, &costs(layout, 1e-5)), "{layout:?}");
        }
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let other = Capacity { total_tokens: 2048, ..CAPACITY };
        let (f32, device) = ("float32", "cpu (avx2, 2 threads)");
        let keys = [
            key("a"),
            key("b"),
            CostKey::new("org/other", "a", (f32, device), Layout::Packed, CAPACITY),
            CostKey::new("org/model", "a", ("bfloat16", device), Layout::Packed, CAPACITY),
            CostKey::new("org/model", "a", (f32, "cpu (avx2, 1 thread)"), Layout::Packed, CAPACITY),
            CostKey::new("org/model", "a", (f32, device), Layout::Padded, CAPACITY),
            CostKey::new("org/model", "a", (f32, device), Layout::Packed, other),
        ];
        let names: std::collections::BTreeSet<String> = keys.iter().map(CostKey::file_name).collect();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(|name| name.starts_with("org-") && name.ends_with(".json")), "{names:?}");
        // The names of earlier versions have 16 digits, and are not found.
        assert!(names.iter().all(|name| name.len() == "org-model-.json".len() + 32), "{names:?}");
    }

    #[test]
    fn a_damaged_file_is_as_none_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CostCache::new(dir.path(), key("a"));
        cache.save(costs(Layout::Packed, 1e-5));
        let whole = fs::read_to_string(&cache.file).unwrap();
        let other = whole.replace(&digest(b"a"), &digest(b"b"));
        let negative = whole.replacen("\"weight\": ", "\"weight\": -", 1);
        for damaged in ["", "{", "[]", "\0\0\0", &whole[..whole.len() / 2], &other, &negative] {
            fs::write(&cache.file, damaged).unwrap();
            assert!(cache.load().is_none(), "{damaged}");
        }
        cache.save(costs(Layout::Packed, 1e-5));
        assert!(cache.load().is_some());
    }

    /// Root may write anywhere, so the folder is one that cannot exist: below a file.
    #[test]
    fn a_folder_that_cannot_be_written_costs_only_the_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = CostCache::new(&file.path().join("below"), key("a"));
        cache.save(costs(Layout::Packed, 1e-5));
        assert!(cache.load().is_none());
        let mut keeper = CostKeeper::writing_every(Duration::ZERO, Some(cache));
        keeper.learnt(&costs(Layout::Packed, 1e-5));
        keeper.finish(&costs(Layout::Packed, 1e-5));
    }

    #[test]
    fn two_servers_never_see_half_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        CostCache::new(dir, key("a")).save(costs(Layout::Packed, 1e-5));
        std::thread::scope(|scope| {
            for per_token in [1e-5, 2e-5] {
                scope.spawn(move || {
                    let cache = CostCache::new(dir, key("a"));
                    for _ in 0..30 {
                        cache.save(costs(Layout::Packed, per_token));
                        let kept = cache.load().unwrap();
                        let known = [1e-5, 2e-5].map(|per_token| costs(Layout::Packed, per_token));
                        assert!(known.iter().any(|known| same(known, &kept)));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing is left beside the file");
    }

    #[test]
    fn what_was_learnt_is_written_when_it_is_time_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let cache = || CostCache::new(dir.path(), key("a"));
        let learnt = |per_token| costs(Layout::Packed, per_token);

        let mut keeper = CostKeeper::writing_every(Duration::from_secs(3600), Some(cache()));
        keeper.learnt(&learnt(1e-5));
        assert!(cache().load().is_none(), "it is not time yet");
        keeper.finish(&learnt(2e-5));
        assert!(same(&cache().load().unwrap(), &learnt(2e-5)));

        let mut keeper = CostKeeper::writing_every(Duration::ZERO, Some(cache()));
        keeper.learnt(&learnt(3e-5));
        keeper.finish(&learnt(4e-5));
        assert!(same(&cache().load().unwrap(), &learnt(3e-5)), "all that was learnt was written already");

        CostKeeper::new(Some(cache())).finish(&learnt(5e-5));
        assert!(same(&cache().load().unwrap(), &learnt(3e-5)), "nothing was learnt");
    }
}
