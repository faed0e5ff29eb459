//! Models by their names on the Hugging Face Hub: a name in, a folder with the files out.
//!
//! ```text
//! name, revision ─▶ what the Hub has, and its commit ─▶ the files that turbo reads ─▶ cache ─▶ snapshots/COMMIT
//! ```
//!
//! Files lie where every other tool of the Hub keeps them (`models--OWNER--NAME/{blobs,refs,snapshots}`), so nothing is
//! fetched twice. All files of a model are from the same commit. The crate `hf-hub` handles the cache, redirects and
//! ranges. Added here: the choice of files, one commit for all, checks of sizes, resuming a broken transfer, a timeout
//! for a silent Hub, and an error message for each answer.
//!
//! | variable | what it changes |
//! |---|---|
//! | `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` | where the cache is |
//! | `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, `HF_TOKEN_PATH` | the token; else the file that `hf auth login` writes |
//! | `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE` | the Hub is not contacted, only the cache is used |
//! | `HF_ENDPOINT` | another Hub |

mod ask;
mod error;
mod fetch;
mod settings;
mod wanted;

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use hf_hub::{Cache, Repo, RepoType};

pub use error::HubError;
pub use settings::HubSettings;

use fetch::{Event, Plan};

/// The default branch.
pub const MAIN: &str = "main";

/// A Hub and its cache.
pub struct Hub {
    settings: HubSettings,
    cache: Cache,
}

/// A model on the Hub.
#[derive(Clone, Copy, Debug)]
pub struct HubModel<'a> {
    /// `name`, or `owner/name`.
    pub name: &'a str,
    /// A branch, tag or commit.
    pub revision: &'a str,
    /// Folder, below the model's own, of a module that is wanted besides those that the model names.
    pub module: Option<&'a str>,
}

/// A model whose files are all in the cache.
#[derive(Debug)]
pub struct Snapshot {
    /// The folder with the files.
    pub folder: PathBuf,
    /// The commit of these files.
    pub commit: String,
    /// Why the Hub could not confirm that this is current; `None` if it did.
    pub stale: Option<HubError>,
}

/// Reports the progress of a fetch.
pub trait Watch {
    /// The fetch of this many files and bytes begins.
    fn begin(&mut self, files: usize, bytes: u64);
    /// This many more bytes have arrived.
    fn advance(&mut self, bytes: u64);
    /// The fetch has ended or failed.
    fn end(&mut self);
}

impl Watch for () {
    fn begin(&mut self, _: usize, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end(&mut self) {}
}

/// Whether `name` could be that of a model on the Hub: `name`, or `owner/name`.
pub fn is_model_name(name: &str) -> bool {
    let part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let ends_well = !part.starts_with(['-', '.']) && !part.ends_with(['-', '.']);
        (1..=96).contains(&part.len()) && part.chars().all(allowed) && ends_well && !part.contains("..")
    };
    name.split('/').count() <= 2 && name.split('/').all(part)
}

impl Hub {
    /// A Hub with these settings.
    pub fn new(settings: HubSettings) -> Self {
        let cache = Cache::new(settings.cache.clone());
        Self { settings, cache }
    }

    /// Where the cache is.
    pub fn cache(&self) -> &Path {
        &self.settings.cache
    }

    /// The files of a model: from the cache if it has them, else from the Hub. When the Hub is unreachable, answers
    /// 429, or does not show the model to this account, the cached snapshot is used. Blocks.
    ///
    /// # Errors
    /// [`HubError`], one line that says what to do.
    pub fn model(&self, model: HubModel<'_>, watch: &mut dyn Watch) -> Result<Snapshot, HubError> {
        let HubModel { name, revision, module } = model;
        if is_commit(revision) && self.is_settled(model) {
            return Ok(self.snapshot(name, revision));
        }
        if let Some(variable) = self.settings.offline {
            let cache = self.settings.cache.clone();
            let missing = HubError::Offline { model: name.to_owned(), variable, cache };
            return self.cached(name, revision).ok_or(missing);
        }
        let answer = match ask::about(&self.settings, name, revision) {
            Ok(answer) => answer,
            // A commit's files do not change, whatever the Hub answers about the model by now.
            Err(error) if is_commit(revision) || error.spares_the_cache() => {
                return self.stale(name, revision, error);
            }
            Err(error) => return Err(error),
        };
        let commit = answer.sha.clone();
        let plan = Plan { name: name.to_owned(), answer, module: module.map(str::to_owned) };
        match self.fetch(plan, revision, watch) {
            Err(error) if error.spares_the_cache() => match self.stale(name, revision, error)? {
                // The cached snapshot is of the same commit, without the files that could not be fetched: another tool
                // or an earlier attempt left it.
                Snapshot { commit: known, stale: Some(error), .. } if known == commit => Err(error),
                snapshot => Ok(snapshot),
            },
            fetched => fetched,
        }
    }

    /// Fetches on a thread of its own, so that waiting for a silent Hub can time out.
    fn fetch(&self, plan: Plan, revision: &str, watch: &mut dyn Watch) -> Result<Snapshot, HubError> {
        let (name, commit) = (plan.name.clone(), plan.answer.sha.clone());
        let (settings, cache) = (self.settings.clone(), self.cache.clone());
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let done = fetch::fetch(&plan, &settings, &cache, &|event| tell.send(event).is_ok());
            // An error means that the receiver has timed out.
            let _ = tell.send(Event::Done(done));
        });
        let done = loop {
            match told.recv_timeout(self.settings.patience) {
                Ok(Event::Begin { files, bytes }) => watch.begin(files, bytes),
                Ok(Event::Bytes(bytes)) => watch.advance(bytes),
                Ok(Event::Waiting) => {}
                Ok(Event::Done(done)) => break done,
                Err(mpsc::RecvTimeoutError::Timeout) => break Err(self.silent(&name)),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    break Err(HubError::Broken { model: name.clone(), why: "the transfer panicked".into() });
                }
            }
        };
        watch.end();
        done?;
        // Written only if it differs: a complete cache may be read-only.
        if !is_commit(revision) && self.referred(&name, revision).as_ref() != Some(&commit) {
            let cache = self.settings.cache.display().to_string();
            let noted = self.cache.repo(repo(&name, revision)).create_ref(&commit);
            noted.map_err(|why| HubError::Io { path: cache, why })?;
        }
        Ok(self.snapshot(&name, &commit))
    }

    fn silent(&self, name: &str) -> HubError {
        let seconds = self.settings.patience.as_secs();
        HubError::Unreachable {
            model: name.to_owned(),
            endpoint: self.settings.shown_endpoint(),
            why: format!("it sent nothing for {seconds} s; what has arrived is kept, try again"),
        }
    }

    /// The cached snapshot of `revision`, if it is complete; else the error `why`.
    fn stale(&self, name: &str, revision: &str, why: HubError) -> Result<Snapshot, HubError> {
        match self.cached(name, revision) {
            Some(snapshot) => Ok(Snapshot { stale: Some(why), ..snapshot }),
            None => Err(why),
        }
    }

    /// The cached snapshot of `revision`, if it is complete.
    fn cached(&self, name: &str, revision: &str) -> Option<Snapshot> {
        let commit = self.referred(name, revision).unwrap_or_else(|| revision.to_owned());
        let snapshot = is_commit(&commit).then(|| self.snapshot(name, &commit));
        snapshot.filter(|snapshot| wanted::is_whole(&snapshot.folder))
    }

    /// The commit that the cache has recorded for a branch or tag.
    fn referred(&self, name: &str, revision: &str) -> Option<String> {
        let refs = self.cache.path().join(repo(name, revision).folder_name()).join("refs");
        std::fs::read_to_string(refs.join(revision)).ok().map(|commit| commit.trim().to_owned())
    }

    /// Whether the cache has all files of a model at a commit.
    fn is_settled(&self, model: HubModel<'_>) -> bool {
        let absent = absent_folder(&self.cache, model.name, model.revision);
        let folder = self.snapshot(model.name, model.revision).folder;
        wanted::is_settled(&folder, model.module, |file| absent.join(file).exists())
    }

    fn snapshot(&self, name: &str, commit: &str) -> Snapshot {
        let folder = self.cache.repo(repo(name, commit)).pointer_path(commit);
        Snapshot { folder, commit: commit.to_owned(), stale: None }
    }
}

/// Where the Hub's tools record files that a commit does not have: an empty file for each.
fn absent_folder(cache: &Cache, name: &str, commit: &str) -> PathBuf {
    cache.path().join(repo(name, commit).folder_name()).join(".no_exist").join(commit)
}

fn repo(name: &str, revision: &str) -> Repo {
    Repo::with_revision(name.to_owned(), RepoType::Model, revision.to_owned())
}

/// Whether a revision is a full commit hash, which never changes its meaning.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// How long the Hub may take to begin an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_hub_allows() {
        for name in ["gpt2", "BAAI/bge-small-en-v1.5", "a/b_c.d", "sentence-transformers/all-MiniLM-L6-v2"] {
            assert!(is_model_name(name), "{name}");
        }
        for name in
            ["", "/", "a/", "/a", "a/b/c", "./a", "../a", "a/..", "a b", "a/b\n", "~/a", "-a/b", "a/b.", "ä"]
        {
            assert!(!is_model_name(name), "{name}");
        }
        assert!(!is_model_name(&"a".repeat(97)));
    }
}
