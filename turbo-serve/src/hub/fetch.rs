//! The transfer of files into the cache, on a thread of its own.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use hf_hub::{
    Cache,
    api::{
        Progress,
        sync::{Api, ApiBuilder, ApiError, ApiRepo},
    },
};

use super::{
    HubError, HubSettings, absent_folder,
    ask::{Answer, refused},
    repo, wanted,
};

/// What is to be fetched.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) answer: Answer,
    /// A module to fetch besides those that the model names.
    pub(super) module: Option<String>,
}

/// What the fetching thread reports.
pub(super) enum Event {
    Begin {
        files: usize,
        bytes: u64,
    },
    Bytes(u64),
    /// It waits: another process fetches, or a failed attempt is repeated later.
    Waiting,
    Done(Result<(), HubError>),
}

/// Attempts at a transfer if nothing arrives in between.
const ATTEMPTS: u32 = 4;

/// A client of the Hub with these settings.
pub(super) fn api_of(settings: &HubSettings, name: &str) -> Result<Api, HubError> {
    let builder = ApiBuilder::from_cache(Cache::new(settings.cache.clone()))
        .with_endpoint(settings.endpoint.clone())
        .with_token(settings.token.clone())
        .with_progress(false)
        .with_user_agent("turbo", env!("CARGO_PKG_VERSION"));
    builder.build().map_err(|error| HubError::Broken { model: name.to_owned(), why: error.to_string() })
}

/// Fetches what the cache does not have: first the files that describe the model, then those that they name.
pub(super) fn fetch(
    plan: &Plan,
    settings: &HubSettings,
    cache: &Cache,
    tell: &dyn Fn(Event) -> bool,
) -> Result<(), HubError> {
    let Plan { name, answer, module } = plan;
    let module = module.as_deref();
    let folder = cache.repo(repo(name, &answer.sha)).pointer_path(&answer.sha);
    let listed: Vec<String> = answer.siblings.iter().map(|file| file.path.clone()).collect();
    let transfer = Transfer {
        plan,
        settings,
        // At the commit, and not at the branch, which may move meanwhile.
        api: api_of(settings, name)?.repo(repo(name, &answer.sha)),
        folder: &folder,
        tell,
    };
    transfer.files(&wanted::descriptions(name, &listed)?)?;
    let broken = |why| HubError::Broken { model: name.clone(), why };
    if let Some(file) =
        module.map(|module| format!("{module}/config.json")).filter(|file| !listed.contains(file))
    {
        return Err(HubError::NoModule { model: name.clone(), file });
    }
    let dense = wanted::dense(&folder, module).map_err(broken)?;
    dense.iter().try_for_each(|module| wanted::check_dense(name, &listed, module))?;
    let there =
        |files: Vec<String>| files.into_iter().filter(|file| listed.contains(file)).collect::<Vec<_>>();
    transfer.files(&there(wanted::modules(&folder, module).map_err(broken)?))?;
    transfer.files(&there(wanted::weights(&folder).map_err(broken)?))?;
    if !wanted::is_whole(&folder) {
        return Err(broken("the Hub does not have all the weights that the model's index lists".to_owned()));
    }
    note_absent(&absent_folder(cache, name, &answer.sha), &wanted::absent(&listed, &folder, module));
    Ok(())
}

/// Records which files the commit does not have, so that the Hub is not asked for them again.
fn note_absent(folder: &Path, files: &[String]) {
    let note = |path: &Path| {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::create(path).map(drop)
    };
    for file in files.iter().filter(|file| wanted::stays_inside(file)) {
        let path = folder.join(file);
        if let Some(error) = (!path.exists()).then(|| note(&path).err()).flatten() {
            tracing::debug!(file, %error, "not noted as absent");
        }
    }
}

struct Transfer<'a> {
    plan: &'a Plan,
    settings: &'a HubSettings,
    api: ApiRepo,
    folder: &'a Path,
    tell: &'a dyn Fn(Event) -> bool,
}

/// Time between two checks on what another process fetches.
const WAIT: Duration = Duration::from_millis(500);

/// Watches whether another process that fetches still makes progress.
struct Standstill<'a> {
    transfer: &'a Transfer<'a>,
    arrived: u64,
    since: Instant,
}

impl<'a> Standstill<'a> {
    fn new(transfer: &'a Transfer<'a>) -> Self {
        Self { transfer, arrived: transfer.arrived(), since: Instant::now() }
    }

    /// Whether nothing has arrived for as long as a transfer may stand still.
    fn lasts(&mut self) -> bool {
        let arrived = self.transfer.arrived();
        if arrived != self.arrived {
            (self.arrived, self.since) = (arrived, Instant::now());
        }
        self.since.elapsed() >= self.transfer.settings.patience
    }
}

/// How a transfer failed.
enum Failure {
    /// Another attempt would fail, too.
    Final(HubError),
    /// It may be resumed.
    Again(HubError),
    /// It may be repeated, without what has arrived so far.
    Anew(HubError),
    /// Another process is fetching the file, and holds this lock file.
    Locked(PathBuf),
}

impl Transfer<'_> {
    fn files(&self, files: &[String]) -> Result<(), HubError> {
        let missing = || files.iter().filter(|file| !self.folder.join(file).exists()).collect::<Vec<_>>();
        if missing().is_empty() {
            return Ok(());
        }
        let _turn = self.turn();
        missing().into_iter().for_each(|file| self.take_from_other_commit(file));
        let missing = missing();
        if missing.is_empty() {
            return Ok(());
        }
        let size_of =
            |file: &&&String| self.plan.answer.siblings.iter().find(|listed| listed.path == ***file)?.size;
        let bytes = missing.iter().filter_map(|file| size_of(&file)).sum();
        (self.tell)(Event::Begin { files: missing.len(), bytes });
        missing.into_iter().try_for_each(|file| self.file(file))
    }

    /// Takes the lock on this model, waiting for another process that fetches it: its files need not be fetched again.
    /// `None`, without waiting any longer, if the cache cannot be locked or the other process makes no progress.
    fn turn(&self) -> Option<File> {
        let cache = Cache::new(self.settings.cache.clone());
        let folder =
            cache.path().join(".locks").join(repo(&self.plan.name, &self.plan.answer.sha).folder_name());
        let lock = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join("turbo.lock"))).ok()?;
        let mut others = Standstill::new(self);
        loop {
            match lock.try_lock() {
                Ok(()) => return Some(lock),
                Err(TryLockError::WouldBlock) if !others.lasts() => self.wait(WAIT),
                Err(_) => return None,
            }
        }
    }

    /// Bytes of the model's files in the cache, fetched by any process.
    fn arrived(&self) -> u64 {
        let blobs = self.folder.parent().and_then(Path::parent).map(|folder| folder.join("blobs"));
        let files = blobs.and_then(|blobs| fs::read_dir(blobs).ok()).into_iter().flatten().flatten();
        // of the file, not of its directory entry, which some systems update only when the file is closed
        files.filter_map(|file| fs::metadata(file.path()).ok()).map(|metadata| metadata.len()).sum()
    }

    /// Links a file whose blob another commit has brought: many files are the same in several commits, and blobs are
    /// named after their content. If that fails, the file is fetched.
    #[cfg(unix)]
    fn take_from_other_commit(&self, file: &str) {
        let path = self.folder.join(file);
        let repo_folder = self.folder.parent().and_then(Path::parent);
        let Some(blobs) = repo_folder.map(|folder| folder.join("blobs")).filter(|blobs| blobs.is_dir())
        else {
            return;
        };
        if path.exists() || !wanted::stays_inside(file) {
            return;
        }
        let api = api_of(self.settings, &self.plan.name).ok();
        let Some(metadata) = api.and_then(|api| api.metadata(&self.api.url(file)).ok()) else { return };
        let blob = blobs.join(metadata.etag());
        if !fs::metadata(&blob).is_ok_and(|blob| blob.is_file() && blob.len() == metadata.size() as u64) {
            return;
        }
        let up = "../".repeat(file.split('/').count() + 1);
        let linked = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| std::os::unix::fs::symlink(format!("{up}blobs/{}", metadata.etag()), &path));
        if let Err(error) = linked {
            tracing::debug!(file, %error, "fetched again");
        }
    }

    /// Without links every commit has its own files.
    #[cfg(not(unix))]
    fn take_from_other_commit(&self, _: &str) {}

    /// Fetches one file, with repeated attempts.
    fn file(&self, file: &str) -> Result<(), HubError> {
        if !wanted::stays_inside(file) {
            return Err(self.broken(file, "its name leads out of the folder".to_owned()));
        }
        let (mut failures, mut told, mut others) = (0, 0, Standstill::new(self));
        loop {
            let before = told;
            let error = match self.attempt(file, &mut told) {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Locked(lock)) if others.lasts() => {
                    let lock = lock.display();
                    let why = format!(
                        "the process that fetches it, this one or another, makes no progress: end that process, \
                         or remove {lock}"
                    );
                    return Err(self.broken(file, why));
                }
                Err(Failure::Locked(_)) => {
                    self.wait(WAIT);
                    // The other process may have completed it.
                    if self.folder.join(file).exists() {
                        return Ok(());
                    }
                    continue;
                }
                Err(Failure::Again(error)) => error,
                Err(Failure::Anew(error)) => {
                    self.remove_partial(file);
                    error
                }
            };
            failures = if told > before { 1 } else { failures + 1 };
            if failures == ATTEMPTS {
                return Err(error);
            }
            self.wait(self.settings.pause * failures);
        }
    }

    fn wait(&self, time: Duration) {
        (self.tell)(Event::Waiting);
        thread::sleep(time);
    }

    /// Fetches one file once. `told` counts the bytes of the file that have been reported.
    fn attempt(&self, file: &str, told: &mut u64) -> Result<(), Failure> {
        let mut size = 0;
        let counter = Counter { tell: self.tell, size: &mut size, told, here: 0 };
        let path =
            self.api.download_with_progress(file, counter).map_err(|error| self.failure(file, error))?;
        let got = fs::metadata(&path).map(|metadata| metadata.len());
        if matches!(got, Ok(got) if got == size) {
            return Ok(());
        }
        let why = format!("{} bytes arrived, expected {size}", got.unwrap_or(0));
        // Both the link and the blob that it leads to must be removed.
        for wrong in [fs::canonicalize(&path), Ok(path)].into_iter().flatten() {
            let _ = fs::remove_file(wrong);
        }
        Err(Failure::Again(self.broken(file, why)))
    }

    fn failure(&self, file: &str, error: ApiError) -> Failure {
        let Plan { name, answer, .. } = self.plan;
        let unreachable = |why: String| HubError::Unreachable {
            model: name.clone(),
            endpoint: self.settings.shown_endpoint(),
            why: format!("{file}: {why}"),
        };
        match error {
            ApiError::LockAcquisition(lock) => Failure::Locked(lock),
            ApiError::InvalidResume => {
                Failure::Anew(self.broken(file, "more bytes arrived than it has".to_owned()))
            }
            ApiError::IoError(source) if is_of_network(&source) => {
                Failure::Again(unreachable(source.to_string()))
            }
            ApiError::IoError(why) => {
                Failure::Final(HubError::Io { path: self.settings.cache.display().to_string(), why })
            }
            ApiError::RequestError(error) => match *error {
                // The partial file was complete already.
                ureq::Error::StatusCode(416) => Failure::Anew(unreachable("status 416".to_owned())),
                ureq::Error::StatusCode(status @ (429 | 500..)) => {
                    Failure::Again(refused(self.settings, name, &answer.sha, status, None))
                }
                ureq::Error::StatusCode(401) => Failure::Final(HubError::Gated {
                    model: name.clone(),
                    endpoint: self.settings.shown_endpoint(),
                }),
                // The Hub has listed the file, so the model exists.
                ureq::Error::StatusCode(404) => {
                    Failure::Final(self.broken(file, "it is listed, but not there (404)".to_owned()))
                }
                ureq::Error::StatusCode(status) => {
                    Failure::Final(refused(self.settings, name, &answer.sha, status, None))
                }
                other => Failure::Again(unreachable(other.to_string())),
            },
            other => Failure::Final(self.broken(file, other.to_string())),
        }
    }

    /// Removes what has arrived of a file.
    fn remove_partial(&self, file: &str) {
        let cache = Cache::new(self.settings.cache.clone());
        let api = api_of(self.settings, &self.plan.name);
        if let Ok(metadata) = api.and_then(|api| {
            api.metadata(&self.api.url(file)).map_err(|error| self.broken(file, error.to_string()))
        }) {
            let blob = cache.repo(repo(&self.plan.name, &self.plan.answer.sha)).blob_path(metadata.etag());
            // If it cannot be removed, the next attempt fails as this one did.
            let _ = fs::remove_file(blob.with_extension("part"));
        }
    }

    fn broken(&self, file: &str, why: String) -> HubError {
        HubError::Broken { model: format!("{}/{file}", self.plan.name), why }
    }
}

/// Whether a copy failed while reading from the network, not while writing to the disk.
fn is_of_network(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    let kind = error.kind();
    let raw = error.raw_os_error().is_some();
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof) || !raw
}

/// Reports each byte once, although each attempt counts the bytes of earlier ones again.
struct Counter<'a> {
    tell: &'a dyn Fn(Event) -> bool,
    size: &'a mut u64,
    told: &'a mut u64,
    /// Bytes that have arrived.
    here: u64,
}

impl Progress for Counter<'_> {
    fn init(&mut self, size: usize, _: &str) {
        *self.size = size as u64;
    }

    fn update(&mut self, bytes: usize) {
        self.here += bytes as u64;
        if self.here > *self.told {
            (self.tell)(Event::Bytes(self.here - *self.told));
            *self.told = self.here;
        }
    }

    fn finish(&mut self) {}
}
