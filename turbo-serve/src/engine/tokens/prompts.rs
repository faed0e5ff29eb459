//! Prompts that some embedding models expect before a text: `query: `, `Represent this sentence: `.

use std::collections::BTreeMap;

use crate::engine::EngineError;

/// A model's prompts, and the one that is put before a text when its request names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Texts by their names.
    pub named: BTreeMap<String, String>,
    /// The prompt for requests that name none: its text, not its name.
    pub default: Option<String>,
}

/// Which of a model's prompts a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptName {
    /// The default, if there is one.
    #[default]
    Default,
    /// The one of this name.
    Named(String),
    /// No prompt, whatever the default is.
    None,
}

impl From<Option<String>> for PromptName {
    /// Requests that name no prompt get the default.
    fn from(name: Option<String>) -> Self {
        name.map_or(Self::Default, Self::Named)
    }
}

impl Prompts {
    /// The prompt that a request asks for.
    ///
    /// # Errors
    /// [`EngineError::UnknownPrompt`], which names the model's prompts.
    pub fn choose(&self, name: &PromptName) -> Result<Prompt, EngineError> {
        let name = match name {
            PromptName::None => return Ok(Prompt::None),
            PromptName::Default => return Ok(self.default.clone().map_or(Prompt::None, Prompt::Default)),
            PromptName::Named(name) => name,
        };
        let unknown =
            || EngineError::UnknownPrompt { name: name.clone(), known: self.named.keys().cloned().collect() };
        self.named.get(name).cloned().map(Prompt::Named).ok_or_else(unknown)
    }
}

/// The prompt of the texts of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// No prompt.
    None,
    /// The model's default; inputs that are not plain texts get none.
    Default(String),
    /// The one that the request names; inputs that are not plain texts are rejected.
    Named(String),
}

impl Prompt {
    /// The text with the prompt before it.
    #[must_use]
    pub fn before<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        match self {
            Self::None => text.into(),
            Self::Default(prompt) | Self::Named(prompt) => format!("{prompt}{text}").into(),
        }
    }

    /// Bytes that it puts before a text.
    pub(in crate::engine) fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Default(prompt) | Self::Named(prompt) => prompt.len(),
        }
    }

    /// Rejects an input that is not a plain text, where the request names a prompt.
    pub(in crate::engine) fn check(&self, input: usize) -> Result<(), EngineError> {
        match self {
            Self::Named(_) => Err(EngineError::PromptNeedsText { input }),
            Self::None | Self::Default(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts() -> Prompts {
        let named = [("query", "query: "), ("document", "")].map(|(name, text)| (name.into(), text.into()));
        Prompts { named: named.into(), default: Some("text: ".into()) }
    }

    #[test]
    fn the_default_is_for_who_names_none() {
        let before = |name: Option<&str>| {
            let name = name.map(str::to_owned).into();
            prompts().choose(&name).map(|prompt| prompt.before("a").into_owned())
        };
        assert_eq!(before(None), Ok("text: a".into()));
        assert_eq!(before(Some("query")), Ok("query: a".into()));
        assert_eq!(before(Some("document")), Ok("a".into()));
        assert_eq!(Prompts::default().choose(&PromptName::Default), Ok(Prompt::None));
        let default = Prompts { default: Some("d: ".into()), ..prompts() };
        assert_eq!(default.choose(&PromptName::Default), Ok(Prompt::Default("d: ".into())));
        assert_eq!(default.choose(&PromptName::None), Ok(Prompt::None));
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let passage = PromptName::Named("passage".into());
        let error = prompts().choose(&passage).unwrap_err();
        let known = vec!["document".into(), "query".into()];
        assert_eq!(error, EngineError::UnknownPrompt { name: "passage".into(), known });
        assert_eq!(
            error.to_string(),
            "`prompt_name` is `passage`, this model's prompts are `document`, `query`"
        );
        let none = Prompts::default().choose(&passage).unwrap_err().to_string();
        assert_eq!(none, "`prompt_name` is `passage`, but this model has no prompts: leave it out");
    }
}
