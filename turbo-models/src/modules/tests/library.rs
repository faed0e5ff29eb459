//! What `config_sentence_transformers.json` says.

use std::collections::BTreeMap;

use super::open;
use crate::{Prompts, ScoreFunction};

#[test]
fn a_cross_encoder_s_activation_is_read() {
    let read = |class: &str| {
        let config = format!(r#"{{"activation_fn": {class}}}"#);
        let modules = open(&[("config_sentence_transformers.json", config.as_str())]).unwrap();
        modules.activation.map(|class| class.function().map_err(|error| error.to_string()))
    };
    assert_eq!(read("null"), None);
    assert_eq!(read(r#""torch.nn.modules.activation.Sigmoid""#), Some(Ok(ScoreFunction::Sigmoid)));
    assert_eq!(read(r#""torch.nn.modules.linear.Identity""#), Some(Ok(ScoreFunction::Identity)));
    let unknown = read(r#""torch.nn.modules.activation.Tanh""#).unwrap().unwrap_err();
    let expected = r#"config_sentence_transformers.json: activation_fn is "torch.nn.modules.activation.Tanh", supported: Identity, Sigmoid, Softmax"#;
    assert!(unknown.ends_with(expected), "{unknown}");
}

#[test]
fn prompts_are_read() {
    let read = |config: &str| open(&[("config_sentence_transformers.json", config)]).map(|it| it.prompts);
    let both =
        r#"{"prompts": {"query": "search: ", "document": "", "none": null}, "default_prompt_name": "query"}"#;
    let prompts = read(both).unwrap();
    let named =
        [("document", ""), ("query", "search: ")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(prompts.named, BTreeMap::from(named));
    assert_eq!((prompts.default_prompt(), prompts.get("none")), (Some("search: "), None));
    assert_eq!(read(r#"{"default_prompt_name": null}"#).unwrap(), Prompts::default());
    let placeholder = read(r#"{"prompts": {"a": ""}, "default_prompt_name": "document"}"#).unwrap();
    assert_eq!((placeholder.get("a"), placeholder.default_prompt()), (Some(""), None));
    let none = read(r#"{"default_prompt_name": "c"}"#).unwrap_err();
    assert!(none.ends_with("supported: query or document, as the file has no prompts"), "{none}");
    let unknown = read(r#"{"prompts": {"a": "", "b": ""}, "default_prompt_name": "c"}"#).unwrap_err();
    let expected = r#"config_sentence_transformers.json: default_prompt_name is "c", supported: one of its prompts: a, b"#;
    assert_eq!(unknown, expected);
}

#[test]
fn what_the_library_would_cut_off_is_told() {
    let warnings = |library: &str| open(&[("config_sentence_transformers.json", library)]).unwrap().warnings;
    assert_eq!(warnings(r#"{"truncate_dim": null, "max_active_dims": null}"#), [""; 0]);
    let vector = "config_sentence_transformers.json: truncate_dim is 4, which is not done here: ask for as many values \
                  with `dimensions`";
    assert_eq!(warnings(r#"{"truncate_dim": 4}"#), [vector]);
    let weights = "config_sentence_transformers.json: max_active_dims is 20, which is not done here: rows have every \
                   weight that is not zero";
    assert_eq!(warnings(r#"{"max_active_dims": 20}"#), [weights]);
}
