//! Where a text may be cut so that the tokens of both sides, one after the other, are those of the whole text. Then a
//! text far longer than the model's limit need not be tokenised as a whole.

use super::Truncation;

/// The places at which one tokenizer's texts may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    pub(super) blanks: Blanks,
    pub(super) isolated: Isolated,
}

/// Blanks before which a text may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blanks {
    None,
    /// These one-byte blanks, behind anything but a blank: several blanks together may be one token.
    BehindWords(&'static [u8]),
    /// A space with an ASCII letter or digit on both sides.
    BetweenWords,
}

/// Characters that are words by themselves, and stay so through normalisation: a text may be cut on both sides of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Isolated {
    None,
    /// Punctuation, and ideographs if `ideographs`. Not inside one of `tokens`, which are searched for in the text
    /// first, and not at a character of `except`, which are those of tokens that are searched for after normalisation.
    Marks {
        ideographs: bool,
        tokens: Vec<String>,
        except: Vec<char>,
    },
}

impl Cuts {
    /// Nowhere: every text is tokenised as a whole.
    pub(super) const NONE: Self = Self { blanks: Blanks::None, isolated: Isolated::None };

    /// The end of `text` that truncation keeps: `bytes` bytes, or a few more up to the next place where it may be cut;
    /// all of it if there is no such place.
    pub(super) fn piece<'a>(&self, text: &'a str, truncation: Truncation, bytes: usize) -> &'a str {
        if text.len() <= bytes || *self == Self::NONE {
            return text;
        }
        match truncation {
            Truncation::Off | Truncation::Right => {
                let from = text.ceil_char_boundary(bytes.max(1));
                let mut ends = text[from..].char_indices().map(|(at, next)| (from + at, next));
                ends.find(|&(at, next)| self.may_cut(text, at, next)).map_or(text, |(end, _)| &text[..end])
            }
            Truncation::Left => {
                let until = text.floor_char_boundary(text.len() - bytes);
                // the character at `until` begins the shortest piece
                let shortest = text[until..].chars().next().map(|next| (until, next));
                shortest
                    .into_iter()
                    .chain(text[..until].char_indices().rev())
                    .find(|&(at, next)| self.may_cut(text, at, next))
                    .map_or(text, |(start, _)| &text[start..])
            }
        }
    }

    /// Whether [`Self::words`] splits texts at all.
    pub(super) fn has_words(&self) -> bool {
        self.blanks != Blanks::None
    }

    /// The parts of `text` between the blanks before which it may be cut: words with the blanks before them.
    pub(super) fn words<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            // Most bytes belong to words: looking at each byte alone passes them by.
            let mut blanks = (1..rest.len()).filter(|&at| rest.as_bytes()[at].is_ascii_whitespace());
            let end = blanks.find(|&at| self.is_before_blank(rest, at)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            rest = behind;
            (!word.is_empty()).then_some(word)
        })
    }

    /// Whether `text` may be cut at byte `at`, in front of the character `next`.
    fn may_cut(&self, text: &str, at: usize, next: char) -> bool {
        let Some(last) = text[..at].chars().next_back() else { return false };
        self.is_before_blank(text, at) || self.is_isolated(text, at, [last, next])
    }

    /// Whether there is a blank at byte `at` before which `text` may be cut.
    fn is_before_blank(&self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let is_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        match self.blanks {
            Blanks::None => false,
            Blanks::BehindWords(blanks) => {
                let last = || text[..at].chars().next_back();
                blanks.contains(&bytes[at]) && last().is_some_and(|last| !last.is_whitespace())
            }
            Blanks::BetweenWords => {
                bytes[at] == b' ' && is_word(bytes[..at].last()) && is_word(bytes.get(at + 1))
            }
        }
    }

    /// Whether one of the characters beside `at` is a word by itself.
    fn is_isolated(&self, text: &str, at: usize, beside: [char; 2]) -> bool {
        let Isolated::Marks { ideographs, tokens, except } = &self.isolated else { return false };
        let alone = |c: &char| is_mark(*c) || *ideographs && is_ideograph(*c);
        let inside = |token: &String| {
            let before = 1..token.len().min(at + 1);
            before.into_iter().any(|before| text.as_bytes()[at - before..].starts_with(token.as_bytes()))
        };
        beside.iter().any(|c| alone(c) && !except.contains(c)) && !tokens.iter().any(inside)
    }
}

/// Punctuation that no normalisation makes, changes or removes. There is more of it; this is what long texts have.
fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(c,
            '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{2043}' | '\u{2045}'..='\u{2051}' | '\u{2053}'..='\u{205e}'
            | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}'
            | '\u{ff01}'..='\u{ff03}' | '\u{ff05}'..='\u{ff0a}' | '\u{ff0c}'..='\u{ff0f}' | '\u{ff1a}' | '\u{ff1b}'
            | '\u{ff1f}' | '\u{ff20}')
}

/// Ideographs that BERT's normaliser puts blanks around, without those that it also replaces by others.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{20000}'..='\u{2a6df}')
}

#[cfg(test)]
mod tests {
    use tokenizers::{
        NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
        normalizers::bert::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer,
    };

    use super::*;

    /// If it were cut between the two blanks, the piece would end in a token of one blank, where the text may have one
    /// of two.
    #[test]
    fn a_piece_ends_at_the_first_blank_behind_a_word() {
        let cuts = Cuts { blanks: Blanks::BehindWords(b" \t\n\r"), isolated: Isolated::None };
        let text = "ab  cde\u{b}f\u{a0} g";
        let cases = [
            (Truncation::Right, 1, "ab"),
            (Truncation::Right, 2, "ab"),
            (Truncation::Right, 3, text),
            (Truncation::Off, 2, "ab"),
            (Truncation::Left, text.len() - 3, "  cde\u{b}f\u{a0} g"),
            (Truncation::Left, text.len() - 2, "  cde\u{b}f\u{a0} g"),
            (Truncation::Left, text.len() - 1, text),
            (Truncation::Left, 1, "  cde\u{b}f\u{a0} g"),
            (Truncation::Left, text.len(), text),
        ];
        for (truncation, bytes, expected) in cases {
            assert_eq!(cuts.piece(text, truncation, bytes), expected, "{truncation:?}, {bytes} bytes");
        }
    }

    #[test]
    fn a_piece_ends_beside_a_mark() {
        let tokens = vec![".c[".to_owned()];
        let isolated = Isolated::Marks { ideographs: true, tokens, except: vec!['['] };
        let cuts = Cuts { blanks: Blanks::None, isolated };
        let text = "ab.c[d東é";
        let cases = [
            (Truncation::Right, 0, "ab"),
            (Truncation::Right, 3, "ab.c[d"),
            (Truncation::Right, 7, "ab.c[d東"),
            (Truncation::Right, 10, text),
            (Truncation::Left, 1, "é"),
            (Truncation::Left, 3, "東é"),
            (Truncation::Left, 6, ".c[d東é"),
            (Truncation::Left, 9, ".c[d東é"),
        ];
        for (truncation, bytes, expected) in cases {
            assert_eq!(cuts.piece(text, truncation, bytes), expected, "{truncation:?}, {bytes} bytes");
        }
        assert_eq!(Cuts::NONE.piece(text, Truncation::Right, 1), text);
    }

    #[test]
    fn a_piece_ends_between_two_words() {
        let cuts = Cuts { blanks: Blanks::BetweenWords, isolated: Isolated::None };
        let text = "é a. b  c d\te f";
        assert_eq!(cuts.piece(text, Truncation::Right, 1), "é a. b  c");
        assert_eq!(cuts.piece(text, Truncation::Left, 5), " d\te f");
        assert_eq!(
            cuts.piece(text, Truncation::Left, 7),
            text,
            "none of the blanks before is between two words"
        );
    }

    #[test]
    fn words_begin_with_the_blanks_before_them() {
        let of = |blanks, text: &'static str| -> Vec<&str> {
            Cuts { blanks, isolated: Isolated::None }.words(text).collect()
        };
        let behind = Blanks::BehindWords(b" \n");
        assert_eq!(
            of(behind.clone(), " ab  c,\n\u{e9} \u{a0}d\te "),
            [" ab", "  c,", "\n\u{e9}", " \u{a0}d\te", " "]
        );
        assert_eq!(of(Blanks::BetweenWords, " ab c. d  e f"), [" ab", " c. d  e", " f"]);
        assert_eq!(of(Blanks::None, "ab c"), ["ab c"]);
        assert!(of(behind, "").is_empty());
    }

    /// The words of `text` as BERT's steps make them.
    fn words(text: &str) -> Vec<String> {
        let mut text = NormalizedString::from(text);
        BertNormalizer::default().normalize(&mut text).unwrap();
        let mut text = PreTokenizedString::from(text);
        BertPreTokenizer.pre_tokenize(&mut text).unwrap();
        let words = text.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        words.into_iter().map(|(word, ..)| word.to_owned()).collect()
    }

    /// For all of Unicode, each mark and ideograph is kept as it is and stands alone.
    #[test]
    fn what_is_isolated_is_so_in_the_library() {
        for c in '\0'..=char::MAX {
            let isolated = is_mark(c) || is_ideograph(c);
            if isolated {
                assert_eq!(words(&format!("a{c}b")), ["a", &c.to_string(), "b"], "{c:?}");
            }
        }
    }
}
