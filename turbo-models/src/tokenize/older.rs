//! The tokenizer files of folders older than `tokenizer.json`: a vocabulary of some kind, the class that it is made
//! for, and tokens that were added to it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tokenizers::{AddedToken, Tokenizer};

use super::{file::guarded, named::NamedTokens};
use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, is_there, read_json},
};

/// A kind of vocabulary.
pub(super) struct Vocabulary {
    /// Names of its files.
    pub(super) files: &'static [&'static str],
    /// The reference's classes that split texts in its way.
    pub(super) classes: &'static [&'static str],
    /// Builds its tokenizer, from the folder and `tokenizer_config.json`.
    pub(super) open: fn(&Path, Option<&JsonObject>) -> Result<Tokenizer, ModelError>,
}

/// The vocabulary that the folder `dir` has, of those that are `known`. If it has several, that of its class counts, or
/// else the first. A class that none of them is made for is refused: other classes use the same file names and split
/// texts differently. `config` is `tokenizer_config.json`.
pub(super) fn vocabulary<'a>(
    known: &'a [Vocabulary],
    dir: &Path,
    config: Option<&JsonObject>,
) -> Result<Option<&'a Vocabulary>, ModelError> {
    let is_whole = |kind: &&Vocabulary| kind.files.iter().all(|file| is_there(&dir.join(file)));
    let there: Vec<&Vocabulary> = known.iter().filter(is_whole).collect();
    let Some(&first) = there.first() else { return Ok(None) };
    let model = JsonObject::open(dir.join("config.json"))?;
    if let Some((json, class)) = class(config, model.as_ref())? {
        if let Some(kind) = there.iter().copied().find(|kind| kind.classes.contains(&family(&class))) {
            return Ok(Some(kind));
        }
        let supported: Vec<&str> = there.iter().flat_map(|kind| kind.classes).copied().collect();
        return Err(json.unsupported(CLASS, class, supported.join(", ")));
    }
    // If no class is named, the family decides, and one family has a class of its own.
    let Some(model) = model else { return Ok(Some(first)) };
    match model.get::<String>("model_type")?.as_deref() {
        Some("mpnet") => {
            Err(model.wrong("model_type", "the tokenizer of mpnet is read from tokenizer.json only"))
        }
        // RoBERTa's class in the reference has no WordPiece; a folder with BERT's vocabulary alone may mean BERT's
        // class
        Some("roberta") => {
            let of_family = there.iter().copied().find(|kind| kind.classes.contains(&"RobertaTokenizer"));
            Ok(of_family.or(Some(first)))
        }
        _ => Ok(Some(first)),
    }
}

pub(super) const CLASS: &str = "tokenizer_class";

/// The class of a folder's tokenizer, and the file that names it. As in the reference, that is `config`, which is
/// `tokenizer_config.json`, or else `model`, which is `config.json`; a folder may name none.
pub(super) fn class<'a>(
    config: Option<&'a JsonObject>,
    model: Option<&'a JsonObject>,
) -> Result<Option<(&'a JsonObject, String)>, ModelError> {
    for json in config.into_iter().chain(model) {
        let named = json.get::<String>(CLASS)?;
        // the base of all classes says nothing
        if let Some(class) = named.filter(|class| family(class) != "PreTrainedTokenizer") {
            return Ok(Some((json, class)));
        }
    }
    Ok(None)
}

/// The class whose ids a class gives: `BertTokenizerFast` gives the ids of `BertTokenizer`.
pub(super) fn family(class: &str) -> &str {
    class.strip_suffix("Fast").unwrap_or(class)
}

/// Adds those of `tokens` that the vocabulary has: any other would get an id of its own, which the model has no row
/// for.
pub(super) fn add_special_tokens(tokenizer: &mut Tokenizer, tokens: &[&AddedToken]) -> Result<(), String> {
    let known = tokens.iter().copied().filter(|token| tokenizer.token_to_id(&token.content).is_some());
    let known: Vec<AddedToken> = known.cloned().collect();
    guarded(|| tokenizer.add_special_tokens(known)).map(drop)
}

/// A token that must exist, and its id.
pub(super) fn with_id(tokenizer: &Tokenizer, token: &AddedToken) -> Result<(String, u32), String> {
    let content = token.content.clone();
    match tokenizer.token_to_id(&content) {
        Some(id) => Ok((content, id)),
        None => Err(one_line(format!("{content} is missing"))),
    }
}

/// Adds the tokens that came later than the vocabulary; each must get the id that its file says.
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
    // special tokens are found in a text as it stands, others also after it was lower-cased
    let special = NamedTokens::open(dir, config)?.special();
    let token = |(content, id): (String, u32)| {
        let is_special = special.contains(&content);
        (id, AddedToken::from(content, is_special))
    };
    Ok((file, ids.into_iter().map(token).collect()))
}
