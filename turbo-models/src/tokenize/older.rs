//! What folders older than `tokenizer.json` have beside a vocabulary: the class that it is made for, and the tokens that
//! were added to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    slice,
};

use tokenizers::{AddedToken, Tokenizer};

use super::file::guarded;
use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, read_json},
};

/// Refuses a vocabulary made for another class than those `supported`: other classes call their files alike and cut
/// texts otherwise. The class is where the reference looks for it, in `config`, which is `tokenizer_config.json`, or else
/// in `config.json` of the folder `dir`; a folder may name none.
pub(super) fn check_class(
    dir: &Path,
    config: Option<&JsonObject>,
    supported: &[&str],
) -> Result<(), ModelError> {
    const FIELD: &str = "tokenizer_class";
    let model = JsonObject::open(dir.join("config.json"))?;
    for json in config.into_iter().chain(&model) {
        let Some(class) = json.get::<String>(FIELD)? else { continue };
        // `BertTokenizerFast` gives the ids of `BertTokenizer`
        let family = class.strip_suffix("Fast").unwrap_or(&class);
        if family == "PreTrainedTokenizer" {
            continue; // which names none
        }
        return if supported.contains(&family) {
            Ok(())
        } else {
            Err(json.unsupported(FIELD, class, supported.join(", ")))
        };
    }
    // Where no class is named the family decides, and one of those here has a class of its own.
    let Some(model) = model else { return Ok(()) };
    match model.get::<String>("model_type")?.as_deref() {
        Some("mpnet") => {
            Err(model.wrong("model_type", "the tokenizer of mpnet is read from tokenizer.json only"))
        }
        _ => Ok(()),
    }
}

/// Adds the tokens that came later than the vocabulary; each has to get the id that its file says.
pub(super) fn add_tokens(
    tokenizer: &mut Tokenizer,
    dir: &Path,
    config: Option<&JsonObject>,
) -> Result<(), ModelError> {
    let (file, tokens) = added_tokens(dir, config)?;
    let wrong = |why: String| ModelError::Tokenizer { file: file.clone(), why };
    guarded(|| tokenizer.add_tokens(tokens.values().cloned())).map_err(wrong)?;
    match tokens.iter().find(|(id, token)| tokenizer.token_to_id(&token.content) != Some(**id)) {
        None => Ok(()),
        Some((id, token)) => Err(wrong(one_line(format!(
            "{:?} cannot have the id {id}: added tokens follow the vocabulary without a gap, and are not in it",
            token.content
        )))),
    }
}

/// Added tokens by their ids, and the file that lists them: `tokenizer_config.json`, or else `added_tokens.json`.
fn added_tokens(
    dir: &Path,
    config: Option<&JsonObject>,
) -> Result<(PathBuf, BTreeMap<u32, AddedToken>), ModelError> {
    if let Some(json) = config
        && let Some(tokens) = json.get("added_tokens_decoder")?
    {
        return Ok((json.file().to_owned(), tokens));
    }
    let file = dir.join("added_tokens.json");
    let ids: BTreeMap<String, u32> = read_json(&file)?.unwrap_or_default();
    let special = special_tokens(dir, config)?;
    let token = |(content, id): (String, u32)| {
        let is_special = special.contains(&content);
        (id, AddedToken::from(content, is_special))
    };
    Ok((file, ids.into_iter().map(token).collect()))
}

/// Tokens that a folder calls special: they are found in a text as it stands, others also after its letters were
/// lowered.
fn special_tokens(dir: &Path, config: Option<&JsonObject>) -> Result<BTreeSet<String>, ModelError> {
    let map = JsonObject::open(dir.join("special_tokens_map.json"))?;
    let fields = config.into_iter().chain(&map).flat_map(JsonObject::iter);
    let named = fields
        .filter(|(field, _)| field.ends_with("_token") || *field == "additional_special_tokens")
        .flat_map(|(_, value)| value.as_array().map_or(slice::from_ref(value), Vec::as_slice));
    // old files name a token, new ones describe it
    Ok(named.filter_map(|token| token.as_str().or(token["content"].as_str())).map(str::to_owned).collect())
}
