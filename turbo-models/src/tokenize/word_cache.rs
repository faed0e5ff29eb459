//! Ids of words that are one token, or that were tokenised before. Texts consist of the same few tens of thousands of
//! words, and the library takes microseconds for each, mostly for places and strings that the model does not read.
//!
//! A word is what lies between two [`Cuts`], so a text's ids are those of its words, one after the other.

use quick_cache::sync::Cache;
use tokenizers::tokenizer::Encoding as Tokens;

use super::cuts::Cuts;

/// Most words that are kept, some 5 MB.
const WORDS: usize = 1 << 15;
/// Longer words are not kept: they are rarely met again.
const LONGEST_WORD: usize = 32;
/// Words of more tokens are not kept: they are rare, too.
const MOST_TOKENS: usize = 7;

/// Words and their ids; `None` for words that were seen once: most rare words are not met again, and tokenising each of
/// them by itself takes longer. The least used words are evicted.
pub(super) struct WordCache(Option<Cache<Box<str>, Option<Ids>>>);

/// The ids of one word.
#[derive(Clone, Copy)]
struct Ids {
    ids: [u32; MOST_TOKENS],
    count: u8,
}

impl WordCache {
    /// A cache for texts that may be cut at `cuts`; keeps nothing if they may not be cut.
    pub(super) fn new(cuts: &Cuts) -> Self {
        Self(cuts.has_words().then(|| Cache::new(WORDS)))
    }

    /// The ids of `text`. `whole` gives the id of a word that is one token; ids of other words that are not known are
    /// made by `tokenize`, and kept.
    pub(super) fn ids<E>(
        &self,
        text: &str,
        cuts: &Cuts,
        whole: impl Fn(&str) -> Option<u32>,
        tokenize: impl Fn(&str) -> Result<Tokens, E>,
    ) -> Result<Vec<u32>, E> {
        let Some(known) = &self.0 else { return Ok(tokenize(text)?.get_ids().to_vec()) };
        let mut ids = Vec::with_capacity(text.len() / 4);
        // New words are tokenised together with their neighbours.
        let (mut new_from, mut at) = (0, 0);
        for word in cuts.words(text) {
            let (from, to) = (at, at + word.len());
            at = to;
            let seen = whole(word).map_or_else(|| known.get(word), |id| Some(Ids::new(&[id])));
            let Some(seen) = seen else {
                if word.len() <= LONGEST_WORD {
                    known.insert(word.into(), None);
                }
                continue;
            };
            if new_from < from {
                ids.extend_from_slice(tokenize(&text[new_from..from])?.get_ids());
            }
            new_from = to;
            if let Some(found) = seen {
                ids.extend_from_slice(found.as_slice());
                continue;
            }
            let made = tokenize(word)?;
            ids.extend_from_slice(made.get_ids());
            if let made @ Some(_) = Ids::new(made.get_ids()) {
                known.insert(word.into(), made);
            }
        }
        if new_from < text.len() {
            ids.extend_from_slice(tokenize(&text[new_from..])?.get_ids());
        }
        Ok(ids)
    }
}

impl Ids {
    /// `None` if there are too many.
    fn new(ids: &[u32]) -> Option<Self> {
        let mut all = [0; MOST_TOKENS];
        all.get_mut(..ids.len())?.copy_from_slice(ids);
        Some(Self { ids: all, count: ids.len() as u8 })
    }

    fn as_slice(&self) -> &[u32] {
        &self.ids[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, convert::Infallible};

    use super::{
        super::{
            cuts::{Blanks, Isolated},
            tokens::of_ids,
        },
        *,
    };

    /// Each letter is a token; records the text in `asked`.
    fn letters(asked: &RefCell<Vec<String>>, text: &str) -> Result<Tokens, Infallible> {
        asked.borrow_mut().push(text.to_owned());
        Ok(of_ids(text.chars().filter(|c| *c != ' ').map(u32::from).collect()))
    }

    /// No word is known to be one token.
    fn is_none(_: &str) -> Option<u32> {
        None
    }

    #[test]
    fn a_word_that_is_one_token_is_neither_made_tokens_of_nor_kept() {
        let cuts = Cuts { blanks: Blanks::BehindWords(b" "), isolated: Isolated::None };
        let cache = WordCache::new(&cuts);
        let whole = |word: &str| (word.trim_start() == "one").then_some(1);
        for expected in [vec![" a", " b c"], vec![" a", " b", " c"], vec![]] {
            let asked = RefCell::default();
            let got = cache.ids("one a one one b c one", &cuts, whole, |word| letters(&asked, word));
            let [a, b, c] = ['a', 'b', 'c'].map(u32::from);
            assert_eq!(got.unwrap(), [1, a, 1, 1, b, c, 1]);
            assert_eq!(asked.into_inner(), expected);
        }
        assert_eq!(cache.0.unwrap().len(), 3);
    }

    #[test]
    fn a_word_is_made_tokens_of_twice_at_most() {
        let long = "l".repeat(LONGEST_WORD + 1);
        let many = "m".repeat(MOST_TOKENS + 1);
        let cuts = Cuts { blanks: Blanks::BehindWords(b" "), isolated: Isolated::None };
        let cache = WordCache::new(&cuts);
        let texts = [
            // new words go together
            ("a bc d", vec!["a bc d"]),
            // seen once: by themselves, and the new ones between them together
            ("a e f d", vec!["a", " e f", " d"]),
            // known
            ("a d a", vec![" a"]),
            ("a d a", vec![" a"]),
            ("a d a", vec![]),
            ("", vec![]),
        ];
        for (text, expected) in texts {
            let asked = RefCell::default();
            let got = cache.ids(text, &cuts, is_none, |word| letters(&asked, word)).unwrap();
            assert_eq!(got, letters(&RefCell::default(), text).unwrap().get_ids(), "{text:?}");
            assert_eq!(asked.into_inner(), expected, "{text:?}");
        }
        for rare in [long, many] {
            for _ in 0..3 {
                let asked = RefCell::default();
                let got = cache.ids(&rare, &cuts, is_none, |word| letters(&asked, word)).unwrap();
                assert_eq!(got.len(), rare.len());
                assert_eq!(asked.into_inner(), [rare.as_str()], "it is not kept");
            }
        }
    }

    #[test]
    fn texts_without_words_are_not_kept() {
        let cache = WordCache::new(&Cuts::NONE);
        for _ in 0..3 {
            let asked = RefCell::default();
            cache.ids("a b", &Cuts::NONE, is_none, |text| letters(&asked, text)).unwrap();
            assert_eq!(asked.into_inner(), ["a b"]);
        }
    }
}
