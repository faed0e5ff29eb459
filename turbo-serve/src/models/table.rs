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
    slot::{Phase, Ready, Slot, Versions},
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
        // An error says that the table is gone, which callers hold.
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

    /// Enters a version that was loaded; not any more when the server stops: then it ends by being dropped.
    pub(super) fn enter(&self, model: usize, version: &Version, ready: Ready) {
        self.change(model, version, |phase| {
            *phase = if self.is_stopping() { Phase::Unloaded } else { Phase::Ready(ready) };
        });
    }

    /// The versions that there are: new ones are not loaded, and those that have gone are forgotten unless they are in
    /// use.
    pub(super) fn there_are(&self, model: usize, versions: &BTreeSet<Version>) {
        let mut table = self.write();
        table[model].retain(|version, slot| {
            let idle = matches!(slot.phase, Phase::OnDemand | Phase::Unloaded | Phase::Unavailable { .. });
            !idle || versions.contains(version)
        });
        for version in versions {
            table[model].entry(version.clone()).or_insert_with(|| Phase::Unloaded.into());
        }
        // Who waits for one that has gone looks again.
        self.changed.send_modify(|_| {});
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
