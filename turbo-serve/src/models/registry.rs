//! The registry of models: what there is, and which version answers a request. `changes` loads and unloads them.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    Alias, ChangeError, Composition, DeclareError, Declared, LoadWhen, Loaded, NotServed, Served, Source,
    State, Wanted,
    changes::Unloading,
    health::worst,
    names::Names,
    slot::{Phase, Ready, Slot, Versions, choose, slots},
    table::Table,
    underway::Underway,
    versions::{Version, Which},
};
use crate::engine::Health;

/// The only version of a model that is served alone.
const ONLY: &str = "1";

/// All served models. Clones are handles to the same registry.
///
/// [`Models::lease`], [`Models::load`], [`Models::unload`] and [`Models::health`] start tasks, so they need a tokio
/// runtime.
#[derive(Clone)]
pub struct Models(pub(super) Arc<Registry>);

/// A handle that does not keep the registry alive, for models that the registry itself serves.
#[derive(Clone)]
pub struct WeakModels(Weak<Registry>);

pub(super) struct Registry {
    pub(super) names: Names,
    pub(super) models: Vec<Model>,
    /// The versions of each model.
    pub(super) table: Table,
    pub(super) underway: Underway,
}

/// The part of a model that does not change.
pub(super) struct Model {
    aliases: Vec<Alias>,
    pinned: Option<String>,
    pub(super) load: LoadWhen,
    /// `None` if the model is never loaded or unloaded.
    pub(super) source: Option<Arc<dyn Source>>,
    /// How often unloading all of its versions was requested: calls of [`Models::load`] from before such a request load
    /// nothing more. Unloading one version does not end an older load of all.
    pub(super) unloads: AtomicU64,
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
        slots(&self.0.table.read()).filter_map(|(.., slot)| slot.phase.lease().cloned()).collect()
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
        let expected = slots(&self.0.table.read()).any(|(.., slot)| slot.phase.is_expected());
        let health =
            worst(models.map(|model| model.engine().health()).chain(expected.then_some(Health::Ready)));
        if health.is_none() && !self.0.table.is_stopping() {
            self.0.retry_failed();
        }
        health
    }

    /// The first version that could not be loaded, with the reason, as a line; `None` if there is none.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let table = self.0.table.read();
        slots(&table).find_map(|(model, version, slot)| {
            let reason = slot.phase.failure()?;
            Some(format!("model `{}` could not be loaded: {reason}", self.0.full_name(model, version)))
        })
    }

    /// All versions of all models, in the order of their declaration.
    #[must_use]
    pub fn list(&self) -> Vec<Entry> {
        let table = self.0.table.read();
        slots(&table).map(|(model, version, slot)| self.0.entry(model, version, slot)).collect()
    }

    /// Loads all versions of a model (`name`), or one (`name/version`, `name/latest`), and returns when they are ready.
    /// Versions that are ready already stay as they are. The source is searched for new versions. Loading goes on when
    /// the future is dropped.
    ///
    /// # Errors
    /// [`ChangeError`]: no such model or version, or one that cannot be loaded.
    pub async fn load(&self, name: &str) -> Result<(), ChangeError> {
        let loading = tokio::spawn(Arc::clone(&self.0).load_named(name.to_owned()));
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
        let mut unloading = Unloading::new(model, self.0.known_versions(model, which)?);
        let mut changes = self.0.table.changes();
        let registry = Arc::clone(&self.0);
        if which == Which::Usual {
            // First, so that an older load does not go on to load versions that are not ready yet.
            registry.models[model].unloads.fetch_add(1, Relaxed);
        }
        if unloading.goes_on(&registry) {
            let unloaded = tokio::spawn(async move {
                changes.next().await;
                while unloading.goes_on(&registry) {
                    changes.next().await;
                }
            });
            // It fails only if the runtime ends or the task panics.
            unloaded.await.map_err(|_| ChangeError::Stopping)?;
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

    pub(super) fn no_such_version(&self, model: usize, which: Which<'_>, versions: &Versions) -> NotServed {
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

    pub(super) fn full_name(&self, model: usize, version: &Version) -> String {
        format!("{}/{version}", self.names.of(model))
    }
}
