//! Fields that say how positions rotate and how far a layer sees: the same model in other fields, and fields that
//! contradict each other.

use std::path::Path;

use serde_json::{Value, json};
use turbo_models::{Checkpoint, Encoded, EncoderOptions, Pooling};

use crate::{
    common::{data, encoder},
    copies::{copy, error, set},
};

#[test]
fn ways_to_stretch_positions_that_are_not_drawn_are_refused() {
    let cases = [
        (
            "qwen3-base",
            json!({"rope_type": "yarn", "factor": 4.0}),
            r#"rope_scaling is "yarn", supported: default, linear, llama3"#,
        ),
        ("qwen2-base", json!({"type": "linear"}), r#"rope_scaling: is "linear" without factor"#),
        (
            "mistral-base",
            json!({"type": "linear", "factor": 0.0}),
            "rope_scaling: its factor is 0, expected more than 0",
        ),
        (
            "llama-base",
            json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }),
            "rope_scaling: its high_freq_factor is 4, expected more than low_freq_factor 4",
        ),
        (
            "llama-base",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
            r#"rope_scaling: is "llama3" without original_max_position_embeddings"#,
        ),
        (
            "gte-base",
            json!({"type": "dynamic", "factor": 2.0}),
            r#"rope_scaling is "dynamic by 2", supported: default, ntk by a factor of at least 1"#,
        ),
        (
            "gte-base",
            json!({"type": "ntk", "factor": 0.5}),
            r#"rope_scaling is "ntk by 0.5", supported: default, ntk by a factor of at least 1"#,
        ),
        (
            "gte-base",
            json!({"type": "ntk"}),
            r#"rope_scaling is "ntk without factor", supported: default, ntk by a factor of at least 1"#,
        ),
        (
            "gte-base",
            json!({"type": "ntk", "factor": 2.0, "mixed_b": 0.3}),
            r#"rope_scaling is "ntk with mixed_b 0.3", supported: ntk without mixed_b"#,
        ),
        (
            "qwen3-base",
            json!({"rope_type": "default", "rope_theta": 5}),
            "rope_scaling: its rope_theta is 5, expected 1000000 as in rope_theta",
        ),
        (
            "qwen3-base",
            json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5}),
            "rope_scaling: its rope_theta is 5, expected 1000000 as in rope_theta",
        ),
    ];
    for (fixture, scaling, why) in cases {
        let folder = copy(fixture);
        set(&folder.path().join("config.json"), "rope_scaling", scaling);
        assert_eq!(error(folder.path()), format!("config.json: {why}"));
    }
    let folder = copy("gemma3-base");
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    set(&folder.path().join("config.json"), "rope_scaling", linear);
    assert_eq!(error(folder.path()), r#"config.json: rope_scaling is "linear", supported: default"#);
    let folder = copy("qwen3-base");
    let yarn = json!({"rope_type": "yarn", "rope_theta": 1e6});
    set(&folder.path().join("config.json"), "rope_parameters", yarn);
    let refused = r#"config.json: rope_parameters is "yarn", supported: default, linear, llama3"#;
    assert_eq!(error(folder.path()), refused);
    set(&folder.path().join("config.json"), "rope_parameters", json!({"rope_type": "linear", "factor": 2.0}));
    set(&folder.path().join("config.json"), "rope_scaling", json!({"rope_type": "linear", "factor": 4.0}));
    let refused = "config.json: rope_scaling: does not stretch positions as rope_parameters does";
    assert_eq!(error(folder.path()), refused);
    set(&folder.path().join("config.json"), "rope_scaling", json!({"rope_type": "default"}));
    assert_eq!(error(folder.path()), refused);
    // an empty object says nothing
    set(&folder.path().join("config.json"), "rope_scaling", json!({}));
    Checkpoint::open(folder.path()).unwrap();
    set(&folder.path().join("config.json"), "rope_parameters", Value::Null);
    for same in [json!({"rope_type": "default"}), json!({"rope_type": "default", "type": "default"})] {
        set(&folder.path().join("config.json"), "rope_scaling", same);
        Checkpoint::open(folder.path()).unwrap();
    }
    set(&folder.path().join("config.json"), "max_position_embeddings", json!(u32::MAX));
    let absurd = "config.json: max_position_embeddings: is 4294967295, expected at most 262144";
    assert_eq!(error(folder.path()), absurd);
    set(&folder.path().join("config.json"), "head_dim", json!(u32::MAX));
    let absurd = "config.json: head_dim: makes heads of 4294967295 columns, expected an even number";
    assert_eq!(error(folder.path()), absurd);
    set(&folder.path().join("config.json"), "head_dim", json!(u32::MAX - 1));
    let absurd = "config.json: head_dim: makes heads of 4294967294 columns, expected at most 4096";
    assert_eq!(error(folder.path()), absurd);
    set(&folder.path().join("config.json"), "head_dim", json!(4096));
    set(&folder.path().join("config.json"), "max_position_embeddings", json!(1 << 18));
    let absurd =
        "config.json: max_position_embeddings: is 262144, expected at most 16384 for heads of 4096 columns";
    assert_eq!(error(folder.path()), absurd);
    set(&folder.path().join("config.json"), "rope_theta", json!(0));
    assert_eq!(error(folder.path()), "config.json: rope_theta: is 0, expected more than 0");
}

/// Version 5 of the reference takes everything from the earlier field if that says anything; version 4 does not know
/// the other field.
#[test]
fn two_fields_that_turn_positions_otherwise_are_refused() {
    let default = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    let linear = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6});
    let ntk = |factor: f64| json!({"rope_type": "ntk", "factor": factor, "rope_theta": 5e5});
    let other_base = |theta: &str| {
        format!(
            "rope_parameters: its rope_theta is 77, expected {theta} as beside rope_scaling, which counts before it"
        )
    };
    let other_stretch = || "rope_scaling: does not stretch positions as rope_parameters does".to_owned();
    let cases = [
        ("qwen3-base", default(77.0), json!({"rope_type": "default"}), other_base("1000000")),
        ("qwen3-base", default(77.0), json!({"type": "linear", "factor": 2.0}), other_base("1000000")),
        ("gte-base", default(77.0), json!({"type": "ntk", "factor": 2.0}), other_base("500000")),
        ("qwen3-base", linear.clone(), json!({"rope_theta": 1e6}), other_stretch()),
        ("qwen3-base", linear.clone(), json!({"factor": 5.0}), other_stretch()),
        ("gte-base", ntk(4.0), json!({"type": "ntk", "factor": 2.0}), other_stretch()),
        ("gte-base", ntk(4.0), json!({"type": "default"}), other_stretch()),
    ];
    for (fixture, later, earlier, why) in cases {
        let folder = copy(fixture);
        let file = folder.path().join("config.json");
        set(&file, "rope_parameters", later);
        set(&file, "rope_scaling", earlier);
        assert_eq!(error(folder.path()), format!("config.json: {why}"));
    }
    let alike = [
        ("qwen3-base", default(1e6), json!({"rope_type": "default"})),
        ("qwen3-base", default(1e6), default(1e6)),
        ("gte-base", ntk(2.0), json!({"type": "ntk", "factor": 2.0})),
        ("gte-base", default(5e5), json!({"type": "ntk", "factor": 2.0})),
    ];
    for (fixture, later, earlier) in alike {
        let folder = copy(fixture);
        let file = folder.path().join("config.json");
        set(&file, "rope_parameters", later);
        set(&file, "rope_scaling", earlier);
        assert!(hidden_states(folder.path()) == hidden_states(&data(fixture)), "{fixture}");
    }
}

/// The reference takes the one that stands by itself.
#[test]
fn lengths_of_the_first_training_that_differ_are_refused() {
    let folder = copy("llama-base");
    let file = folder.path().join("config.json");
    set(&file, "original_max_position_embeddings", json!(50));
    let why = "original_max_position_embeddings: is 50, expected 100 as in rope_scaling";
    assert_eq!(error(folder.path()), format!("config.json: {why}"));
    set(&file, "original_max_position_embeddings", json!(100));
    assert!(hidden_states(folder.path()) == hidden_states(&data("llama-base")));
}

/// Other names for what ModernBERT's own fields say; the reference takes the value under the other name.
#[test]
fn modernbert_s_window_and_speeds_may_not_contradict_each_other() {
    let folder = copy("modernbert-base");
    let file = folder.path().join("config.json");
    set(&file, "sliding_window", json!(5));
    let why = "sliding_window: is 5, expected 4, half of local_attention";
    assert_eq!(error(folder.path()), format!("config.json: {why}"));
    for same in [json!(4), Value::Null] {
        set(&file, "sliding_window", same);
        assert!(hidden_states(folder.path()) == hidden_states(&data("modernbert-base")));
    }
    set(&file, "rope_scaling", json!({"rope_type": "default", "rope_theta": 160_000.0}));
    let why = "rope_scaling: its rope_theta is 160000, which counts before those of both kinds of layers, 160000 and 10000";
    assert_eq!(error(folder.path()), format!("config.json: {why}"));
    set(&file, "local_rope_theta", json!(160_000.0));
    Checkpoint::open(folder.path()).unwrap();
}

/// In models with two kinds of layers, the reference never reads a speed that belongs to neither kind.
#[test]
fn parameters_of_no_kind_of_layers_are_refused() {
    let kinds =
        || json!({"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}});
    let mut beside = kinds();
    beside["rope_theta"] = json!(5.0);
    let flat = json!({"rope_type": "default", "rope_theta": 5.0});
    for fixture in ["modernbert-base", "gemma3-base"] {
        let folder = copy(fixture);
        let file = folder.path().join("config.json");
        for (parameters, field) in [(&flat, "rope_theta"), (&beside, "rope_theta")] {
            set(&file, "rope_parameters", parameters.clone());
            let why = format!(
                "rope_parameters: has {field} outside of both kinds of layers, expected it in full_attention and \
                 sliding_attention"
            );
            assert_eq!(error(folder.path()), format!("config.json: {why}"), "{fixture}");
        }
        set(&file, "rope_parameters", kinds());
        assert!(hidden_states(folder.path()) == hidden_states(&data(fixture)), "{fixture}");
    }
}

/// The reference takes this one field for all layers, of whatever kind.
#[test]
fn scaling_of_models_with_two_kinds_of_layers_says_nothing() {
    for fixture in ["modernbert-base", "gemma3-base"] {
        let folder = copy(fixture);
        let file = folder.path().join("config.json");
        for nothing in [json!({}), json!({"rope_type": "default"}), json!({"type": "default"}), Value::Null] {
            set(&file, "rope_scaling", nothing);
            assert!(hidden_states(folder.path()) == hidden_states(&data(fixture)), "{fixture}");
        }
        set(&file, "rope_scaling", json!({"full_attention": {"rope_type": "default", "rope_theta": 5.0}}));
        let why = r#"rope_scaling: has full_attention, expected rope_type "default" for layers of all kinds"#;
        assert_eq!(error(folder.path()), format!("config.json: {why}"), "{fixture}");
    }
}

/// Factors in files of the library's class are results, which need not be at least 1; the models' own code knows none
/// of these factors.
#[test]
fn gte_is_stretched_by_a_factor_in_files_of_the_library() {
    let folder = copy("gte-base");
    let file = folder.path().join("config.json");
    set(&file, "rope_scaling", json!({"type": "linear", "factor": 2.0}));
    let why = r#"rope_scaling is "linear by 2", supported: default, ntk by a factor of at least 1"#;
    assert_eq!(error(folder.path()), format!("config.json: {why}"));
    set(&file, "model_type", json!("gte"));
    Checkpoint::open(folder.path()).unwrap();
    set(&file, "rope_scaling", json!({"type": "linear", "factor": 0.0}));
    let why = r#"rope_scaling is "linear by 0", supported: default, linear, ntk by a factor of at least 1"#;
    assert_eq!(error(folder.path()), format!("config.json: {why}"));
}

/// If the file says nothing, the reference's class and the models' own code differ.
#[test]
fn gte_turns_by_another_base_under_each_name() {
    for (model_type, theta) in [("new", 10_000.0), ("gte", 160_000.0)] {
        let folder = copy("gte-base");
        let file = folder.path().join("config.json");
        set(&file, "model_type", json!(model_type));
        set(&file, "rope_theta", Value::Null);
        let silent = hidden_states(folder.path());
        set(&file, "rope_theta", json!(theta));
        assert!(silent == hidden_states(folder.path()), "{model_type}");
    }
}

/// The hidden states of one input.
fn hidden_states(folder: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EncoderOptions { task: Pooling::Cls.into(), ..EncoderOptions::of(&checkpoint) };
    let mut encoder = encoder(&checkpoint, options).unwrap();
    let input = Encoded { input_ids: (5..45).collect(), token_type_ids: Vec::new() };
    encoder.embed_batch(&[input]).unwrap();
    let mut rows = Vec::new();
    encoder.tokens(0, &mut rows).unwrap();
    rows
}

/// Later versions of the reference write the same model in other fields.
#[test]
fn configurations_of_later_versions_mean_the_same() {
    let defaults = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}
    });
    let types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"];
    let stretched = json!({"rope_type": "ntk", "type": "ntk", "factor": 2.0, "rope_theta": 500_000.0});
    let unmixed = json!({"type": "ntk", "factor": 2.0, "mixed_b": null});
    let llama = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 100, "rope_theta": 10_000.0
    });
    let own = [("rope_theta", Value::Null), ("rope_scaling", llama.clone())];
    let worked_out = json!({"rope_type": "linear", "factor": 2f64.powf(2.0 / 8.0), "rope_theta": 1e6});
    let cases: [(&str, &[(&str, Value)]); 9] = [
        ("llama-base", &own),
        (
            "llama-base",
            &[("rope_theta", Value::Null), ("rope_scaling", Value::Null), ("rope_parameters", llama)],
        ),
        ("gte-base", &[("rope_scaling", unmixed)]),
        (
            "gte-base",
            &[("rope_theta", Value::Null), ("rope_scaling", Value::Null), ("rope_parameters", stretched)],
        ),
        (
            "gte-base",
            &[
                ("model_type", json!("gte")),
                ("rope_theta", Value::Null),
                ("rope_scaling", Value::Null),
                ("rope_parameters", worked_out),
            ],
        ),
        (
            "modernbert-base",
            &[
                ("global_rope_theta", Value::Null),
                ("local_rope_theta", Value::Null),
                ("global_attn_every_n_layers", Value::Null),
                ("rope_parameters", defaults),
                ("layer_types", json!(types)),
            ],
        ),
        (
            "qwen3-base",
            &[
                ("rope_theta", Value::Null),
                ("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e6})),
            ],
        ),
        (
            "qwen3-base",
            &[
                ("rope_theta", Value::Null),
                ("rope_scaling", json!({"rope_type": "default", "rope_theta": 1e6})),
            ],
        ),
        ("qwen3-base", &[("rope_scaling", json!({"rope_type": "default", "rope_theta": 1e6}))]),
    ];
    for (fixture, fields) in cases {
        let (folder, old) = (copy(fixture), hidden_states(&data(fixture)));
        let file = folder.path().join("config.json");
        fields.iter().for_each(|(field, value)| set(&file, field, value.clone()));
        assert!(hidden_states(folder.path()) == old, "{fixture}");
    }
    let (folder, [theta, (field, mut scaling)]) = (copy("llama-base"), own);
    let file = folder.path().join("config.json");
    scaling["rope_theta"] = 5.into();
    set(&file, theta.0, theta.1);
    set(&file, field, scaling);
    assert!(hidden_states(folder.path()) != hidden_states(&data("llama-base")), "the speed beside it counts");
    let folder = copy("modernbert-base");
    let file = folder.path().join("config.json");
    set(&file, "local_rope_theta", json!(160_000.0));
    let turned = hidden_states(folder.path());
    set(&file, "local_rope_theta", Value::Null);
    assert!(hidden_states(folder.path()) == turned, "null is the global layers' base");
    set(&file, "layer_types", json!(types[1..]));
    assert_eq!(error(folder.path()), "config.json: layer_types: lists 3 of 4 layers");
    set(&file, "layer_types", json!(["x", "x", "x", "x"]));
    let other = r#"config.json: layer_types is "x", supported: full_attention, sliding_attention"#;
    assert_eq!(error(folder.path()), other);
}
