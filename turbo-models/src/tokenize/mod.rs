//! From text to ids, exactly as the published tokenizer makes them, but with the model's own limit instead of the
//! truncation and padding that the tokenizer's file happens to carry; and back.
//!
//! ```text
//! text ─read─▶ tokens of the text ─cut─▶ those that fit ─join─▶ with special tokens around: Encoded, or Encoding
//! ```
//!
//! A template that comes with the model may first write a pair as one text ([`template`]).
//!
//! Truncation drops tokens of the texts and keeps the special tokens around them, as the reference does. A text far
//! longer than the limit is not tokenised as a whole. If words are tokenised by themselves, a piece of the text is
//! enough, and a piece that gave too few tokens is replaced by a larger one. So the result is that of the whole text.

mod around;
mod byte_bpe;
mod cut_rules;
mod cuts;
mod encoding;
mod ends;
mod error;
mod file;
mod lengths;
mod lower;
mod named;
mod older;
mod template;
mod text;
mod tokens;
mod vocab_txt;
mod whole_words;
mod word_cache;

use std::{cmp::Ordering, path::Path, sync::Arc};

use tokenizers::{PostProcessor, PostProcessorWrapper, Tokenizer, tokenizer::Encoding as Tokens};

pub(crate) use self::template::PairTemplate;
use self::{
    around::Around,
    cuts::Cuts,
    encoding::{ReadText, WordRule},
    file::{TokenizerFiles, guarded},
    lower::LetterCase,
    tokens::{AllTokens, Made, of_ids, of_token, side_by_side},
    whole_words::WholeWords,
    word_cache::WordCache,
};
pub use self::{
    encoding::{CharOffsets, Encoding},
    error::TokenizeError,
    text::{SpecialTokens, Text, Truncation},
};
use crate::{Encoded, InputLimits, ModelError, modules::EncoderInputs};

/// A published tokenizer under a model's limits. Cheap to clone; one may serve many threads.
#[derive(Clone)]
pub struct TextTokenizer {
    shared: Arc<Shared>,
    limits: InputLimits,
    /// How pairs are written as one text; `None` if they are not.
    written: Option<Arc<WrittenPairs>>,
}

/// A template, and the tokens that it puts behind the texts of every pair.
struct WrittenPairs {
    template: PairTemplate,
    /// Tokens that are kept when a pair is cut, because the model answers behind the last one.
    end: Vec<u32>,
}

struct Shared {
    /// The tokenizer without its last step, the post-processor.
    tokenizer: Tokenizer,
    /// The post-processor, which puts special tokens around one text or two.
    post_processor: Option<PostProcessorWrapper>,
    /// What the post-processor puts around one text; `None` if that is not the same for every text.
    around: Option<Around>,
    mask: Option<(u32, String)>,
    words: WordRule,
    case: LetterCase,
    /// Whether the model gets token types: which text of a pair a token belongs to.
    types_are_told: bool,
    cuts: Cuts,
    whole: WholeWords,
    known: WordCache,
    warnings: Vec<String>,
}

/// Bytes of text per token of the limit in the first piece that is tokenised: three times what English needs.
const PIECE_BYTES_PER_TOKEN: usize = 16;

/// Bytes of text per token of the limit, up to which the tokens of both texts of a pair are counted to see which has
/// more.
const COUNTED_BYTES_PER_TOKEN: usize = 64;

/// Bytes of text that are tokenised at once when all of a text is tokenised.
const WHOLE_PIECE_BYTES: usize = 1 << 16;

/// The tokens at one end of a text.
struct Part<'a, T> {
    text: &'a str,
    /// Bytes at the beginning of the text that were not tokenised.
    skipped: usize,
    /// Whether nothing was left out at either end.
    is_whole: bool,
    tokens: T,
}

impl TextTokenizer {
    /// Reads the tokenizer of the folder `dir`: from `tokenizer.json`, or else BERT's from `vocab.txt` or RoBERTa's
    /// from `vocab.json` and `merges.txt`. If both of these are there, the class that the folder names decides. `None`
    /// if the folder has none of them. Special tokens that the files beside it name are found in texts, if the
    /// vocabulary has them. Texts are lower-cased first if `sentence_bert_config.json` says so.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Json`], [`ModelError::Field`], [`ModelError::Unsupported`],
    /// [`ModelError::Tokenizer`].
    pub fn open(dir: &Path, limits: InputLimits) -> Result<Option<Self>, ModelError> {
        Self::open_with(dir, limits, &EncoderInputs::open(dir)?)
    }

    pub(crate) fn open_with(
        dir: &Path,
        limits: InputLimits,
        inputs: &EncoderInputs,
    ) -> Result<Option<Self>, ModelError> {
        let case = if inputs.do_lower_case { LetterCase::Lowered } else { LetterCase::Kept };
        Ok(TokenizerFiles::open(dir, inputs.cut)?.map(|files| Self::new(files, limits, case)))
    }

    fn new(files: TokenizerFiles, limits: InputLimits, case: LetterCase) -> Self {
        let TokenizerFiles { mut tokenizer, mask, words, types_are_told, warnings } = files;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).expect("no truncation suits every tokenizer");
        let post_processor = tokenizer.get_post_processor().cloned();
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let cuts = Cuts::of(&tokenizer, case);
        let (whole, known) = (WholeWords::of(&tokenizer), WordCache::new(&cuts));
        // a model of one type never gets types: it would have no row for the second
        let types_are_told = types_are_told && limits.type_vocab_size > 1;
        let mut shared = Shared {
            tokenizer,
            post_processor,
            around: None,
            mask,
            words,
            case,
            types_are_told,
            cuts,
            whole,
            known,
            warnings,
        };
        shared.around = Around::of(|one| shared.join(one, None, SpecialTokens::With));
        Self { shared: Arc::new(shared), limits, written: None }
    }

    /// The same tokenizer for a model that reads pairs as `template` writes them.
    ///
    /// # Errors
    /// [`ModelError::Field`]: what is wrong with the template.
    pub(crate) fn with_template(self, template: PairTemplate) -> Result<Self, ModelError> {
        let end = self.end_of(&template).map_err(|why| template.wrong(why))?;
        Ok(Self { written: Some(Arc::new(WrittenPairs { template, end })), ..self })
    }

    /// Whether the model reads pairs as one text that a template writes, and so can be told what to judge by.
    pub fn writes_pairs(&self) -> bool {
        self.written.is_some()
    }

    /// The same tokenizer, writing pairs with `instruction` instead of the folder's own, if it writes pairs at all.
    ///
    /// # Errors
    /// [`ModelError::Field`] if the template fails, or if the instruction leaves no room for a pair.
    pub fn with_instruction(&self, instruction: &str) -> Result<Self, ModelError> {
        let Some(written) = &self.written else { return Ok(self.clone()) };
        let template = written.template.with_instruction(instruction);
        self.check_room(&template).map_err(|why| template.wrong(why))?;
        self.clone().with_template(template)
    }

    /// The same tokenizer for inputs of at most `max_input_length` tokens, if that is less than the model's own limit.
    pub fn limited_to(&self, max_input_length: usize) -> Self {
        let max_input_length = max_input_length.min(self.limits.max_input_length);
        Self { limits: InputLimits { max_input_length, ..self.limits }, ..self.clone() }
    }

    /// Number of tokens it knows, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.shared.tokenizer.get_vocab_size(true)
    }

    /// Oddities of its files.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// The token that stands for one to be filled in: its id and its text, such as `[MASK]` or `<mask>`.
    pub fn mask_token(&self) -> Option<(u32, &str)> {
        self.shared.mask.as_ref().map(|(id, token)| (*id, token.as_str()))
    }

    /// Ids of a text, or of two that the model compares, with the special tokens that the tokenizer's file names; at
    /// most `max_input_length` of them. The longer text of a pair loses tokens first.
    ///
    /// If the model reads pairs as a template writes them, that one text is tokenised; the template names its special
    /// tokens itself. A long one loses its end, except for what the template writes behind the texts: those tokens
    /// replace the last ones that fit, as in the sentence-transformers library. A single text is taken as it is.
    ///
    /// Departs from the reference in one token, for pairs in which each text is far longer than the limit: if the
    /// number of tokens is odd, the text of more bytes keeps one more, instead of the text of more tokens.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] without truncation, or if not even the special tokens fit; and if the tokenizer's ids
    /// are not the model's.
    pub fn encode<'a>(
        &self,
        text: impl Into<Text<'a>>,
        truncation: Truncation,
    ) -> Result<Encoded, TokenizeError> {
        let text = text.into();
        if let (Some(written), Text::Pair(query, document)) = (&self.written, text) {
            return self.encode_written(written, (query, document), truncation);
        }
        let (first, second) = self.limited::<Vec<u32>>(text, truncation)?;
        let encoded = match (&self.shared.around, second) {
            (Some(around), None) => around.put(&first.tokens),
            (_, second) => {
                let second = second.map(|part| of_ids(part.tokens));
                let tokens = self.shared.join(of_ids(first.tokens), second, SpecialTokens::With)?;
                let (input_ids, token_type_ids) = (tokens.get_ids().to_vec(), tokens.get_type_ids().to_vec());
                Encoded { input_ids, token_type_ids }
            }
        };
        self.limits.check(&encoded)?;
        Ok(encoded)
    }

    /// Like [`Self::encode`], with the place in the text that each token came from. No template writes pairs as one
    /// text here, because tokens would have places in that text instead.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_detailed<'a>(
        &self,
        text: impl Into<Text<'a>>,
        truncation: Truncation,
    ) -> Result<Encoding, TokenizeError> {
        let (first, second) = self.limited::<Tokens>(text.into(), truncation)?;
        let texts = self.read_texts(&first, second.as_ref());
        let tokens = self.shared.join(first.tokens, second.map(|part| part.tokens), SpecialTokens::With)?;
        let encoding = Encoding::of(&tokens, &texts, &self.shared.words);
        self.limits.check(&encoding.encoded())?;
        Ok(encoding)
    }

    /// All tokens of a text or of two, however many. They are not for the model, which takes at most
    /// `max_input_length`.
    ///
    /// # Errors
    /// [`TokenizeError::Tokenizer`].
    pub fn tokenize<'a>(
        &self,
        text: impl Into<Text<'a>>,
        special_tokens: SpecialTokens,
    ) -> Result<Encoding, TokenizeError> {
        let (first, second) = match text.into() {
            Text::One(text) => (self.read_all(text)?, None),
            Text::Pair(first, second) => (self.read_all(first)?, Some(self.read_all(second)?)),
        };
        let texts = self.read_texts(&first, second.as_ref());
        let tokens = self.shared.join(first.tokens, second.map(|part| part.tokens), special_tokens)?;
        Ok(Encoding::of(&tokens, &texts, &self.shared.words))
    }

    /// The token that the vocabulary, added tokens included, writes as `word`, even if no text can become it, such as
    /// `##ing`. If there is none, the tokens of `word`, without special ones.
    ///
    /// # Errors
    /// As [`Self::tokenize`].
    pub fn word(&self, word: &str) -> Result<Encoding, TokenizeError> {
        let Some(id) = self.shared.tokenizer.token_to_id(word) else {
            return self.tokenize(word, SpecialTokens::Without);
        };
        let text = ReadText::new(word, 0, LetterCase::Kept);
        Ok(Encoding::of(&of_token(id, word), &[text], &self.shared.words))
    }

    /// A question together with each part of a context that is too long for one input: windows of at most `max_len`
    /// tokens, special ones included, and at most `max_input_length`. Neighbouring windows share `stride` tokens of the
    /// context; each has the whole question. If everything fits, there is one window.
    ///
    /// # Errors
    /// [`TokenizeError::Window`] if the question leaves at most `stride` tokens to a longer context; otherwise as
    /// [`Self::encode`].
    pub fn windows(
        &self,
        question: &str,
        context: &str,
        max_len: usize,
        stride: usize,
    ) -> Result<Vec<Encoding>, TokenizeError> {
        let limit = max_len.min(self.limits.max_input_length);
        let question: Part<'_, Tokens> = self.read_more_than(limit, question, Truncation::Off)?;
        let taken_up = question.tokens.len().saturating_add(self.added_tokens(true));
        let Some(room) = limit.checked_sub(taken_up) else {
            return Err(TokenizeError::Window { room: 0, stride });
        };
        let context = self.read_all(context)?;
        let count = context.tokens.len();
        if room < count && room <= stride {
            return Err(TokenizeError::Window { room, stride });
        }
        let texts = self.read_texts(&question, Some(&context));
        let windows = lengths::windows(count, room, stride).into_iter().map(|window| {
            let part = context.tokens.some(window);
            let tokens = self.shared.join(question.tokens.clone(), Some(part), SpecialTokens::With)?;
            let encoding = Encoding::of(&tokens, &texts, &self.shared.words);
            self.limits.check(&encoding.encoded())?;
            Ok(encoding)
        });
        windows.collect()
    }

    /// The text that `ids` stand for, as far as tokens tell; ids that the tokenizer does not know are left out.
    ///
    /// # Errors
    /// [`TokenizeError::Tokenizer`].
    pub fn decode(&self, ids: &[u32], special_tokens: SpecialTokens) -> Result<String, TokenizeError> {
        let skip = special_tokens == SpecialTokens::Without;
        let decoded = guarded(|| self.shared.tokenizer.decode(ids, skip));
        decoded.map_err(|why| TokenizeError::Tokenizer { why })
    }
}

/// The steps of encoding.
impl TextTokenizer {
    /// Ids of a pair as its template writes it.
    fn encode_written(
        &self,
        written: &WrittenPairs,
        (query, document): (&str, &str),
        truncation: Truncation,
    ) -> Result<Encoded, TokenizeError> {
        let limit = self.limits.max_input_length;
        let failed = |why| TokenizeError::Tokenizer { why: format!("its chat_template: {why}") };
        let text = written.template.write(query, document).map_err(failed)?;
        let part: Part<'_, Vec<u32>> = self.read_more_than(limit, &text, truncation)?;
        let tokens = part.tokens.count();
        if tokens > limit && truncation == Truncation::Off {
            return Err(TokenizeError::TooLong { tokens, limit });
        }
        let mut input_ids = part.kept(tokens.min(limit), truncation).tokens;
        // a text that just fits counts as cut, as in that library
        if tokens >= limit && truncation == Truncation::Right {
            let end = &written.end[written.end.len().saturating_sub(limit)..];
            input_ids.truncate(limit - end.len());
            input_ids.extend_from_slice(end);
        }
        let encoded = Encoded { token_type_ids: vec![0; input_ids.len()], input_ids };
        self.limits.check(&encoded)?;
        Ok(encoded)
    }

    /// Refuses a template whose own words are longer than an input. Tokenises only as much of them as that takes.
    fn check_room(&self, template: &PairTemplate) -> Result<(), String> {
        let (limit, [shortest, _]) = (self.limits.max_input_length, template.fillers()?);
        let part = self.read_more_than::<Vec<u32>>(limit, &shortest, Truncation::Right);
        if part.map_err(|error| error.to_string())?.tokens.count() > limit {
            return Err(format!(
                "with this instruction not even the shortest pair fits into the {limit} tokens that the model reads: \
                 shorten it"
            ));
        }
        Ok(())
    }

    /// The tokens behind the texts of every pair that `template` writes; none if they cannot be told.
    fn end_of(&self, template: &PairTemplate) -> Result<Vec<u32>, String> {
        let [first, second] = template.fillers()?;
        let ids = |text: &str| self.tokens_of::<Vec<u32>>(text).map_err(|error| error.to_string());
        let (first, second) = (ids(&first)?, ids(&second)?);
        let common = first.iter().rev().zip(second.iter().rev()).take_while(|(one, other)| one == other);
        let count = Some(common.count()).filter(|count| *count < first.len().min(second.len()));
        Ok(first[first.len() - count.unwrap_or(0)..].to_vec())
    }

    /// The tokens of one text or two that fit into the limit together with the special ones around them.
    fn limited<'a, T: Made>(
        &self,
        text: Text<'a>,
        truncation: Truncation,
    ) -> Result<(Part<'a, T>, Option<Part<'a, T>>), TokenizeError> {
        let limit = self.limits.max_input_length;
        let added = self.added_tokens(text.is_pair());
        let room = limit.saturating_sub(added);
        let read = |text| self.read_more_than(room, text, truncation);
        let (mut first, mut second): (Part<'a, T>, _) = match text {
            Text::One(text) => (read(text)?, None),
            Text::Pair(first, second) => (read(first)?, Some(read(second)?)),
        };
        let count = |part: &Option<Part<'_, T>>| part.as_ref().map_or(0, |part| part.tokens.count());
        let tokens = (first.tokens.count() + count(&second)).saturating_add(added);
        if tokens > limit && (truncation == Truncation::Off || added > limit) {
            return Err(TokenizeError::TooLong { tokens, limit });
        }
        let (of_first, of_second) = match &mut second {
            None => (first.tokens.count().min(room), 0),
            Some(second) => self.kept_of_pair(&mut first, second, room, truncation)?,
        };
        let second = second.map(|part| part.kept(of_second, truncation));
        Ok((first.kept(of_first, truncation), second))
    }

    /// How many tokens are kept of each text of a pair.
    fn kept_of_pair<'a, T: Made>(
        &self,
        first: &mut Part<'a, T>,
        second: &mut Part<'a, T>,
        room: usize,
        truncation: Truncation,
    ) -> Result<(usize, usize), TokenizeError> {
        let counted = (first.tokens.count(), second.tokens.count());
        let halves_differ = !room.is_multiple_of(2) && counted.0.min(counted.1) > room / 2;
        if halves_differ && !(first.is_whole && second.is_whole) {
            let bytes = COUNTED_BYTES_PER_TOKEN.saturating_mul(self.limits.max_input_length);
            for part in [&mut *first, &mut *second] {
                *part = self.read(part.text, truncation, bytes, room)?;
            }
        }
        let (first, second) = (&*first, &*second);
        let longer = || -> Ordering {
            if first.is_whole && second.is_whole {
                first.tokens.count().cmp(&second.tokens.count())
            } else {
                first.text.len().cmp(&second.text.len())
            }
        };
        Ok(lengths::longest_first(counted, room, longer))
    }

    /// Tokens at the end of `text` that truncation keeps: more than `room`, or all.
    fn read_more_than<'a, T: Made>(
        &self,
        room: usize,
        text: &'a str,
        truncation: Truncation,
    ) -> Result<Part<'a, T>, TokenizeError> {
        let bytes = PIECE_BYTES_PER_TOKEN.saturating_mul(self.limits.max_input_length);
        self.read(text, truncation, bytes, room)
    }

    /// All tokens of `text`, piece by piece: while it works, the library needs some hundred bytes per token.
    fn read_all<'a>(&self, text: &'a str) -> Result<Part<'a, Tokens>, TokenizeError> {
        let piece_bytes = match self.shared.case {
            LetterCase::Kept => WHOLE_PIECE_BYTES,
            // places are those in the text that was lower-cased as a whole
            LetterCase::Lowered => text.len(),
        };
        let mut all = AllTokens::default();
        let mut rest = text;
        while !rest.is_empty() {
            let piece = self.shared.cuts.piece(rest, Truncation::Right, piece_bytes);
            all.append(&self.tokens_of(piece)?, text.len() - rest.len());
            rest = &rest[piece.len()..];
        }
        Ok(Part { text, skipped: 0, is_whole: true, tokens: all.into_tokens() })
    }

    /// Tokenises a piece of `text` of `bytes` bytes, then larger ones, until it gives more than `room` tokens or is the
    /// whole text.
    fn read<'a, T: Made>(
        &self,
        text: &'a str,
        truncation: Truncation,
        mut bytes: usize,
        room: usize,
    ) -> Result<Part<'a, T>, TokenizeError> {
        loop {
            let piece = self.shared.cuts.piece(text, truncation, bytes);
            let tokens: T = self.tokens_of(piece)?;
            let left_out = text.len() - piece.len();
            if left_out == 0 || tokens.count() > room {
                let skipped = if truncation == Truncation::Left { left_out } else { 0 };
                return Ok(Part { text, skipped, is_whole: left_out == 0, tokens });
            }
            bytes = bytes.saturating_mul(4);
        }
    }

    /// The tokens of `text`, without special ones.
    fn tokens_of<T: Made>(&self, text: &str) -> Result<T, TokenizeError> {
        T::of(&self.shared.case.applied(text), &self.shared).map_err(|why| TokenizeError::Tokenizer { why })
    }

    /// Number of special tokens that are put around one text or two.
    fn added_tokens(&self, is_pair: bool) -> usize {
        self.shared.post_processor.as_ref().map_or(0, |steps| steps.added_tokens(is_pair))
    }

    fn read_texts<'a, T>(&self, first: &Part<'a, T>, second: Option<&Part<'a, T>>) -> Vec<ReadText<'a>> {
        let read = |part: &Part<'a, T>| ReadText::new(part.text, part.skipped, self.shared.case);
        [Some(first), second].into_iter().flatten().map(read).collect()
    }
}

impl Shared {
    /// Joins one text or two into the input that the model expects.
    fn join(
        &self,
        first: Tokens,
        second: Option<Tokens>,
        special_tokens: SpecialTokens,
    ) -> Result<Tokens, TokenizeError> {
        let add = special_tokens == SpecialTokens::With;
        let joined = guarded(|| match &self.post_processor {
            Some(steps) => steps.process(first, second, add),
            None => Ok(side_by_side(first, second)),
        });
        let mut joined = joined.map_err(|why| TokenizeError::Tokenizer { why })?;
        if !self.types_are_told {
            joined.set_type_ids(vec![0; joined.len()]);
        }
        Ok(joined)
    }
}

impl<T: Made> Part<'_, T> {
    /// The part with `count` of its tokens, from the end that truncation keeps.
    fn kept(self, count: usize, truncation: Truncation) -> Self {
        let all = self.tokens.count();
        let tokens = match truncation {
            _ if count == all => self.tokens,
            Truncation::Left => self.tokens.some(all - count..all),
            Truncation::Off | Truncation::Right => self.tokens.some(0..count),
        };
        Self { tokens, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn open(fixture: &str, max_input_length: usize, lowered: bool) -> TextTokenizer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(fixture);
        let limits = InputLimits { max_input_length, vocab_size: 1000, type_vocab_size: 2 };
        let case = if lowered { LetterCase::Lowered } else { LetterCase::Kept };
        TextTokenizer::new(TokenizerFiles::open(&dir, None).unwrap().unwrap(), limits, case)
    }

    fn texts() -> impl Strategy<Value = String> {
        let pieces =
            vec!["The ", "CAT", "İ", "ΑΣ", "Σ. Α", "ẞ", "[MASK]", "ﬁ", "😀", " ", ".", "É", "E\u{301}", "東"];
        prop::collection::vec(prop::sample::select(pieces), 0..60).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The tokens are those of the text in lower case, also where it is cut; the places are in the text itself.
        #[test]
        fn lowered_texts_keep_their_places(text in texts(), limit in 3_usize..8) {
            for fixture in ["encodings-wordpiece", "encodings-roberta"] {
                let [kept, lowered] = [false, true].map(|lowered| open(fixture, limit, lowered));
                let in_lower_case = text.to_lowercase();
                for truncation in [Truncation::Left, Truncation::Right] {
                    let expected = kept.encode(&in_lower_case, truncation).unwrap();
                    let got = lowered.encode_detailed(&text, truncation).unwrap();
                    prop_assert_eq!(got.encoded(), expected);
                    let there = kept.encode_detailed(&in_lower_case, truncation).unwrap();
                    for (place, there) in got.offsets.iter().zip(&there.offsets) {
                        let slice = text.get(place.clone()).map(str::to_lowercase);
                        let lower = in_lower_case[there.clone()].replace('ς', "σ");
                        prop_assert!(slice.is_some_and(|slice| slice.replace('ς', "σ").contains(&lower)));
                    }
                }
            }
        }
    }
}
