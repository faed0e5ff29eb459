//! The phases of a version, and the choice of the version that answers a request.

use std::{collections::BTreeMap, mem, sync::Arc, time::SystemTime};

use tokio::time::Instant;

use super::{
    Loaded, Served, Stop,
    served::AllBack,
    underway::Underway,
    versions::{Version, Which},
};

/// The versions of one model, the greatest last.
pub(super) type Versions = BTreeMap<Version, Slot>;

pub(super) struct Slot {
    pub(super) phase: Phase,
    pub(super) since: SystemTime,
}

pub(super) enum Phase {
    /// The first request for it loads it.
    OnDemand,
    Loading {
        /// Loaded because a request needs it, and not by a call of [`Models::load`](super::Models::load).
        demanded: bool,
        /// Why the previous attempt failed, if it did.
        failed: Option<String>,
    },
    Ready(Ready),
    /// Leases exist, or its engine has not stopped yet.
    Unloading {
        stop: Option<Arc<dyn Stop>>,
    },
    Unloaded,
    Unavailable {
        reason: String,
        /// When the next request may load it again; `None`: only an explicit load does.
        again: Option<Instant>,
    },
}

pub(super) struct Ready {
    pub(super) lease: Served,
    pub(super) all_back: AllBack,
    pub(super) stop: Option<Arc<dyn Stop>>,
}

/// What an explicit load of a version has to do.
pub(super) enum Order {
    /// Nothing: the version is ready.
    IsThere,
    /// The caller has to load it now.
    Begins,
    /// It is being loaded already.
    Joins,
    /// Its unloading has to end first.
    Waits,
    /// The load that the caller began or joined has failed.
    Failed { reason: String },
    /// It was unloaded after the caller began.
    Gone,
}

/// What unloading a version has to do.
pub(super) enum Unload {
    /// It is not there.
    Done,
    /// The caller has to stop it now.
    Begins(Ready),
    /// It is being unloaded already.
    Joins,
    /// It is being loaded, and will be unloaded once that ends.
    Waits,
}

/// The state of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first request for it loads it.
    OnDemand,
    /// It is being loaded.
    Loading,
    /// It answers.
    Ready,
    /// It answers accepted requests, and takes no new ones.
    Unloading,
    /// It is not there.
    Unloaded,
    /// It could not be loaded.
    Unavailable {
        /// What went wrong.
        reason: String,
    },
}

impl Ready {
    pub(super) fn new(
        name: &str,
        version: &str,
        label: Option<String>,
        Loaded { engine, stop, composition }: Loaded,
        underway: &Underway,
    ) -> Self {
        let (lease, all_back) = Served::new(name, version, label, engine, composition, underway);
        Self { lease, all_back, stop }
    }
}

impl Phase {
    pub(super) fn state(&self) -> State {
        match self {
            Self::OnDemand => State::OnDemand,
            Self::Loading { .. } => State::Loading,
            Self::Ready(_) => State::Ready,
            Self::Unloading { .. } => State::Unloading,
            Self::Unloaded => State::Unloaded,
            Self::Unavailable { reason, .. } => State::Unavailable { reason: reason.clone() },
        }
    }

    /// The registry's lease on it, if it is ready.
    pub(super) fn lease(&self) -> Option<&Served> {
        match self {
            Self::Ready(ready) => Some(&ready.lease),
            _ => None,
        }
    }

    /// Whether a request for it loads it.
    pub(super) fn is_on_demand(&self) -> bool {
        match self {
            Self::OnDemand => true,
            Self::Unavailable { again: Some(again), .. } => *again <= Instant::now(),
            _ => false,
        }
    }

    /// Whether it will be or is being loaded on demand, and no attempt has failed yet.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self, Self::OnDemand | Self::Loading { demanded: true, failed: None })
    }

    /// Why the last attempt to load it failed.
    pub(super) fn failure(&self) -> Option<&str> {
        match self {
            Self::Unavailable { reason, .. } => Some(reason),
            Self::Loading { failed, .. } => failed.as_deref(),
            _ => None,
        }
    }

    /// Enters the loading phase, and keeps the failure of the previous attempt.
    pub(super) fn begin_loading(&mut self, demanded: bool) {
        *self = Self::Loading { demanded, failed: self.failure().map(str::to_owned) };
    }

    /// Begins an explicit load; `joined` says whether the caller has begun it already or has seen it being loaded.
    pub(super) fn order(&mut self, joined: bool) -> Order {
        match self {
            Self::Ready(_) => Order::IsThere,
            Self::Loading { .. } => Order::Joins,
            Self::Unavailable { reason, .. } if joined => Order::Failed { reason: reason.clone() },
            Self::OnDemand | Self::Unloading { .. } | Self::Unloaded if joined => Order::Gone,
            Self::Unloading { .. } => Order::Waits,
            Self::OnDemand | Self::Unloaded | Self::Unavailable { .. } => {
                self.begin_loading(false);
                Order::Begins
            }
        }
    }

    /// Begins to unload a ready version: requests do not find it any more.
    pub(super) fn unload(&mut self) -> Unload {
        match self {
            Self::Unloading { .. } => return Unload::Joins,
            Self::Loading { .. } => return Unload::Waits,
            _ => {}
        }
        match mem::replace(self, Self::Unloaded) {
            Self::Ready(ready) => {
                *self = Self::Unloading { stop: ready.stop.clone() };
                Unload::Begins(ready)
            }
            _ => Unload::Done,
        }
    }

    /// How this phase ranks when a request names no version; the highest is chosen.
    fn rank(&self) -> u8 {
        match self {
            // Versions loaded on demand count as ready: which version answers must not depend on earlier requests.
            Self::Ready(_) | Self::OnDemand | Self::Loading { demanded: true, failed: None } => 3,
            Self::Loading { demanded: false, .. } => 2,
            Self::Unavailable { .. } | Self::Loading { .. } => 1,
            Self::Unloading { .. } | Self::Unloaded => 0,
        }
    }

    /// What has to be stopped when the server stops.
    pub(super) fn stop(&self) -> Option<&Arc<dyn Stop>> {
        match self {
            Self::Ready(ready) => ready.stop.as_ref(),
            Self::Unloading { stop } => stop.as_ref(),
            _ => None,
        }
    }
}

impl From<Phase> for Slot {
    fn from(phase: Phase) -> Self {
        Self { phase, since: SystemTime::now() }
    }
}

/// All versions of all models, with the numbers of their models.
pub(super) fn slots(table: &[Versions]) -> impl Iterator<Item = (usize, &Version, &Slot)> {
    table
        .iter()
        .enumerate()
        .flat_map(|(model, versions)| versions.iter().map(move |(version, slot)| (model, version, slot)))
}

/// The version of a model that answers; `None` where there is no such version.
pub(super) fn choose<'a>(
    versions: &'a Versions,
    which: Which<'_>,
    pinned: Option<&str>,
) -> Option<(&'a Version, &'a Slot)> {
    let exactly = match which {
        Which::Exactly(version) => Some(version),
        Which::Usual => pinned,
        Which::Latest => None,
    };
    match exactly {
        Some(version) => versions.get_key_value(&Version::from(version)),
        // `max_by_key` gives the last of equals: the greatest version.
        None => versions.iter().max_by_key(|(_, slot)| slot.phase.rank()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(phases: &[(&str, Phase)]) -> Versions {
        let slot = |phase: &Phase| match phase {
            Phase::OnDemand => Phase::OnDemand,
            Phase::Loading { demanded, failed } => {
                Phase::Loading { demanded: *demanded, failed: failed.clone() }
            }
            Phase::Unavailable { reason, again } => {
                Phase::Unavailable { reason: reason.clone(), again: *again }
            }
            _ => Phase::Unloaded,
        };
        phases.iter().map(|(version, phase)| (Version::from(*version), slot(phase).into())).collect()
    }

    #[test]
    fn a_name_alone_is_the_greatest_version_that_is_there_or_will_be() {
        let failed = || Phase::Unavailable { reason: "it is too large".to_owned(), again: None };
        let loading =
            |demanded, failed: Option<&str>| Phase::Loading { demanded, failed: failed.map(str::to_owned) };
        let (ordered, demanded, again) =
            (loading(false, None), loading(true, None), loading(true, Some("it is too large")));
        for (phases, chosen) in [
            (&[("1", Phase::OnDemand), ("2", Phase::OnDemand), ("10", Phase::OnDemand)][..], "10"),
            (&[("1", Phase::OnDemand), ("2", ordered)], "1"),
            (&[("1", Phase::OnDemand), ("2", demanded)], "2"),
            (&[("1", Phase::OnDemand), ("2", failed())], "1"),
            (&[("1", Phase::OnDemand), ("2", again)], "1"),
            (&[("1", failed()), ("2", Phase::Unloaded)], "1"),
            (&[("1", Phase::Unloaded), ("2", Phase::Unloaded)], "2"),
        ] {
            let versions = versions(phases);
            let choose =
                |which, pinned| choose(&versions, which, pinned).map(|(version, _)| version.as_str());
            assert_eq!(choose(Which::Usual, None), Some(chosen));
            assert_eq!(choose(Which::Latest, Some("1")), Some(chosen));
            assert_eq!(choose(Which::Usual, Some("1")), Some("1"), "pinned");
            assert_eq!(choose(Which::Exactly("2"), Some("1")), Some("2"));
            assert_eq!(choose(Which::Exactly("3"), None), None);
        }
        assert!(choose(&Versions::new(), Which::Usual, None).is_none());
    }
}
