//! A device that several engines share: their workers wait here for their turns.
//!
//! [`Turns`] of turbo-sched decides which engine is next; this module adds the lock, the waiting and the clock. A turn
//! lasts from submitting a batch until it is done. The device's busy time is charged to the engine that has it, and
//! only once where turns of one seat overlap: its next batch is submitted behind the running one.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use turbo_sched::{Member, Sharers, Turns};

/// The turns of one device. Clones are handles to the same device; an engine that has it alone never waits.
#[derive(Clone, Default)]
pub struct DeviceTurns(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when another engine may be next.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turns: Turns,
    /// The time up to which the device's busy time has been charged; `None` while it is free.
    busy_since: Option<Instant>,
    /// When the device is predicted to be free; `None` while that is not reported.
    busy_until: Option<Instant>,
}

/// One engine's place among those that share a device; clones are handles to the same seat. It does not delay the
/// others while it asks for no turn.
#[derive(Clone)]
pub struct Seat(Arc<Place>);

/// Leaves the device when all handles to the seat, and all of its turns, are dropped.
struct Place {
    device: Arc<Shared>,
    member: Member,
}

/// The right to use the device until this is dropped: from submitting a batch until it is done.
#[must_use = "the turn ends when it is dropped"]
pub struct Turn(Arc<Place>);

impl DeviceTurns {
    /// A new seat.
    #[must_use]
    pub fn join(&self) -> Seat {
        let device = Arc::clone(&self.0);
        let member = device.lock().turns.join();
        Seat(Arc::new(Place { device, member }))
    }
}

impl Seat {
    /// Waits for a turn: until the other engines' turns are over, and engines that have used the device less have gone
    /// first.
    pub fn take(&self) -> Turn {
        let Place { device, member } = &*self.0;
        let mut state = device.lock();
        state.turns.ask(*member);
        let others_first = |state: &mut State| state.turns.next() != Some(*member);
        let waited = device.changed.wait_while(state, others_first);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        self.begin(state)
    }

    /// A turn, if it can begin now. It can begin behind a turn of the same seat only while no other seat waits.
    #[must_use]
    pub fn try_take(&self) -> Option<Turn> {
        let Place { device, member } = &*self.0;
        let mut state = device.lock();
        state.turns.ask(*member);
        if state.turns.next() == Some(*member) {
            return Some(self.begin(state));
        }
        state.turns.withdraw(*member);
        drop(state);
        device.changed.notify_all();
        None
    }

    /// Predicted time until the device is free, and the other engines that use it or wait for it now.
    pub(in crate::engine) fn outlook(&self) -> (Duration, Sharers) {
        let Place { device, member } = &*self.0;
        let state = device.lock();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        (state.busy_until.map_or(Duration::ZERO, left), state.turns.sharers(*member))
    }

    fn begin(&self, mut state: MutexGuard<'_, State>) -> Turn {
        state.turns.begin(self.0.member);
        state.busy_since.get_or_insert_with(Instant::now);
        Turn(Arc::clone(&self.0))
    }
}

impl Turn {
    /// Reports that the device is predicted to be free after this time.
    pub(in crate::engine) fn lasts(&self, time: Duration) {
        self.0.device.lock().busy_until = Instant::now().checked_add(time);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Place { device, member } = &*self.0;
        let mut state = device.lock();
        let now = Instant::now();
        let busy = state.busy_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        state.turns.done(*member, busy);
        state.busy_since = state.turns.is_taken().then_some(now);
        state.busy_until = state.busy_until.filter(|_| state.turns.is_taken());
        drop(state);
        device.changed.notify_all();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.device.lock().turns.leave(self.member);
        self.device.changed.notify_all();
    }
}

impl Shared {
    /// A poisoned lock still guards a whole value: nothing between two changes can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DeviceTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().turns.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    use super::*;

    #[test]
    fn one_at_a_time_has_the_device_and_all_get_it() {
        const EACH: usize = 100;
        let (device, inside, total) = (DeviceTurns::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for engine in 0..4 {
                let seat = device.join();
                let (inside, total) = (&inside, &total);
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let turn = seat.take();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "somebody else has it");
                        thread::sleep(Duration::from_micros(20 * engine));
                        inside.fetch_sub(1, SeqCst);
                        drop(turn);
                        total.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.load(SeqCst), 4 * EACH);
    }

    #[test]
    fn the_next_batch_stands_ready_unless_somebody_waits() {
        let device = DeviceTurns::default();
        let (a, b) = (device.join(), device.join());
        let first = a.take();
        assert!(b.try_take().is_none(), "it is taken");
        let second = a.try_take().expect("nobody waits: who was refused asks no more");
        thread::scope(|scope| {
            let waits = scope.spawn(|| b.take());
            while device.0.lock().turns.asking() == 0 {
                thread::yield_now();
            }
            assert!(a.try_take().is_none(), "somebody waits");
            drop(first);
            drop(second);
            let turn = waits.join().unwrap();
            assert!(a.try_take().is_none());
            drop(turn);
        });
        assert!(a.try_take().is_some());
    }

    #[test]
    fn who_goes_leaves_the_device_to_others() {
        let device = DeviceTurns::default();
        let (a, b) = (device.join(), device.join());
        let turn = a.take();
        drop(a);
        assert!(b.try_take().is_none(), "its batch runs");
        drop(turn);
        assert!(b.try_take().is_some());
    }

    #[test]
    fn who_has_the_device_says_for_how_long() {
        let device = DeviceTurns::default();
        let seat = device.join();
        let (first, second) = (seat.take(), seat.take());
        let other = device.join();
        let running = Sharers { asking: 0, running: true };
        assert_eq!(other.outlook(), (Duration::ZERO, running), "nobody says");
        second.lasts(Duration::from_secs(60));
        drop(first);
        assert!(other.outlook().0 > Duration::from_secs(50));
        drop(second);
        assert_eq!(other.outlook(), (Duration::ZERO, Sharers::default()), "it is free");
    }

    #[test]
    fn overlapping_turns_count_the_device_once() {
        let device = DeviceTurns::default();
        let seat = device.join();
        let started = Instant::now();
        let (first, second) = (seat.take(), seat.take());
        thread::sleep(Duration::from_millis(20));
        drop(first);
        thread::sleep(Duration::from_millis(20));
        drop(second);
        let most = started.elapsed();
        let used = device.0.lock().turns.used(seat.0.member);
        assert!(used >= Duration::from_millis(40) && used <= most, "{used:?} of {most:?}");
    }
}
