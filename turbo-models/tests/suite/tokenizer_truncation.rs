//! Truncation gives the tokens of the whole text, as in the reference, though far less of a long text is read. Tested
//! for each kind of tokenizer whose texts are cut.

use std::{fs, sync::LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{
    Encoding, PostProcessor, PostProcessorWrapper, Tokenizer, TruncationDirection, TruncationParams,
    truncate_encodings,
};
use turbo_models::{CharOffsets, InputLimits, SpecialTokens, Text, TextTokenizer, TokenizeError, Truncation};

use crate::common::data;

/// A tokenizer, and the reference's own.
struct Subject {
    name: &'static str,
    ours: TextTokenizer,
    /// Without the step that puts special tokens around texts.
    bare: Tokenizer,
    special_tokens: PostProcessorWrapper,
}

/// WordPiece, GPT-2's BPE, Unigram, and BPE with a pattern of its own.
static SUBJECTS: LazyLock<[Subject; 4]> = LazyLock::new(|| {
    let json = |fixture| -> Value {
        serde_json::from_slice(&fs::read(data(fixture).join("tokenizer.json")).unwrap()).unwrap()
    };
    let roberta = json("tokenizer-roberta");
    let mut qwen = roberta.clone();
    qwen["normalizer"] = json!({"type": "NFC"});
    let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split =
        json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    qwen["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    [
        subject("WordPiece", &json("tokenizer-wordpiece")),
        subject("GPT-2", &roberta),
        subject("Unigram", &json("encodings-xlm-roberta")),
        subject("Qwen", &qwen),
    ]
});

fn subject(name: &'static str, json: &Value) -> Subject {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let limits = InputLimits { max_input_length: 10_000, vocab_size: 1000, type_vocab_size: 2 };
    let ours = TextTokenizer::open(dir.path(), limits).unwrap().unwrap();
    let mut bare = Tokenizer::from_bytes(json.to_string()).unwrap();
    let special_tokens = bare.get_post_processor().unwrap().clone();
    bare.with_padding(None).with_post_processor(None::<PostProcessorWrapper>).with_truncation(None).unwrap();
    Subject { name, ours, bare, special_tokens }
}

fn word_piece() -> &'static Subject {
    &SUBJECTS[0]
}

impl Subject {
    /// The reference's own encoding of one text or two, truncated by the reference. Texts are tokenised as a whole:
    /// newer versions of the library stop at `max_length`, and so do not see which text of a pair is longer.
    fn reference(&self, text: Text<'_>, max_length: usize, direction: TruncationDirection) -> Encoding {
        let whole = |id| text.sequence(id).map(|text| self.bare.encode(text, false).unwrap());
        let (first, second) = (whole(0).unwrap(), whole(1));
        let added = self.special_tokens.added_tokens(second.is_some());
        let truncation = TruncationParams { max_length: max_length - added, direction, ..Default::default() };
        let (mut first, mut second) = truncate_encodings(first, second, &truncation).unwrap();
        // otherwise each part that was cut off would be joined with each such part of the other text
        first.set_overflowing(Vec::new());
        second.iter_mut().for_each(|second| second.set_overflowing(Vec::new()));
        self.special_tokens.process(first, second, true).unwrap()
    }

    /// Truncates to `limit` as the reference does, and gives the right places of the tokens.
    fn truncates_as_the_reference(&self, text: &str, limit: usize) -> Result<(), TestCaseError> {
        let tokenizer = self.ours.limited_to(limit);
        for (ours, theirs) in DIRECTIONS {
            let encoded = tokenizer.encode(text, ours).unwrap();
            let expected = self.reference(Text::One(text), limit, theirs);
            prop_assert_eq!(&encoded.input_ids, expected.get_ids(), "{}", self.name);
            let detailed = tokenizer.encode_detailed(text, ours).unwrap();
            prop_assert_eq!(detailed.encoded(), encoded);
            for (place, (start, end)) in detailed.offsets.iter().zip(expected.get_offsets()) {
                // a character of which only some bytes became a token is returned whole
                prop_assert!(place.start <= *start && place.end >= *end && text.get(place.clone()).is_some());
            }
        }
        let whole = self.reference(Text::One(text), usize::MAX, TruncationDirection::Right);
        match tokenizer.encode(text, Truncation::Off) {
            Ok(encoded) => prop_assert_eq!(encoded.input_ids, whole.get_ids()),
            Err(TokenizeError::TooLong { tokens, .. }) => {
                prop_assert!(limit < tokens && tokens <= whole.len())
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        Ok(())
    }

    fn truncates_pairs_as_the_reference(
        &self,
        pair: (&str, &str),
        limit: usize,
    ) -> Result<(), TestCaseError> {
        let tokenizer = self.ours.limited_to(limit);
        // both texts are read to their ends to see which has more tokens
        let counted = pair.0.len().max(pair.1.len()) <= 64 * limit;
        for (ours, theirs) in DIRECTIONS {
            let encoded = tokenizer.encode(pair, ours).unwrap();
            let expected = self.reference(pair.into(), limit, theirs);
            if counted {
                prop_assert_eq!(&encoded.input_ids, expected.get_ids(), "{}", self.name);
                prop_assert_eq!(&encoded.token_type_ids, expected.get_type_ids());
            }
            prop_assert_eq!(encoded.input_ids.len(), expected.len());
        }
        Ok(())
    }
}

const DIRECTIONS: [(Truncation, TruncationDirection); 2] =
    [(Truncation::Right, TruncationDirection::Right), (Truncation::Left, TruncationDirection::Left)];

/// Words, blanks of every kind, and characters that normalisation deletes, splits, joins or keeps apart.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "cat",
        "the",
        "tokens",
        "batching",
        "[MASK]",
        "[SEP",
        "]",
        "<mask>",
        "<s>",
        "</s",
        ">",
        ".",
        "-",
        "é",
        "e\u{301}",
        "東",
        "京都",
        "😀",
        "Σ",
        "İ",
        " ",
        " ",
        " ",
        "  ",
        "\t",
        "\n",
        "\u{b}",
        "\u{85}",
        "\u{a0}",
        "\u{200b}",
        "\u{301}",
        "\0",
        "\u{fffd}",
        "[MASK].",
        "]]",
        "、",
        "\u{37e}",
        "—",
        "unbroken_and_longer_than_the_first_piece_of_text_that_is_tokenised_for_the_smallest_of_the_limits_here",
    ]);
    prop::collection::vec(pieces, 0..120).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn truncation_equals_that_of_the_whole_text(text in texts(), limit in 3_usize..12) {
        SUBJECTS.iter().try_for_each(|subject| subject.truncates_as_the_reference(&text, limit))?;
    }

    #[test]
    fn truncation_of_pairs_equals_that_of_the_whole_texts(first in texts(), second in texts(), limit in 5_usize..20) {
        SUBJECTS.iter().try_for_each(|subject| subject.truncates_pairs_as_the_reference((&first, &second), limit))?;
    }

    #[test]
    fn characters_are_those_of_the_library(text in texts()) {
        let ours = word_piece().ours.tokenize(text.as_str(), SpecialTokens::Without).unwrap();
        let theirs = word_piece().bare.encode_char_offsets(text.as_str(), false).unwrap();
        let characters = CharOffsets::of(&text);
        let ours = ours.offsets.iter().map(|bytes| characters.range(bytes)).map(|at| (at.start, at.end));
        prop_assert_eq!(ours.collect::<Vec<_>>(), theirs.get_offsets());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    /// A text that is tokenised in several pieces has the tokens, places and words of the whole.
    #[test]
    fn pieces_together_are_the_whole(text in texts(), between in prop::sample::select(vec![" cat", ".", " ", "a"])) {
        let text = (text + between).repeat(100_000 / 600);
        for subject in SUBJECTS.iter() {
            let ours = subject.ours.tokenize(text.as_str(), SpecialTokens::Without).unwrap();
            let whole = subject.bare.encode(text.as_str(), false).unwrap();
            let theirs = subject.special_tokens.process(whole, None, false).unwrap();
            prop_assert_eq!(&ours.input_ids, theirs.get_ids(), "{}", subject.name);
            prop_assert_eq!(&ours.tokens, theirs.get_tokens());
            prop_assert_eq!(&ours.word_ids, theirs.get_word_ids());
            // the library removes one byte from some white space of several bytes
            let boundaries = |&(start, end)| text.floor_char_boundary(start)..text.ceil_char_boundary(end);
            let places: Vec<_> = theirs.get_offsets().iter().map(boundaries).collect();
            prop_assert_eq!(&ours.offsets, &places);
        }
    }
}

/// Normalisation deletes a vertical tab, which joins `batching` and the rest to one overlong word. So a piece of text
/// must not end there, though it looks like white space.
#[test]
fn a_text_is_not_cut_where_normalisation_joins() {
    let text = format!("{}cat batching\u{b}{} the", " ".repeat(53), "q".repeat(100));
    assert_eq!(text.find('\u{b}'), Some(65), "just behind the first piece for four tokens");
    word_piece().truncates_as_the_reference(&text, 4).unwrap();
    let encoded = word_piece().ours.limited_to(4).encode(&text, Truncation::Right).unwrap();
    assert_eq!(encoded.input_ids, [2, 90, 1, 3]);
}

/// A text without blanks is cut at its punctuation, except where that is part of a token that is searched for first.
#[test]
fn long_texts_without_blanks_are_cut() {
    let limit = 6;
    let texts = [
        ".".repeat(20_000),
        "東京".repeat(10_000),
        "cat,".repeat(10_000),
        "[MASK].".repeat(4_000),
        "[[]]".repeat(4_000),
    ];
    for text in texts {
        let refused = word_piece().ours.limited_to(limit).encode(&text, Truncation::Off).unwrap_err();
        let TokenizeError::TooLong { tokens, .. } = refused else { panic!("{refused}") };
        assert!(tokens < 200, "{tokens} tokens of {:?}… were counted", &text[..8]);
        word_piece().truncates_as_the_reference(&text, limit).unwrap();
    }
}

#[test]
fn long_texts_of_words_are_cut() {
    for subject in SUBJECTS.iter() {
        for text in ["the cat ".repeat(4_000), "2 cats, 3 mats; ".repeat(2_000)] {
            let limit = 6;
            let refused = subject.ours.limited_to(limit).encode(&text, Truncation::Off).unwrap_err();
            let TokenizeError::TooLong { tokens, .. } = refused else { panic!("{refused}") };
            assert!(tokens < 200, "{}: {tokens} tokens were counted", subject.name);
            subject.truncates_as_the_reference(&text, limit).unwrap();
        }
    }
}

/// Both texts are far longer than what is counted, and the room is odd: the longer text keeps one token more.
#[test]
fn pairs_of_far_too_long_texts_are_not_read_to_their_ends() {
    let (short, long) = ("cat ".repeat(100_000), "the ".repeat(100_001));
    let kept = |first: &str, second: &str| {
        let ids =
            word_piece().ours.limited_to(8).encode((first, second), Truncation::Right).unwrap().input_ids;
        ids.iter().filter(|id| **id == 90).count()
    };
    assert_eq!((kept(&short, &long), kept(&long, &short)), (2, 2));
    let refused =
        word_piece().ours.limited_to(8).encode((short.as_str(), long.as_str()), Truncation::Off).unwrap_err();
    assert!(matches!(refused, TokenizeError::TooLong { tokens: 9..200, limit: 8 }), "{refused:?}");
}
