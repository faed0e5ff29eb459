//! The modules around the encoder in a folder of the sentence-transformers library. Pooling, dense modules and
//! normalisation follow it; a length limit and prompts come before it.

mod dense;
mod inputs;
mod list;
mod logit_score;
mod messages;
mod pooling;
mod prompts;

use std::path::Path;

use serde_json::Value;
use turbo_graph::Pooling;

pub use self::prompts::Prompts;
pub(crate) use self::{
    dense::Dense,
    inputs::{CutSide, EncoderInputs},
    logit_score::LogitScore,
};
use self::{
    inputs::EncoderGives,
    list::{List, Module},
};
use crate::{
    ModelError,
    config_labels::ScoreClass,
    error::one_line,
    json::{JsonObject, read_json},
};

/// The modules of a folder, from `modules.json` and the folders it names, `sentence_bert_config.json`,
/// `tokenizer_config.json` and `config_sentence_transformers.json`. Each of these files may be absent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct SentenceModules {
    /// Whether `modules.json` lists the modules.
    pub(crate) is_listed: bool,
    /// How token vectors become one.
    pub(crate) pooling: Option<Pooling>,
    /// Dense modules that the pooled vector passes through, in this order.
    pub(crate) dense: Vec<Dense>,
    /// Whether the vector is then divided by its L2 norm.
    pub(crate) normalize: bool,
    /// Whether the vector's values become whole numbers instead ([`tanh_int8`](crate::tanh_int8)).
    pub(crate) tanh_int8: bool,
    /// Whether the model returns a weight per token of its vocabulary instead (SPLADE).
    pub(crate) splade: bool,
    /// The score that is made from the logits of the next token instead.
    pub(crate) score: Option<LogitScore>,
    /// What the encoder takes, and what it passes to the other modules.
    pub(crate) inputs: EncoderInputs,
    /// The prompts that are put in front of texts.
    pub(crate) prompts: Prompts,
    /// The score function that a cross-encoder's file names, if any.
    pub(crate) activation: Option<ScoreClass>,
    /// Oddities of the folder that do not stop it from being read.
    pub(crate) warnings: Vec<String>,
}

impl SentenceModules {
    /// Reads them from the folder `dir`.
    ///
    /// # Errors
    /// [`ModelError`] naming the file and the field in it: a module that is not implemented, or an order that makes no
    /// sense.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let inputs = EncoderInputs::open(dir)?;
        let mut modules = Self { inputs, ..Self::default() };
        if let Some(library) = JsonObject::open(dir.join("config_sentence_transformers.json"))? {
            modules.prompts = Prompts::read(&library)?;
            modules.activation = activation(&library)?;
            modules.warnings = cuts_of_rows(&library)?;
        }
        let file = dir.join("modules.json");
        match read_json::<Vec<Module>>(&file)? {
            Some(list) => {
                modules.is_listed = true;
                modules.read_list(&List { dir, file }, &list)?;
            }
            None => modules.pooling = pooling::open(&dir.join("1_Pooling"))?,
        }
        Ok(modules)
    }
}

fn activation(json: &JsonObject) -> Result<Option<ScoreClass>, ModelError> {
    const FIELD: &str = "activation_fn";
    Ok(json.get::<String>(FIELD)?.map(|class| ScoreClass::new(json, FIELD, class)))
}

/// Warns that the library would return fewer values of each row than are returned here.
fn cuts_of_rows(json: &JsonObject) -> Result<Vec<String>, ModelError> {
    let mut warnings = Vec::new();
    for (field, advice) in [
        ("truncate_dim", "ask for as many values with `dimensions`"),
        ("max_active_dims", "rows have every weight that is not zero"),
    ] {
        if let Some(most) = json.get::<Value>(field)? {
            let most = one_line(most);
            warnings.push(format!(
                "config_sentence_transformers.json: {field} is {most}, which is not done here: {advice}"
            ));
        }
    }
    Ok(warnings)
}

/// The name under which modules take and return the text's vector.
const VECTOR: &str = "sentence_embedding";

/// Refuses a module that takes or returns anything but the text's vector.
fn check_names(json: &JsonObject) -> Result<(), ModelError> {
    for field in ["module_input_name", "module_output_name"] {
        if let Some(other) = json.get::<String>(field)?.filter(|name| name != VECTOR) {
            return Err(json.unsupported(field, other, VECTOR));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use proptest::prelude::*;
    use turbo_graph::Activation;

    use super::*;
    use crate::ScoreFunction;

    /// Opens a folder with these files; the folder's name is removed from messages.
    fn open(files: &[(&str, &str)]) -> Result<SentenceModules, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let prefix = format!("{}/", dir.path().display());
        let opened = SentenceModules::open(dir.path());
        let mut modules = opened.map_err(|error| error.to_string().replace(&prefix, ""))?;
        for dense in &mut modules.dense {
            dense.path = dense.path.strip_prefix(dir.path()).unwrap().to_owned();
        }
        Ok(modules)
    }

    /// A list of these modules, each in the folder of its class, the first in the folder itself.
    fn list(classes: &[&str]) -> String {
        let entries: Vec<String> = classes
            .iter()
            .map(|class| {
                let path = if class.ends_with("Transformer") { "" } else { class };
                format!(r#"{{"path": "{path}", "type": "sentence_transformers.models.{class}"}}"#)
            })
            .collect();
        format!("[{}]", entries.join(", "))
    }

    fn open_list(classes: &[&str], more: &[(&str, &str)]) -> Result<SentenceModules, String> {
        let list = list(classes);
        open(&[&[("modules.json", list.as_str())], more].concat())
    }

    fn open_pooling(config: &str) -> Result<SentenceModules, String> {
        open_list(&["Transformer", "Pooling", "Normalize"], &[("Pooling/config.json", config)])
    }

    const DENSE: &str = r#"{"in_features": 8, "out_features": 4, "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity"}"#;

    #[test]
    fn a_folder_without_any_of_it_asks_for_nothing() {
        assert_eq!(open(&[]), Ok(SentenceModules::default()));
    }

    #[test]
    fn one_flag_decides_and_normalize_needs_no_folder() {
        let cases = [
            ("cls_token", "cls", Pooling::Cls),
            ("mean_tokens", "mean", Pooling::Mean),
            ("max_tokens", "max", Pooling::Max),
            ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
            ("weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
            ("lasttoken", "lasttoken", Pooling::LastToken),
        ];
        for (flag, mode, expected) in cases {
            let old = format!(r#"{{"pooling_mode_{flag}": true, "pooling_mode_x_tokens": false}}"#);
            let named = format!(r#"{{"pooling_mode": "{mode}", "include_prompt": true}}"#);
            for config in [old, named, format!(r#"{{"pooling_mode": ["{mode}"]}}"#)] {
                let modules = open_pooling(&config).unwrap();
                assert_eq!((modules.pooling, modules.normalize), (Some(expected), true), "{config}");
            }
        }
    }

    #[test]
    fn the_mean_is_taken_where_nothing_is_switched_on() {
        let off = r#"{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false}"#;
        for config in [r#"{"word_embedding_dimension": 8}"#, r#"{"pooling_mode_cls_token": false}"#, off] {
            assert_eq!(open_pooling(config).unwrap().pooling, Some(Pooling::Mean), "{config}");
        }
    }

    #[test]
    fn pooling_is_found_without_a_list_of_modules() {
        let modules = open(&[("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true}"#)]).unwrap();
        assert_eq!((modules.pooling, modules.normalize), (Some(Pooling::Cls), false));
    }

    #[test]
    fn the_length_limit_is_read_under_each_of_its_names() {
        for name in inputs::FILES {
            let modules = open(&[(name, r#"{"max_seq_length": 256, "do_lower_case": true}"#)]).unwrap();
            assert_eq!(
                (modules.inputs.length_limits.most(), modules.inputs.do_lower_case),
                (Some(256), true),
                "{name}"
            );
        }
        let zero = open(&[("sentence_bert_config.json", r#"{"max_seq_length": 0}"#)]).unwrap_err();
        assert_eq!(zero, "sentence_bert_config.json: max_seq_length: is 0, expected at least 1");
    }

    /// Later versions of the library leave the limit to the tokenizer, and so do folders that it never saw.
    #[test]
    fn the_tokenizer_s_limit_counts_where_no_other_is_given() {
        let limit = |own: &str, tokenizer: &str| {
            let files = [("sentence_bert_config.json", own), ("tokenizer_config.json", tokenizer)];
            open(&files).map(|modules| modules.inputs.length_limits.most())
        };
        let tokenizer = r#"{"model_max_length": 256}"#;
        for own in ["{}", r#"{"max_seq_length": null}"#, r#"{"transformer_task": "feature-extraction"}"#] {
            assert_eq!(limit(own, tokenizer), Ok(Some(256)), "{own}");
        }
        assert_eq!(limit(r#"{"max_seq_length": 300}"#, tokenizer), Ok(Some(300)));
        let none = limit("{}", r#"{"model_max_length": 1000000000000000019884624838656}"#).unwrap();
        assert!(none.is_some_and(|tokens| tokens > 1 << 60), "{none:?}");
        for none in ["{}", r#"{"model_max_length": null}"#, r#"{"model_max_length": -1}"#] {
            assert_eq!(limit("{}", none), Ok(None), "{none}");
        }
        let error = limit("{}", r#"{"model_max_length": "many"}"#).unwrap_err();
        assert!(error.starts_with("tokenizer_config.json: model_max_length: "), "{error}");
    }

    /// The library calls its tokenizer with these, whatever other limits there are; some would change the ids.
    #[test]
    fn a_limit_may_be_what_texts_are_tokenised_with() {
        let limit = |kwargs: &str| {
            let own = format!(r#"{{"max_seq_length": 300, "processing_kwargs": {kwargs}}}"#);
            open(&[("sentence_bert_config.json", own.as_str())])
                .map(|modules| modules.inputs.length_limits.most())
        };
        let own = r#"{"transformer_task": "feature-extraction", "processing_kwargs": {"text": {"max_length": 256}}}"#;
        let modules = open(&[("sentence_bert_config.json", own)]).unwrap();
        assert_eq!(modules.inputs.length_limits.most(), Some(256));
        let cases = [
            (r#"{"common": {"max_length": 64}}"#, 64),
            (r#"{"common": {"max_length": 64}, "text": {"max_length": 512}}"#, 512),
            (r#"{"common": {"max_length": 64}, "text": {"max_length": null}}"#, 300),
            (r#"{"text": {"padding": "longest", "truncation": true, "add_special_tokens": true}}"#, 300),
            (
                r#"{"common": {"return_tensors": "pt", "truncation": "longest_first"}, "image": {"size": 9}}"#,
                300,
            ),
            (r#"{"text": {"logits_to_keep": 1}}"#, 300),
            ("{}", 300),
            ("null", 300),
        ];
        for (kwargs, expected) in cases {
            assert_eq!(limit(kwargs), Ok(Some(expected)), "{kwargs}");
        }
        let supported = "max_length, padding, truncation by the longest first";
        let refused = [
            (r#"{"text": {"add_special_tokens": false}}"#, r#" is "add_special_tokens: false", supported: "#),
            (
                r#"{"common": {"truncation": "only_first"}}"#,
                r#" is "truncation: \"only_first\"", supported: "#,
            ),
            (r#"{"text": {"stride": 3}}"#, r#" is "stride: 3", supported: "#),
            (r#"{"text": {"logits_to_keep": -1}}"#, r#" is "logits_to_keep: -1", supported: "#),
        ];
        for (kwargs, why) in refused {
            let expected = format!("sentence_bert_config.json: processing_kwargs{why}{supported}");
            assert_eq!(limit(kwargs).unwrap_err(), expected);
        }
        let zero = "sentence_bert_config.json: processing_kwargs: max_length is 0, expected at least 1";
        assert_eq!(limit(r#"{"text": {"max_length": 0}}"#).unwrap_err(), zero);
        let many = limit(r#"{"text": {"max_length": "many"}}"#).unwrap_err();
        assert!(many.starts_with("sentence_bert_config.json: processing_kwargs: "), "{many}");
    }

    /// The tokenizer is loaded with these. Under the earlier name, versions of the library differ in what counts
    /// besides `max_seq_length`.
    #[test]
    fn a_limit_may_be_what_the_tokenizer_is_loaded_with() {
        let limit = |fields: &str| {
            let own = format!("{{{fields}}}");
            let tokenizer = ("tokenizer_config.json", r#"{"model_max_length": 256}"#);
            open(&[("sentence_bert_config.json", own.as_str()), tokenizer])
                .map(|modules| modules.inputs.length_limits.most())
        };
        for field in inputs::TOKENIZER_ARGUMENTS {
            let cases = [
                ("", 64, 64),
                ("", 512, 512),
                (r#""max_seq_length": 300, "#, 64, 64),
                (r#""max_seq_length": 300, "#, 512, if field == "tokenizer_args" { 300 } else { 512 }),
                (r#""processing_kwargs": {"text": {"max_length": 128}}, "#, 64, 128),
            ];
            for (others, tokens, expected) in cases {
                let fields = format!(r#"{others}"{field}": {{"model_max_length": {tokens}}}"#);
                assert_eq!(limit(&fields), Ok(Some(expected)), "{fields}");
            }
            let nothing = ["null", "{}", r#"{"model_max_length": null}"#];
            for same in nothing.into_iter().chain([r#"{"use_fast": true, "truncation_side": "right"}"#]) {
                assert_eq!(limit(&format!(r#""{field}": {same}"#)), Ok(Some(256)), "{field}: {same}");
            }
            let none = limit(&format!(r#""{field}": {{"model_max_length": 1e30}}"#)).unwrap();
            assert!(none.is_some_and(|tokens| tokens > 1 << 60), "{none:?}");
            let zero = limit(&format!(r#""{field}": {{"model_max_length": 0}}"#)).unwrap_err();
            let expected = "model_max_length is 0, expected at least 1";
            assert_eq!(zero, format!("sentence_bert_config.json: {field}: {expected}"));
        }
        let both =
            r#""tokenizer_args": {"model_max_length": 64}, "processor_kwargs": {"model_max_length": 32}"#;
        assert_eq!(limit(both), Ok(Some(64)));
    }

    #[test]
    fn what_the_parts_are_loaded_with_must_change_nothing() {
        let open_with = |field: &str, arguments: &str| {
            let own = format!(r#"{{"{field}": {arguments}}}"#);
            open(&[("sentence_bert_config.json", own.as_str())])
        };
        let harmless = r#"{"add_pooling_layer": false, "torch_dtype": "float16", "attn_implementation": "sdpa",
            "trust_remote_code": true, "revision": "main", "cache_dir": null, "unpad_inputs": true}"#;
        for field in inputs::TOKENIZER_ARGUMENTS.into_iter().chain(inputs::OTHER_ARGUMENTS) {
            assert_eq!(open_with(field, harmless), Ok(SentenceModules::default()), "{field}");
        }
        let refused = [
            ("model_args", r#"{"rotary_scaling_factor": 2}"#, "rotary_scaling_factor: 2"),
            ("model_kwargs", r#"{"model_max_length": 64}"#, "model_max_length: 64"),
            ("config_args", r#"{"is_decoder": true}"#, "is_decoder: true"),
            ("config_kwargs", r#"{"num_labels": 3}"#, "num_labels: 3"),
            ("tokenizer_args", r#"{"truncation_side": "top"}"#, r#"truncation_side: \"top\""#),
            ("model_args", r#"{"truncation_side": "left"}"#, r#"truncation_side: \"left\""#),
            ("processor_kwargs", r#"{"do_lower_case": true}"#, "do_lower_case: true"),
        ];
        for (field, arguments, why) in refused {
            let error = open_with(field, arguments).unwrap_err();
            let expected = format!(r#"sentence_bert_config.json: {field} is "{why}", supported: "#);
            assert!(error.starts_with(&expected), "{error}");
        }
        let error = open_with("model_args", "3").unwrap_err();
        assert!(error.starts_with("sentence_bert_config.json: model_args: invalid type"), "{error}");
    }

    #[test]
    fn where_texts_are_cut_may_be_what_the_tokenizer_is_loaded_with() {
        let cut = |fields: &str| {
            let own = format!("{{{fields}}}");
            open(&[("sentence_distilbert_config.json", own.as_str())]).unwrap().inputs.cut
        };
        let said = |field, is_left| Some(CutSide { file: "sentence_distilbert_config.json", field, is_left });
        for field in inputs::TOKENIZER_ARGUMENTS {
            for (side, is_left) in [("left", true), ("right", false)] {
                let fields = format!(r#""{field}": {{"truncation_side": "{side}"}}"#);
                assert_eq!(cut(&fields), said(field, is_left), "{fields}");
            }
        }
        let [left, right] = ["left", "right"].map(|side| format!(r#"{{"truncation_side": "{side}"}}"#));
        let both = format!(r#""processor_kwargs": {left}, "tokenizer_args": {right}"#);
        assert_eq!(cut(&both), said("tokenizer_args", false), "the earlier name counts, as of limits");
        assert_eq!(cut(r#""tokenizer_args": {"use_fast": true}"#), None);
    }

    /// Queries for models that keep the vector of each token.
    #[test]
    fn queries_are_not_expanded() {
        let open_with =
            |fields: &str| open(&[("sentence_bert_config.json", format!("{{{fields}}}").as_str())]);
        let refused = open_with(r#""query_expansion": {"strategy": "fixed", "length": 32}"#).unwrap_err();
        let value = r#"{\"length\":32,\"strategy\":\"fixed\"}"#;
        let expected = format!(r#"sentence_bert_config.json: query_expansion is "{value}", supported: null"#);
        assert_eq!(refused, expected);
        assert_eq!(open_with(r#""query_expansion": null"#), Ok(SentenceModules::default()));
        let inputs = open_with(r#""query_length": 32, "document_length": 180"#).unwrap().inputs;
        assert_eq!(
            (inputs.query_length, inputs.document_length, inputs.length_limits.most()),
            (Some(32), Some(180), None)
        );
    }

    /// What was once the class of the module is now a field beside it.
    #[test]
    fn the_encoder_s_task_is_told_by_its_file() {
        let modules = |classes: &[&str], task: &str| {
            let task = format!(r#"{{"transformer_task": "{task}"}}"#);
            open_list(classes, &[("sentence_bert_config.json", task.as_str())])
        };
        assert!(modules(&["Transformer", "SpladePooling"], "fill-mask").unwrap().splade);
        let cross_encoder = modules(&["Transformer"], "sequence-classification").unwrap();
        assert_eq!((cross_encoder.pooling, cross_encoder.splade), (None, false));
        let error = modules(&["Transformer", "Pooling"], "fill-mask").unwrap_err();
        assert!(error.contains("Pooling is out of order"), "{error}");
        let error = modules(&["Transformer", "Pooling"], "text-generation").unwrap_err();
        assert!(error.contains("Pooling is out of order, expected LogitScore behind"), "{error}");
        let error = modules(&["Transformer"], "any-to-any").unwrap_err();
        assert!(error.contains("transformer_task is \"any-to-any\", supported: feature"), "{error}");
    }

    /// A reranker that is a language model: it gets pairs as messages, and its next token is the score.
    #[test]
    fn a_score_is_that_of_the_next_token() {
        let open_score = |kinds: &str, kwargs: &str, config: &str| {
            let own = format!(
                r#"{{"transformer_task": "text-generation", "modality_config": {kinds}, "processing_kwargs": {kwargs}}}"#
            );
            let files = [("sentence_bert_config.json", own.as_str()), ("LogitScore/config.json", config)];
            open_list(&["Transformer", "LogitScore"], &files)
        };
        let both = r#"{"text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"}}"#;
        let kwargs = r#"{"chat_template": {"add_generation_prompt": true, "restore_suffix": true, "padding": true,
            "enable_thinking": false}}"#;
        let two = r#"{"true_token_id": 9, "false_token_id": 4, "module_input_name": "causal_logits"}"#;
        let modules = open_score(both, kwargs, two).unwrap();
        assert_eq!(modules.score, Some(LogitScore { true_token_id: 9, false_token_id: Some(4) }));
        let variables = modules.inputs.messages.unwrap().variables;
        let expected = serde_json::json!({ "add_generation_prompt": true, "enable_thinking": false });
        assert_eq!(serde_json::Value::Object(variables), expected);
        let text = r#"{"text": {"method": "forward", "method_output_name": "logits"}}"#;
        let modules = open_score(text, kwargs, r#"{"true_token_id": 9, "false_token_id": null}"#).unwrap();
        assert_eq!(modules.score, Some(LogitScore { true_token_id: 9, false_token_id: None }));
        assert_eq!(modules.inputs.messages, None);

        let structured = both.replace("flat", "structured");
        let no_format = both.replace(r#", "format": "flat""#, "");
        let refused = [
            (both, kwargs, "{}", "LogitScore/config.json: true_token_id: is missing"),
            (both, kwargs, r#"{"true_token_id": -1}"#, "LogitScore/config.json: true_token_id: "),
            (
                both,
                kwargs,
                r#"{"true_token_id": 9, "module_input_name": "scores"}"#,
                "LogitScore/config.json: module_input_name is \"scores\", supported: causal_logits",
            ),
            (&structured, kwargs, two, "modality_config is \"format: structured\", supported: flat"),
            (&no_format, kwargs, two, "modality_config is \"format: null\", supported: flat"),
            (
                both,
                r#"{"chat_template": {"sanitize_control_tokens": true}}"#,
                two,
                "sanitize_control_tokens: true\", supported: sanitize_control_tokens: false",
            ),
            (
                both,
                r#"{"chat_template": {"max_length": 9}}"#,
                two,
                "\"chat_template: max_length: 9\", supported: ",
            ),
            (both, r#"{"chat_template": {"restore_suffix": false}}"#, two, "supported: restore_suffix: true"),
        ];
        for (kinds, kwargs, config, why) in refused {
            let error = open_score(kinds, kwargs, config).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let alone = open_list(&["Transformer", "LogitScore"], &[]).unwrap_err();
        assert!(alone.contains("LogitScore is out of order"), "{alone}");
    }

    /// If the library can write texts as messages, it does so, with the tokenizer's chat template.
    #[test]
    fn texts_are_given_to_the_encoder_as_they_are() {
        let open_kinds = |task: &str, kinds: &str| {
            let own = format!(r#"{{"transformer_task": "{task}", "modality_config": {kinds}}}"#);
            open(&[("sentence_bert_config.json", own.as_str())]).map(|modules| modules.inputs.gives)
        };
        let text = |method: &str, output: &str| {
            format!(r#"{{"text": {{"method": "{method}", "method_output_name": {output}}}}}"#)
        };
        let sound = [
            ("feature-extraction", text("forward", r#""last_hidden_state""#), EncoderGives::Vectors),
            ("sequence-classification", text("forward", r#""logits""#), EncoderGives::Vectors),
            ("fill-mask", text("forward", r#""logits""#), EncoderGives::WordLogits),
            ("feature-extraction", text("forward", "null"), EncoderGives::Vectors),
            (
                "feature-extraction",
                r#"{"text": {}, "image+text": {"method": "x"}}"#.to_owned(),
                EncoderGives::Vectors,
            ),
        ];
        for (task, kinds, expected) in sound {
            assert_eq!(open_kinds(task, &kinds), Ok(expected), "{task}: {kinds}");
        }
        let message = r#"{"text": {"method": "forward", "method_output_name": "last_hidden_state"},
            "message": {"method": "forward", "method_output_name": "last_hidden_state", "format": "flat"}}"#;
        let refused = [
            ("feature-extraction", message.to_owned(), r#""message", supported: text"#),
            (
                "feature-extraction",
                text("get_text_features", r#""pooler_output""#),
                r#""method: get_text_features", supported: forward"#,
            ),
            (
                "feature-extraction",
                text("forward", r#""logits""#),
                r#""method_output_name: \"logits\"", supported: last_hidden_state"#,
            ),
            (
                "fill-mask",
                text("forward", r#"["hidden_states", "3"]"#),
                r#""method_output_name: [\"hidden_states\",\"3\"]", supported: logits"#,
            ),
        ];
        for (task, kinds, why) in refused {
            let expected = format!("sentence_bert_config.json: modality_config is {why}");
            assert_eq!(open_kinds(task, &kinds).unwrap_err(), expected);
        }
    }

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
    fn dense_modules_are_read_in_order() {
        let second = r#"{"in_features": 4, "out_features": 6}"#;
        let files = [("Dense/config.json", DENSE), ("Other.Dense/config.json", second)];
        let modules =
            open_list(&["Transformer", "Pooling", "Dense", "Other.Dense", "Dropout", "Normalize"], &files)
                .unwrap();
        let identity =
            Dense { path: "Dense".into(), in_features: 8, out_features: 4, bias: false, activation: None };
        let default = Dense {
            path: "Other.Dense".into(),
            in_features: 4,
            out_features: 6,
            bias: true,
            activation: Some(Activation::Tanh),
        };
        assert_eq!((modules.dense, modules.normalize), (vec![identity, default], true));
        let wider = open_list(&["Transformer", "Pooling", "Dense", "Dense"], &files).unwrap_err();
        assert_eq!(wider, "modules.json: type: Dense takes 8 features, the one before gives 4");
    }

    #[test]
    fn sparse_encoders_are_known() {
        let config = r#"{"pooling_strategy": "max", "activation_function": "relu"}"#;
        let splade = ["MLMTransformer", "SpladePooling"];
        assert!(open_list(&splade, &[("SpladePooling/config.json", config)]).unwrap().splade);
        assert!(open_list(&splade, &[]).unwrap().splade);
        let sum = open_list(&splade, &[("SpladePooling/config.json", r#"{"pooling_strategy": "sum"}"#)]);
        assert_eq!(
            sum.unwrap_err(),
            r#"SpladePooling/config.json: pooling_strategy is "sum", supported: max"#
        );
    }

    #[test]
    fn prompts_are_read() {
        let read = |config: &str| open(&[("config_sentence_transformers.json", config)]).map(|it| it.prompts);
        let both = r#"{"prompts": {"query": "search: ", "document": "", "none": null}, "default_prompt_name": "query"}"#;
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
    fn classes_that_are_not_the_library_s_own_are_told_of() {
        let warnings = |class: &str| {
            let list = format!(r#"[{{"path": "", "type": "{class}"}}]"#);
            open(&[("modules.json", list.as_str())]).unwrap().warnings
        };
        let own = "sentence_transformers.base.modules.transformer.Transformer";
        for own in ["Transformer", "sentence_transformers.models.Transformer", own] {
            assert_eq!(warnings(own), [""; 0], "{own}");
        }
        let others = [
            ("custom_st.Transformer", "custom_st.Transformer"),
            (r"two\nlines.Transformer", "two lines.Transformer"),
        ];
        for (class, named) in others {
            let why = "whose code is not run: the library's Transformer is taken for it";
            assert_eq!(warnings(class), [format!("modules.json: type is {named}, {why}")]);
        }
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        let supported = "supported: one of cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken";
        let cases = [
            (r#"{"pooling_mode": "attention"}"#, "attention"),
            (r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#, "max and mean"),
            (r#"{"pooling_mode": ["cls", "mean"]}"#, "cls and mean"),
        ];
        for (config, mode) in cases {
            let expected = format!("Pooling/config.json: pooling_mode is {mode:?}, {supported}");
            assert_eq!(open_pooling(config).unwrap_err(), expected);
        }
        let without = open_pooling(r#"{"pooling_mode": "mean", "include_prompt": false}"#).unwrap_err();
        assert_eq!(without, r#"Pooling/config.json: include_prompt is "false", supported: true"#);
        let unknown = open_list(&["WordWeights"], &[]).unwrap_err();
        let classes = list::CLASSES.join(", ");
        assert_eq!(unknown, format!(r#"modules.json: type is "WordWeights", supported: {classes}"#));
        let outside = r#"[{"path": "", "type": "Transformer"}, {"path": "../1_Pooling", "type": "Pooling"}]"#;
        let expected = r#"modules.json: path is "../1_Pooling", supported: a folder in this one"#;
        assert_eq!(open(&[("modules.json", outside)]).unwrap_err(), expected);
    }

    #[test]
    fn a_normalize_of_something_else_is_named() {
        let normalize = |config: &str| {
            open_list(&["Transformer", "Pooling", "Normalize"], &[("Normalize/config.json", config)])
        };
        assert!(normalize(r#"{"module_input_name": "sentence_embedding"}"#).unwrap().normalize);
        let tokens = normalize(r#"{"module_input_name": "token_embeddings"}"#).unwrap_err();
        let expected = r#"Normalize/config.json: module_input_name is "token_embeddings", supported: sentence_embedding"#;
        assert_eq!(tokens, expected);
    }

    #[test]
    fn what_the_library_would_cut_off_is_told() {
        let warnings =
            |library: &str| open(&[("config_sentence_transformers.json", library)]).unwrap().warnings;
        assert_eq!(warnings(r#"{"truncate_dim": null, "max_active_dims": null}"#), [""; 0]);
        let vector = "config_sentence_transformers.json: truncate_dim is 4, which is not done here: ask for as many values \
                      with `dimensions`";
        assert_eq!(warnings(r#"{"truncate_dim": 4}"#), [vector]);
        let weights = "config_sentence_transformers.json: max_active_dims is 20, which is not done here: rows have every \
                       weight that is not zero";
        assert_eq!(warnings(r#"{"max_active_dims": 20}"#), [weights]);
    }

    #[test]
    fn broken_dense_modules_are_named() {
        let open_dense = |config: &str| {
            open_list(&["Transformer", "Pooling", "Dense"], &[("Dense/config.json", config)]).unwrap_err()
        };
        let cases = [
            (r#"{"out_features": 4}"#, "Dense/config.json: in_features: is missing"),
            (
                r#"{"in_features": 4, "out_features": 0}"#,
                "Dense/config.json: out_features: is 0, expected at least 1",
            ),
            (
                r#"{"in_features": 4, "out_features": 4, "activation_function": "torch.nn.Mish"}"#,
                r#"Dense/config.json: activation_function is "torch.nn.Mish", supported: GELU, Identity, ReLU, Sigmoid, SiLU, Tanh"#,
            ),
            (
                r#"{"in_features": 4, "out_features": 4, "module_input_name": "token_embeddings"}"#,
                r#"Dense/config.json: module_input_name is "token_embeddings", supported: sentence_embedding"#,
            ),
            (
                r#"{"in_features": 4, "out_features": 4, "use_residual": true}"#,
                r#"Dense/config.json: use_residual is "true", supported: false"#,
            ),
        ];
        for (config, expected) in cases {
            assert_eq!(open_dense(config), expected);
        }
        let missing = open_list(&["Transformer", "Pooling", "Dense"], &[]).unwrap_err();
        assert_eq!(missing, "Dense/config.json: there is no such file");
    }

    #[test]
    fn modules_out_of_order_are_named() {
        let cases: [(&[&str], &str); 7] = [
            (&["Pooling"], "Pooling is out of order, expected Transformer or MLMTransformer first"),
            (&["Transformer", "Dense"], "Dense is out of order, expected Pooling behind Transformer"),
            (
                &["Transformer", "Transformer"],
                "Transformer is out of order, expected Pooling behind Transformer",
            ),
            (
                &["Transformer", "Pooling", "Pooling"],
                "Pooling is out of order, expected Dense, Normalize or FlexibleQuantizer behind Pooling and Dense",
            ),
            (
                &["Transformer", "Pooling", "Normalize", "Dense"],
                "Dense is out of order, expected nothing behind Normalize",
            ),
            (
                &["MLMTransformer", "Pooling"],
                "Pooling is out of order, expected SpladePooling behind the logits of words",
            ),
            (&["MLMTransformer"], "the list ends, expected SpladePooling behind the logits of words"),
        ];
        for (classes, why) in cases {
            assert_eq!(open_list(classes, &[]).unwrap_err(), format!("modules.json: type: {why}"));
        }
    }

    /// Parts of the files, valid and not.
    fn json() -> impl Strategy<Value = String> {
        let words = [
            "path",
            "type",
            "Transformer",
            "Pooling",
            "Dense",
            "Normalize",
            "MLMTransformer",
            "SpladePooling",
            "in_features",
            "out_features",
            "bias",
            "activation_function",
            "pooling_mode",
            "pooling_mode_mean_tokens",
            "include_prompt",
            "prompts",
            "default_prompt_name",
            "max_seq_length",
            "model_args",
            "tokenizer_args",
            "model_max_length",
            "mean",
            "",
            "..",
            "\u{0}",
            "a\nb",
        ];
        let leaf = prop_oneof![
            prop::sample::select(words.to_vec()).prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            (0_u32..9).prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
        ];
        let value = leaf.prop_recursive(3, 24, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map(prop::sample::select(words.to_vec()), inner, 0..6).prop_map(
                    |fields| { fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
                ),
            ]
        });
        (value, 0_usize..400).prop_map(|(value, cut)| {
            let text = value.to_string();
            let cut = text.floor_char_boundary(cut.min(text.len()));
            if cut % 3 == 0 { text[..cut].to_owned() } else { text }
        })
    }

    proptest! {
        /// Whatever the files hold, the result is modules or an error of one line.
        #[test]
        fn no_file_makes_it_panic(list in json(), pooling in json(), dense in json(), limits in json(), prompts in json()) {
            let sound = self::list(&["Transformer", "Pooling", "Dense"]);
            for list in [&list, &sound] {
                let opened = open(&[
                    ("modules.json", list),
                    ("Pooling/config.json", &pooling),
                    ("Dense/config.json", &dense),
                    ("sentence_bert_config.json", &limits),
                    ("config_sentence_transformers.json", &prompts),
                ]);
                if let Err(error) = opened {
                    prop_assert_eq!(error.lines().count(), 1, "{}", error);
                }
            }
        }
    }
}
