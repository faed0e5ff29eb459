//! From text to ids, exactly as the published tokenizer makes them, with the model's own limit instead of the
//! truncation and padding that its file happens to carry.
//!
//! Truncation drops tokens of the text and keeps the special tokens around it, as the reference does. A text far longer
//! than the limit is not tokenised as a whole: a piece that ends at white space is enough where every word is tokenised
//! by itself, and one that gave too few tokens is taken again, larger. So the answer is that of the whole text.

use std::{
    borrow::Cow,
    panic::catch_unwind,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer, tokenizer::Encoding};

use crate::{Encoded, InputLimits, ModelError, error::one_line, vocab_txt};

/// Which end of an overlong text is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Neither: it is refused.
    Off,
    /// The beginning.
    Left,
    /// The end.
    Right,
}

/// Why an input cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// More tokens than the model takes.
    #[error("the input is longer than {limit} tokens: {tokens} counted")]
    TooLong {
        /// Its tokens, special ones included; fewer than it has where counting stopped early.
        tokens: usize,
        /// Most tokens of one input.
        limit: usize,
    },
    /// Nothing to run.
    #[error("the input has no tokens")]
    Empty,
    /// The lists of one input differ in length.
    #[error("{token_types} token types for {tokens} tokens")]
    Uneven {
        /// Length of the one.
        tokens: usize,
        /// Length of the other.
        token_types: usize,
    },
    /// An id without a row in the word embedding table.
    #[error("token {id} is outside the model's vocabulary of {vocab_size}")]
    Vocabulary {
        /// The id.
        id: u32,
        /// Rows of the table.
        vocab_size: usize,
    },
    /// An id without a row in the token type table.
    #[error("token type {id} is outside the model's {type_vocab_size} token types")]
    TokenType {
        /// The id.
        id: u32,
        /// Rows of the table.
        type_vocab_size: usize,
    },
    /// The tokenizer gave up.
    #[error("the tokenizer failed: {why}")]
    Tokenizer {
        /// What it said.
        why: String,
    },
}

/// What is done to the letters of a text before the tokenizer's own normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterCase {
    Kept,
    Lowered,
}

/// A published tokenizer under a model's limits. Cheap to clone; one may serve many threads.
#[derive(Clone)]
pub struct TextTokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    tokenizer: Tokenizer,
    limits: InputLimits,
    case: LetterCase,
    /// Bytes of text that are tokenised at first; a longer text may be cut.
    first_piece: usize,
}

/// Bytes of text per token of the limit in the first piece: three times what English needs.
const PIECE_BYTES_PER_TOKEN: usize = 16;

impl TextTokenizer {
    /// Reads the tokenizer of the folder `dir`, from `tokenizer.json` or else `vocab.txt`; `None` when it has neither.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Tokenizer`].
    pub fn open(dir: &Path, limits: InputLimits) -> Result<Option<Self>, ModelError> {
        Self::open_with(dir, limits, LetterCase::Kept)
    }

    pub(crate) fn open_with(
        dir: &Path,
        limits: InputLimits,
        case: LetterCase,
    ) -> Result<Option<Self>, ModelError> {
        let file = dir.join("tokenizer.json");
        let tokenizer = if file.exists() { Some(read(file)?) } else { vocab_txt::open(dir)? };
        Ok(tokenizer.map(|tokenizer| Self::new(tokenizer, limits, case)))
    }

    fn new(mut tokenizer: Tokenizer, limits: InputLimits, case: LetterCase) -> Self {
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).expect("no truncation suits every tokenizer");
        let whole = usize::MAX;
        let piece = PIECE_BYTES_PER_TOKEN.saturating_mul(limits.max_input_length);
        let first_piece = if words_are_independent(&tokenizer) { piece } else { whole };
        Self { shared: Arc::new(Shared { tokenizer, limits, case, first_piece }) }
    }

    /// Number of tokens it knows, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.shared.tokenizer.get_vocab_size(true)
    }

    /// Ids of `text`, with the special tokens that the tokenizer's file asks for; at most `max_input_length` of them.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] without truncation, or where not even the special tokens fit; and where the
    /// tokenizer's ids are not the model's.
    pub fn encode(&self, text: &str, truncation: Truncation) -> Result<Encoded, TokenizeError> {
        let Shared { limits, first_piece, .. } = &*self.shared;
        let mut piece_bytes = *first_piece;
        let encoding = loop {
            let piece = piece(text, truncation, piece_bytes);
            let encoding = self.shared.tokenize(piece)?;
            if piece.len() == text.len() || encoding.len() > limits.max_input_length {
                break encoding;
            }
            piece_bytes = piece_bytes.saturating_mul(4);
        };
        let encoded = cut(&encoding, limits.max_input_length, truncation)?;
        limits.check(&encoded)?;
        Ok(encoded)
    }
}

impl Shared {
    fn tokenize(&self, text: &str) -> Result<Encoding, TokenizeError> {
        let text = match self.case {
            LetterCase::Kept => Cow::Borrowed(text),
            LetterCase::Lowered => Cow::Owned(text.to_lowercase()),
        };
        let encoding = self.tokenizer.encode_fast(text, true);
        encoding.map_err(|error| TokenizeError::Tokenizer { why: one_line(error) })
    }
}

fn read(file: PathBuf) -> Result<Tokenizer, ModelError> {
    let json = match std::fs::read(&file) {
        Ok(json) => json,
        Err(source) => return Err(ModelError::Read { file, source }),
    };
    let sound = parse(&json).and_then(|tokenizer| {
        let steps = serde_json::to_value(tokenizer.get_post_processor()).map_err(one_line)?;
        wrong_template(&steps).map_or(Ok(tokenizer), Err)
    });
    sound.map_err(|why| ModelError::Tokenizer { file, why })
}

/// The tokenizer that `json` describes. The library panics at some of what is not JSON, or not as it expects.
fn parse(json: &[u8]) -> Result<Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(json).map_err(one_line)?;
    match catch_unwind(|| Tokenizer::from_bytes(json)) {
        Ok(tokenizer) => tokenizer.map_err(one_line),
        Err(_) => Err("the tokenizer library gave up on it".to_owned()),
    }
}

/// What is wrong with the template that puts special tokens around one text, if there is one among the steps after
/// tokenising. The library takes it as it comes and panics when it first uses it.
fn wrong_template(steps: &Value) -> Option<String> {
    if let Some(steps) = steps["processors"].as_array() {
        return steps.iter().find_map(wrong_template);
    }
    let known = steps["special_tokens"].as_object()?;
    steps["single"].as_array()?.iter().find_map(|piece| {
        if piece["Sequence"]["id"] == "B" {
            return Some("post_processor: the template of one text asks for a second".to_owned());
        }
        let token = piece["SpecialToken"]["id"].as_str()?;
        let why = || format!("post_processor: {token} is not among its special_tokens");
        (!known.contains_key(token)).then(|| one_line(why()))
    })
}

/// Whether the tokens of a text up to a blank are the first tokens of the whole text, and likewise from its end. So it
/// is with BERT's own steps, which look at one word at a time, and with GPT-2's, whose words begin with the blank
/// before them; unless an added token has a blank inside.
fn words_are_independent(tokenizer: &Tokenizer) -> bool {
    let normalizer = tokenizer.get_normalizer();
    let by_word = match (tokenizer.get_model(), tokenizer.get_pre_tokenizer()) {
        (ModelWrapper::WordPiece(_), Some(PreTokenizerWrapper::BertPreTokenizer(_))) => {
            matches!(normalizer, None | Some(NormalizerWrapper::BertNormalizer(_)))
        }
        (ModelWrapper::BPE(_), Some(PreTokenizerWrapper::ByteLevel(steps))) => {
            steps.use_regex && normalizer.is_none()
        }
        _ => false,
    };
    let mut added = tokenizer.get_added_tokens_decoder().into_values();
    by_word && !added.any(|token| token.content.contains(char::is_whitespace))
}

/// The end of `text` that truncation keeps, of `bytes` bytes or a few more, up to the blank behind a word; all of it
/// where there is none. Only blanks that every normaliser keeps count: others may be deleted, which joins the words
/// around them. And only the first behind a word does: several together may be one token.
fn piece(text: &str, truncation: Truncation, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let ends_word = |&at: &usize| {
        matches!(text.as_bytes()[at], b' ' | b'\t' | b'\n' | b'\r')
            && text[..at].chars().next_back().is_some_and(|before| !before.is_whitespace())
    };
    match truncation {
        Truncation::Off | Truncation::Right => {
            (bytes..text.len()).find(ends_word).map_or(text, |end| &text[..end])
        }
        Truncation::Left => {
            (0..text.len() - bytes).rev().find(ends_word).map_or(text, |start| &text[start..])
        }
    }
}

/// The ids of `encoding`, without the tokens of the text that are too many.
fn cut(encoding: &Encoding, limit: usize, truncation: Truncation) -> Result<Encoded, TokenizeError> {
    let (ids, types) = (encoding.get_ids(), encoding.get_type_ids());
    let too_many = ids.len().saturating_sub(limit);
    if too_many == 0 {
        return Ok(Encoded { input_ids: ids.to_vec(), token_type_ids: types.to_vec() });
    }
    let is_text = encoding.get_special_tokens_mask().iter().map(|&special| special == 0);
    let before = is_text.clone().take_while(|is_text| !is_text).count();
    let after = is_text.rev().take_while(|is_text| !is_text).count();
    if truncation == Truncation::Off || before + after > limit {
        return Err(TokenizeError::TooLong { tokens: ids.len(), limit });
    }
    let dropped = match truncation {
        Truncation::Left => before..before + too_many,
        _ => ids.len() - after - too_many..ids.len() - after,
    };
    let kept = |ids: &[u32]| [&ids[..dropped.start], &ids[dropped.end..]].concat();
    Ok(Encoded { input_ids: kept(ids), token_type_ids: kept(types) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cut inside the two blanks, the piece would end in a token of one blank where the text may have one of two.
    #[test]
    fn a_piece_ends_at_the_first_blank_behind_a_word() {
        let text = "ab  cde\u{b}f\u{a0} g";
        let cases = [
            (Truncation::Right, 1, "ab"),
            (Truncation::Right, 2, "ab"),
            (Truncation::Right, 3, text),
            (Truncation::Off, 2, "ab"),
            (Truncation::Left, text.len() - 3, "  cde\u{b}f\u{a0} g"),
            (Truncation::Left, text.len() - 2, text),
            (Truncation::Left, 1, "  cde\u{b}f\u{a0} g"),
            (Truncation::Left, text.len(), text),
        ];
        for (truncation, bytes, expected) in cases {
            assert_eq!(piece(text, truncation, bytes), expected, "{truncation:?}, {bytes} bytes");
        }
    }
}
