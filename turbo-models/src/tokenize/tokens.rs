//! The library's tokens of texts: joining and splitting them.

use std::ops::Range;

use tokenizers::tokenizer::Encoding as Tokens;

use super::{Shared, file::guarded};

/// What a text becomes: its tokens with their places, or their ids alone, which are all that a model reads.
pub(super) trait Made: Sized {
    /// Makes it from `text`, without special tokens.
    fn of(text: &str, tokenizer: &Shared) -> Result<Self, String>;

    /// Number of tokens.
    fn count(&self) -> usize;

    /// The part that belongs to some of the tokens.
    fn some(&self, range: Range<usize>) -> Self;
}

impl Made for Vec<u32> {
    fn of(text: &str, tokenizer: &Shared) -> Result<Self, String> {
        let Shared { tokenizer, cuts, whole, known, .. } = tokenizer;
        let made = |words: &str| guarded(|| tokenizer.encode_fast(words, false));
        known.ids(text, cuts, |word| whole.id(tokenizer, word), made)
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn some(&self, range: Range<usize>) -> Self {
        self[range].to_vec()
    }
}

impl Made for Tokens {
    fn of(text: &str, tokenizer: &Shared) -> Result<Self, String> {
        guarded(|| tokenizer.tokenizer.encode(text, false))
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn some(&self, range: Range<usize>) -> Self {
        Self::new(
            self.get_ids()[range.clone()].to_vec(),
            self.get_type_ids()[range.clone()].to_vec(),
            self.get_tokens()[range.clone()].to_vec(),
            self.get_word_ids()[range.clone()].to_vec(),
            self.get_offsets()[range.clone()].to_vec(),
            self.get_special_tokens_mask()[range.clone()].to_vec(),
            self.get_attention_mask()[range].to_vec(),
            Vec::new(),
            Default::default(),
        )
    }
}

/// The tokens of consecutive pieces of a text.
#[derive(Default)]
pub(super) struct AllTokens {
    ids: Vec<u32>,
    tokens: Vec<String>,
    words: Vec<Option<u32>>,
    offsets: Vec<(usize, usize)>,
}

impl AllTokens {
    /// Adds the tokens of the piece that starts at byte `start`.
    pub(super) fn append(&mut self, piece: &Tokens, start: usize) {
        let words = self.words.last().copied().flatten().map_or(0, |last| last + 1);
        self.ids.extend(piece.get_ids());
        self.tokens.extend_from_slice(piece.get_tokens());
        self.words.extend(piece.get_word_ids().iter().map(|word| word.map(|word| words + word)));
        self.offsets.extend(piece.get_offsets().iter().map(|&(from, to)| (start + from, start + to)));
    }

    /// All tokens.
    pub(super) fn into_tokens(self) -> Tokens {
        tokens(self.ids, self.tokens, self.words, self.offsets)
    }
}

/// Tokens of which only the ids are known.
pub(super) fn of_ids(ids: Vec<u32>) -> Tokens {
    let count = ids.len();
    tokens(ids, vec![String::new(); count], vec![None; count], vec![(0, 0); count])
}

/// The single token that the vocabulary writes as `token`.
pub(super) fn of_token(id: u32, token: &str) -> Tokens {
    tokens(vec![id], vec![token.to_owned()], vec![Some(0)], vec![(0, token.len())])
}

fn tokens(
    ids: Vec<u32>,
    tokens: Vec<String>,
    words: Vec<Option<u32>>,
    offsets: Vec<(usize, usize)>,
) -> Tokens {
    let (none, all) = (vec![0; ids.len()], vec![1; ids.len()]);
    let (overflowing, ranges) = (Vec::new(), Default::default());
    Tokens::new(ids, none.clone(), tokens, words, offsets, none, all, overflowing, ranges)
}

/// The tokens of two texts, for a tokenizer without a step that joins them.
pub(super) fn side_by_side(mut first: Tokens, second: Option<Tokens>) -> Tokens {
    if let Some(mut second) = second {
        first.set_sequence_id(0);
        second.set_sequence_id(1);
        second.set_type_ids(vec![1; second.len()]);
        first.merge_with(second, false);
    }
    first
}
