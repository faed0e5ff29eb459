//! Ids are those of the reference; truncation is that of the reference too, though far less of a long text is read.
//! Broken files give one line.

use std::{fs, path::PathBuf, sync::LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::{
    Encoding, PostProcessor, PostProcessorWrapper, Tokenizer, TruncationDirection, TruncationParams,
    truncate_encodings,
};
use turbo_models::{CharOffsets, InputLimits, SpecialTokens, TextTokenizer, TokenizeError, Truncation};

use crate::common::data;

const WORD_PIECE: &str = "tokenizer-wordpiece";
/// Byte-level BPE.
const ROBERTA: &str = "tokenizer-roberta";
/// Unigram.
const XLM_ROBERTA: &str = "encodings-xlm-roberta";
/// Byte-level BPE behind an expression of its own; made of RoBERTa's by [`folder`].
const QWEN: &str = "qwen";

/// The folder of a tokenizer.
fn folder(fixture: &str) -> PathBuf {
    static QWEN_FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
        let json = fs::read(data(ROBERTA).join("tokenizer.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&json).unwrap();
        json["normalizer"] = json!({"type": "NFC"});
        let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let split =
            json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        dir
    });
    if fixture == QWEN { QWEN_FOLDER.path().to_owned() } else { data(fixture) }
}

fn limits(max_input_length: usize) -> InputLimits {
    InputLimits { max_input_length, vocab_size: 103, type_vocab_size: 2 }
}

fn word_piece(max_input_length: usize) -> TextTokenizer {
    tokenizer(WORD_PIECE, limits(max_input_length))
}

fn roberta(max_input_length: usize) -> TextTokenizer {
    tokenizer(ROBERTA, InputLimits { vocab_size: 269, type_vocab_size: 1, ..limits(max_input_length) })
}

fn of_any_vocabulary(fixture: &str, max_input_length: usize) -> TextTokenizer {
    tokenizer(fixture, InputLimits { max_input_length, vocab_size: 1000, type_vocab_size: 1 })
}

fn tokenizer(fixture: &str, limits: InputLimits) -> TextTokenizer {
    TextTokenizer::open(&folder(fixture), limits).unwrap().unwrap()
}

/// The reference's own encoding of `text`, truncated by it.
fn reference(fixture: &str, text: &str, max_length: usize, direction: TruncationDirection) -> Encoding {
    reference_of(fixture, &[text], max_length, direction)
}

/// Of one text or two. They are tokenised as a whole: newer versions of the library stop at `max_length`, so that they do
/// not see which text of a pair is the longer one.
fn reference_of(
    fixture: &str,
    texts: &[&str],
    max_length: usize,
    direction: TruncationDirection,
) -> Encoding {
    let mut tokenizer = Tokenizer::from_file(folder(fixture).join("tokenizer.json")).unwrap();
    let mut bare = tokenizer.clone();
    bare.with_padding(None).with_post_processor(None::<PostProcessorWrapper>).with_truncation(None).unwrap();
    let mut whole = texts.iter().map(|text| bare.encode(*text, false).unwrap());
    let added = tokenizer.get_post_processor().unwrap().added_tokens(texts.len() == 2);
    let truncation = TruncationParams { max_length: max_length - added, direction, ..Default::default() };
    let (mut first, mut second) =
        truncate_encodings(whole.next().unwrap(), whole.next(), &truncation).unwrap();
    // each part that was cut off would be joined with each of the other text's
    first.set_overflowing(Vec::new());
    second.iter_mut().for_each(|second| second.set_overflowing(Vec::new()));
    tokenizer.with_padding(None).with_truncation(None).unwrap();
    tokenizer.post_process(first, second, true).unwrap()
}

fn golden(fixture: &str) -> Vec<(String, Vec<u32>)> {
    let golden = fs::read(data(fixture).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let encodings = golden["encodings"].as_array().unwrap().iter();
    encodings
        .map(|encoding| {
            let ids = serde_json::from_value(encoding["ids"].clone()).unwrap();
            (encoding["text"].as_str().unwrap().to_owned(), ids)
        })
        .collect()
}

#[test]
fn ids_are_the_reference_s_without_the_file_s_padding() {
    for (fixture, tokenizer) in [(WORD_PIECE, word_piece(64)), (ROBERTA, roberta(64))] {
        let golden = golden(fixture);
        assert!(golden.len() >= 5);
        for (text, ids) in golden {
            let encoded = tokenizer.encode(&text, Truncation::Off).unwrap();
            assert_eq!(encoded.input_ids, ids, "{fixture}: {text:?}");
            assert_eq!(encoded.token_type_ids, vec![0; ids.len()], "{fixture}: {text:?}");
        }
    }
}

#[test]
fn roberta_puts_its_own_tokens_around_a_text_and_keeps_blanks_before_words() {
    let ids = |text, truncation| roberta(5).encode(text, truncation).unwrap().input_ids;
    assert_eq!(ids("", Truncation::Off), [0, 2]);
    let (the, blank_the, hello) = (261, 262, 267);
    assert_eq!(ids("the the", Truncation::Off), [0, the, blank_the, 2]);
    assert_eq!(ids("hello the the the", Truncation::Right), [0, hello, blank_the, blank_the, 2]);
    assert_eq!(ids("hello the the the", Truncation::Left), [0, blank_the, blank_the, blank_the, 2]);
}

/// The file says 16; the model's limit counts.
#[test]
fn the_file_s_truncation_is_overridden() {
    let text = "cat ".repeat(100);
    assert_eq!(word_piece(64).encode(&text, Truncation::Right).unwrap().input_ids.len(), 64);
    assert_eq!(word_piece(5).encode(&text, Truncation::Left).unwrap().input_ids, [2, 90, 90, 90, 3]);
}

#[test]
fn without_truncation_a_long_text_is_refused() {
    let refused = |text: &str, limit| word_piece(limit).encode(text, Truncation::Off).unwrap_err();
    assert_eq!(refused("cat cat cat", 4), TokenizeError::TooLong { tokens: 5, limit: 4 });
    // Counting stops early: a megabyte is not tokenised to say no.
    let huge = refused(&"cat ".repeat(250_000), 4);
    assert!(matches!(huge, TokenizeError::TooLong { tokens: 5..100, limit: 4 }), "{huge:?}");
    let huge = roberta(4).encode(&"the ".repeat(250_000), Truncation::Off).unwrap_err();
    assert!(matches!(huge, TokenizeError::TooLong { tokens: 5..100, limit: 4 }), "{huge:?}");
    // Blanks give no tokens, however many there are.
    let blanks = format!("{}cat", " ".repeat(100_000));
    assert_eq!(word_piece(3).encode(&blanks, Truncation::Off).unwrap().input_ids, [2, 90, 3]);
}

#[test]
fn special_tokens_alone_may_be_too_many() {
    for truncation in [Truncation::Off, Truncation::Left, Truncation::Right] {
        let error = word_piece(1).encode("cat", truncation).unwrap_err();
        assert_eq!(error, TokenizeError::TooLong { tokens: 3, limit: 1 });
    }
    assert_eq!(word_piece(2).encode("cat", Truncation::Right).unwrap().input_ids, [2, 3]);
}

#[test]
fn an_id_that_the_model_lacks_is_refused() {
    let limits = InputLimits { vocab_size: 91, ..limits(8) };
    let tokenizer = TextTokenizer::open(&data("tokenizer-wordpiece"), limits).unwrap().unwrap();
    assert_eq!(tokenizer.encode("cat", Truncation::Off).unwrap().input_ids, [2, 90, 3]);
    let error = tokenizer.encode("cat sat", Truncation::Off).unwrap_err();
    assert_eq!(error, TokenizeError::Vocabulary { id: 91, vocab_size: 91 });
}

/// The same vocabulary as `vocab.txt` gives the same ids as `tokenizer.json`.
#[test]
fn old_folders_have_only_a_vocabulary() {
    let json = fs::read(data("tokenizer-wordpiece/tokenizer.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut tokens: Vec<(&String, u64)> =
        json["model"]["vocab"].as_object().unwrap().iter().map(|(t, id)| (t, id.as_u64().unwrap())).collect();
    tokens.sort_by_key(|(_, id)| *id);
    let lines: String = tokens.iter().map(|(token, _)| format!("{token}\n")).collect();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("vocab.txt"), lines).unwrap();
    let tokenizer = TextTokenizer::open(dir.path(), limits(64)).unwrap().unwrap();
    for (text, ids) in golden(WORD_PIECE) {
        assert_eq!(tokenizer.encode(&text, Truncation::Off).unwrap().input_ids, ids, "{text:?}");
    }
    let masked = tokenizer.encode("the [MASK] sat", Truncation::Off).unwrap();
    assert_eq!(masked.input_ids, [2, 89, 4, 91, 3]);

    fs::write(dir.path().join("tokenizer_config.json"), r#"{"do_lower_case": false}"#).unwrap();
    let tokenizer = TextTokenizer::open(dir.path(), limits(64)).unwrap().unwrap();
    let upper = tokenizer.encode("CAT", Truncation::Off).unwrap().input_ids;
    assert_eq!(upper, [2, 1, 3], "upper case is unknown when nothing lowers it");
}

#[test]
fn files_that_make_no_tokenizer_are_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(TextTokenizer::open(dir.path(), limits(8)).unwrap().is_none());
    let error = || {
        let error = TextTokenizer::open(dir.path(), limits(8)).err().unwrap().to_string();
        error.replace(&format!("{}/", dir.path().display()), "")
    };
    fs::write(dir.path().join("vocab.txt"), "[UNK]\n[CLS]\ncat\n").unwrap();
    assert_eq!(error(), "vocab.txt: [SEP] is missing");
    fs::write(dir.path().join("tokenizer.json"), "{\"model\":\n 3}").unwrap();
    assert!(error().starts_with("tokenizer.json: "), "{}", error());
    assert_eq!(error().lines().count(), 1);
}

/// The library would panic at the first text.
#[test]
fn templates_of_unknown_tokens_are_refused() {
    let cases: [(&str, Value, &str); 4] = [
        (
            "pair",
            json!([{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[Y]", "type_id": 0}}]),
            "[Y] is not among its special_tokens",
        ),
        ("special_tokens", json!({}), "[CLS] is not among its special_tokens"),
        (
            "single",
            json!([{"SpecialToken": {"id": "[X]", "type_id": 0}}]),
            "[X] is not among its special_tokens",
        ),
        (
            "single",
            json!([{"Sequence": {"id": "B", "type_id": 0}}]),
            "the template of one text asks for a second",
        ),
    ];
    for (field, value, why) in cases {
        for in_sequence in [false, true] {
            let file = fs::read(data("tokenizer-wordpiece/tokenizer.json")).unwrap();
            let mut file: Value = serde_json::from_slice(&file).unwrap();
            file["post_processor"][field] = value.clone();
            if in_sequence {
                file["post_processor"] = json!({"type": "Sequence", "processors": [file["post_processor"]]});
            }
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
            let error = TextTokenizer::open(dir.path(), limits(8)).err().unwrap().to_string();
            assert!(error.ends_with(&format!("tokenizer.json: post_processor: {why}")), "{error}");
        }
    }
}

/// Normalisation deletes a vertical tab, which makes one overlong word of `batching` and the rest. So a piece of text must
/// not end there, though it looks like white space.
#[test]
fn a_text_is_not_cut_where_normalisation_joins() {
    let text = format!("{}cat batching\u{b}{} the", " ".repeat(53), "q".repeat(100));
    assert_eq!(text.find('\u{b}'), Some(65), "just behind the first piece for four tokens");
    let encoded = word_piece(4).encode(&text, Truncation::Right).unwrap();
    let whole = reference(WORD_PIECE, &text, 4, TruncationDirection::Right);
    assert_eq!(encoded.input_ids, whole.get_ids());
    assert_eq!(encoded.input_ids, [2, 90, 1, 3]);
}

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

const DIRECTIONS: [(Truncation, TruncationDirection); 2] =
    [(Truncation::Right, TruncationDirection::Right), (Truncation::Left, TruncationDirection::Left)];

/// `tokenizer` of `fixture` truncates to `limit` as the reference does, and knows where the tokens came from.
fn truncates_as_the_reference(
    fixture: &str,
    tokenizer: &TextTokenizer,
    text: &str,
    limit: usize,
) -> Result<(), TestCaseError> {
    for (ours, theirs) in DIRECTIONS {
        let encoded = tokenizer.encode(text, ours).unwrap();
        let expected = reference(fixture, text, limit, theirs);
        prop_assert_eq!(&encoded.input_ids, expected.get_ids());
        let detailed = tokenizer.encode_detailed(text, ours).unwrap();
        prop_assert_eq!(detailed.encoded(), encoded);
        for (place, (start, end)) in detailed.offsets.iter().zip(expected.get_offsets()) {
            // a character of which only some bytes became a token is given whole
            prop_assert!(place.start <= *start && place.end >= *end && text.get(place.clone()).is_some());
        }
    }
    let whole = reference(fixture, text, usize::MAX, TruncationDirection::Right);
    match tokenizer.encode(text, Truncation::Off) {
        Ok(encoded) => prop_assert_eq!(encoded.input_ids, whole.get_ids()),
        Err(TokenizeError::TooLong { tokens, .. }) => prop_assert!(limit < tokens && tokens <= whole.len()),
        Err(other) => prop_assert!(false, "{}", other),
    }
    Ok(())
}

fn truncates_pairs_as_the_reference(
    fixture: &str,
    tokenizer: &TextTokenizer,
    pair: (&str, &str),
    limit: usize,
) -> Result<(), TestCaseError> {
    // both texts are read to their ends to see which has more tokens
    let counted = pair.0.len().max(pair.1.len()) <= 64 * limit;
    for (ours, theirs) in DIRECTIONS {
        let encoded = tokenizer.encode(pair, ours).unwrap();
        let expected = reference_of(fixture, &[pair.0, pair.1], limit, theirs);
        if counted {
            prop_assert_eq!(&encoded.input_ids, expected.get_ids());
            prop_assert_eq!(&encoded.token_type_ids, expected.get_type_ids());
        }
        prop_assert_eq!(encoded.input_ids.len(), expected.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn truncation_equals_that_of_the_whole_text(text in texts(), limit in 3_usize..12) {
        truncates_as_the_reference(WORD_PIECE, &word_piece(limit), &text, limit)?;
        truncates_as_the_reference(ROBERTA, &roberta(limit), &text, limit)?;
        for fixture in [XLM_ROBERTA, QWEN] {
            truncates_as_the_reference(fixture, &of_any_vocabulary(fixture, limit), &text, limit)?;
        }
    }

    #[test]
    fn truncation_of_pairs_equals_that_of_the_whole_texts(first in texts(), second in texts(), limit in 5_usize..20) {
        truncates_pairs_as_the_reference(WORD_PIECE, &word_piece(limit), (&first, &second), limit)?;
        truncates_pairs_as_the_reference(ROBERTA, &roberta(limit), (&first, &second), limit)?;
    }

    #[test]
    fn characters_are_those_of_the_library(text in texts()) {
        let ours = word_piece(1000).tokenize(text.as_str(), SpecialTokens::Without).unwrap();
        let library = Tokenizer::from_file(data(WORD_PIECE).join("tokenizer.json")).unwrap();
        let theirs = library.encode_char_offsets(text.as_str(), false).unwrap();
        let characters = CharOffsets::of(&text);
        let ours: Vec<_> = ours.offsets.iter().map(|bytes| characters.range(bytes)).map(|at| (at.start, at.end)).collect();
        // the file truncates to 16
        prop_assert_eq!(&ours[..theirs.len().min(ours.len())], theirs.get_offsets());
    }
}

/// A text without blanks is cut at its punctuation; where that is in a token that is looked for first, elsewhere.
#[test]
fn long_texts_without_blanks_are_cut() {
    let limit = 6;
    let texts = [
        ".".repeat(100_000),
        "東京".repeat(50_000),
        "cat,".repeat(50_000),
        "[MASK].".repeat(20_000),
        "[[]]".repeat(20_000),
    ];
    for text in texts {
        let refused = word_piece(limit).encode(&text, Truncation::Off).unwrap_err();
        let TokenizeError::TooLong { tokens, .. } = refused else { panic!("{refused}") };
        assert!(tokens < 200, "{tokens} tokens of {:?}… were counted", &text[..8]);
        truncates_as_the_reference(WORD_PIECE, &word_piece(limit), &text, limit).unwrap();
    }
}

#[test]
fn long_texts_of_words_are_cut() {
    for fixture in [WORD_PIECE, ROBERTA, XLM_ROBERTA, QWEN] {
        for text in ["the cat ".repeat(20_000), "2 cats, 3 mats; ".repeat(10_000)] {
            let limit = 6;
            let tokenizer = of_any_vocabulary(fixture, limit);
            let refused = tokenizer.encode(&text, Truncation::Off).unwrap_err();
            let TokenizeError::TooLong { tokens, .. } = refused else { panic!("{refused}") };
            assert!(tokens < 200, "{fixture}: {tokens} tokens were counted");
            truncates_as_the_reference(fixture, &tokenizer, &text, limit).unwrap();
        }
    }
}

/// Both are far longer than what is counted, and the room is odd: the longer one keeps one token more.
#[test]
fn pairs_of_far_too_long_texts_are_not_read_to_their_ends() {
    let (short, long) = ("cat ".repeat(100_000), "the ".repeat(100_001));
    let kept = |first: &str, second: &str| {
        let ids = word_piece(8).encode((first, second), Truncation::Right).unwrap().input_ids;
        ids.iter().filter(|id| **id == 90).count()
    };
    assert_eq!((kept(&short, &long), kept(&long, &short)), (2, 2));
    let refused = word_piece(8).encode((short.as_str(), long.as_str()), Truncation::Off).unwrap_err();
    assert!(matches!(refused, TokenizeError::TooLong { tokens: 9..200, limit: 8 }), "{refused:?}");
}

#[test]
fn pairs_keep_their_special_tokens_or_are_refused() {
    let refused = word_piece(2).encode(("cat", "the"), Truncation::Right).unwrap_err();
    assert_eq!(refused, TokenizeError::TooLong { tokens: 5, limit: 2 });
    let bare = word_piece(3).encode(("cat", "the"), Truncation::Right).unwrap();
    assert_eq!((bare.input_ids, bare.token_type_ids), (vec![2, 3, 3], vec![0, 0, 1]));
}

#[test]
fn types_are_told_only_to_models_that_have_them() {
    let pair = ("cat", "the");
    let types = |tokenizer: TextTokenizer| tokenizer.encode(pair, Truncation::Off).unwrap().token_type_ids;
    assert_eq!(types(word_piece(9)), [0, 0, 0, 1, 1]);
    for type_vocab_size in [0, 1] {
        assert_eq!(types(tokenizer(WORD_PIECE, InputLimits { type_vocab_size, ..limits(9) })), [0; 5]);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::copy(data(WORD_PIECE).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    for (names, expected) in
        [(r#"["input_ids"]"#, [0; 5]), (r#"["input_ids", "token_type_ids"]"#, [0, 0, 0, 1, 1])]
    {
        let config = format!(r#"{{"model_input_names": {names}}}"#);
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(types(TextTokenizer::open(dir.path(), limits(9)).unwrap().unwrap()), expected);
    }
}

#[test]
fn questions_that_fill_a_window_are_refused() {
    let windows =
        |question: &str, max_len, stride| word_piece(64).windows(question, "cat cat cat", max_len, stride);
    assert_eq!(windows("the the", 7, 2).unwrap_err(), TokenizeError::Window { room: 2, stride: 2 });
    assert_eq!(windows("the the", 4, 0).unwrap_err(), TokenizeError::Window { room: 0, stride: 0 });
    assert_eq!(
        windows(&"the ".repeat(100_000), 64, 0).unwrap_err(),
        TokenizeError::Window { room: 0, stride: 0 }
    );
    assert_eq!(windows("the the", 7, 1).unwrap().len(), 2);
    assert_eq!(windows("the the", 8, 9).unwrap().len(), 1, "all of it fits");
    assert_eq!(windows("the", usize::MAX, 9).unwrap().len(), 1, "the model's limit holds too");
}
