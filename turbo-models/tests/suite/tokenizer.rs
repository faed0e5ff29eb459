//! Ids are those of the reference, within the model's limits; files that do not make a tokenizer are named.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;
use turbo_models::{InputLimits, TextTokenizer, TokenizeError, Truncation};

use crate::common::data;

const WORD_PIECE: &str = "tokenizer-wordpiece";
/// Byte-level BPE.
const ROBERTA: &str = "tokenizer-roberta";

fn limits(max_input_length: usize) -> InputLimits {
    InputLimits { max_input_length, vocab_size: 103, type_vocab_size: 2 }
}

fn word_piece(max_input_length: usize) -> TextTokenizer {
    tokenizer(WORD_PIECE, limits(max_input_length))
}

fn roberta(max_input_length: usize) -> TextTokenizer {
    tokenizer(ROBERTA, InputLimits { vocab_size: 269, type_vocab_size: 1, ..limits(max_input_length) })
}

fn tokenizer(fixture: &str, limits: InputLimits) -> TextTokenizer {
    TextTokenizer::open(&data(fixture), limits).unwrap().unwrap()
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
    // Counting stops early: a megabyte is not tokenised only to be refused.
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

/// The fixture's vocabulary as folders stored it before `tokenizer.json`.
fn old_bert() -> TempDir {
    let json = fs::read(data("tokenizer-wordpiece/tokenizer.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut tokens: Vec<(&String, u64)> =
        json["model"]["vocab"].as_object().unwrap().iter().map(|(t, id)| (t, id.as_u64().unwrap())).collect();
    tokens.sort_by_key(|(_, id)| *id);
    let lines: String = tokens.iter().map(|(token, _)| format!("{token}\n")).collect();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("vocab.txt"), lines).unwrap();
    dir
}

/// The error with which the tokenizer of the folder `dir` is refused.
fn refusal(dir: &Path) -> String {
    let error = TextTokenizer::open(dir, limits(64)).err().unwrap().to_string();
    error.replace(&format!("{}/", dir.display()), "")
}

/// An empty line has an id, but is not a word.
#[test]
fn an_empty_line_of_a_vocabulary_is_no_word() {
    let dir = old_bert();
    let file = dir.path().join("vocab.txt");
    let lines = fs::read_to_string(&file).unwrap();
    fs::write(&file, lines + "\n").unwrap();
    let tokenizer = TextTokenizer::open(dir.path(), limits(64)).unwrap().unwrap();
    let ids = |text: &str| tokenizer.encode(text, Truncation::Off).unwrap().input_ids;
    for text in ["cat ", "cat\n", " cat  cat "] {
        assert_eq!(
            ids(text),
            tokenizer.encode_detailed(text, Truncation::Off).unwrap().input_ids,
            "{text:?}"
        );
    }
    assert_eq!(ids("cat "), ids("cat"));
}

/// The same vocabulary as `vocab.txt` gives the same ids as `tokenizer.json`.
#[test]
fn old_folders_have_only_a_vocabulary() {
    let dir = old_bert();
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

/// Other classes use the same file names, and split texts differently.
#[test]
fn old_folders_are_of_a_known_class() {
    let (bert, roberta) = (old_bert(), old_roberta());
    let berts = "BertTokenizer, DistilBertTokenizer, ElectraTokenizer";
    let robertas = "RobertaTokenizer, BartTokenizer, LongformerTokenizer";
    for (dir, known, other, supported) in [
        (bert.path(), "DistilBertTokenizer", "BertJapaneseTokenizer", berts),
        (roberta.path(), "RobertaTokenizerFast", "HerbertTokenizer", robertas),
    ] {
        let class = |file: &str, class: &str| {
            fs::write(dir.join(file), json!({"tokenizer_class": class}).to_string()).unwrap();
        };
        let refused = |file: &str| format!("{file}: tokenizer_class is {other:?}, supported: {supported}");
        class("config.json", other);
        assert_eq!(refusal(dir), refused("config.json"));
        class("tokenizer_config.json", known);
        assert!(TextTokenizer::open(dir, limits(64)).unwrap().is_some(), "the tokenizer's own file counts");
        class("config.json", known);
        class("tokenizer_config.json", other);
        assert_eq!(refusal(dir), refused("tokenizer_config.json"));
        fs::write(dir.join("tokenizer_config.json"), r#"{"tokenizer_class": null}"#).unwrap();
        assert!(TextTokenizer::open(dir, limits(64)).unwrap().is_some());
    }
    let dir = old_bert();
    fs::write(dir.path().join("config.json"), r#"{"model_type": "mpnet"}"#).unwrap();
    let own = "config.json: model_type: the tokenizer of mpnet is read from tokenizer.json only";
    assert_eq!(refusal(dir.path()), own);
    fs::copy(data(WORD_PIECE).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    assert!(TextTokenizer::open(dir.path(), limits(64)).unwrap().is_some(), "the newer file says all");
}

/// Ids are those of the reference, which also finds tokens that are not special in lower-cased texts.
#[test]
fn tokens_may_be_added_to_an_old_folder() {
    let dir = old_bert();
    let write = |file: &str, json: Value| fs::write(dir.path().join(file), json.to_string()).unwrap();
    let ids = |text: &str| {
        let limits = InputLimits { vocab_size: 105, ..limits(64) };
        let tokenizer = TextTokenizer::open(dir.path(), limits).unwrap().unwrap();
        tokenizer.encode(text, Truncation::Off).unwrap().input_ids
    };
    let unknown = ids("the [e1] cat");
    assert_eq!(unknown, [2, 89, 1, 9, 74, 1, 90, 3]);
    write("added_tokens.json", json!({"[/E1]": 104, "[E1]": 103}));
    assert_eq!(ids("the [E1] cat [/E1]"), [2, 89, 103, 90, 104, 3]);
    assert_eq!(ids("the [e1] cat"), [2, 89, 103, 90, 3]);
    write("special_tokens_map.json", json!({"additional_special_tokens": ["[E1]", {"content": "[/E1]"}]}));
    assert_eq!(ids("the [E1] cat [/E1]"), [2, 89, 103, 90, 104, 3]);
    assert_eq!(ids("the [e1] cat"), unknown);
    let token = |content: &str, special: bool| {
        json!({"content": content, "lstrip": false, "normalized": !special, "rstrip": false, "single_word": false,
            "special": special})
    };
    let decoder =
        json!({"103": token("[/E1]", true), "104": token("[E1]", false), "0": token("[PAD]", true)});
    write("tokenizer_config.json", json!({"added_tokens_decoder": decoder}));
    assert_eq!(ids("the [E1] cat [/E1]"), [2, 89, 104, 90, 103, 3], "it counts before the other file");
    assert_eq!(ids("the [e1] cat"), [2, 89, 104, 90, 3]);
    write("tokenizer_config.json", json!({}));
    for (tokens, token, id) in [
        (json!({"[E1]": 103, "[/E1]": 105}), "[/E1]", 105),
        (json!({"cat": 103}), "cat", 103),
        (json!({"": 103}), "", 103),
    ] {
        write("added_tokens.json", tokens);
        let why = format!(
            "{token:?} cannot have the id {id}: added tokens follow the vocabulary without a gap, and are not in it"
        );
        assert_eq!(refusal(dir.path()), format!("added_tokens.json: {why}"));
    }

    let dir = old_roberta();
    fs::write(dir.path().join("added_tokens.json"), r#"{"[E1]": 269}"#).unwrap();
    let limits = InputLimits { vocab_size: 270, type_vocab_size: 1, ..limits(64) };
    let tokenizer = TextTokenizer::open(dir.path(), limits).unwrap().unwrap();
    let ids = tokenizer.encode("the[E1] the", Truncation::Off).unwrap().input_ids;
    assert_eq!(ids, [0, 261, 269, 262, 2]);
}

/// Those that the vocabulary has, whichever file names them and in whatever form; `tokenizer.json` need not list them.
#[test]
fn tokens_that_are_named_beside_the_tokenizer_are_found_in_texts() {
    let described = json!({
        "content": "[unused1]", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
        "special": true
    });
    let config = "tokenizer_config.json";
    let cases = [
        (config, json!({"additional_special_tokens": ["[unused1]"]})),
        (
            config,
            json!({"additional_special_tokens": [], "extra_special_tokens": {"own_token": "[unused1]"}}),
        ),
        (config, json!({"extra_special_tokens": [described.clone()]})),
        (config, json!({"eos_token": "[unused1]"})),
        (config, json!({"eos_token": described.clone()})),
        ("special_tokens_map.json", json!({"additional_special_tokens": [{"content": "[unused1]"}]})),
        (config, json!({"added_tokens_decoder": {"103": described}})),
    ];
    let newer = tempfile::tempdir().unwrap();
    let tokenizer = fs::read(data(WORD_PIECE).join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    tokenizer["model"]["vocab"]["[unused1]"] = 103.into();
    fs::write(newer.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let older = old_bert();
    let file = older.path().join("vocab.txt");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "[unused1]\n").unwrap();
    let ids = |dir: &Path| {
        let limits = InputLimits { vocab_size: 104, ..limits(64) };
        let tokenizer = TextTokenizer::open(dir, limits).unwrap().unwrap();
        tokenizer.encode("the[unused1] cat", Truncation::Off).unwrap().input_ids
    };
    let found = [2, 89, 103, 90, 3];
    for dir in [newer.path(), older.path()] {
        assert_ne!(ids(dir), found);
        for (file, named) in &cases {
            fs::write(dir.join(file), named.to_string()).unwrap();
            assert_eq!(ids(dir), found, "{file}: {named}");
            fs::remove_file(dir.join(file)).unwrap();
        }
        fs::write(dir.join(config), r#"{"added_tokens_decoder": {}}"#).unwrap();
        fs::write(dir.join("special_tokens_map.json"), r#"{"eos_token": "[unused1]"}"#).unwrap();
        assert_ne!(ids(dir), found, "the map is of older versions");
    }
}

/// Ids are those of the reference.
#[test]
fn an_old_folder_may_name_the_tokens_around_texts() {
    let (bert, roberta) = (old_bert(), old_roberta());
    let ids = |dir: &Path, named: Value, text: &str| {
        fs::write(dir.join("tokenizer_config.json"), named.to_string()).unwrap();
        let limits = InputLimits { vocab_size: 269, ..limits(64) };
        let tokenizer = TextTokenizer::open(dir, limits).unwrap().unwrap();
        tokenizer.encode(text, Truncation::Off).unwrap().input_ids
    };
    let [cls, sep, unk] =
        [("cls_token", [4, 90, 1, 3]), ("sep_token", [2, 90, 1, 4]), ("unk_token", [2, 90, 4, 3])];
    for (field, expected) in [cls, sep, unk] {
        for mask in [json!("[MASK]"), json!({"content": "[MASK]"})] {
            assert_eq!(ids(bert.path(), json!({ field: mask }), "cat é€"), expected, "{field}");
        }
    }
    let split = ids(bert.path(), json!({"cls_token": "[MASK]"}), "[CLS]");
    assert_eq!(split, [4, 1, 7, 58, 65, 1, 3], "another token is named");
    fs::write(bert.path().join("special_tokens_map.json"), r#"{"cls_token": "[SEP]"}"#).unwrap();
    assert_eq!(ids(bert.path(), json!({"cls_token": "[MASK]"}), "cat"), [3, 90, 3], "the map counts first");
    fs::write(bert.path().join("tokenizer_config.json"), r#"{"cls_token": "[X]"}"#).unwrap();
    fs::remove_file(bert.path().join("special_tokens_map.json")).unwrap();
    assert_eq!(refusal(bert.path()), "vocab.txt: [X] is missing");

    assert_eq!(ids(roberta.path(), json!({"cls_token": "<mask>"}), "the"), [268, 261, 2]);
    assert_eq!(ids(roberta.path(), json!({"sep_token": "<mask>"}), "the"), [0, 261, 268]);
    let blank = ids(roberta.path(), json!({"mask_token": {"content": "<mask>"}}), "the <mask>");
    assert_eq!(
        blank,
        [0, 261, 224, 268, 2],
        "a described mask leaves the blank before it unless it says otherwise"
    );
    assert_eq!(ids(roberta.path(), json!({"mask_token": "<mask>"}), "the <mask>"), [0, 261, 268, 2]);
}

/// The fixture's vocabulary and merges as folders stored them before `tokenizer.json`.
fn old_roberta() -> TempDir {
    let json = fs::read(data(ROBERTA).join("tokenizer.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let merge = |pair: &Value| match pair {
        Value::String(pair) => format!("{pair}\n"),
        pair => format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: String = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let mut vocabulary = json["model"]["vocab"].clone();
    for token in json["added_tokens"].as_array().unwrap() {
        vocabulary[token["content"].as_str().unwrap()] = token["id"].clone();
    }
    fs::write(dir.path().join("vocab.json"), vocabulary.to_string()).unwrap();
    fs::write(dir.path().join("merges.txt"), format!("#version: 0.2\n{merges}")).unwrap();
    dir
}

/// One of the two is left over from another model.
#[test]
fn of_two_old_vocabularies_that_of_the_class_counts() {
    let (dir, bert) = (old_roberta(), old_bert());
    fs::copy(bert.path().join("vocab.txt"), dir.path().join("vocab.txt")).unwrap();
    let config = |class: &str| {
        let config = json!({ "tokenizer_class": class });
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    };
    let ids = || {
        let limits = InputLimits { vocab_size: 269, ..limits(64) };
        let tokenizer = TextTokenizer::open(dir.path(), limits).unwrap().unwrap();
        tokenizer.encode("the", Truncation::Off).unwrap().input_ids
    };
    let (of_words, of_bytes) = ([2_u32, 89, 3], [0_u32, 261, 2]);
    assert_eq!(ids(), of_words, "no class is named");
    for (family, expected) in [("bert", of_words.to_vec()), ("roberta", of_bytes.to_vec())] {
        fs::write(dir.path().join("config.json"), json!({ "model_type": family }).to_string()).unwrap();
        assert_eq!(ids(), expected, "no class is named, and the family is {family}");
    }
    for (class, expected) in
        [("BertTokenizer", of_words), ("RobertaTokenizerFast", of_bytes), ("BartTokenizer", of_bytes)]
    {
        config(class);
        assert_eq!(ids(), expected, "{class}");
    }
    config("HerbertTokenizer");
    let berts = "BertTokenizer, DistilBertTokenizer, ElectraTokenizer";
    let robertas = "RobertaTokenizer, BartTokenizer, LongformerTokenizer";
    let why = format!(r#"tokenizer_class is "HerbertTokenizer", supported: {berts}, {robertas}"#);
    assert_eq!(refusal(dir.path()), format!("tokenizer_config.json: {why}"));
}

/// The same vocabulary as `vocab.json` and `merges.txt` gives the same encodings as `tokenizer.json`.
#[test]
fn old_folders_of_roberta_have_a_vocabulary_and_merges() {
    let dir = old_roberta();
    let (merges, aside) = (dir.path().join("merges.txt"), dir.path().join("aside.txt"));
    fs::rename(&merges, &aside).unwrap();
    assert!(TextTokenizer::open(dir.path(), limits(64)).unwrap().is_none(), "the merges are missing");
    fs::rename(&aside, &merges).unwrap();
    let limits = InputLimits { vocab_size: 269, type_vocab_size: 1, ..limits(64) };
    let (old, new) = (TextTokenizer::open(dir.path(), limits).unwrap().unwrap(), roberta(64));
    let texts: Vec<String> = golden(ROBERTA).into_iter().map(|(text, _)| text).collect();
    for text in texts.iter().map(String::as_str).chain(["the <mask>.", " the  é"]) {
        let detailed = |tokenizer: &TextTokenizer| tokenizer.encode_detailed(text, Truncation::Off).unwrap();
        assert_eq!(detailed(&old), detailed(&new), "{text:?}");
    }
    let pair = |tokenizer: &TextTokenizer| tokenizer.encode(("the", "hello"), Truncation::Off).unwrap();
    assert_eq!(pair(&old), pair(&new));
    assert_eq!(old.mask_token(), new.mask_token());

    let ids = |text| {
        let tokenizer = TextTokenizer::open(dir.path(), limits).unwrap().unwrap();
        tokenizer.encode(text, Truncation::Off).unwrap().input_ids
    };
    assert_ne!(ids("the"), ids(" the"));
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"add_prefix_space": true}"#).unwrap();
    assert_eq!(ids("the"), ids(" the"));
}

#[test]
fn files_that_make_no_tokenizer_are_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(TextTokenizer::open(dir.path(), limits(8)).unwrap().is_none());
    let error = || {
        let error = TextTokenizer::open(dir.path(), limits(8)).err().unwrap().to_string();
        error.replace(&format!("{}/", dir.path().display()), "")
    };
    fs::write(dir.path().join("vocab.json"), r#"{"<s>": 0, "a": 1, "b": 2}"#).unwrap();
    fs::write(dir.path().join("merges.txt"), "#version: 0.2\na b\n").unwrap();
    assert!(error().starts_with("vocab.json: ") && error().contains("ab"), "{}", error());
    fs::write(dir.path().join("merges.txt"), "#version: 0.2\n").unwrap();
    assert_eq!(error(), "vocab.json: </s> is missing");
    fs::write(dir.path().join("merges.txt"), "\na b\nc\n").unwrap();
    assert_eq!(error(), "merges.txt: line 3 is \"c\", expected two tokens");
    fs::write(dir.path().join("vocab.txt"), "[UNK]\n[CLS]\ncat\n").unwrap();
    assert_eq!(error(), "vocab.txt: [SEP] is missing");
    fs::write(dir.path().join("tokenizer.json"), "{\"model\":\n 3}").unwrap();
    assert!(error().starts_with("tokenizer.json: "), "{}", error());
    assert_eq!(error().lines().count(), 1);
}

/// The library would panic at the first text, or return lists of different lengths.
#[test]
fn templates_that_make_no_tokens_are_refused() {
    let cases: [(&str, Value, &str); 5] = [
        (
            "special_tokens",
            json!({"[CLS]": {"id": "[CLS]", "ids": [2, 3], "tokens": ["[CLS]"]}}),
            "[CLS] has not as many tokens as ids",
        ),
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
    let types_beside = |file: &str, config: &Value| {
        fs::write(dir.path().join(file), config.to_string()).unwrap();
        types(TextTokenizer::open(dir.path(), limits(9)).unwrap().unwrap())
    };
    let (told, untold) = ([0, 0, 0, 1, 1], [0; 5]);
    let all = ["input_ids", "token_type_ids"];
    let cases = [
        (json!({"model_input_names": ["input_ids"]}), untold),
        (json!({"model_input_names": all}), told),
        (json!({"tokenizer_class": "DistilBertTokenizerFast"}), untold),
        (json!({"tokenizer_class": "DistilBertTokenizer", "model_input_names": all}), told),
        (json!({"tokenizer_class": "TokenizersBackend"}), untold),
        (json!({"tokenizer_class": "TokenizersBackend", "model_input_names": all}), told),
        (json!({"tokenizer_class": "BertTokenizerFast"}), told),
        (json!({}), told),
    ];
    for (config, expected) in cases {
        assert_eq!(types_beside("tokenizer_config.json", &config), expected, "{config}");
    }
    for (class, expected) in [("BertTokenizer", told), ("DistilBertTokenizer", untold)] {
        assert_eq!(types_beside("config.json", &json!({"tokenizer_class": class})), expected, "{class}");
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
