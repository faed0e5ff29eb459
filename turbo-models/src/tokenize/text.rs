//! What is tokenised, and how.

/// One text, or two that the model compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// A text by itself.
    One(&'a str),
    /// A question and a passage, a premise and a hypothesis.
    Pair(&'a str, &'a str),
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text::One(text)
    }
}

impl<'a> From<&'a String> for Text<'a> {
    fn from(text: &'a String) -> Self {
        Text::One(text)
    }
}

impl<'a> From<(&'a str, &'a str)> for Text<'a> {
    fn from((first, second): (&'a str, &'a str)) -> Self {
        Text::Pair(first, second)
    }
}

impl<'a> Text<'a> {
    /// The text that a token came from, as [`Encoding::sequence_ids`](super::Encoding::sequence_ids) numbers them.
    pub fn sequence(&self, id: u8) -> Option<&'a str> {
        match (*self, id) {
            (Text::One(text) | Text::Pair(text, _), 0) | (Text::Pair(_, text), 1) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_pair(&self) -> bool {
        matches!(self, Text::Pair(..))
    }
}

/// Which end of an overlong text is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Neither: an overlong text is refused.
    Off,
    /// The beginning.
    Left,
    /// The end.
    Right,
}

/// Whether tokens that belong to no text are included: `[CLS]`, `[SEP]`, padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are.
    With,
    /// They are not.
    Without,
}
