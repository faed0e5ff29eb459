//! Reads a tokenizer's files. They are not trusted: what would make the library panic later is found here.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer, TruncationDirection};

use super::{
    byte_bpe::BYTE_BPE,
    encoding::WordRule,
    ends,
    named::NamedTokens,
    older::{self, Vocabulary},
    vocab_txt::WORD_PIECE,
};
use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, is_there},
    modules::CutSide,
    safetensors_file::lfs_pointer,
};

/// A tokenizer, and what the files beside it say about its use.
pub(super) struct TokenizerFiles {
    pub(super) tokenizer: Tokenizer,
    /// The token that stands for one to be filled in, if the vocabulary has it.
    pub(super) mask: Option<(u32, String)>,
    /// How to tell that a token continues the word of the one before it.
    pub(super) words: WordRule,
    /// Whether the model gets token types: which text of a pair a token belongs to.
    pub(super) types_are_told: bool,
    /// Contradictions between the files, and settings that are not followed here.
    pub(super) warnings: Vec<String>,
}

impl TokenizerFiles {
    /// Reads `tokenizer.json` of the folder `dir`, or else the files of older folders, and `tokenizer_config.json`;
    /// `None` if there is no tokenizer. `cut` is what another file says about long texts.
    pub(super) fn open(dir: &Path, cut: Option<CutSide>) -> Result<Option<Self>, ModelError> {
        let config = JsonObject::open(dir.join("tokenizer_config.json"))?;
        let Some(mut tokenizer) = open_any(dir, config.as_ref())? else { return Ok(None) };
        let lacking = NamedTokens::open(dir, config.as_ref())?.add(&mut tokenizer)?;
        config.as_ref().map_or(Ok(()), |json| ends::add(&mut tokenizer, json))?;
        let types_are_told = types_are_told(dir, config.as_ref())?;
        let mask = named_token(config.as_ref(), "mask_token", ["[MASK]", "<mask>"], &tokenizer)?;
        let unknown = named_token(config.as_ref(), "unk_token", ["[UNK]", "<unk>"], &tokenizer)?;
        let words = WordRule {
            prefix: prefix_inside_words(tokenizer.get_model()),
            unknown: unknown.map(|(id, _)| id),
        };
        let mut warnings = config.as_ref().map_or(Ok(Vec::new()), |json| contradictions(json, &tokenizer))?;
        warnings.extend(lacking);
        if let Some(who) = cuts_on_the_left(cut, config.as_ref(), &tokenizer)? {
            warnings
                .push(format!("{who} is left, texts are cut on the right unless a request says otherwise"));
        }
        Ok(Some(Self { tokenizer, mask, words, types_are_told, warnings }))
    }
}

/// Classes of tokenizers that give no token types, even if the model is a BERT: DistilBERT's, and the one for all
/// families of the library's version 5.
const WITHOUT_TYPES: [&str; 2] = ["DistilBertTokenizer", "TokenizersBackend"];

/// Whether the reference gives the model token types: according to the model's inputs in `tokenizer_config.json`, or
/// else as is usual for the class of the tokenizer.
fn types_are_told(dir: &Path, config: Option<&JsonObject>) -> Result<bool, ModelError> {
    let names: Option<Vec<String>> = config.map_or(Ok(None), |json| json.get("model_input_names"))?;
    if let Some(names) = names {
        return Ok(names.iter().any(|name| name == "token_type_ids"));
    }
    let model = JsonObject::open(dir.join("config.json"))?;
    let class = older::class(config, model.as_ref())?;
    Ok(class.is_none_or(|(_, class)| !WITHOUT_TYPES.contains(&older::family(&class))))
}

/// Contradictions between `tokenizer_config.json` and the steps in `tokenizer.json`; the steps count here. The
/// reference changes the steps of some families in this case, and its versions differ in which families.
fn contradictions(config: &JsonObject, tokenizer: &Tokenizer) -> Result<Vec<String>, ModelError> {
    let mut steps = Vec::new();
    if let Some(NormalizerWrapper::BertNormalizer(bert)) = tokenizer.get_normalizer() {
        steps.push(("do_lower_case", bert.lowercase));
        steps.push(("strip_accents", bert.strip_accents.unwrap_or(bert.lowercase)));
        steps.push(("tokenize_chinese_chars", bert.handle_chinese_chars));
    }
    if let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer() {
        steps.push(("add_prefix_space", bytes.add_prefix_space));
    }
    let mut warnings = Vec::new();
    for (field, step) in steps {
        let said = config.get::<Value>(field)?.and_then(|value| value.as_bool());
        if let Some(other) = said.filter(|said| *said != step) {
            warnings.push(format!(
                "tokenizer_config.json: {field} is {other}, tokenizer.json has {step}, which counts"
            ));
        }
    }
    if config.get::<Value>("split_special_tokens")? == Some(Value::Bool(true)) {
        let why = "special tokens in texts are found all the same";
        warnings.push(format!("tokenizer_config.json: split_special_tokens is true, {why}"));
    }
    warnings.extend(ends::unheeded(tokenizer, config)?);
    for field in ends::kept(tokenizer, config)? {
        warnings.push(format!(
            "tokenizer_config.json: {field} is false, tokenizer.json puts it there, which counts"
        ));
    }
    Ok(warnings)
}

/// The file and field that want long texts cut on the left, which is up to requests here. As in the reference, the
/// arguments for loading the tokenizer count first, then `tokenizer_config.json`, then `tokenizer.json`.
fn cuts_on_the_left(
    cut: Option<CutSide>,
    config: Option<&JsonObject>,
    tokenizer: &Tokenizer,
) -> Result<Option<String>, ModelError> {
    if let Some(CutSide { file, field, is_left }) = cut {
        return Ok(is_left.then(|| format!("{file}: truncation_side in {field}")));
    }
    if let Some(side) = config.map_or(Ok(None), |json| json.get::<Value>("truncation_side"))? {
        return Ok((side == "left").then(|| "tokenizer_config.json: truncation_side".to_owned()));
    }
    let left = tokenizer.get_truncation().is_some_and(|cut| cut.direction == TruncationDirection::Left);
    Ok(left.then(|| "tokenizer.json: direction of truncation".to_owned()))
}

/// Vocabularies of folders without `tokenizer.json`.
const OLDER: &[Vocabulary] = &[WORD_PIECE, BYTE_BPE];

/// Opens the newest of the files that exist.
fn open_any(dir: &Path, config: Option<&JsonObject>) -> Result<Option<Tokenizer>, ModelError> {
    let file = dir.join("tokenizer.json");
    if is_there(&file) {
        return read(file).map(Some);
    }
    let vocabulary = older::vocabulary(OLDER, dir, config)?;
    vocabulary.map(|vocabulary| (vocabulary.open)(dir, config)).transpose()
}

fn read(file: PathBuf) -> Result<Tokenizer, ModelError> {
    let json = match std::fs::read(&file) {
        Ok(json) => json,
        Err(why) => return Err(ModelError::Read { file, why }),
    };
    let sound = parse(&json).and_then(|tokenizer| {
        let steps = serde_json::to_value(tokenizer.get_post_processor()).map_err(one_line)?;
        wrong_template(&steps).map_or(Ok(tokenizer), Err)
    });
    sound.map_err(|why| ModelError::Tokenizer { file, why })
}

/// The tokenizer that `json` describes. The library panics at some input that is not JSON, or not the JSON that it
/// expects.
fn parse(json: &[u8]) -> Result<Tokenizer, String> {
    let is_json = serde_json::from_slice::<IgnoredAny>(json);
    is_json.map_err(|error| lfs_pointer(json).unwrap_or_else(|| one_line(error)))?;
    guarded(|| Tokenizer::from_bytes(json))
}

/// The result of a library function that may panic instead of returning an error.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    // nothing of ours is changed inside, and the library's own caches hold no half-made entries
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(one_line),
        Err(_) => Err("the tokenizer library gave up on it".to_owned()),
    }
}

/// What is wrong with the templates that put special tokens around one text or two, if there are any among the steps
/// after tokenising. The library accepts them unchecked, and panics when it first uses them.
fn wrong_template(steps: &Value) -> Option<String> {
    if let Some(steps) = steps["processors"].as_array() {
        return steps.iter().find_map(wrong_template);
    }
    let known = steps["special_tokens"].as_object()?;
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    if let Some((name, _)) = known.iter().find(|(_, token)| count(&token["ids"]) != count(&token["tokens"])) {
        return Some(one_line(format!("post_processor: {name} has not as many tokens as ids")));
    }
    let pieces = |template: &str| steps[template].as_array().cloned().unwrap_or_default();
    if pieces("single").iter().any(|piece| piece["Sequence"]["id"] == "B") {
        return Some("post_processor: the template of one text asks for a second".to_owned());
    }
    let unknown = [pieces("single"), pieces("pair")].concat().into_iter().find_map(|piece| {
        let token = piece["SpecialToken"]["id"].as_str()?;
        (!known.contains_key(token)).then(|| token.to_owned())
    })?;
    Some(one_line(format!("post_processor: {unknown} is not among its special_tokens")))
}

/// The token that `field` names, or else the usual one of BERT or RoBERTa, if the vocabulary has it.
fn named_token(
    config: Option<&JsonObject>,
    field: &'static str,
    usual: [&str; 2],
    tokenizer: &Tokenizer,
) -> Result<Option<(u32, String)>, ModelError> {
    let said = config.map_or(Ok(None), |json| said_token(json, field, tokenizer))?;
    let usual =
        || usual.into_iter().find_map(|token| Some((tokenizer.token_to_id(token)?, token.to_owned())));
    Ok(said.or_else(usual))
}

/// The token that `field` names, if the vocabulary has it.
pub(super) fn said_token(
    config: &JsonObject,
    field: &'static str,
    tokenizer: &Tokenizer,
) -> Result<Option<(u32, String)>, ModelError> {
    // old files name the token, new ones describe it
    let said: Option<Value> = config.get(field)?;
    let said = said.and_then(|token| Some(token.as_str().or(token["content"].as_str())?.to_owned()));
    Ok(said.and_then(|token| Some((tokenizer.token_to_id(&token)?, token))))
}

/// What tokens inside a word begin with, if that tells them from tokens at its beginning.
fn prefix_inside_words(model: &ModelWrapper) -> Option<String> {
    let prefix = match model {
        ModelWrapper::WordPiece(model) => Some(model.continuing_subword_prefix.clone()),
        ModelWrapper::BPE(model) => model.continuing_subword_prefix.clone(),
        _ => None,
    };
    prefix.filter(|prefix| !prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_of_git_lfs_is_told_as_that() {
        let dir = tempfile::tempdir().unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:53aa51\nsize 466247\n";
        std::fs::write(dir.path().join("tokenizer.json"), pointer).unwrap();
        let Err(error) = TokenizerFiles::open(dir.path(), None) else { panic!("it is no tokenizer") };
        assert!(error.to_string().ends_with("run `git lfs pull` in the folder"), "{error}");
    }

    #[test]
    fn files_that_contradict_each_other_are_named() {
        let warnings = |fixture: &str, config: &str| {
            let dir = tempfile::tempdir().unwrap();
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(fixture);
            std::fs::copy(data.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
            std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            TokenizerFiles::open(dir.path(), None).unwrap().unwrap().warnings
        };
        let alike = r#"{"do_lower_case": true, "strip_accents": null, "tokenize_chinese_chars": true,
            "add_prefix_space": true}"#;
        assert_eq!(warnings("encodings-wordpiece", alike), [""; 0]);
        assert_eq!(warnings("encodings-wordpiece", r#"{"strip_accents": true}"#), [""; 0]);
        assert_eq!(
            warnings("encodings-roberta", r#"{"add_prefix_space": false, "do_lower_case": 1}"#),
            [""; 0]
        );
        let bert = r#"{"do_lower_case": false, "strip_accents": false, "tokenize_chinese_chars": false}"#;
        let expected = ["do_lower_case", "strip_accents", "tokenize_chinese_chars"].map(|field| {
            format!("tokenizer_config.json: {field} is false, tokenizer.json has true, which counts")
        });
        assert_eq!(warnings("encodings-wordpiece", bert), expected);
        assert_eq!(
            warnings("encodings-roberta", r#"{"add_prefix_space": true}"#),
            ["tokenizer_config.json: add_prefix_space is true, tokenizer.json has false, which counts"]
        );
    }

    /// Tokens that a folder does not want around texts, but has there all the same.
    #[test]
    fn tokens_around_texts_that_are_not_wanted_are_told_of() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encodings-roberta/tokenizer.json");
        let warnings = |config: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::copy(&data, dir.path().join("tokenizer.json")).unwrap();
            let tokens = r#""bos_token": "<s>", "eos_token": {"content": "</s>"}"#;
            let config = format!("{{{tokens}, {config}}}");
            std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            TokenizerFiles::open(dir.path(), None).unwrap().unwrap().warnings
        };
        let told = |field: &str| {
            format!("tokenizer_config.json: {field} is false, tokenizer.json puts it there, which counts")
        };
        for wanted in ["true", "null", "0"] {
            let flags = format!(r#""add_bos_token": {wanted}, "add_eos_token": {wanted}"#);
            assert_eq!(warnings(&flags), [""; 0], "{wanted}");
        }
        assert_eq!(warnings(r#""add_eos_token": false"#), [told("add_eos_token")]);
        let both = r#""add_bos_token": false, "add_eos_token": false"#;
        assert_eq!(warnings(both), [told("add_bos_token"), told("add_eos_token")]);
        let neither = r#""add_eos_token": false, "eos_token": "<mask>""#;
        assert_eq!(warnings(neither), [""; 0], "which is not put there");
    }

    /// Tokens with ids for which the model has no rows.
    #[test]
    fn tokens_that_are_named_and_not_there_are_told_of() {
        let data =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encodings-wordpiece/tokenizer.json");
        let warnings = |config: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::copy(&data, dir.path().join("tokenizer.json")).unwrap();
            std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            TokenizerFiles::open(dir.path(), None).unwrap().unwrap().warnings
        };
        let usual = r#"{"pad_token": "[PAD]", "unk_token": {"content": "[UNK]"}, "bos_token": null, "eos_token": "",
            "add_bos_token": false, "additional_special_tokens": ["[MASK]"], "extra_special_tokens": {},
            "added_tokens_decoder": {"2": {"content": "[CLS]", "special": true}}, "split_special_tokens": false}"#;
        assert_eq!(warnings(usual), [""; 0]);
        let told = |more: &str| {
            let why = "is named, but not in the vocabulary: it is not found in texts";
            [format!("tokenizer_config.json: the token \"[E1]\"{more} {why}")]
        };
        assert_eq!(warnings(r#"{"pad_token": "[E1]", "eos_token": "[E1]"}"#), told(""));
        assert_eq!(
            warnings(r#"{"additional_special_tokens": ["[E1]", "[E2]", "[PAD]"]}"#),
            told(" (and 1 more)")
        );
        let split = "split_special_tokens is true, special tokens in texts are found all the same";
        assert_eq!(
            warnings(r#"{"split_special_tokens": true}"#),
            [format!("tokenizer_config.json: {split}")]
        );
    }

    #[test]
    fn texts_that_a_folder_wants_cut_on_the_left_are_told_of() {
        let data =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encodings-wordpiece/tokenizer.json");
        let without = std::fs::read_to_string(data).unwrap();
        let warnings_beside = |cut: Option<CutSide>, direction: Option<&str>, config: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            let truncation = direction.map(|direction| {
                serde_json::json!({"direction": direction, "max_length": 9, "strategy": "LongestFirst", "stride": 0})
            });
            let tokenizer = without.replacen(
                r#""truncation": null"#,
                &format!(r#""truncation": {}"#, serde_json::json!(truncation)),
                1,
            );
            std::fs::write(dir.path().join("tokenizer.json"), tokenizer).unwrap();
            if let Some(side) = config {
                let config = format!(r#"{{"truncation_side": {side}}}"#);
                std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            }
            TokenizerFiles::open(dir.path(), cut).unwrap().unwrap().warnings
        };
        let warnings = |direction, config| warnings_beside(None, direction, config);
        let left = "is left, texts are cut on the right unless a request says otherwise";
        let by_config = [format!("tokenizer_config.json: truncation_side {left}")];
        let by_tokenizer = [format!("tokenizer.json: direction of truncation {left}")];
        for direction in [None, Some("Right"), Some("Left")] {
            assert_eq!(warnings(direction, Some(r#""left""#)), by_config);
            assert_eq!(warnings(direction, Some(r#""right""#)), [""; 0]);
        }
        for silent in [None, Some("null")] {
            assert_eq!(warnings(Some("Left"), silent), by_tokenizer);
            assert_eq!(warnings(Some("Right"), silent), [""; 0]);
            assert_eq!(warnings(None, silent), [""; 0]);
        }
        let file = "sentence_bert_config.json";
        let said = |is_left| Some(CutSide { file, field: "tokenizer_args", is_left });
        let by_arguments = [format!("{file}: truncation_side in tokenizer_args {left}")];
        for config in [None, Some(r#""left""#), Some(r#""right""#)] {
            assert_eq!(warnings_beside(said(true), Some("Right"), config), by_arguments);
            assert_eq!(warnings_beside(said(false), Some("Left"), config), [""; 0]);
        }
    }
}
