//! How urgent a request is: its deadline and its priority.

use std::time::Instant;

/// Deadline and priority of a request; by default none and normal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// When its answer becomes worthless. A request predicted to miss it is rejected at once, and inputs whose batch
    /// has not begun by then are not computed. `None`: the deadline that the server promises by default, if any.
    pub deadline: Option<Instant>,
    /// Its priority class.
    pub priority: Priority,
}

/// Priority class: batches of a higher class go before those of a lower one. Once a request of the lower one is
/// overdue, every other batch is for overdue requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Background work, such as building an index at night.
    Low,
    /// Requests that name no class.
    #[default]
    Normal,
    /// Interactive work: a user waits for the answer.
    High,
}

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Its name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// The class of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

impl From<Priority> for turbo_sched::Priority {
    fn from(priority: Priority) -> Self {
        Self(priority as u8)
    }
}

impl Urgency {
    /// Both combined: the earlier deadline, and this one's priority unless it is normal, else `other`'s.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let deadline = self.deadline.into_iter().chain(other.deadline).min();
        let priority = if self.priority == Priority::default() { other.priority } else { self.priority };
        Self { deadline, priority }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn classes_have_names() {
        assert_eq!(Priority::ALL.map(|class| Priority::named(class.name())), Priority::ALL.map(Some));
        assert_eq!(Priority::named("High"), None);
        assert!(Priority::Low < Priority::Normal && Priority::Normal < Priority::High);
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let at = |deadline, priority| Urgency { deadline, priority };
        let (soon, late) = (Some(now), Some(now + second));
        for (one, other, expected) in [
            (at(None, Priority::Normal), at(soon, Priority::Low), at(soon, Priority::Low)),
            (at(late, Priority::High), at(soon, Priority::Low), at(soon, Priority::High)),
            (at(soon, Priority::Low), at(None, Priority::Normal), at(soon, Priority::Low)),
        ] {
            assert_eq!(one.or(other), expected);
        }
    }
}
