//! How urgent a request is: by when its answer is wanted, and whom it lets pass.

use std::time::Instant;

/// What a request says of itself; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// When its answer is worthless. Who is predicted to have none by then is refused at once, and what was not computed
    /// by then never is. `None`: within what the server promises everybody, if it does.
    pub deadline: Option<Instant>,
    /// Its class.
    pub priority: Priority,
}

/// Who goes first: a higher class before a lower one, until a request of that is overdue, and then every other time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// What nobody waits for: an index that is built at night.
    Low,
    /// Who says nothing.
    #[default]
    Normal,
    /// What somebody looks at a screen for.
    High,
}

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// What clients call it.
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
    /// This one, or what `other` says where this one says nothing. Of two deadlines the earlier counts.
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
