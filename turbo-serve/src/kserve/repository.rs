//! All models that are served, in the protocol's terms: their states and statistics.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crate::{
    engine::{Health, Spent},
    http::ApiError,
    models::{Models, NotServed, State, Statistics, Wanted},
};

/// A version of a model, and its state in the protocol's terms.
pub(crate) struct Indexed {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) state: &'static str,
    pub(crate) reason: String,
}

/// All versions of all models, or only those that are ready.
pub(crate) fn index(models: &Models, only_ready: bool) -> Vec<Indexed> {
    let entries = models.list().into_iter().filter(|entry| !only_ready || entry.state == State::Ready);
    let indexed = |entry: crate::models::Entry| {
        let (state, reason) = state(entry.state);
        Indexed { name: entry.name, version: entry.version, state, reason }
    };
    entries.map(indexed).collect()
}

fn state(state: State) -> (&'static str, String) {
    match state {
        State::Ready => ("READY", String::new()),
        State::Loading => ("LOADING", String::new()),
        State::Unloading => ("UNLOADING", String::new()),
        State::OnDemand => ("UNAVAILABLE", "it is loaded by the first request for it".to_owned()),
        State::Unloaded => ("UNAVAILABLE", "unloaded".to_owned()),
        State::Unavailable { reason } => ("UNAVAILABLE", reason),
    }
}

/// Refuses parameters from which other servers load a model: its configuration, or its files.
pub(crate) fn check_load(mut parameters: impl Iterator<Item = String>) -> Result<(), ApiError> {
    match parameters.next() {
        None => Ok(()),
        Some(name) => Err(ApiError::validation(format!(
            "parameter `{name}`: expected none, a model is loaded as the server's configuration says"
        ))),
    }
}

/// Whether the wanted model is ready, or all models together ([`Models::health`]). It never loads a model.
pub(crate) fn is_ready(models: &Models, wanted: Option<Wanted<'_>>) -> bool {
    let health = match wanted {
        Some(wanted) => models.find(wanted).ok().map(|served| served.engine().health()),
        None => models.health(),
    };
    health == Some(Health::Ready)
}

/// What a version has done since it was loaded.
pub(crate) struct Stats {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) done: Statistics,
}

/// The statistics of all loaded versions, or of those that the wanted name stands for.
pub(crate) fn statistics(models: &Models, wanted: Option<Wanted<'_>>) -> Result<Vec<Stats>, NotServed> {
    let found = match wanted {
        Some(wanted) => models.ready_of(wanted)?,
        None => models.ready(),
    };
    let stats = |served: crate::models::Served| Stats {
        name: served.name().to_owned(),
        version: served.version().to_owned(),
        done: served.statistics(),
    };
    Ok(found.into_iter().map(stats).collect())
}

/// How many batches there were, of all sizes.
pub(crate) fn count(batches: &BTreeMap<usize, Spent>) -> u64 {
    batches.values().map(|batches| batches.count).sum()
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
