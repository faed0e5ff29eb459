//! The state that load balancers ask for, shared between the threads that set and read it.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use super::Health;

const STATES: [Health; 4] = [Health::Ready, Health::Starting, Health::Failing, Health::Stopping];

/// A [`Health`] that any thread may set and read. [`Health::Stopping`] is final.
#[derive(Debug)]
pub(super) struct HealthCell(AtomicU8);

impl HealthCell {
    pub(super) fn new(health: Health) -> Self {
        Self(AtomicU8::new(code(health)))
    }

    pub(super) fn get(&self) -> Health {
        STATES[usize::from(self.0.load(SeqCst))]
    }

    pub(super) fn set(&self, health: Health) {
        let next = |old| (old != code(Health::Stopping)).then_some(code(health));
        // An error means that the state is final and was not changed.
        let _ = self.0.fetch_update(SeqCst, SeqCst, next);
    }
}

fn code(health: Health) -> u8 {
    match health {
        Health::Ready => 0,
        Health::Starting => 1,
        Health::Failing => 2,
        Health::Stopping => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_is_final() {
        let cell = HealthCell::new(Health::Starting);
        for health in [Health::Ready, Health::Failing, Health::Starting, Health::Stopping] {
            cell.set(health);
            assert_eq!(cell.get(), health);
        }
        cell.set(Health::Ready);
        assert_eq!(cell.get(), Health::Stopping);
    }
}
