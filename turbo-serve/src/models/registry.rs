//! The registry of models: finding, loading, unloading and stopping them.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    Alias, ChangeError, Composition, DeclareError, Declared, Load, LoadWhen, Loaded, NotServed, Served,
    Source, SourceError, State, Wanted,
    health::worst,
    names::Names,
    slot::{Order, Phase, Ready, Slot, Unload, Versions, choose},
    table::Table,
    underway::Underway,
    versions::{Version, Which},
};
use crate::engine::{Health, with_causes};

/// The only version of a model that is served alone.
const ONLY: &str = "1";

/// The least time after a failed load before a request loads the model again. If the attempt took longer, the pause is
/// as long as the attempt, so that failing attempts take at most half of the time.
const PAUSE: Duration = Duration::from_secs(5);

/// All served models. Clones are handles to the same registry.
///
/// [`Models::lease`], [`Models::load`], [`Models::unload`] and [`Models::health`] start tasks, so they need a tokio
/// runtime.
#[derive(Clone)]
pub struct Models(Arc<Registry>);

/// A handle that does not keep the registry alive, for models that the registry itself serves.
#[derive(Clone)]
pub struct WeakModels(Weak<Registry>);

struct Registry {
    names: Names,
    models: Vec<Model>,
    /// The versions of each model.
    table: Table,
    underway: Underway,
}

/// The part of a model that does not change.
struct Model {
    aliases: Vec<Alias>,
    pinned: Option<String>,
    load: LoadWhen,
    /// `None` if the model is never loaded or unloaded.
    source: Option<Arc<dyn Source>>,
    /// How often unloading all of its versions was requested: calls of [`Models::load`] from before such a request load
    /// nothing more. Unloading one version does not end an older load of all.
    unloads: AtomicU64,
}

/// One version of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The model's own name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its state.
    pub state: State,
    /// Since when it has been in that state.
    pub since: SystemTime,
    /// Other names that lead to it: the model's aliases, except those that pin another version.
    pub aliases: Vec<String>,
}

/// Where a request's model was found.
enum Found {
    Ready(Served),
    /// It is being loaded, or will be when a request demands it.
    Awaited {
        name: String,
        model: usize,
        version: Version,
    },
}

impl Models {
    /// One loaded model under its own name. It is never unloaded, and answers requests for every other name, too.
    pub fn single(loaded: impl Into<Loaded>) -> Self {
        let loaded = loaded.into();
        let name = loaded.engine.info().model.name.clone();
        let underway = Underway::default();
        let model = Model {
            aliases: Vec::new(),
            pinned: None,
            load: LoadWhen::Start,
            source: None,
            unloads: 0.into(),
        };
        let ready = Phase::Ready(Ready::new(&name, ONLY, None, loaded, &underway));
        let versions = Versions::from([(ONLY.into(), ready.into())]);
        Self::with(Names::single(&name), vec![model], vec![versions], underway)
    }

    /// These models, none of which is loaded yet: [`Models::start`] loads them. A request that names no model gets
    /// `default`, which is a name or an alias, or else the first model.
    ///
    /// Blocks while it lists versions.
    ///
    /// # Errors
    /// [`DeclareError`]: names that stand for two things, or a model without versions.
    pub fn new(declared: Vec<Declared>, default: Option<&str>) -> Result<Self, DeclareError> {
        let names = Names::new(&declared, default)?;
        let versions = declared.iter().map(first_versions).collect::<Result<_, _>>()?;
        let model = |Declared { aliases, version: pinned, load, source, .. }| Model {
            aliases,
            pinned,
            load,
            source: Some(source),
            unloads: 0.into(),
        };
        let models = declared.into_iter().map(model).collect();
        Ok(Self::with(names, models, versions, Underway::default()))
    }

    fn with(names: Names, models: Vec<Model>, versions: Vec<Versions>, underway: Underway) -> Self {
        Self(Arc::new(Registry { names, models, table: Table::new(versions), underway }))
    }

    /// Loads the models that are to be ready before the server listens.
    ///
    /// # Errors
    /// [`ChangeError`] of the first version that cannot be loaded.
    pub async fn start(&self) -> Result<(), ChangeError> {
        for (index, model) in self.0.models.iter().enumerate() {
            if model.load == LoadWhen::Start {
                self.load(self.0.names.of(index)).await?;
            }
        }
        Ok(())
    }

    /// A handle that keeps nothing alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakModels {
        WeakModels(Arc::downgrade(&self.0))
    }

    /// The model that a request is for, if it is ready.
    ///
    /// # Errors
    /// [`NotServed`]
    pub fn find(&self, wanted: Wanted<'_>) -> Result<Served, NotServed> {
        match self.0.found(wanted)? {
            Found::Ready(served) => Ok(served),
            Found::Awaited { name, .. } => Err(NotServed::NotReady { name }),
        }
    }

    /// The model that a request is for. Loads it if it is loaded on demand, and waits while it is being loaded.
    ///
    /// # Errors
    /// [`NotServed`]
    pub async fn lease(&self, wanted: Wanted<'_>) -> Result<Served, NotServed> {
        self.lease_by(wanted, None).await
    }

    /// The same, but waits until `deadline` at most. Loading goes on for other requests.
    ///
    /// # Errors
    /// [`NotServed`]
    pub async fn lease_by(
        &self,
        wanted: Wanted<'_>,
        deadline: Option<std::time::Instant>,
    ) -> Result<Served, NotServed> {
        // Before the look-up, so that a change between the two is not missed.
        let mut changes = self.0.table.changes();
        loop {
            let (name, model, version) = match self.0.found(wanted) {
                Ok(Found::Ready(served)) => return Ok(served),
                // `Unloaded` may be a version that was being loaded when the server was told to stop.
                Ok(Found::Awaited { .. }) | Err(NotServed::Unloaded { .. }) if self.0.table.is_stopping() => {
                    return Err(NotServed::Stopping);
                }
                Ok(Found::Awaited { name, model, version }) => (name, model, version),
                Err(error) => return Err(error),
            };
            if !self.0.demand(model, &version) {
                continue; // it has changed since the look-up
            }
            match deadline {
                None => changes.next().await,
                Some(deadline) => timeout_at(deadline.into(), changes.next())
                    .await
                    .map_err(|_| NotServed::Expired { name })?,
            }
        }
    }

    /// Whether a request may be answered, without a lease that would keep the model from being unloaded; nothing is
    /// loaded for it.
    ///
    /// # Errors
    /// [`NotServed`]
    pub fn check(&self, wanted: Wanted<'_>) -> Result<(), NotServed> {
        self.0.found(wanted).map(drop)
    }

    /// The version that a request would be for, whatever its state.
    ///
    /// # Errors
    /// [`NotServed`], where there is no such version.
    pub fn entry(&self, wanted: Wanted<'_>) -> Result<Entry, NotServed> {
        let (model, which) = self.0.names.resolve(wanted)?;
        let table = self.0.table.read();
        let (version, slot) = self.0.choose(model, which, &table[model])?;
        Ok(self.0.entry(model, version, slot))
    }

    /// Leases on all versions that are ready.
    #[must_use]
    pub fn ready(&self) -> Vec<Served> {
        let lease = |slot: &Slot| slot.phase.lease().cloned();
        self.0.table.read().iter().flat_map(BTreeMap::values).filter_map(lease).collect()
    }

    /// Leases on the ready versions that a name stands for: the version that is named, or else all of the model's,
    /// whichever would answer.
    ///
    /// # Errors
    /// [`NotServed`], as of [`Models::find`], where none is ready.
    pub fn ready_of(&self, wanted: Wanted<'_>) -> Result<Vec<Served>, NotServed> {
        let (model, which) = self.0.names.resolve(wanted)?;
        if which == Which::Usual {
            let lease = |slot: &Slot| slot.phase.lease().cloned();
            let ready: Vec<Served> = self.0.table.read()[model].values().filter_map(lease).collect();
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
        Ok(vec![self.find(wanted)?])
    }

    /// The server's health: the worst of all ready models. Models that are loaded on demand count as ready until an
    /// attempt to load them fails. Ensembles are left out, since their models count themselves; unloaded models do not
    /// count. `None`: no model is ready, and no request is expected to load one.
    ///
    /// In that case this also retries failed loads, as a request would: if a load balancer sends requests only to
    /// healthy servers, no request would ever arrive to do so.
    #[must_use]
    pub fn health(&self) -> Option<Health> {
        let models = self.ready().into_iter().filter(|served| served.composition() == Composition::Model);
        let is_expected = |slot: &Slot| slot.phase.is_expected();
        let expected = self.0.table.read().iter().flat_map(BTreeMap::values).any(is_expected);
        let health =
            worst(models.map(|model| model.engine().health()).chain(expected.then_some(Health::Ready)));
        if health.is_none() && !self.0.table.is_stopping() {
            self.0.demand_again();
        }
        health
    }

    /// The first version that could not be loaded, with the reason, as a line; `None` if there is none.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let table = self.0.table.read();
        let mut slots = table
            .iter()
            .enumerate()
            .flat_map(|(model, versions)| versions.iter().map(move |(version, slot)| (model, version, slot)));
        slots.find_map(|(model, version, slot)| {
            let reason = slot.phase.failure()?;
            Some(format!("model `{}` could not be loaded: {reason}", self.0.full_name(model, version)))
        })
    }

    /// All versions of all models, in the order of their declaration.
    #[must_use]
    pub fn list(&self) -> Vec<Entry> {
        let table = self.0.table.read();
        let entry = |(model, versions): (usize, &Versions)| {
            versions.iter().map(|(version, slot)| self.0.entry(model, version, slot)).collect::<Vec<_>>()
        };
        table.iter().enumerate().flat_map(entry).collect()
    }

    /// Loads all versions of a model (`name`), or one (`name/version`, `name/latest`), and returns when they are ready.
    /// Versions that are ready already stay as they are. The source is searched for new versions. Loading goes on when
    /// the future is dropped.
    ///
    /// # Errors
    /// [`ChangeError`]: no such model or version, or one that cannot be loaded.
    pub async fn load(&self, name: &str) -> Result<(), ChangeError> {
        let loading = tokio::spawn(Arc::clone(&self.0).load_all(name.to_owned()));
        // It fails only if the runtime ends or the task panics.
        loading.await.unwrap_or(Err(ChangeError::Stopping))
    }

    /// Unloads all versions of a model (`name`), or one (`name/version`, `name/latest`). Requests do not find them any
    /// more once this future was polled; it resolves when accepted requests are answered and the memory is free.
    /// Versions that are being loaded are unloaded once they are ready. A load of a version that is being unloaded
    /// waits until it is unloaded. Unloading goes on when the future is dropped.
    ///
    /// # Errors
    /// [`ChangeError`]: no such model or version.
    pub async fn unload(&self, name: &str) -> Result<(), ChangeError> {
        let (model, which) = self.0.ordered(name)?;
        let (mut left, mut ending) = (self.0.known_versions(model, which)?, Vec::new());
        let mut changes = self.0.table.changes();
        let registry = Arc::clone(&self.0);
        if which == Which::Usual {
            // First, so that an older load does not go on to load versions that are not ready yet.
            registry.models[model].unloads.fetch_add(1, Relaxed);
        }
        if registry.goes_on_unloading(model, &mut left, &mut ending) {
            let unloading = tokio::spawn(async move {
                changes.next().await;
                while registry.goes_on_unloading(model, &mut left, &mut ending) {
                    changes.next().await;
                }
            });
            // It fails only if the runtime ends or the task panics.
            unloading.await.map_err(|_| ChangeError::Stopping)?;
        }
        Ok(())
    }

    /// Refuses new requests, and resolves when all accepted ones are answered and all engines have stopped. A second
    /// call waits for the same.
    pub async fn stop(&self) {
        let engines = self.0.table.stop();
        self.0.underway.end().await;
        let mut stopping: JoinSet<()> =
            engines.into_iter().map(|engine| async move { engine.stop().await }).collect();
        while stopping.join_next().await.is_some() {}
    }

    /// Whether [`Models::stop`] or [`Models::abandon`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.table.is_stopping()
    }

    /// Cancels the accepted requests, whose callers get an error at once, and refuses new ones.
    pub fn abandon(&self) {
        self.0.table.stop().iter().for_each(|engine| engine.abandon());
    }
}

impl WeakModels {
    /// A handle, while others exist.
    #[must_use]
    pub fn upgrade(&self) -> Option<Models> {
        self.0.upgrade().map(Models)
    }
}

impl<L: Into<Loaded>> From<L> for Models {
    fn from(loaded: L) -> Self {
        Self::single(loaded)
    }
}

/// The versions of a model before any is loaded.
fn first_versions(model: &Declared) -> Result<Versions, DeclareError> {
    let wrong = |why| DeclareError::Versions { name: model.name.clone(), why };
    let versions = model.source.versions().map_err(|error| wrong(error.to_string()))?;
    if versions.is_empty() {
        return Err(wrong("it has no versions, expected at least one".to_owned()));
    }
    if let Some(pinned) = model.version.as_ref().filter(|pinned| !versions.contains(pinned)) {
        let there = versions.join("`, `");
        return Err(wrong(format!("version `{pinned}` is not there: expected one of `{there}`")));
    }
    let phase = || match model.load {
        LoadWhen::Start => Phase::Unloaded,
        LoadWhen::Request => Phase::OnDemand,
    };
    Ok(versions.iter().map(|version| (version.as_str().into(), phase().into())).collect())
}

impl Registry {
    /// Whether there is more than one model or version by now: a folder of versions may have got another.
    fn has_several(&self) -> bool {
        self.table.read().iter().map(Versions::len).sum::<usize>() > 1
    }

    fn found(&self, wanted: Wanted<'_>) -> Result<Found, NotServed> {
        let (model, which) = self.names.resolve(wanted)?;
        let table = self.table.read();
        let (version, slot) = self.choose(model, which, &table[model])?;
        let name = || self.full_name(model, version);
        match &slot.phase {
            Phase::Ready(ready) => Ok(Found::Ready(ready.lease.clone())),
            Phase::Unloading { .. } | Phase::Unloaded => Err(NotServed::Unloaded { name: name() }),
            Phase::Unavailable { reason, again } if !slot.phase.is_on_demand() => {
                let retry_after = again.map(|again| again.saturating_duration_since(Instant::now()));
                Err(NotServed::Unavailable { name: name(), reason: reason.clone(), retry_after })
            }
            Phase::OnDemand | Phase::Loading { .. } | Phase::Unavailable { .. } => {
                Ok(Found::Awaited { name: name(), model, version: version.clone() })
            }
        }
    }

    /// The version of a model that answers.
    fn choose<'a>(
        &self,
        model: usize,
        which: Which<'_>,
        versions: &'a Versions,
    ) -> Result<(&'a Version, &'a Slot), NotServed> {
        let pinned = self.models[model].pinned.as_deref();
        choose(versions, which, pinned).ok_or_else(|| self.no_such_version(model, which, versions))
    }

    fn no_such_version(&self, model: usize, which: Which<'_>, versions: &Versions) -> NotServed {
        let name = self.names.of(model).to_owned();
        match which {
            Which::Exactly(version) => {
                let known = versions.keys().map(ToString::to_string).collect();
                NotServed::UnknownVersion { name, version: version.to_owned(), known }
            }
            Which::Usual | Which::Latest => NotServed::Unloaded { name },
        }
    }

    fn entry(&self, model: usize, version: &Version, slot: &Slot) -> Entry {
        let leads_here = |alias: &&Alias| match &alias.version {
            Some(pinned) => pinned == version.as_str(),
            None => true,
        };
        let aliases = self.models[model].aliases.iter().filter(leads_here);
        Entry {
            name: self.names.of(model).to_owned(),
            version: version.to_string(),
            state: slot.phase.state(),
            since: slot.since,
            aliases: aliases.map(|alias| alias.name.clone()).collect(),
        }
    }

    /// The model and versions that an explicit load or unload is for.
    fn ordered<'a>(&'a self, name: &'a str) -> Result<(usize, Which<'a>), ChangeError> {
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
    fn demand(self: &Arc<Self>, model: usize, version: &Version) -> bool {
        let (begins, is_loading) = self.table.change(model, version, |phase| {
            let begins = phase.is_on_demand();
            if begins {
                phase.begin_loading(true);
            }
            (begins, matches!(phase, Phase::Loading { .. }))
        });
        if begins {
            self.begin_loading(model, version);
        }
        is_loading
    }

    /// The same for all versions that are loaded on demand, including those whose load has failed, once their pause is
    /// over.
    fn demand_again(self: &Arc<Self>) {
        let table = self.table.read();
        let again: Vec<(usize, Version)> = table
            .iter()
            .enumerate()
            .flat_map(|(model, versions)| versions.iter().map(move |(version, slot)| (model, version, slot)))
            .filter(|(.., slot)| slot.phase.is_on_demand())
            .map(|(model, version, _)| (model, version.clone()))
            .collect();
        drop(table);
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
    fn known_versions(&self, model: usize, which: Which<'_>) -> Result<Vec<Version>, ChangeError> {
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
    async fn load_all(self: Arc<Self>, name: String) -> Result<(), ChangeError> {
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
                    self.begin_loading(model, version);
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

    /// Spawns the load of a version whose phase is `Loading`.
    fn begin_loading(self: &Arc<Self>, model: usize, version: &Version) {
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

    /// Begins to unload the versions in `left` that are ready, and drops from `ending` those that have ended; returns
    /// whether any are left in either.
    fn goes_on_unloading(
        self: &Arc<Self>,
        model: usize,
        left: &mut Vec<Version>,
        ending: &mut Vec<Version>,
    ) -> bool {
        left.retain(|version| {
            match self.table.change(model, version, Phase::unload) {
                Unload::Waits => return true,
                Unload::Done => {}
                Unload::Joins => ending.push(version.clone()),
                Unload::Begins(ready) => {
                    self.end(model, version, ready);
                    ending.push(version.clone());
                }
            }
            false
        });
        let table = self.table.read();
        let ends = |version: &Version| {
            table[model].get(version).is_some_and(|slot| matches!(slot.phase, Phase::Unloading { .. }))
        };
        ending.retain(ends);
        !left.is_empty() || !ending.is_empty()
    }

    /// Ends a version on a task of its own: waits until the last lease is dropped, then until the engine has stopped.
    fn end(self: &Arc<Self>, model: usize, version: &Version, Ready { lease, all_back, stop }: Ready) {
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

    fn full_name(&self, model: usize, version: &Version) -> String {
        format!("{}/{version}", self.names.of(model))
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
