//! `input_type`: which of a model's prompts is put before texts.
//!
//! vLLM takes the names of the model's prompts. Cohere has words of its own, which its clients always send. Two of them
//! mean what sentence-transformers' `encode_query` and `encode_document` do: they choose a prompt by name, or none if
//! the model has no prompt of that name, and never its default. One departure: in that library every model has a prompt
//! `document`; here, a model without one may name it `passage` or `corpus`.

use crate::{
    engine::{PromptName, Prompts},
    http::error::ApiError,
};

/// The prompt for texts of this type; without a type, the model's default.
pub(super) fn prompt_name(prompts: &Prompts, input_type: Option<String>) -> Result<PromptName, ApiError> {
    let Some(input_type) = input_type else { return Ok(PromptName::Default) };
    let known = &prompts.named;
    if known.contains_key(&input_type) {
        return Ok(PromptName::Named(input_type));
    }
    let first_of = |names: &[&str]| {
        let name = names.iter().find(|&&name| known.contains_key(name));
        name.map_or(PromptName::None, |&name| PromptName::Named(name.to_owned()))
    };
    match input_type.as_str() {
        "search_query" => Ok(first_of(&["query"])),
        "search_document" => Ok(first_of(&["document", "passage", "corpus"])),
        // without prompts all types mean the same
        "classification" | "clustering" if known.values().all(String::is_empty) => Ok(PromptName::None),
        _ => Err(unknown(prompts, &input_type)),
    }
}

fn unknown(prompts: &Prompts, input_type: &str) -> ApiError {
    let expected = match prompts.named.is_empty() {
        true => "\"search_query\", \"search_document\", \"classification\" or \"clustering\": this model has no named \
                 prompts, and treats them all the same"
            .to_owned(),
        false => {
            let names: Vec<String> = prompts.named.keys().map(|name| format!("{name:?}")).collect();
            format!(
                "\"search_query\", \"search_document\" or one of this model's prompts: {}",
                names.join(", ")
            )
        }
    };
    ApiError::validation(format!("`input_type` is {input_type:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(named: &[(&str, &str)], input_type: &str) -> Result<PromptName, String> {
        let named = named.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        let prompts = Prompts { named, default: Some("query: ".to_owned()) };
        prompt_name(&prompts, Some(input_type.to_owned())).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_prompt_is_chosen_by_its_name_or_by_cohere_s_words() {
        let (query, document, passage) = (("query", "q: "), ("document", "d: "), ("passage", "p: "));
        let named = |name: &str| PromptName::Named(name.to_owned());
        for (known, input_type, expected) in [
            (&[query, document][..], "query", named("query")),
            (&[query, document], "search_query", named("query")),
            (&[query, document, passage], "search_document", named("document")),
            (&[query, passage], "search_document", named("passage")),
            (&[query], "search_document", PromptName::None),
            (&[passage], "search_query", PromptName::None),
            (&[("search_query", "s: "), query], "search_query", named("search_query")),
            (&[("clustering", "c: ")], "clustering", named("clustering")),
            (&[("query", ""), ("document", "")], "clustering", PromptName::None),
            (&[], "search_query", PromptName::None),
            (&[], "search_document", PromptName::None),
            (&[], "classification", PromptName::None),
            (&[], "clustering", PromptName::None),
        ] {
            assert_eq!(chosen(known, input_type), Ok(expected), "{known:?} {input_type}");
        }
        assert_eq!(prompt_name(&Prompts::default(), None).unwrap(), PromptName::Default);
    }

    #[test]
    fn what_a_model_has_no_prompt_for_is_refused() {
        for input_type in ["classification", "clustering", "image", "query", ""] {
            let expected = format!(
                "`input_type` is {input_type:?}, expected \"search_query\", \"search_document\" or one of this model's \
                 prompts: \"s2p\""
            );
            assert_eq!(chosen(&[("s2p", "s: ")], input_type), Err(expected));
        }
        let said = chosen(&[], "image").unwrap_err();
        assert!(said.starts_with("`input_type` is \"image\", expected \"search_query\""), "{said}");
    }
}
