//! The modules of `modules.json`, in their order, and the files of each.

use turbo_graph::{Activation, Pooling};

use super::{open, open_list};
use crate::modules::{Dense, LogitScore, SentenceModules, list};

fn open_pooling(config: &str) -> Result<SentenceModules, String> {
    open_list(&["Transformer", "Pooling", "Normalize"], &[("Pooling/config.json", config)])
}

const DENSE: &str = r#"{"in_features": 8, "out_features": 4, "bias": false,
    "activation_function": "torch.nn.modules.linear.Identity"}"#;

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
    assert_eq!(sum.unwrap_err(), r#"SpladePooling/config.json: pooling_strategy is "sum", supported: max"#);
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
    let expected =
        r#"Normalize/config.json: module_input_name is "token_embeddings", supported: sentence_embedding"#;
    assert_eq!(tokens, expected);
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
        (&["Transformer", "Transformer"], "Transformer is out of order, expected Pooling behind Transformer"),
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
