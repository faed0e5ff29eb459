//! The versions of all models behind one lock, with notification of changes.

use std::{
    collections::BTreeSet,
    mem::discriminant,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::SystemTime,
};

use tokio::sync::watch;

use super::{
    Stop,
    slot::{Phase, Ready, Slot, Versions},
    versions::Version,
};

pub(super) struct Table {
    /// By model, as declared.
    models: RwLock<Vec<Versions>>,
    /// Notified of every change; the value is whether the server is stopping.
    changed: watch::Sender<bool>,
}

/// Waits for changes.
pub(super) struct Changes(watch::Receiver<bool>);

impl Changes {
    /// Waits for a change since this was created or last returned.
    pub(super) async fn next(&mut self) {
        // An error would mean that the table was dropped, but the caller holds it.
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

    /// The changes from now on.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.changed.subscribe())
    }

    /// Applies `change` to a version's phase, and notifies if the phase is another one afterwards. A missing version
    /// counts as unloaded.
    pub(super) fn change<T>(
        &self,
        model: usize,
        version: &Version,
        change: impl FnOnce(&mut Phase) -> T,
    ) -> T {
        let mut table = self.write();
        let mut absent = Slot::from(Phase::Unloaded);
        let slot = table[model].get_mut(version).unwrap_or(&mut absent);
        let before = discriminant(&slot.phase);
        let changed = change(&mut slot.phase);
        if discriminant(&slot.phase) != before {
            slot.since = SystemTime::now();
            self.changed.send_modify(|_| {});
        }
        if !matches!(absent.phase, Phase::Unloaded) {
            table[model].insert(version.clone(), absent);
        }
        changed
    }

    /// Enters a version that was loaded; if the server is stopping, drops it instead.
    pub(super) fn enter(&self, model: usize, version: &Version, ready: Ready) {
        self.change(model, version, |phase| {
            *phase = if self.is_stopping() { Phase::Unloaded } else { Phase::Ready(ready) };
        });
    }

    /// Updates the list of versions: new ones are entered as unloaded, missing ones are removed unless they are in use.
    pub(super) fn there_are(&self, model: usize, versions: &BTreeSet<Version>) {
        let mut table = self.write();
        table[model].retain(|version, slot| {
            let idle = matches!(slot.phase, Phase::OnDemand | Phase::Unloaded | Phase::Unavailable { .. });
            !idle || versions.contains(version)
        });
        for version in versions {
            table[model].entry(version.clone()).or_insert_with(|| Phase::Unloaded.into());
        }
        // Wakes requests that wait for a removed version, to look again.
        self.changed.send_modify(|_| {});
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.changed.borrow()
    }

    /// Prevents loads from now on; returns what has to be stopped.
    pub(super) fn stop(&self) -> Vec<Arc<dyn Stop>> {
        // Under the lock: a version is either entered before this and returned, or not entered.
        let table = self.write();
        self.changed.send_replace(true);
        table.iter().flat_map(Versions::values).filter_map(|slot| slot.phase.stop().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(phase: Phase) -> (Table, Version) {
        let version = Version::from("1");
        (Table::new(vec![Versions::from([(version.clone(), phase.into())])]), version)
    }

    #[tokio::test]
    async fn who_waits_for_a_version_hears_that_it_has_gone() {
        let (table, _) = of(Phase::OnDemand);
        let mut changes = table.changes();
        table.there_are(0, &BTreeSet::new());
        assert!(table.read()[0].is_empty());
        let heard = tokio::time::timeout(std::time::Duration::from_secs(5), changes.next()).await;
        assert!(heard.is_ok(), "nobody says it");
    }

    #[test]
    fn a_look_at_a_version_that_has_gone_does_not_bring_it_back() {
        let (table, version) = of(Phase::OnDemand);
        table.there_are(0, &BTreeSet::new());
        assert!(table.change(0, &version, |phase| matches!(phase, Phase::Unloaded)));
        assert!(table.read()[0].is_empty());
        table.change(0, &version, |phase| phase.begin_loading(true));
        assert!(table.read()[0].contains_key(&version));
    }
}
