//! Where a text may be cut so that the tokens of both sides, one behind the other, are those of the whole text. A text
//! far longer than the model's limit is then not tokenised as a whole.

use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    normalizers::bert::BertNormalizer, pre_tokenizers::byte_level::ByteLevel,
};

use super::{Truncation, lower::LetterCase};

/// The places at which one tokenizer's texts may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// In front of these characters of one byte, where they follow a word. Several blanks together may be one token.
    blanks: &'static [u8],
    /// On both sides of characters that are words by themselves.
    isolated: Isolated,
}

/// Characters that are words by themselves, and stay so through normalisation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Isolated {
    Nothing,
    /// Punctuation, and ideographs if so; but not what occurs in a token that is looked for in the text first.
    Marks {
        ideographs: bool,
        except: Vec<char>,
    },
}

/// Blanks that every normaliser keeps. Others may be deleted, which joins the words around them.
const BLANKS: &[u8] = b" \t\n\r";

impl Cuts {
    /// Nowhere: every text is tokenised as a whole.
    const NONE: Self = Self { blanks: &[], isolated: Isolated::Nothing };

    /// BERT's own steps look at one word at a time. GPT-2's words begin with the blank before them.
    pub(super) fn of(tokenizer: &Tokenizer, case: LetterCase) -> Self {
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        if added.iter().any(|token| token.content.contains(char::is_whitespace)) {
            return Self::NONE;
        }
        let normalizer = tokenizer.get_normalizer();
        match (tokenizer.get_model(), tokenizer.get_pre_tokenizer(), normalizer) {
            (
                ModelWrapper::WordPiece(_),
                Some(PreTokenizerWrapper::BertPreTokenizer(_)),
                None | Some(NormalizerWrapper::BertNormalizer(_)),
            ) => Self { blanks: BLANKS, isolated: isolated(normalizer, &added, case) },
            (
                ModelWrapper::BPE(_),
                Some(PreTokenizerWrapper::ByteLevel(steps)),
                None | Some(NormalizerWrapper::NFC(_)),
            ) => Self { blanks: byte_level_blanks(steps, &added), isolated: Isolated::Nothing },
            _ => Self::NONE,
        }
    }

    /// Whether there is no such place in any text.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The end of `text` that truncation keeps, of `bytes` bytes or a few more, up to the next place where it may be
    /// cut; all of it where there is none.
    pub(super) fn piece<'a>(&self, text: &'a str, truncation: Truncation, bytes: usize) -> &'a str {
        if text.len() <= bytes || self.is_none() {
            return text;
        }
        match truncation {
            Truncation::Off | Truncation::Right => {
                let from = text.ceil_char_boundary(bytes.max(1));
                let mut ends = text[from..].char_indices().map(|(at, next)| (from + at, next));
                ends.find(|&(at, next)| self.may_cut(&text[..at], next)).map_or(text, |(end, _)| &text[..end])
            }
            Truncation::Left => {
                let until = text.floor_char_boundary(text.len() - bytes);
                let mut starts = text[..until].char_indices().rev();
                // the character at `until` begins the shortest piece
                let first = text[until..].chars().next().map(|next| (until, next));
                let mut starts = first.into_iter().chain(&mut starts);
                starts
                    .find(|&(at, next)| self.may_cut(&text[..at], next))
                    .map_or(text, |(start, _)| &text[start..])
            }
        }
    }

    /// Whether a text may be cut between `before` and `next`.
    fn may_cut(&self, before: &str, next: char) -> bool {
        let Some(last) = before.chars().next_back() else { return false };
        let blank = u8::try_from(next).is_ok_and(|next| self.blanks.contains(&next)) && !last.is_whitespace();
        blank || self.is_isolated(next) || self.is_isolated(last)
    }

    fn is_isolated(&self, c: char) -> bool {
        match &self.isolated {
            Isolated::Nothing => false,
            Isolated::Marks { ideographs, except } => {
                (is_mark(c) || *ideographs && is_ideograph(c)) && !except.contains(&c)
            }
        }
    }
}

/// Of a text that is lowered as a whole, the last letters of a word depend on what follows the punctuation behind it.
/// A token that must stand alone between words is found or not by what is next to it.
fn isolated(normalizer: Option<&NormalizerWrapper>, added: &[AddedToken], case: LetterCase) -> Isolated {
    if case == LetterCase::Lowered || added.iter().any(|token| token.single_word) {
        return Isolated::Nothing;
    }
    let ideographs = match normalizer {
        Some(NormalizerWrapper::BertNormalizer(BertNormalizer { handle_chinese_chars, .. })) => {
            *handle_chinese_chars
        }
        _ => false,
    };
    Isolated::Marks { ideographs, except: added.iter().flat_map(|token| token.content.chars()).collect() }
}

/// A token that takes the blanks behind it would not get them; and before a piece that begins with another blank than
/// a space, a space may be put.
fn byte_level_blanks(steps: &ByteLevel, added: &[AddedToken]) -> &'static [u8] {
    if !steps.use_regex || added.iter().any(|token| token.rstrip) {
        &[]
    } else if steps.add_prefix_space {
        b" "
    } else {
        BLANKS
    }
}

/// Punctuation that no normalisation makes, changes or takes away. There is more of it; this is what long texts have.
fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(c,
            '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{2043}' | '\u{2045}'..='\u{2051}' | '\u{2053}'..='\u{205e}'
            | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}'
            | '\u{ff01}'..='\u{ff03}' | '\u{ff05}'..='\u{ff0a}' | '\u{ff0c}'..='\u{ff0f}' | '\u{ff1a}' | '\u{ff1b}'
            | '\u{ff1f}' | '\u{ff20}')
}

/// Ideographs that BERT's normaliser puts blanks around; those that it also replaces by others are left out.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{20000}'..='\u{2a6df}')
}

#[cfg(test)]
mod tests {
    use tokenizers::{
        NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
        pre_tokenizers::bert::BertPreTokenizer,
    };

    use super::*;

    /// Cut inside the two blanks, the piece would end in a token of one blank where the text may have one of two.
    #[test]
    fn a_piece_ends_at_the_first_blank_behind_a_word() {
        let cuts = Cuts { blanks: BLANKS, isolated: Isolated::Nothing };
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
        let isolated = Isolated::Marks { ideographs: true, except: vec!['['] };
        let cuts = Cuts { blanks: &[], isolated };
        let text = "ab.c[d東é";
        let cases = [
            (Truncation::Right, 0, "ab"),
            (Truncation::Right, 3, "ab."),
            (Truncation::Right, 4, "ab.c[d"),
            (Truncation::Right, 7, "ab.c[d東"),
            (Truncation::Right, 10, text),
            (Truncation::Left, 1, "é"),
            (Truncation::Left, 3, "東é"),
            (Truncation::Left, 6, "c[d東é"),
            (Truncation::Left, 9, ".c[d東é"),
        ];
        for (truncation, bytes, expected) in cases {
            assert_eq!(cuts.piece(text, truncation, bytes), expected, "{truncation:?}, {bytes} bytes");
        }
        assert_eq!(Cuts::NONE.piece(text, Truncation::Right, 1), text);
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

    /// All of Unicode: each mark and ideograph is kept as it is and stands alone, and nothing else becomes one.
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
