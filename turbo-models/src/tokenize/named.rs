//! Tokens that a folder names besides its vocabulary: those that begin a text, stand for padding, or are otherwise
//! special.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::file::guarded;
use crate::{ModelError, error::one_line, json::JsonObject};

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
/// The field that describes added tokens by id.
const DECODER: &str = "added_tokens_decoder";
/// Fields of special tokens without a standard name: a list, or an object with names of their own.
const UNNAMED: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The files that name tokens.
pub(super) struct NamedTokens<'a> {
    config: Option<&'a JsonObject>,
    /// Takes precedence. As in the reference, it is not read if the other file describes the added tokens.
    map: Option<JsonObject>,
}

impl<'a> NamedTokens<'a> {
    /// The named tokens of the folder `dir`, whose `tokenizer_config.json` is `config`.
    pub(super) fn open(dir: &Path, config: Option<&'a JsonObject>) -> Result<Self, ModelError> {
        let describes = config.map_or(Ok(None), |json| json.get::<Value>(DECODER))?.is_some();
        let map = if describes { None } else { JsonObject::open(dir.join(MAP))? };
        Ok(Self { config, map })
    }

    /// The token of `field`, or else `usual`. If a file gives only the token's text, its other properties are those of
    /// `usual`.
    pub(super) fn get_or(&self, field: &'static str, usual: AddedToken) -> Result<AddedToken, ModelError> {
        for json in self.map.iter().chain(self.config) {
            match json.get::<Value>(field)? {
                Some(Value::String(content)) if !content.is_empty() => {
                    return Ok(AddedToken { content, ..usual });
                }
                described => {
                    if let Some(token) = described.as_ref().and_then(|value| token(value, true)) {
                        return Ok(token);
                    }
                }
            }
        }
        Ok(usual)
    }

    /// The texts of all tokens that the files call special.
    pub(super) fn special(&self) -> BTreeSet<String> {
        let tokens = self.all().into_iter().filter(|(_, token)| token.special);
        tokens.map(|(_, token)| token.content).collect()
    }

    /// Adds the named tokens that `tokenizer` does not search for in texts yet, and returns a warning about those that
    /// it lacks. In the reference, a token that is not in the vocabulary gets an id of its own, for which a model
    /// seldom has a row.
    pub(super) fn add(&self, tokenizer: &mut Tokenizer) -> Result<Option<String>, ModelError> {
        let added = tokenizer.get_added_tokens_decoder().into_values();
        let mut known: HashSet<String> = added.map(|token| token.content).collect();
        let new = self.all().into_iter().filter(|(_, token)| known.insert(token.content.clone()));
        let (there, lacking): (Vec<_>, Vec<_>) =
            new.partition(|(_, token)| tokenizer.token_to_id(&token.content).is_some());
        if let Some((file, _)) = there.first() {
            let wrong = |why| ModelError::Tokenizer { file: (*file).into(), why };
            guarded(|| tokenizer.add_tokens(there.iter().map(|(_, token)| token.clone()))).map_err(wrong)?;
        }
        Ok(lacking.first().map(|(file, token)| {
            let others =
                if lacking.len() > 1 { format!(" (and {} more)", lacking.len() - 1) } else { String::new() };
            let why = "is named, but not in the vocabulary: it is not found in texts";
            one_line(format!("{file}: the token {:?}{others} {why}", token.content))
        }))
    }

    /// All named tokens, each with the name of its file; described tokens come before named ones.
    fn all(&self) -> Vec<(&'static str, AddedToken)> {
        let of_config = self.config.map(|json| (CONFIG, json));
        let files = of_config.into_iter().chain(self.map.as_ref().map(|json| (MAP, json)));
        let of_file = |(file, json): (&'static str, &JsonObject)| {
            let described =
                json.iter().filter(|(field, _)| *field == DECODER).flat_map(|(_, all)| values(all));
            let mut tokens: Vec<AddedToken> = described.filter_map(|value| token(value, false)).collect();
            for (field, value) in json.iter() {
                if UNNAMED.contains(&field.as_str()) {
                    tokens.extend(values(value).into_iter().filter_map(|value| token(value, true)));
                } else if field.ends_with("_token") {
                    tokens.extend(token(value, true));
                }
            }
            tokens.into_iter().map(move |token| (file, token)).collect::<Vec<_>>()
        };
        files.flat_map(of_file).collect()
    }
}

/// The elements of a list, or the values of an object.
fn values(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(named) => named.values().collect(),
        _ => Vec::new(),
    }
}

/// A token as files write it: old ones give its text, new ones describe it. It is special if `is_special` or if the
/// file says so.
fn token(value: &Value, is_special: bool) -> Option<AddedToken> {
    let content = value.as_str().or(value["content"].as_str()).filter(|content| !content.is_empty())?;
    let flag = |name: &str| value[name].as_bool();
    let is_special = is_special || flag("special") == Some(true);
    let token = AddedToken::from(content, is_special)
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false));
    Some(token.normalized(flag("normalized").unwrap_or(!is_special)))
}
