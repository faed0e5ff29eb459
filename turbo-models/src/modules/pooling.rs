//! How a pooling module is configured to make one vector from the tokens' vectors.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use turbo_graph::Pooling;

use crate::{ModelError, json::JsonObject};

/// The mode that `config.json` of the module's folder `path` switches on; `None` without the file.
///
/// # Errors
/// [`ModelError`] naming file and field: several modes, an unknown mode, or one that leaves out the tokens of a prompt.
pub(super) fn open(path: &Path) -> Result<Option<Pooling>, ModelError> {
    let Some(json) = JsonObject::open(path.join("config.json"))? else { return Ok(None) };
    if json.get("include_prompt")? == Some(false) {
        return Err(json.unsupported("include_prompt", "false", "true"));
    }
    mode(&json).map(Some)
}

/// Checks the pooling of a sparse encoder: only that of Formal et al., 2021, is implemented here.
///
/// # Errors
/// [`ModelError`] naming file and field.
pub(super) fn check_splade(path: &Path) -> Result<(), ModelError> {
    let Some(json) = JsonObject::open(path.join("config.json"))? else { return Ok(()) };
    for (field, expected) in [("pooling_strategy", "max"), ("activation_function", "relu")] {
        let value: Option<String> = json.get(field)?;
        if let Some(other) = value.filter(|value| value != expected) {
            return Err(json.unsupported(field, other, expected));
        }
    }
    Ok(())
}

/// Files of version 6 may list several modes, whose vectors are concatenated.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a mode or a list of modes")]
enum Modes {
    One(String),
    Several(Vec<String>),
}

/// Old files have a flag per mode, new ones name the mode. An absent flag is off, as in the library from version 5.4
/// on. Earlier versions took the mean as well if its flag was absent, and failed if all flags were off. Every version
/// writes the flags of all modes that it knows, the mean among them, so files that the library wrote mean the same to
/// all versions.
fn mode(json: &JsonObject) -> Result<Pooling, ModelError> {
    const FIELD: &str = "pooling_mode";
    let flags = json.iter().filter(|(_, value)| **value == Value::Bool(true));
    let flags = flags.filter_map(|(field, _)| field.strip_prefix("pooling_mode_"));
    let modes: Vec<String> = match json.get(FIELD)? {
        Some(Modes::One(mode)) => vec![mode],
        Some(Modes::Several(modes)) => modes,
        None => flags.map(|flag| flag.strip_suffix("_tokens").unwrap_or(flag).to_owned()).collect(),
    };
    let modes: Vec<&str> = modes.iter().map(String::as_str).collect();
    match modes[..] {
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        // the library's choice if nothing is switched on
        [] | ["mean"] => Ok(Pooling::Mean),
        ["max"] => Ok(Pooling::Max),
        ["mean_sqrt_len"] | ["mean_sqrt_len_tokens"] => Ok(Pooling::MeanSqrtLen),
        ["weightedmean"] => Ok(Pooling::WeightedMean),
        ["lasttoken"] => Ok(Pooling::LastToken),
        _ => Err(json.unsupported(
            FIELD,
            modes.join(" and "),
            "one of cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken",
        )),
    }
}
