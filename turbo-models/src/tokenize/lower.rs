//! Lower-casing before the tokenizer's own normalisation, and the way back to the text.

use std::{borrow::Cow, ops::Range};

/// What is done to the letters of a text before the tokenizer's own normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterCase {
    Kept,
    Lowered,
}

impl LetterCase {
    /// The text that the tokenizer sees.
    pub(super) fn applied(self, text: &str) -> Cow<'_, str> {
        match self {
            LetterCase::Kept => Cow::Borrowed(text),
            LetterCase::Lowered => Cow::Owned(text.to_lowercase()),
        }
    }
}

/// Where each character of a text went when the text was lower-cased, since some change their length.
pub(super) struct LoweredPlaces {
    /// For each character, where it starts in lower case and where in the text; then the ends of both.
    starts: Vec<(usize, usize)>,
}

impl LoweredPlaces {
    /// Lower-cases each character by itself, since a sigma is as long at the end of a word as inside.
    pub(super) fn of(text: &str) -> Self {
        let mut lowered = 0;
        let mut starts: Vec<(usize, usize)> = Vec::with_capacity(text.len() + 1);
        for (start, c) in text.char_indices() {
            starts.push((lowered, start));
            lowered += c.to_lowercase().map(char::len_utf8).sum::<usize>();
        }
        starts.push((lowered, text.len()));
        Self { starts }
    }

    /// The bytes of the text that became the bytes `lowered` of its lower-case form: whole characters.
    pub(super) fn place(&self, lowered: Range<usize>) -> Range<usize> {
        let first = self.starts.partition_point(|&(start, _)| start <= lowered.start).saturating_sub(1);
        let end = self.starts.partition_point(|&(start, _)| start < lowered.end).min(self.starts.len() - 1);
        let start = self.starts[first].1;
        start..if lowered.is_empty() { start } else { self.starts[end].1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_where_letters_change_their_length() {
        let text = "aİbẞΣ.";
        let lowered = text.to_lowercase();
        assert_eq!(lowered, "ai\u{307}bßς.");
        let places = LoweredPlaces::of(text);
        let cases = [
            ("a", "a"),
            ("i", "İ"),
            ("\u{307}", "İ"),
            ("\u{307}b", "İb"),
            ("ß", "ẞ"),
            ("ς.", "Σ."),
            (".", "."),
        ];
        for (part, expected) in cases {
            let at = lowered.find(part).unwrap();
            assert_eq!(&text[places.place(at..at + part.len())], expected, "{part:?}");
        }
        assert_eq!(places.place(1..1), 1..1);
        assert_eq!(places.place(lowered.len()..lowered.len()), text.len()..text.len());
        assert_eq!(LoweredPlaces::of("").place(0..0), 0..0);
    }
}
