//! The tokens of an input, each with the place in the text that it came from.

use std::ops::Range;

use super::lower::{LetterCase, LoweredPlaces};
use crate::Encoded;

/// The tokens of an input. Every list has an entry per token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Rows of the word embedding table.
    pub input_ids: Vec<u32>,
    /// Rows of the token type table.
    pub token_type_ids: Vec<u32>,
    /// The tokens as the vocabulary writes them: `##ing`, `Ġthe`, `▁the`.
    pub tokens: Vec<String>,
    /// The bytes of its own text that each token stands for, at character boundaries; `0..0` for special tokens.
    /// Several tokens of the same character have the same bytes.
    pub offsets: Vec<Range<usize>>,
    /// The word of its own text that each token belongs to, as the tokenizer splits words; `None` for special tokens.
    /// If the beginning of a text was dropped, the first word that was read is 0.
    pub word_ids: Vec<Option<u32>>,
    /// The text that each token belongs to: 0, or 1 for the second of a pair; `None` for special tokens.
    pub sequence_ids: Vec<Option<u8>>,
    /// Whether the token continues the word of the token before it, for words as people read them. A tokenizer of
    /// BERT's kind sees three words in `New-York` and in `don't`; other kinds see one, since they only know blanks.
    pub continues_word: Vec<bool>,
    /// Whether the token was put around the texts; a token that stands in a text is not special, whatever it is.
    pub special: Vec<bool>,
}

impl Encoding {
    /// The ids alone, which are all that the model takes.
    pub fn encoded(&self) -> Encoded {
        Encoded { input_ids: self.input_ids.clone(), token_type_ids: self.token_type_ids.clone() }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// Describes `tokens`, which came from `texts`.
    pub(super) fn of(tokens: &tokenizers::Encoding, texts: &[ReadText<'_>], words: &WordRule) -> Self {
        let sequence_ids: Vec<Option<u8>> = sequence_ids(tokens);
        let text_of = |sequence: &Option<u8>| sequence.and_then(|id| texts.get(id as usize));
        let places = tokens.get_offsets().iter().zip(&sequence_ids);
        let offsets: Vec<Range<usize>> = places
            .map(|(&(start, end), sequence)| text_of(sequence).map_or(0..0, |text| text.place(start..end)))
            .collect();
        let tokens_in_text =
            tokens.get_ids().iter().zip(tokens.get_tokens()).zip(&sequence_ids).zip(&offsets);
        let continues_word = tokens_in_text.map(|(((&id, token), sequence), place)| {
            text_of(sequence).is_some_and(|text| words.continues(id, token, text.text, place.start))
        });
        Self {
            continues_word: continues_word.collect(),
            input_ids: tokens.get_ids().to_vec(),
            token_type_ids: tokens.get_type_ids().to_vec(),
            tokens: tokens.get_tokens().to_vec(),
            offsets,
            word_ids: tokens.get_word_ids().to_vec(),
            special: tokens.get_special_tokens_mask().iter().map(|&special| special != 0).collect(),
            sequence_ids,
        }
    }
}

fn sequence_ids(tokens: &tokenizers::Encoding) -> Vec<Option<u8>> {
    let special = tokens.get_special_tokens_mask();
    let ids = tokens.get_sequence_ids().into_iter().zip(special);
    // without a step that names the texts, all tokens belong to the first
    ids.map(|(id, &special)| if special != 0 { None } else { id.and_then(|id| u8::try_from(id).ok()) })
        .collect()
}

/// How to tell that a token continues the word of the one before it. Source: the token classification pipeline of the
/// transformers library. If a prefix marks such tokens, the pipeline compares lengths, which is misled by an accent
/// that normalisation removes; here the prefix itself is looked at.
pub(super) struct WordRule {
    /// Prefix of such tokens; without one, blanks in the text decide.
    pub(super) prefix: Option<String>,
    /// Id of the token for unknown words, which begins a word.
    pub(super) unknown: Option<u32>,
}

impl WordRule {
    fn continues(&self, id: u32, token: &str, text: &str, start: usize) -> bool {
        if Some(id) == self.unknown {
            return false;
        }
        match &self.prefix {
            Some(prefix) => token.starts_with(prefix.as_str()),
            None => start > 0 && !text[..start].ends_with(' ') && !text[start..].starts_with(' '),
        }
    }
}

/// A text that was tokenised from byte `skipped` on.
pub(super) struct ReadText<'a> {
    text: &'a str,
    skipped: usize,
    /// Where its characters are in what the tokenizer saw, if that was the text in lower case.
    lowered: Option<LoweredPlaces>,
}

impl<'a> ReadText<'a> {
    pub(super) fn new(text: &'a str, skipped: usize, case: LetterCase) -> Self {
        let lowered = (case == LetterCase::Lowered).then(|| LoweredPlaces::of(&text[skipped..]));
        Self { text, skipped, lowered }
    }

    /// The bytes of the whole text that stand for `bytes` of what the tokenizer saw.
    fn place(&self, bytes: Range<usize>) -> Range<usize> {
        let Range { start, end } = match &self.lowered {
            Some(places) => places.place(bytes),
            None => bytes,
        };
        // the library counts some white space of several bytes as one
        let start = self.text.floor_char_boundary((self.skipped + start).min(self.text.len()));
        let end = self.text.ceil_char_boundary((self.skipped + end).min(self.text.len()));
        start..end.max(start)
    }
}

/// Converts byte offsets of a text to character offsets, as other languages count.
pub struct CharOffsets {
    /// Where each character starts; empty if all are one byte long.
    starts: Vec<usize>,
}

impl CharOffsets {
    /// Counts the characters of `text` once.
    pub fn of(text: &str) -> Self {
        let starts =
            if text.is_ascii() { Vec::new() } else { text.char_indices().map(|(at, _)| at).collect() };
        Self { starts }
    }

    /// The characters at these bytes; a character that `bytes` cuts counts as whole.
    pub fn range(&self, bytes: &Range<usize>) -> Range<usize> {
        if self.starts.is_empty() {
            return bytes.clone();
        }
        let end = self.starts.partition_point(|&start| start < bytes.end);
        let start = self.starts.partition_point(|&start| start <= bytes.start);
        // behind the last character: the number of characters
        let start = if bytes.start < bytes.end { start - 1 } else { end };
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted() {
        let text = "aé東😀b";
        let offsets = CharOffsets::of(text);
        let at: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        for start in 0..at.len() {
            for end in start..at.len() {
                assert_eq!(offsets.range(&(at[start]..at[end])), start..end);
            }
        }
        assert_eq!(offsets.range(&(4..5)), 2..3, "a cut character counts");
        assert_eq!(CharOffsets::of("plain").range(&(1..3)), 1..3);
    }
}
