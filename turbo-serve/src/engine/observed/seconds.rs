//! A value for each of the last seconds, in memory that does not grow.

/// Number of seconds that are kept.
pub const SECONDS: u64 = 180;

/// A value per second, the last [`SECONDS`] of them.
pub(super) struct Seconds<T>(Box<[Option<(u64, T)>]>);

impl<T: Copy + Default> Seconds<T> {
    /// The value of this second. Seconds should ascend; one that is older than its slot's gets the value there.
    pub(super) fn at(&mut self, second: u64) -> &mut T {
        let slot = &mut self.0[(second % SECONDS) as usize];
        if slot.is_none_or(|(of, _)| of < second) {
            *slot = Some((second, T::default()));
        }
        &mut slot.get_or_insert_default().1
    }

    /// All kept seconds and their values, in no order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.0.iter_mut().flatten().map(|(second, value)| (*second, value))
    }

    /// Values of the [`SECONDS`] seconds up to `now`, the oldest first; seconds in which nothing was written are left
    /// out.
    pub(super) fn until(&self, now: u64) -> Vec<(u64, T)> {
        let mut kept: Vec<_> =
            self.0.iter().flatten().copied().filter(|(second, _)| second + SECONDS > now).collect();
        kept.sort_unstable_by_key(|(second, _)| *second);
        kept
    }
}

impl<T: Copy> Default for Seconds<T> {
    fn default() -> Self {
        Self(vec![None; SECONDS as usize].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seconds_are_kept_and_no_others() {
        let mut seconds = Seconds::<u32>::default();
        for second in [0, 0, 3, 3, 3, SECONDS - 1] {
            *seconds.at(second) += 1;
        }
        assert_eq!(seconds.until(SECONDS - 1), [(0, 2), (3, 3), (SECONDS - 1, 1)]);
        assert_eq!(seconds.until(SECONDS), [(3, 3), (SECONDS - 1, 1)], "nothing was written since");
        *seconds.at(SECONDS + 3) += 7;
        assert_eq!(seconds.until(SECONDS + 3), [(SECONDS - 1, 1), (SECONDS + 3, 7)]);
        assert_eq!(seconds.until(3 * SECONDS), []);
    }

    #[test]
    fn who_comes_late_is_counted_where_its_second_was() {
        let mut seconds = Seconds::<u32>::default();
        *seconds.at(SECONDS + 5) += 1;
        *seconds.at(5) += 1;
        assert_eq!(seconds.until(SECONDS + 5), [(SECONDS + 5, 2)]);
    }
}
