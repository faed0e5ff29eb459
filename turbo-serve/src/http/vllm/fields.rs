//! Fields that vLLM's pooling routes share; `/v1/embeddings` is one of these routes.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, IntoDeserializer},
};

use crate::{
    engine::Truncation,
    http::{
        cut::check_cut,
        error::ApiError,
        inputs::{Counted, Inputs, Whole},
        target::Target,
        tei::{TruncationDirection, truncation},
    },
};

/// How inputs that are too long are cut.
pub(in crate::http) struct Cut {
    pub(in crate::http) truncation: Option<Truncation>,
    pub(in crate::http) max_input_length: Option<usize>,
}

/// Which end of a long input is cut off.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum Side {
    Left,
    Right,
}

/// Whether inputs are padded to the length that the model takes.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Padding {
    MaxLength,
    DoNotPad,
}

impl Cut {
    /// What `truncate_prompt_tokens`, where -1 means all that the model takes, and `truncation_side` say. Without
    /// either, the server's default applies.
    pub(in crate::http) fn of(
        target: &Target,
        tokens: Option<Whole>,
        side: Option<Side>,
    ) -> Result<Self, ApiError> {
        let direction = side.map(|side| match side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        });
        let truncation = truncation(target, tokens.map(|_| true), direction);
        let tokens = tokens.map(|Whole(tokens)| tokens).filter(|&tokens| tokens != -1);
        check_cut(target, "truncate_prompt_tokens", tokens.map(|_| 1))?;
        let limit = target.engine().info().max_input_length;
        let max_input_length = tokens.map(|tokens| length(tokens, limit)).transpose()?;
        Ok(Self { truncation, max_input_length })
    }
}

fn length(tokens: i64, limit: usize) -> Result<usize, ApiError> {
    let possible = usize::try_from(tokens).ok().filter(|tokens| (1..=limit).contains(tokens));
    possible.ok_or_else(|| {
        ApiError::validation(format!(
            "`truncate_prompt_tokens` is {tokens}, expected 1 to {limit}, or -1 for as many as the model takes"
        ))
    })
}

/// Whether logits become scores: the first value given, by the field's current name or a former one.
pub(in crate::http) fn activation(names: [Option<bool>; 3]) -> Option<bool> {
    names.into_iter().flatten().next()
}

/// Refuses a field that would change the answer.
pub(in crate::http) fn refuse(field: &str, value: Option<IgnoredAny>, remedy: &str) -> Result<(), ApiError> {
    match value {
        None => Ok(()),
        Some(_) => Err(ApiError::validation(format!("`{field}` is not possible here: {remedy}"))),
    }
}

/// Refuses other variables for a template of pairs.
pub(in crate::http) fn check_template(chat_template_kwargs: Option<IgnoredAny>) -> Result<(), ApiError> {
    let remedy = "a template gets what the model's folder says, and from a request only the `instruction`";
    refuse("chat_template_kwargs", chat_template_kwargs, remedy)
}

/// Reads a field that may be left out, but not be `null`.
pub(in crate::http) fn not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads one of several words, by way of a string: serde_json reports bad syntax where an enum is neither a string nor
/// an object.
pub(in crate::http) fn word<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let word: Option<String> = Deserialize::deserialize(deserializer)?;
    word.map(|word| T::deserialize(word.into_deserializer())).transpose()
}

/// The inputs, which are texts and token ids only; there must be at least one.
pub(in crate::http) fn check_input(
    input: Option<Inputs>,
    messages: Option<IgnoredAny>,
) -> Result<Counted, ApiError> {
    refuse("messages", messages, "no chat template is applied; send what one would write as `input`")?;
    let Inputs(counted) = input.ok_or_else(|| ApiError::validation("missing field `input`"))?;
    match counted.inputs.is_empty() {
        true => Err(ApiError::empty("`input` cannot be empty")),
        false => Ok(counted),
    }
}

/// Refuses to leave out special tokens.
pub(in crate::http) fn check_special_tokens(add_special_tokens: Option<bool>) -> Result<(), ApiError> {
    match add_special_tokens {
        Some(false) => Err(ApiError::validation(
            "`add_special_tokens` is false, expected true: an input without special tokens can be sent as token ids",
        )),
        Some(true) | None => Ok(()),
    }
}

/// Refuses padding: the model would attend to it as to any other token.
pub(in crate::http) fn check_padding(padding: Option<Padding>) -> Result<(), ApiError> {
    match padding {
        Some(Padding::MaxLength) => Err(ApiError::validation(
            "`padding` is \"max_length\", expected \"do_not_pad\": no model here looks at padding",
        )),
        None | Some(Padding::DoNotPad) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_are_not_possible_are_told_what_is() {
        assert_eq!((length(1, 512).unwrap(), length(512, 512).unwrap()), (1, 512));
        for tokens in [0, -2, 513, i64::MAX, i64::MIN] {
            assert_eq!(
                length(tokens, 512).unwrap_err().message(),
                format!(
                    "`truncate_prompt_tokens` is {tokens}, expected 1 to 512, or -1 for as many as the model takes"
                )
            );
        }
    }

    #[test]
    fn the_name_of_today_goes_before_older_ones() {
        assert_eq!(activation([None, None, None]), None);
        assert_eq!(activation([Some(true), Some(false), None]), Some(true));
        assert_eq!(activation([None, None, Some(false)]), Some(false));
    }
}
