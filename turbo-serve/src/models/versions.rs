//! Versions and their order: as text, but numbers by their value.

use std::fmt;

/// A version's name. Numbers are ordered as numbers, and come after everything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    // First, for the derived ordering: `None` is less than any number.
    number: Option<u64>,
    text: String,
}

/// Stands for the greatest version.
pub(super) const LATEST: &str = "latest";

impl Version {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        Self { number: text.parse().ok(), text: text.to_owned() }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which version of a model is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which<'a> {
    /// The pinned one, else the latest.
    Usual,
    /// The greatest.
    Latest,
    /// This one.
    Exactly(&'a str),
}

impl<'a> From<Option<&'a str>> for Which<'a> {
    fn from(version: Option<&'a str>) -> Self {
        match version {
            None => Self::Usual,
            Some(LATEST) => Self::Latest,
            Some(version) => Self::Exactly(version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_as_numbers_after_names() {
        let mut versions = ["10", "beta", "9", "alpha", "0", "1.5"].map(Version::from);
        versions.sort();
        assert_eq!(versions.each_ref().map(Version::as_str), ["1.5", "alpha", "beta", "0", "9", "10"]);
    }
}
