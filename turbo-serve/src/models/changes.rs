//! Loading and unloading: how versions change their phases.

use std::{
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    ChangeError, Load, LoadWhen, Models, NotServed, Source, SourceError,
    registry::Registry,
    slot::{Order, Phase, Ready, Unload, Versions, slots},
    versions::{Version, Which},
};
use crate::engine::with_causes;

/// The least time after a failed load before a request loads the model again. If the attempt took longer, the pause is
/// as long as the attempt, so that failing attempts take at most half of the time.
const PAUSE: Duration = Duration::from_secs(5);

impl Registry {
    /// The model and versions that an explicit load or unload is for.
    pub(super) fn ordered<'a>(&'a self, name: &'a str) -> Result<(usize, Which<'a>), ChangeError> {
        // Checked before the name, whatever that is: nothing can be loaded or unloaded.
        if self.models.iter().all(|model| model.source.is_none()) {
            return Err(ChangeError::Fixed);
        }
        Ok(self.names.exactly(name)?)
    }

    fn source(&self, model: usize) -> Result<&Arc<dyn Source>, ChangeError> {
        self.models[model].source.as_ref().ok_or(ChangeError::Fixed)
    }

    /// Begins to load a version that is loaded on demand; returns whether it is being loaded.
    pub(super) fn demand(self: &Arc<Self>, model: usize, version: &Version) -> bool {
        let (begins, is_loading) = self.table.change(model, version, |phase| {
            let begins = phase.is_on_demand();
            if begins {
                phase.begin_loading(true);
            }
            (begins, matches!(phase, Phase::Loading { .. }))
        });
        if begins {
            self.spawn_load(model, version);
        }
        is_loading
    }

    /// The same for all versions that are loaded on demand, including those whose load has failed, once their pause is
    /// over.
    pub(super) fn retry_failed(self: &Arc<Self>) {
        let again: Vec<(usize, Version)> = slots(&self.table.read())
            .filter(|(.., slot)| slot.phase.is_on_demand())
            .map(|(model, version, _)| (model, version.clone()))
            .collect();
        again.iter().for_each(|(model, version)| {
            self.demand(*model, version);
        });
    }

    /// The versions that a load is for, after listing those of the source.
    async fn look_for_versions(&self, model: usize, which: Which<'_>) -> Result<Vec<Version>, ChangeError> {
        let (name, source) = (self.names.of(model), Arc::clone(self.source(model)?));
        let listed = blocking(move || source.versions()).await;
        let versions = listed
            .map_err(|reason| ChangeError::Versions { name: name.to_owned(), reason })?
            .iter()
            .map(|version| version.as_str().into())
            .collect();
        self.table.there_are(model, &versions);
        self.known_versions(model, which)
    }

    /// The known versions that an explicit load or unload is for.
    pub(super) fn known_versions(&self, model: usize, which: Which<'_>) -> Result<Vec<Version>, ChangeError> {
        let table = self.table.read();
        let versions = &table[model];
        let found: Vec<Version> = match which {
            Which::Usual => versions.keys().cloned().collect(),
            Which::Latest => versions.keys().next_back().cloned().into_iter().collect(),
            Which::Exactly(version) => versions
                .get_key_value(&version.into())
                .map(|(version, _)| version.clone())
                .into_iter()
                .collect(),
        };
        if found.is_empty() {
            return Err(self.no_such_version(model, which, versions).into());
        }
        Ok(found)
    }

    /// Loads the versions that `name` stands for, one after the other.
    pub(super) async fn load_named(self: Arc<Self>, name: String) -> Result<(), ChangeError> {
        let (model, which) = self.ordered(&name)?;
        // Read before listing, which takes time: an unload meanwhile has to be noticed.
        let unloads = self.models[model].unloads.load(Relaxed);
        for version in self.look_for_versions(model, which).await? {
            self.load(model, &version, unloads).await?;
        }
        Ok(())
    }

    /// Loads a version unless it is ready, and waits until it is; `unloads` is the model's count when the load was
    /// requested.
    async fn load(
        self: &Arc<Self>,
        model: usize,
        version: &Version,
        unloads: u64,
    ) -> Result<(), ChangeError> {
        let name = || self.full_name(model, version);
        let mut changes = self.table.changes();
        let mut joined = false;
        loop {
            if self.table.is_stopping() {
                return Err(ChangeError::Stopping);
            }
            // Under the table's lock: an unload increments the count before it looks at versions.
            let order = |phase: &mut Phase| match self.models[model].unloads.load(Relaxed) == unloads {
                true => phase.order(joined),
                false => Order::Gone,
            };
            match self.table.change(model, version, order) {
                Order::IsThere => return Ok(()),
                Order::Begins => {
                    self.spawn_load(model, version);
                    joined = true;
                }
                Order::Joins => joined = true,
                Order::Waits => {}
                Order::Failed { reason } => return Err(ChangeError::Failed { name: name(), reason }),
                Order::Gone => return Err(NotServed::Unloaded { name: name() }.into()),
            }
            changes.next().await;
        }
    }

    /// Loads a version whose phase is `Loading`, on a task of its own.
    fn spawn_load(self: &Arc<Self>, model: usize, version: &Version) {
        let (registry, version) = (Arc::clone(self), version.clone());
        tokio::spawn(async move {
            let Ok(source) = registry.source(model).cloned() else { return };
            let (name, text) = (registry.full_name(model, &version), version.to_string());
            let label = registry.has_several().then(|| name.clone());
            let (models, of_metrics) = (Models(Arc::clone(&registry)), label.clone());
            let load =
                move || source.load(Load { version: &text, label: of_metrics.as_deref(), models: &models });
            let began = Instant::now();
            match blocking(load).await {
                Ok(loaded) => {
                    let ready = Ready::new(
                        registry.names.of(model),
                        version.as_str(),
                        label,
                        loaded,
                        &registry.underway,
                    );
                    registry.table.enter(model, &version, ready);
                }
                Err(reason) => {
                    tracing::error!(model = name, reason, "not loaded");
                    let pause = PAUSE.max(began.elapsed());
                    let is_on_demand = registry.models[model].load == LoadWhen::Request;
                    let again = is_on_demand.then(|| Instant::now() + pause);
                    let unavailable = Phase::Unavailable { reason, again };
                    registry.table.change(model, &version, |phase| *phase = unavailable);
                }
            }
        });
    }

    /// Whether there is more than one model or version by now: a folder of versions may have got another.
    fn has_several(&self) -> bool {
        self.table.read().iter().map(Versions::len).sum::<usize>() > 1
    }

    /// Ends a version on a task of its own: waits until the last lease is dropped, then until the engine has stopped.
    fn spawn_end(self: &Arc<Self>, model: usize, version: &Version, Ready { lease, all_back, stop }: Ready) {
        let (registry, version) = (Arc::clone(self), version.clone());
        tokio::spawn(async move {
            drop(lease);
            all_back.wait().await;
            if let Some(engine) = stop {
                engine.stop().await;
            }
            tracing::info!(model = registry.full_name(model, &version), "unloaded");
            // The replaced phase holds a handle to the engine: it is dropped outside the table's lock.
            drop(registry.table.change(model, &version, |phase| mem::replace(phase, Phase::Unloaded)));
        });
    }
}

/// An explicit unload of some versions of a model.
pub(super) struct Unloading {
    model: usize,
    /// The versions that were not told to end yet: those that are being loaded.
    left: Vec<Version>,
    /// The versions that have not ended yet.
    ending: Vec<Version>,
}

impl Unloading {
    pub(super) fn new(model: usize, versions: Vec<Version>) -> Self {
        Self { model, left: versions, ending: Vec::new() }
    }

    /// Begins to unload the versions that are ready, and forgets those that have ended; returns whether there are
    /// others.
    pub(super) fn goes_on(&mut self, registry: &Arc<Registry>) -> bool {
        let Self { model, left, ending } = self;
        left.retain(|version| {
            match registry.table.change(*model, version, Phase::unload) {
                Unload::Waits => return true,
                Unload::Done => {}
                Unload::Joins => ending.push(version.clone()),
                Unload::Begins(ready) => {
                    registry.spawn_end(*model, version, ready);
                    ending.push(version.clone());
                }
            }
            false
        });
        let table = registry.table.read();
        let ends = |version: &Version| {
            table[*model].get(version).is_some_and(|slot| matches!(slot.phase, Phase::Unloading { .. }))
        };
        ending.retain(ends);
        !left.is_empty() || !ending.is_empty()
    }
}

/// Runs blocking work on a thread of its own; returns an error or a panic as a line.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| with_causes(&*error)),
        Err(_) => Err("it panicked".to_owned()),
    }
}
