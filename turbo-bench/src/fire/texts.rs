//! Texts of an exact number of tokens. Their words are whole words of the vocabulary, as frequent as words are in
//! natural texts.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::workload;

/// Words that are one token each.
pub struct Texts {
    /// The most frequent first, as WordPiece numbers them.
    words: Vec<String>,
}

/// The number of tokens that the tokenizer puts around every text: a first and a last one.
const AROUND: u32 = 2;
/// With fewer words than this, texts would hardly differ.
const FEWEST: usize = 10;

#[derive(Deserialize)]
struct File {
    model: Vocabulary,
}

#[derive(Deserialize)]
struct Vocabulary {
    /// Ids by word; ordered, so that a seed gives the same text everywhere.
    vocab: BTreeMap<String, u32>,
}

impl Texts {
    /// The words of a WordPiece vocabulary, from the `tokenizer.json` in a model's folder.
    ///
    /// # Errors
    /// When there is none, or it has hardly any whole words.
    pub fn open(model: &Path) -> Result<Self> {
        let file = model.join("tokenizer.json");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let File { model } = serde_json::from_str(&text)
            .with_context(|| format!("{}: there is no WordPiece vocabulary", file.display()))?;
        let whole = |word: &str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_lowercase());
        let mut words: Vec<(String, u32)> = model.vocab.into_iter().filter(|(word, _)| whole(word)).collect();
        words.sort_by_key(|(_, id)| *id);
        let words: Vec<String> = words.into_iter().map(|(word, _)| word).collect();
        if words.len() < FEWEST {
            bail!("{}: expected {FEWEST} whole words or more, got {}", file.display(), words.len());
        }
        Ok(Self { words })
    }

    /// A text of so many tokens, including the first and the last one that every text gets. Another seed gives another
    /// text. The text of two tokens is empty; there is no text of fewer.
    ///
    /// The frequency of the word of rank r is proportional to 1/r, as in natural texts (Zipf, *Human Behavior and the
    /// Principle of Least Effort*, 1949). With a vocabulary of twenty thousand words, eleven of a hundred are one of
    /// the two most frequent words, and three are among the rarest quarter.
    #[must_use]
    pub fn text(&self, tokens: u32, seed: u64) -> String {
        let count = tokens.saturating_sub(AROUND) as usize;
        let ranks = workload::zipf(self.words.len(), seed).take(count);
        let words: Vec<&str> = ranks.map(|rank| self.words[rank].as_str()).collect();
        words.join(" ")
    }

    /// The body of a request for the vectors of texts of so many tokens.
    #[must_use]
    pub fn body(&self, tokens: &[u32], seed: u64) -> Bytes {
        let of = |(index, &tokens): (usize, &u32)| self.text(tokens, seed.wrapping_add(index as u64));
        let texts: Vec<String> = tokens.iter().enumerate().map(of).collect();
        json!({ "inputs": texts }).to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_so_many_words_less_two() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence");
        let texts = Texts::open(&model).unwrap();
        for (tokens, words) in [(2, 0), (3, 1), (10, 8), (40, 38)] {
            assert_eq!(texts.text(tokens, 0).split_whitespace().count(), words);
        }
        assert_eq!(texts.text(40, 1), texts.text(40, 1));
        assert_ne!(texts.text(40, 1), texts.text(40, 2));
        let body: serde_json::Value = serde_json::from_slice(&texts.body(&[5, 5], 0)).unwrap();
        assert_ne!(body["inputs"][0], body["inputs"][1]);
    }
}
