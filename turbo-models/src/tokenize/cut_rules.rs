//! Where each tokenizer's texts may be cut. This is derived from the tokenizer's steps, since none of them says so.

use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    normalizers::{BertNormalizer, Strip},
    pre_tokenizers::{
        byte_level::ByteLevel,
        metaspace::{Metaspace, PrependScheme},
        split::{Split, SplitPattern},
    },
};

use super::{
    cuts::{Blanks, Cuts, Isolated},
    lower::LetterCase,
};

/// Blanks that every normaliser keeps. Others may be deleted, which joins the words around them.
const BLANKS: &[u8] = b" \t\n\r";

/// The patterns of Qwen's tokenizers and of Llama 3's: a blank between two letters or digits begins a word.
const WORDS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

impl Cuts {
    /// The places where texts for `tokenizer` may be cut; none if its steps are not known well enough.
    pub(super) fn of(tokenizer: &Tokenizer, case: LetterCase) -> Self {
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        if added.iter().any(|token| token.content.contains(char::is_whitespace)) {
            return Self::NONE;
        }
        let Some(words) = tokenizer.get_pre_tokenizer() else { return Self::NONE };
        let normalizer = tokenizer.get_normalizer();
        let (blanks, isolated) = match (tokenizer.get_model(), words) {
            (ModelWrapper::WordPiece(_), PreTokenizerWrapper::BertPreTokenizer(_)) => {
                bert(normalizer, &added, case)
            }
            // a token that takes the blanks behind it would miss them
            _ if added.iter().any(|token| token.rstrip) => return Self::NONE,
            (ModelWrapper::BPE(_), PreTokenizerWrapper::ByteLevel(steps)) => {
                (byte_level(normalizer, steps), Isolated::None)
            }
            (ModelWrapper::BPE(_) | ModelWrapper::Unigram(_), words) if is_local(normalizer) => {
                (between_words(words), Isolated::None)
            }
            _ => return Self::NONE,
        };
        Self { blanks, isolated }
    }
}

/// BERT's own steps look at one word at a time.
fn bert(
    normalizer: Option<&NormalizerWrapper>,
    added: &[AddedToken],
    case: LetterCase,
) -> (Blanks, Isolated) {
    match normalizer {
        None | Some(NormalizerWrapper::BertNormalizer(_)) => {
            (Blanks::BehindWords(BLANKS), isolated(normalizer, added, case))
        }
        _ => (Blanks::None, Isolated::None),
    }
}

/// If a text is lower-cased as a whole, the last letters of a word depend on what follows the punctuation behind it. If
/// a token must stand alone between words, its neighbours decide whether it is found.
fn isolated(normalizer: Option<&NormalizerWrapper>, added: &[AddedToken], case: LetterCase) -> Isolated {
    if case == LetterCase::Lowered || added.iter().any(|token| token.single_word) {
        return Isolated::None;
    }
    let ideographs = match normalizer {
        Some(NormalizerWrapper::BertNormalizer(BertNormalizer { handle_chinese_chars, .. })) => {
            *handle_chinese_chars
        }
        _ => false,
    };
    let (normalized, raw): (Vec<&AddedToken>, Vec<&AddedToken>) =
        added.iter().partition(|token| token.normalized);
    Isolated::Marks {
        ideographs,
        tokens: raw.into_iter().map(|token| token.content.clone()).collect(),
        except: normalized.into_iter().flat_map(|token| token.content.chars()).collect(),
    }
}

/// GPT-2's words begin with the blank before them. A space may be put before a piece that begins with a blank other
/// than a space.
fn byte_level(normalizer: Option<&NormalizerWrapper>, steps: &ByteLevel) -> Blanks {
    match normalizer {
        None | Some(NormalizerWrapper::NFC(_)) if steps.use_regex => {
            Blanks::BehindWords(if steps.add_prefix_space { b" " } else { BLANKS })
        }
        _ => Blanks::None,
    }
}

/// Steps that split words at blanks and, for a blank between letters, look no further.
fn between_words(steps: &PreTokenizerWrapper) -> Blanks {
    let splits = match steps {
        PreTokenizerWrapper::Metaspace(words) => words.get_split(),
        PreTokenizerWrapper::Sequence(steps) => match steps.as_ref() {
            [PreTokenizerWrapper::WhitespaceSplit(_), PreTokenizerWrapper::Metaspace(words)] => {
                marks_all(words)
            }
            [PreTokenizerWrapper::Split(words), PreTokenizerWrapper::ByteLevel(bytes)] => {
                splits_as_known(words) && !bytes.use_regex && !bytes.add_prefix_space
            }
            _ => false,
        },
        _ => false,
    };
    if splits { Blanks::BetweenWords } else { Blanks::None }
}

/// Whether the first word of a text is marked like those behind it.
fn marks_all(words: &Metaspace) -> bool {
    words.get_split() && words.get_prepend_scheme() == PrependScheme::Always
}

fn splits_as_known(words: &Split) -> bool {
    let known = matches!(&words.pattern, SplitPattern::Regex(pattern) if WORDS.contains(&pattern.as_str()));
    known && words.behavior == SplitDelimiterBehavior::Isolated && !words.invert
}

/// Whether the text on one side of a blank between letters or digits has no effect on the other side.
fn is_local(normalizer: Option<&NormalizerWrapper>) -> bool {
    match normalizer {
        None => true,
        Some(NormalizerWrapper::Sequence(steps)) => steps.as_ref().iter().all(|step| is_local(Some(step))),
        Some(NormalizerWrapper::StripNormalizer(Strip { strip_left, .. })) => !strip_left,
        Some(step @ NormalizerWrapper::Replace(_)) => replaces_nothing_there(step),
        Some(
            NormalizerWrapper::NFC(_)
            | NormalizerWrapper::NFD(_)
            | NormalizerWrapper::NFKC(_)
            | NormalizerWrapper::NFKD(_)
            | NormalizerWrapper::Nmt(_)
            | NormalizerWrapper::Lowercase(_)
            | NormalizerWrapper::StripAccents(_)
            | NormalizerWrapper::Precompiled(_),
        ) => true,
        Some(_) => false,
    }
}

/// Whether a step replaces only text that cannot reach from a letter or digit to the blank beside it. The pattern is
/// not public, so it is read from the step's JSON.
fn replaces_nothing_there(step: &NormalizerWrapper) -> bool {
    let Ok(step) = serde_json::to_value(step) else { return false };
    let (text, expression) = (&step["pattern"]["String"], &step["pattern"]["Regex"]);
    let harmless = |text: &str| !text.chars().any(|c| c == ' ' || c.is_ascii_alphanumeric());
    text.as_str().is_some_and(harmless) || expression == " {2,}"
}
