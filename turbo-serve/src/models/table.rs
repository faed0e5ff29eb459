//! The versions of all models behind one lock, and word of every change.

use std::{
    collections::BTreeSet,
    mem::discriminant,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::SystemTime,
};

use tokio::sync::watch;

use super::{
    Stop,
    slot::{Phase, Ready, Versions},
    versions::Version,
};

pub(super) struct Table {
    /// By model, as declared.
    models: RwLock<Vec<Versions>>,
    /// Told of every change; whether the server is stopping.
    changed: watch::Sender<bool>,
}

/// Hears of changes.
pub(super) struct Changes(watch::Receiver<bool>);

impl Changes {
    /// Waits for one, since this was made or since the last.
    pub(super) async fn next(&mut self) {
        // An error says that the table is gone, and whoever waits has a hold on it.
        drop(self.0.changed().await);
    }
}

impl Table {
    pub(super) fn new(models: Vec<Versions>) -> Self {
        Self { models: RwLock::new(models), changed: watch::Sender::new(false) }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Vec<Versions>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Versions>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.changed.subscribe())
    }

    /// Has `change` look at a version, and tells if it is in another phase then. One that is not there is as one that
    /// was unloaded.
    pub(super) fn change<T>(
        &self,
        model: usize,
        version: &Version,
        change: impl FnOnce(&mut Phase) -> T,
    ) -> T {
        let mut table = self.write();
        let slot = table[model].entry(version.clone()).or_insert_with(|| Phase::Unloaded.into());
        let before = discriminant(&slot.phase);
        let changed = change(&mut slot.phase);
        if discriminant(&slot.phase) != before {
            slot.since = SystemTime::now();
            self.changed.send_modify(|_| {});
        }
        changed
    }

    /// Enters a version that was loaded; not any more when the server stops: then it ends by being dropped.
    pub(super) fn enter(&self, model: usize, version: &Version, ready: Ready) {
        self.change(model, version, |phase| {
            *phase = if self.is_stopping() { Phase::Unloaded } else { Phase::Ready(ready) };
        });
    }

    /// These versions there are: new ones are not loaded, and what has gone is forgotten, unless somebody may use it.
    pub(super) fn there_are(&self, model: usize, versions: &BTreeSet<Version>) {
        let mut table = self.write();
        table[model].retain(|version, slot| {
            let idle = matches!(slot.phase, Phase::OnDemand | Phase::Unloaded | Phase::Unavailable { .. });
            !idle || versions.contains(version)
        });
        for version in versions {
            table[model].entry(version.clone()).or_insert_with(|| Phase::Unloaded.into());
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.changed.borrow()
    }

    /// Lets nothing be loaded from now on; gives all that has to be told.
    pub(super) fn stop(&self) -> Vec<Arc<dyn Stop>> {
        // Under the lock: what is entered is either among these, or not entered.
        let table = self.write();
        self.changed.send_replace(true);
        table.iter().flat_map(Versions::values).filter_map(|slot| slot.phase.stop().cloned()).collect()
    }
}
