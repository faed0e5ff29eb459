//! Texts that are put in front of inputs: some models need to know whether a text is a query or a document.

use std::collections::BTreeMap;

use crate::{ModelError, json::JsonObject};

/// The prompts of a folder, from `config_sentence_transformers.json`. Each is put in front of a text as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// The prompts by name, such as `query` and `document`.
    pub named: BTreeMap<String, String>,
    /// Name of the prompt that is used when the caller names none; it is a key of `named`.
    pub default_name: Option<String>,
}

impl Prompts {
    /// The prompt called `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.get(name).map(String::as_str)
    }

    /// The prompt that is used when the caller names none.
    pub fn default_prompt(&self) -> Option<&str> {
        self.default_name.as_deref().and_then(|name| self.get(name))
    }

    /// Reads the prompts of the library's file, which may have none.
    pub(super) fn read(json: &JsonObject) -> Result<Self, ModelError> {
        let named: BTreeMap<String, Option<String>> = json.get("prompts")?.unwrap_or_default();
        let named = named.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        let mut prompts = Self { named, default_name: json.get("default_prompt_name")? };
        match &prompts.default_name {
            Some(name) if !prompts.named.contains_key(name) => {
                // the library defines these two as empty before it reads any
                if ["query", "document"].contains(&name.as_str()) {
                    prompts.default_name = None;
                    return Ok(prompts);
                }
                let known: Vec<&str> = prompts.named.keys().map(String::as_str).collect();
                let supported = match known[..] {
                    [] => "query or document, as the file has no prompts".to_owned(),
                    _ => format!("one of its prompts: {}", known.join(", ")),
                };
                Err(json.unsupported("default_prompt_name", name, supported))
            }
            _ => Ok(prompts),
        }
    }
}
