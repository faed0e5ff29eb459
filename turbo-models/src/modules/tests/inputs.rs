//! What the library's file and the tokenizer's say of the encoder.

use super::{open, open_list};
use crate::modules::{
    CutSide, SentenceModules,
    inputs::{EncoderGives, FILES, OTHER_ARGUMENTS, TOKENIZER_ARGUMENTS},
};

#[test]
fn the_length_limit_is_read_under_each_of_its_names() {
    for name in FILES {
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
    let own =
        r#"{"transformer_task": "feature-extraction", "processing_kwargs": {"text": {"max_length": 256}}}"#;
    let modules = open(&[("sentence_bert_config.json", own)]).unwrap();
    assert_eq!(modules.inputs.length_limits.most(), Some(256));
    let cases = [
        (r#"{"common": {"max_length": 64}}"#, 64),
        (r#"{"common": {"max_length": 64}, "text": {"max_length": 512}}"#, 512),
        (r#"{"common": {"max_length": 64}, "text": {"max_length": null}}"#, 300),
        (r#"{"text": {"padding": "longest", "truncation": true, "add_special_tokens": true}}"#, 300),
        (r#"{"common": {"return_tensors": "pt", "truncation": "longest_first"}, "image": {"size": 9}}"#, 300),
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
        (r#"{"common": {"truncation": "only_first"}}"#, r#" is "truncation: \"only_first\"", supported: "#),
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
    for field in TOKENIZER_ARGUMENTS {
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
    let both = r#""tokenizer_args": {"model_max_length": 64}, "processor_kwargs": {"model_max_length": 32}"#;
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
    for field in TOKENIZER_ARGUMENTS.into_iter().chain(OTHER_ARGUMENTS) {
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
    for field in TOKENIZER_ARGUMENTS {
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
    let open_with = |fields: &str| open(&[("sentence_bert_config.json", format!("{{{fields}}}").as_str())]);
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
