//! `input_type`: which of a model's prompts stands before texts.
//!
//! vLLM takes the names of the model's prompts. Cohere has words of its own, which its clients always send; two of them
//! mean what sentence-transformers' `encode_query` and `encode_document` do, and choose the prompt that these would.

use crate::{engine::Prompts, http::error::ApiError};

/// The prompt of texts of this type; `None` is the model's default.
pub(super) fn prompt_name(prompts: &Prompts, input_type: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(input_type) = input_type else { return Ok(None) };
    let known = &prompts.named;
    if known.contains_key(&input_type) {
        return Ok(Some(input_type));
    }
    let first_of =
        |names: &[&str]| names.iter().find(|&&name| known.contains_key(name)).map(|&name| name.to_owned());
    match input_type.as_str() {
        // The same for everything.
        "search_query" | "search_document" | "classification" | "clustering" if known.is_empty() => Ok(None),
        "search_query" if known.contains_key("query") => Ok(first_of(&["query"])),
        // Many models have a prompt for queries alone.
        "search_document" => Ok(first_of(&["document", "passage", "corpus"])),
        _ => Err(unknown(prompts, &input_type)),
    }
}

fn unknown(prompts: &Prompts, input_type: &str) -> ApiError {
    let expected = match prompts.named.is_empty() {
        true => {
            "\"search_query\", \"search_document\", \"classification\" or \"clustering\": this model has no \
                 prompts, and does the same for each"
                .to_owned()
        }
        false => {
            let names: Vec<String> = prompts.named.keys().map(|name| format!("{name:?}")).collect();
            let of_queries = if prompts.named.contains_key("query") { "\"search_query\", " } else { "" };
            format!("{of_queries}\"search_document\" or one of this model's prompts: {}", names.join(", "))
        }
    };
    ApiError::validation(format!("`input_type` is {input_type:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], input_type: &str) -> Result<Option<String>, String> {
        let named = names.iter().map(|&name| (name.to_owned(), String::new())).collect();
        let prompts = Prompts { named, default: None };
        prompt_name(&prompts, Some(input_type.to_owned())).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_prompt_is_chosen_by_its_name_or_by_cohere_s_words() {
        for (names, input_type, expected) in [
            (&["query", "document"][..], "query", Some("query")),
            (&["query", "document"], "search_query", Some("query")),
            (&["query", "document", "passage"], "search_document", Some("document")),
            (&["query", "passage"], "search_document", Some("passage")),
            (&["query"], "search_document", None),
            (&["search_query", "query"], "search_query", Some("search_query")),
            (&["clustering"], "clustering", Some("clustering")),
            (&[], "search_query", None),
            (&[], "search_document", None),
            (&[], "classification", None),
            (&[], "clustering", None),
        ] {
            let expected = Ok(expected.map(str::to_owned));
            assert_eq!(chosen(names, input_type), expected, "{names:?} {input_type}");
        }
        assert_eq!(prompt_name(&Prompts::default(), None).unwrap(), None);
    }

    #[test]
    fn what_a_model_has_no_prompt_for_is_refused() {
        let of_prompts = |input_type: &str| {
            format!(
                "`input_type` is {input_type:?}, expected \"search_document\" or one of this model's prompts: \"s2p\""
            )
        };
        for input_type in ["search_query", "classification", "clustering", "image", "query", ""] {
            assert_eq!(chosen(&["s2p"], input_type), Err(of_prompts(input_type)));
        }
        let said = chosen(&["query"], "clustering").unwrap_err();
        assert!(said.contains("expected \"search_query\", \"search_document\" or one of"), "{said}");
        let said = chosen(&[], "image").unwrap_err();
        assert!(said.starts_with("`input_type` is \"image\", expected \"search_query\""), "{said}");
    }
}
