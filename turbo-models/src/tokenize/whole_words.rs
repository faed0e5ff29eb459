//! Words that are one token each, because BERT's vocabulary has them whole. Most words of a text are. Looking one up
//! takes a twentieth of the time of the library's steps, which end at the same token.

use tokenizers::{
    AddedToken, Model as _, ModelWrapper, NormalizedString, Normalizer as _, NormalizerWrapper,
    PreTokenizerWrapper, Tokenizer,
};

/// Looks up words of lower-case ASCII letters and digits in the vocabulary as they are. No step of the tokenizer
/// changes or splits such a word, and WordPiece takes the longest token that a word begins with, which is the word
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeWords {
    /// Longest word that is looked up: WordPiece gives up on longer ones.
    longest: usize,
}

impl WholeWords {
    /// Nothing is looked up.
    const NONE: Self = Self { longest: 0 };

    /// The whole words of `tokenizer`; none if its steps are not BERT's.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let normalizer = tokenizer.get_normalizer();
        let longest = match (normalizer, tokenizer.get_pre_tokenizer(), tokenizer.get_model()) {
            (
                None | Some(NormalizerWrapper::BertNormalizer(_)),
                Some(PreTokenizerWrapper::BertPreTokenizer(_)),
                ModelWrapper::WordPiece(model),
            ) => model.max_input_chars_per_word,
            _ => return Self::NONE,
        };
        let mut added = tokenizer.get_added_tokens_decoder().into_values();
        if added.any(|token| may_be_in_a_word(&token, normalizer)) { Self::NONE } else { Self { longest } }
    }

    /// The id of `word`, which may have ASCII blanks before it, if it is one token; `None` if it is not known to be.
    pub(super) fn id(self, tokenizer: &Tokenizer, word: &str) -> Option<u32> {
        let word = word.trim_ascii_start();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        // a vocabulary may have an empty line, but no word is empty
        if word.is_empty() || word.len() > self.longest || !word.bytes().all(is_plain) {
            return None;
        }
        match tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => model.token_to_id(word),
            _ => None,
        }
    }
}

/// Whether `token`, which is looked for in a text before it is split into words, could be found inside one of them.
fn may_be_in_a_word(token: &AddedToken, normalizer: Option<&NormalizerWrapper>) -> bool {
    let mut looked_for = NormalizedString::from(token.content.as_str());
    // some are searched for in the normalised text, in their own normalised form
    let normalized = normalizer.filter(|_| token.normalized).map(|steps| steps.normalize(&mut looked_for));
    normalized.is_some_and(|done| done.is_err())
        || looked_for.get().bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{
        models::wordpiece::WordPiece, normalizers::bert::BertNormalizer,
        pre_tokenizers::bert::BertPreTokenizer,
    };

    use super::*;

    const VOCABULARY: [&str; 13] =
        ["[UNK]", "[CLS]", "a", "ab", "abc", "b", "##b", "##bc", "A", "c1", "\u{e9}", "abcdefgh", ""];

    fn tokenizer(normalizer: Option<BertNormalizer>, added: &[&str]) -> Tokenizer {
        let vocab: [_; VOCABULARY.len()] = std::array::from_fn(|id| (VOCABULARY[id].to_owned(), id as u32));
        let model = WordPiece::builder().vocab(vocab).max_input_chars_per_word(6).build().unwrap();
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_normalizer(normalizer).unwrap();
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        tokenizer.add_special_tokens([AddedToken::from("[CLS]", true)]).unwrap();
        let added = added.iter().map(|token| AddedToken::from(*token, false));
        tokenizer.add_tokens(added).unwrap();
        tokenizer
    }

    #[test]
    fn words_of_the_vocabulary_are_known_where_no_step_changes_them() {
        let bert = tokenizer(Some(BertNormalizer::default()), &[]);
        let whole = WholeWords::of(&bert);
        let id = |word| whole.id(&bert, word);
        assert_eq!([id("ab"), id(" ab"), id("\n\t c1"), id("abc")], [Some(3), Some(3), Some(9), Some(4)]);
        for word in ["", " ", "abcd", "A", "\u{e9}", "##b", "[CLS]", "ab ", "a b", "abcdefgh"] {
            assert_eq!(id(word), None, "{word:?}");
        }
    }

    #[test]
    fn nothing_is_known_where_a_token_may_be_found_in_a_word() {
        let inside = tokenizer(None, &["bc"]);
        assert_eq!(WholeWords::of(&inside), WholeWords::NONE);
        assert_eq!(inside.encode_fast("abc", false).unwrap().len(), 2, "which it is");
        assert_ne!(WholeWords::of(&tokenizer(None, &["b-c"])), WholeWords::NONE);
        let inside = tokenizer(Some(BertNormalizer::default()), &["b\u{e7}"]);
        assert_eq!(WholeWords::of(&inside), WholeWords::NONE);
        assert_eq!(inside.encode_fast("abc", false).unwrap().len(), 2, "its accent is taken away");
        assert_ne!(WholeWords::of(&tokenizer(None, &["b\u{e7}"])), WholeWords::NONE);
        let mut cut = tokenizer(None, &[]);
        cut.with_pre_tokenizer(None::<PreTokenizerWrapper>);
        assert_eq!(WholeWords::of(&cut), WholeWords::NONE);
    }

    proptest! {
        /// What is known equals what the library gives, between words of all kinds.
        #[test]
        fn an_id_is_the_librarys(word in "[ab]{0,3}[c1A]{0,1}|abcdefgh|[a-z0-9]{1,4}", around in "[ .\n]{1,2}", lower: bool) {
            let normalizer = BertNormalizer::new(true, true, None, lower);
            let tokenizer = tokenizer(Some(normalizer), &["b-c"]);
            if let Some(id) = WholeWords::of(&tokenizer).id(&tokenizer, &word) {
                let text = format!("a{around}{word}{around}a");
                let tokens = tokenizer.encode_fast(text, false).unwrap();
                let ids: Vec<u32> = tokens.get_ids().iter().copied().filter(|id| *id != 0).collect();
                prop_assert_eq!(ids, [2, id, 2]);
            }
        }
    }
}
