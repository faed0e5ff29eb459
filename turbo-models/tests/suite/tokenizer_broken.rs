//! Whatever a tokenizer's files hold, they are refused in one line, or every text and pair gives tokens or one line
//! that says why not. Nothing panics, and every token's place slices its text.

use std::fs;

use proptest::{prelude::*, sample::select};
use serde_json::{Map, Value, json};
use turbo_models::{Encoding, InputLimits, SpecialTokens, Text, TextTokenizer, Truncation};

use crate::common::data;

const FIXTURES: [&str; 3] = ["encodings-wordpiece", "encodings-roberta", "encodings-xlm-roberta"];

/// What is put into a file, and where.
#[derive(Clone, Debug)]
enum Change {
    /// A step that the library knows, in a place for such steps.
    Step(&'static str, Value),
    /// Any value anywhere: each number chooses one of the values at its level, modulo how many there are.
    Anywhere(Vec<usize>, Value),
}

/// Steps that may not fit the rest of the file.
fn steps() -> Vec<(&'static str, Value)> {
    let sequence = |field: &str, steps: Value| json!({"type": "Sequence", field: steps});
    vec![
        ("normalizer", Value::Null),
        ("normalizer", json!({"type": "NFKC"})),
        ("normalizer", json!({"type": "NFD"})),
        ("normalizer", json!({"type": "Prepend", "prepend": "▁"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": "a"}, "content": "東京"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "^|x"}, "content": "é"})),
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        ("normalizer", json!({"type": "ByteLevel"})),
        (
            "normalizer",
            sequence(
                "normalizers",
                json!([{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]),
            ),
        ),
        ("pre_tokenizer", Value::Null),
        (
            "pre_tokenizer",
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}),
        ),
        (
            "pre_tokenizer",
            json!({"type": "Metaspace", "replacement": "a", "prepend_scheme": "never", "split": true}),
        ),
        (
            "pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}),
        ),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": true})),
        ("pre_tokenizer", json!({"type": "UnicodeScripts"})),
        ("pre_tokenizer", json!({"type": "Punctuation", "behavior": "MergedWithPrevious"})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "t|"}, "behavior": "Isolated", "invert": true}),
        ),
        ("pre_tokenizer", sequence("pretokenizers", json!([]))),
        ("post_processor", Value::Null),
        (
            "post_processor",
            json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
            "trim_offsets": true, "add_prefix_space": true}),
        ),
        ("post_processor", json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})),
        (
            "post_processor",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        ("post_processor", template(json!([]), json!([]))),
        ("post_processor", template(json!([text("A", 7)]), json!([text("B", 0), text("B", 1)]))),
        (
            "post_processor",
            template(json!([text("A", 0), special("[X]")]), json!([special("[X]"), text("A", 0)])),
        ),
        ("post_processor", template(json!([special("[Y]")]), json!([text("A", 0), text("B", 1)]))),
        ("post_processor", uneven_template()),
        ("post_processor", sequence("processors", json!([]))),
        (
            "post_processor",
            sequence(
                "processors",
                json!([template(json!([text("A", 0)]), json!([])), {"type": "BertProcessing",
            "sep": ["x", 3], "cls": ["y", 2]}]),
            ),
        ),
        ("decoder", Value::Null),
        ("decoder", json!({"type": "ByteFallback"})),
        ("decoder", json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "", "cleanup": true})),
        ("decoder", json!({"type": "Strip", "content": "a", "start": 3, "stop": 3})),
        ("added_tokens", json!([])),
        ("added_tokens", json!([added(3, "a b", true), added(900, "é", false), added(901, "the", true)])),
        ("added_tokens", json!([added(0, "", true), added(1, "▁", false), added(2, " ", true)])),
        ("truncation", json!({"direction": "Left", "max_length": 0, "strategy": "OnlySecond", "stride": 9})),
        (
            "padding",
            json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Left", "pad_to_multiple_of": 7, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "x"}),
        ),
    ]
}

fn template(single: Value, pair: Value) -> Value {
    let token = json!({"id": "[X]", "ids": [102, 999_999], "tokens": ["[X]", "x"]});
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"[X]": token}})
}

/// Its token has two ids, but one name.
fn uneven_template() -> Value {
    let mut uneven = template(json!([special("[X]"), text("A", 0)]), json!([text("A", 0), text("B", 1)]));
    uneven["special_tokens"]["[X]"]["tokens"] = json!(["[X]"]);
    uneven
}

fn text(id: &str, type_id: u32) -> Value {
    json!({"Sequence": {"id": id, "type_id": type_id}})
}

fn special(id: &str) -> Value {
    json!({"SpecialToken": {"id": id, "type_id": 0}})
}

fn added(id: u32, content: &str, flag: bool) -> Value {
    json!({"id": id, "content": content, "single_word": flag, "lstrip": flag, "rstrip": flag, "normalized": flag, "special": !flag})
}

fn values() -> impl Strategy<Value = Value> {
    select(vec![
        json!(null),
        json!(true),
        json!(""),
        json!("[X]"),
        json!("##"),
        json!(-1),
        json!(0),
        json!(102),
        json!(1_000_000_000),
        json!(1.5),
        json!([]),
        json!({}),
        json!([["a", -1.0], ["<unk>", 1e300]]),
        json!({"[UNK]": 0, "a": 0, "##a": 5}),
    ])
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let step = select(steps()).prop_map(|(field, step)| Change::Step(field, step));
    let anywhere = (prop::collection::vec(0_usize..12, 1..4), values());
    let anywhere = anywhere.prop_map(|(path, value)| Change::Anywhere(path, value));
    prop::collection::vec(prop_oneof![4 => step, 1 => anywhere], 1..4)
}

fn apply(file: &mut Value, change: &Change) {
    match change {
        Change::Step(field, step) => file[field] = step.clone(),
        Change::Anywhere(path, value) => {
            *path.iter().fold(file, |at, step| nth(at, *step)) = value.clone();
        }
    }
}

/// One of the values inside `value`, or `value` itself if there is none.
fn nth(value: &mut Value, step: usize) -> &mut Value {
    let count = value.as_object().map_or(0, Map::len) + value.as_array().map_or(0, Vec::len);
    if count == 0 {
        return value;
    }
    match value {
        Value::Object(fields) => fields.values_mut().nth(step % count).unwrap(),
        Value::Array(values) => &mut values[step % count],
        _ => unreachable!("it has values inside"),
    }
}

/// Lengths of the lists beside the ids.
fn list_lens(encoding: &Encoding) -> [usize; 7] {
    [
        encoding.token_type_ids.len(),
        encoding.tokens.len(),
        encoding.offsets.len(),
        encoding.word_ids.len(),
        encoding.sequence_ids.len(),
        encoding.continues_word.len(),
        encoding.special.len(),
    ]
}

fn one_line(message: &str) -> Result<(), TestCaseError> {
    prop_assert!(message.lines().count() == 1 && message.chars().count() < 600, "{message}");
    Ok(())
}

/// Does everything with `text` that a tokenizer can do.
fn use_it(tokenizer: &TextTokenizer, text: Text<'_>) -> Result<(), TestCaseError> {
    for truncation in [Truncation::Off, Truncation::Left, Truncation::Right] {
        if let Err(error) = tokenizer.encode(text, truncation) {
            one_line(&error.to_string())?;
        }
        match tokenizer.encode_detailed(text, truncation) {
            Ok(encoding) => {
                prop_assert!(encoding.len() <= 24);
                prop_assert_eq!(list_lens(&encoding), [encoding.len(); 7]);
                for (bytes, id) in encoding.offsets.iter().zip(&encoding.sequence_ids) {
                    let slice = id.and_then(|id| text.sequence(id)).unwrap_or_default().get(bytes.clone());
                    prop_assert!(slice.is_some(), "{bytes:?} of {text:?}");
                }
                let decoded = tokenizer.decode(&encoding.input_ids, SpecialTokens::Without);
                decoded.map_or_else(|error| one_line(&error.to_string()), |_| Ok(()))?;
            }
            Err(error) => one_line(&error.to_string())?,
        }
    }
    let tokens = tokenizer.tokenize(text, SpecialTokens::Without);
    tokens.map_or_else(|error| one_line(&error.to_string()), |_| Ok(()))?;
    if let Text::Pair(question, context) = text
        && let Err(error) = tokenizer.windows(question, context, 12, 2)
    {
        one_line(&error.to_string())?;
    }
    Ok(())
}

const TEXTS: [&str; 6] = [
    "",
    "the cat, two cats",
    "Café 東京 😀 e\u{301}\u{200d}",
    "[MASK] <mask> [X] a b",
    "\t\u{a0} \n\0",
    "İ ẞ \u{37e}▁Ġ##a",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_tokenizer_file_makes_it_panic(fixture in select(FIXTURES.to_vec()), changes in changes(), config in values()) {
        let json = fs::read(data(fixture).join("tokenizer.json")).unwrap();
        let mut file: Value = serde_json::from_slice(&json).unwrap();
        changes.iter().for_each(|change| apply(&mut file, change));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        let config = json!({"mask_token": config, "model_input_names": ["input_ids"]});
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let limits = InputLimits { max_input_length: 24, vocab_size: 1000, type_vocab_size: 2 };
        match TextTokenizer::open(dir.path(), limits) {
            Ok(Some(tokenizer)) => {
                for text in TEXTS {
                    use_it(&tokenizer, Text::One(text))?;
                    use_it(&tokenizer, Text::Pair(TEXTS[1], text))?;
                }
            }
            Ok(None) => prop_assert!(false, "there is a file"),
            Err(error) => one_line(&error.to_string().replace(&dir.path().display().to_string(), ""))?,
        }
    }

    #[test]
    fn no_cut_file_makes_it_panic(fixture in select(FIXTURES.to_vec()), part in 0_usize..1000, byte in any::<u8>()) {
        let mut json = fs::read(data(fixture).join("tokenizer.json")).unwrap();
        let at = json.len() * part / 1000;
        if part.is_multiple_of(2) { json.truncate(at) } else { json[at] = byte }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), json).unwrap();
        let limits = InputLimits { max_input_length: 24, vocab_size: 1000, type_vocab_size: 2 };
        match TextTokenizer::open(dir.path(), limits) {
            Ok(tokenizer) => use_it(&tokenizer.unwrap(), Text::Pair(TEXTS[2], TEXTS[3]))?,
            Err(error) => one_line(&error.to_string().replace(&dir.path().display().to_string(), ""))?,
        }
    }
}
