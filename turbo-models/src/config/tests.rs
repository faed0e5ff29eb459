//! Configurations of every family: published ones, defaults, and what is refused.

use turbo_graph::{Activation, Positions};

use super::ModelConfig;

fn open(config: &str) -> Result<ModelConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let opened = ModelConfig::open(dir.path()).map_err(|error| error.to_string());
    let prefix = format!("{}/", dir.path().display());
    opened.map(|(config, _)| config).map_err(|message| message.replace(&prefix, ""))
}

#[test]
fn defaults_are_those_of_bert_base() {
    let config = open(r#"{"model_type": "bert"}"#).unwrap();
    let expected = ModelConfig {
        model_type: "bert".to_owned(),
        vocab_size: 30522,
        embedding_size: 768,
        hidden_size: 768,
        num_hidden_layers: 12,
        num_attention_heads: 12,
        intermediate_size: 3072,
        hidden_act: Activation::GeluErf,
        max_position_embeddings: 512,
        positions: Positions::FromZero,
        type_vocab_size: 2,
        layer_norm_eps: 1e-12,
        torch_dtype: None,
        num_key_value_heads: 12,
        head_dim: 64,
        labels: config.labels.clone(),
        json: config.json.clone(),
    };
    assert_eq!(config, expected);
    assert_eq!(config.head_dim(), 64);
}

/// What a family changes in BERT's defaults, or reads under another name.
#[test]
fn families_have_their_own_fields_and_defaults() {
    let bert = |model_type: &str| {
        let config = open(&format!(r#"{{"model_type": "{model_type}"}}"#)).unwrap();
        let base = open(r#"{"model_type": "bert"}"#).unwrap();
        let base = ModelConfig { model_type: model_type.to_owned(), json: config.json.clone(), ..base };
        (config, base)
    };
    let positions = Positions::AfterPad { pad_id: 1 };
    let (roberta, base) = bert("roberta");
    assert_eq!(roberta, ModelConfig { vocab_size: 50265, positions, ..base });
    for model_type in ["xlm-roberta", "camembert"] {
        let (config, base) = bert(model_type);
        assert_eq!(config, ModelConfig { positions, ..base });
    }
    let (electra, base) = bert("electra");
    let narrow = ModelConfig { embedding_size: 128, hidden_size: 256, ..base };
    let narrow = ModelConfig { num_attention_heads: 4, num_key_value_heads: 4, ..narrow };
    assert_eq!(electra, ModelConfig { intermediate_size: 1024, ..narrow });
    let (albert, base) = bert("albert");
    let wide = ModelConfig { hidden_size: 4096, intermediate_size: 16384, ..base };
    let wide = ModelConfig { num_attention_heads: 64, num_key_value_heads: 64, ..wide };
    let wide = ModelConfig { hidden_act: Activation::GeluTanh, ..wide };
    assert_eq!(albert, ModelConfig { vocab_size: 30000, embedding_size: 128, ..wide });
    let (distilbert, base) = bert("distilbert");
    assert_eq!(distilbert, ModelConfig { num_hidden_layers: 6, type_vocab_size: 0, ..base });
    let named = r#"{"model_type": "distilbert", "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 40,
        "activation": "relu", "hidden_size": 24, "layer_norm_eps": 0.5, "type_vocab_size": 7}"#;
    let named = open(named).unwrap();
    let sizes = (named.hidden_size, named.num_hidden_layers, named.head_dim(), named.intermediate_size);
    assert_eq!(sizes, (24, 3, 6, 40));
    assert_eq!((named.hidden_act, named.layer_norm_eps), (Activation::Relu, 1e-12));
    assert_eq!(named.type_vocab_size, 0);
}

/// The models' own code and the transformers library's class, which differ in the name of the family.
#[test]
fn gte_has_the_defaults_of_the_class_that_its_name_means() {
    for (model_type, words, positions) in [("new", 30528, 2048), ("gte", 250_048, 8192)] {
        let config = open(&format!(r#"{{"model_type": "{model_type}"}}"#)).unwrap();
        assert_eq!((config.vocab_size, config.max_position_embeddings), (words, positions), "{model_type}");
        assert_eq!(config.type_vocab_size, 1, "{model_type}");
    }
}

/// The reference takes the alias if both are given; here they have to agree.
#[test]
fn distilbert_s_aliases_may_not_contradict_its_fields() {
    let open_with = |fields: &str| open(&format!(r#"{{"model_type": "distilbert", {fields}}}"#));
    let sizes = |fields: &str| {
        let config = open_with(fields).unwrap();
        (config.hidden_size, config.num_attention_heads, config.num_hidden_layers)
    };
    let aliases = r#""hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3"#;
    assert_eq!(sizes(aliases), (24, 4, 3));
    assert_eq!(sizes(&format!(r#"{aliases}, "dim": 24, "n_heads": null, "n_layers": 3"#)), (24, 4, 3));
    assert_eq!(sizes(r#""hidden_size": null, "dim": 24"#), (24, 12, 6));
    let cases = [
        (r#""hidden_size": 24, "dim": 36"#, "hidden_size: is 24, and dim, which means the same, is 36"),
        (
            r#""num_attention_heads": 4, "n_heads": 6"#,
            "num_attention_heads: is 4, and n_heads, which means the same, is 6",
        ),
        (
            r#""num_hidden_layers": 3, "n_layers": 2"#,
            "num_hidden_layers: is 3, and n_layers, which means the same, is 2",
        ),
    ];
    for (fields, why) in cases {
        assert_eq!(open_with(fields).unwrap_err(), format!("config.json: {why}"));
    }
}

#[test]
fn the_rows_up_to_that_of_padding_are_spare() {
    let config = |rows: u32, pad: &str| {
        open(&format!(
            r#"{{"model_type": "roberta", "max_position_embeddings": {rows}, "pad_token_id": {pad}}}"#
        ))
    };
    assert_eq!(config(514, "1").unwrap().max_input_length(), 512);
    assert_eq!(config(514, "null").unwrap().max_input_length(), 512);
    assert_eq!(config(8, "0").unwrap().max_input_length(), 7);
    for (pad, spare) in [(7, 8_u64), (u32::MAX, 1 << 32)] {
        let why = format!("is 8, expected more than the {spare} rows up to that of pad_token_id");
        let expected = format!("config.json: max_position_embeddings: {why}");
        assert_eq!(config(8, &pad.to_string()).unwrap_err(), expected);
    }
    let bert = r#"{"model_type": "bert", "max_position_embeddings": 8, "pad_token_id": 900}"#;
    assert_eq!(open(bert).unwrap().max_input_length(), 8);
}

#[test]
fn the_class_tells_the_family_when_nothing_else_does() {
    for (class, family) in [
        ("BertForMaskedLM", "bert"),
        ("RobertaModel", "roberta"),
        ("XLMRobertaForSequenceClassification", "xlm-roberta"),
        ("CamembertModel", "camembert"),
        ("DistilBertModel", "distilbert"),
        ("ElectraForPreTraining", "electra"),
        ("AlbertModel", "albert"),
        ("MPNetModel", "mpnet"),
        ("ModernBertForMaskedLM", "modernbert"),
        ("NewModel", "new"),
        ("Qwen3ForCausalLM", "qwen3"),
    ] {
        assert_eq!(open(&format!(r#"{{"architectures": ["{class}"]}}"#)).unwrap().model_type, family);
    }
    let nvidia = r#"{"architectures": ["LlamaBidirectionalModel"], "pooling": "avg"}"#;
    assert_eq!(open(nvidia).unwrap().model_type, "llama_bidirec");
    let alibi = r#""position_embedding_type": "alibi", "feed_forward_type": "geglu""#;
    let jina = open(&format!(r#"{{"architectures": ["JinaBertModel"], {alibi}}}"#)).unwrap();
    assert_eq!(jina, ModelConfig { json: jina.json.clone(), ..open(r#"{"model_type": "bert"}"#).unwrap() });
}

#[test]
fn both_spellings_of_the_dtype_are_read() {
    for field in ["dtype", "torch_dtype"] {
        let config = open(&format!(r#"{{"model_type": "bert", "{field}": "bfloat16"}}"#)).unwrap();
        assert_eq!(config.torch_dtype.as_deref(), Some("bfloat16"));
    }
}

#[test]
fn every_refusal_names_the_field_and_both_values() {
    const FAMILIES: &str = "bert, roberta, xlm-roberta, camembert, distilbert, electra, albert, mpnet, \
         deberta-v2, modernbert, nomic_bert, new, gte, qwen3, bidirectional_pplx_qwen3, qwen2, llama, \
         llama_bidirec, mistral, gemma3_text";
    let cases = [
        (r#""model_type": "gpt2""#, r#"config.json: model_type is "gpt2", supported: FAMILIES"#),
        (r#""model_type": null"#, "config.json: model_type: missing, supported: FAMILIES"),
        (r#""model_type": 3"#, "config.json: model_type: invalid type: integer `3`, expected a string"),
        (r#""hidden_size": "x""#, r#"config.json: hidden_size: invalid type: string "x", expected u32"#),
        (r#""hidden_size": 0"#, "config.json: hidden_size: is 0, expected at least 1"),
        (r#""hidden_size": -8"#, "config.json: hidden_size: invalid value: integer `-8`, expected u32"),
        (
            r#""vocab_size": 99999999999"#,
            "config.json: vocab_size: invalid value: integer `99999999999`, expected u32",
        ),
        (
            r#""num_attention_heads": 7"#,
            "config.json: num_attention_heads: 7 heads do not divide hidden_size 768",
        ),
        (
            r#""position_embedding_type": "relative_key""#,
            r#"config.json: position_embedding_type is "relative_key", supported: absolute"#,
        ),
        (r#""is_decoder": true"#, r#"config.json: is_decoder is "true", supported: false"#),
        (
            r#""hidden_act": "mish""#,
            r#"config.json: hidden_act is "mish", supported: gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish, tanh"#,
        ),
        (r#""layer_norm_eps": -1"#, "config.json: layer_norm_eps: is -1, expected at least 0 and below 1"),
    ];
    for (field, expected) in cases {
        let config = if field.contains("model_type\"") {
            format!("{{{field}}}")
        } else {
            format!(r#"{{"model_type": "bert", {field}}}"#)
        };
        assert_eq!(open(&config).unwrap_err(), expected.replace("FAMILIES", FAMILIES));
    }
}

#[test]
fn activations_have_their_published_names() {
    let cases = [
        ("gelu", Activation::GeluErf),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("tanh", Activation::Tanh),
    ];
    for (name, expected) in cases {
        let config = open(&format!(r#"{{"model_type": "bert", "hidden_act": "{name}"}}"#)).unwrap();
        assert_eq!(config.hidden_act, expected, "{name}");
    }
}

/// Heads need not divide up the hidden size, and several query heads may share one key and value head.
#[test]
fn qwen3_says_how_wide_its_heads_are() {
    let config = |fields: &str| open(&format!(r#"{{"model_type": "qwen3"{fields}}}"#));
    let default = config("").unwrap();
    assert_eq!((default.head_dim(), default.num_key_value_heads, default.layer_norm_eps), (128, 32, 1e-6));
    let named =
        r#", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 96"#;
    let named = config(named).unwrap();
    assert_eq!((named.head_dim(), named.num_key_value_heads), (96, 8));
    let expected = "config.json: num_key_value_heads: 3 heads of keys and values do not divide 32 heads";
    assert_eq!(config(r#", "num_key_value_heads": 3"#).unwrap_err(), expected);
}

/// An absent field has the family's default; null means as many as query heads.
#[test]
fn heads_of_keys_and_values_have_the_defaults_of_their_family() {
    for (model_type, default) in
        [("qwen3", 32), ("qwen2", 32), ("mistral", 8), ("gemma3_text", 4), ("llama", 64)]
    {
        let heads = |fields: &str| {
            let common = format!(r#""model_type": "{model_type}", "use_bidirectional_attention": true"#);
            let sizes = r#""hidden_size": 4096, "num_attention_heads": 64"#;
            open(&format!("{{{common}, {sizes}{fields}}}")).unwrap().num_key_value_heads
        };
        assert_eq!(heads(""), default, "{model_type}");
        assert_eq!(heads(r#", "num_key_value_heads": null"#), 64, "{model_type}");
        assert_eq!(heads(r#", "num_key_value_heads": 16"#), 16, "{model_type}");
    }
    let few = r#"{"model_type": "mistral", "num_attention_heads": 4}"#;
    let expected = "config.json: num_key_value_heads: 8 heads of keys and values do not divide 4 heads";
    assert_eq!(open(few).unwrap_err(), expected);
}

/// If the file does not say how wide heads are, they divide up the hidden size.
#[test]
fn heads_may_share_out_the_hidden_size_or_not() {
    for model_type in ["qwen2", "mistral", "llama"] {
        let config = |fields: &str| open(&format!(r#"{{"model_type": "{model_type}"{fields}}}"#));
        let sizes = r#", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2"#;
        for (head_dim, columns) in [("", 128), (r#", "head_dim": null"#, 128), (r#", "head_dim": 96"#, 96)] {
            assert_eq!(config(&format!("{sizes}{head_dim}")).unwrap().head_dim(), columns);
        }
        let odd = r#", "hidden_size": 100, "num_attention_heads": 12, "num_key_value_heads": 2"#;
        let expected = "config.json: num_attention_heads: 12 heads do not divide hidden_size 100";
        assert_eq!(config(odd).unwrap_err(), expected);
        assert_eq!(config(&format!(r#"{odd}, "head_dim": 8"#)).unwrap().head_dim(), 8);
        let none = config(r#", "head_dim": 0"#).unwrap_err();
        assert_eq!(none, "config.json: head_dim: is 0, expected at least 1");
    }
}

/// Up to its own length a causal window hides nothing; null means no window.
#[test]
fn inputs_end_at_mistral_s_window() {
    let longest = |fields: &str| {
        let config =
            open(&format!(r#"{{"model_type": "mistral", "max_position_embeddings": 32768{fields}}}"#));
        config.map(|config| config.max_input_length())
    };
    assert_eq!(longest(""), Ok(4096));
    assert_eq!(longest(r#", "sliding_window": 1000"#), Ok(1000));
    for wide in ["null", "32768", "100000"] {
        assert_eq!(longest(&format!(r#", "sliding_window": {wide}"#)), Ok(32768), "{wide}");
    }
    let none = "config.json: sliding_window: is 0, expected at least 1";
    assert_eq!(longest(r#", "sliding_window": 0"#).unwrap_err(), none);
}

/// Inputs end where positions are stretched beyond what the model was trained with.
#[test]
fn nomic_s_stretched_positions_are_not_used() {
    let config = |fields: &str| {
        let common = r#""activation_function": "swiglu", "rotary_emb_fraction": 1.0, "n_positions": 8192"#;
        open(&format!(r#"{{"model_type": "nomic_bert", {common}, {fields}}}"#)).unwrap()
    };
    assert_eq!(config(r#""rotary_scaling_factor": null"#).max_input_length(), 8192);
    assert_eq!(config(r#""rotary_scaling_factor": 2"#).max_input_length(), 2048);
    let trained = r#""rotary_scaling_factor": 2.0, "max_trained_positions": 512"#;
    assert_eq!(config(trained).max_input_length(), 512);
}

/// Published files have the field names of both layouts; only the positions differ between them.
#[test]
fn nomic_s_sizes_may_have_the_names_of_the_newer_layout() {
    let config = |fields: &str| {
        let common = r#""activation_function": "swiglu", "hidden_act": "silu", "rotary_emb_fraction": 1.0"#;
        open(&format!(r#"{{"model_type": "nomic_bert", {common}, {fields}}}"#))
    };
    let names = r#""hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6"#;
    let both =
        r#""n_embd": 512, "n_head": 8, "n_layer": 6, "n_positions": 8192, "max_position_embeddings": 2048"#;
    for fields in [names.to_owned(), format!("{names}, {both}")] {
        let nomic = config(&fields).unwrap();
        let sizes = (nomic.hidden_size, nomic.num_attention_heads, nomic.num_hidden_layers);
        assert_eq!(sizes, (512, 8, 6), "{fields}");
        assert_eq!(nomic.max_input_length(), if fields == names { 2048 } else { 8192 });
    }
    let error = config(r#""num_attention_heads": 8, "n_head": 12"#).unwrap_err();
    let why = "num_attention_heads: is 8, and n_head, which means the same, is 12";
    assert_eq!(error, format!("config.json: {why}"));
}

/// Variants that would compute something other than what is drawn.
#[test]
fn variants_of_families_are_refused() {
    let cases = [
        (
            r#""model_type": "mpnet", "relative_attention_num_buckets": 16"#,
            "relative_attention_num_buckets is \"16\", supported: 32",
        ),
        (r#""model_type": "new", "pack_qkv": false"#, "pack_qkv is \"false\", supported: true"),
        (
            r#""model_type": "new", "position_embedding_type": "absolute""#,
            "position_embedding_type is \"absolute\", supported: rope",
        ),
        (
            r#""model_type": "new", "logn_attention_scale": true"#,
            "logn_attention_scale is \"true\", supported: false",
        ),
        (
            r#""model_type": "new", "layer_norm_type": "rms_norm""#,
            "layer_norm_type is \"rms_norm\", supported: layer_norm",
        ),
        (
            r#""model_type": "bert", "position_embedding_type": "alibi""#,
            "feed_forward_type is \"original\", supported: geglu, reglu",
        ),
        (
            r#""model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "swiglu""#,
            "feed_forward_type is \"swiglu\", supported: geglu, reglu",
        ),
        (
            r#""model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "is_decoder": true"#,
            "is_decoder is \"true\", supported: false",
        ),
        (
            r#""model_type": "bert", "feed_forward_type": "geglu""#,
            "feed_forward_type is \"geglu\", supported: original",
        ),
        (
            r#""architectures": ["JinaBertModel"], "feed_forward_type": "geglu""#,
            "position_embedding_type is \"absolute\", supported: alibi",
        ),
        (
            r#""model_type": "qwen3", "use_sliding_window": true"#,
            "use_sliding_window is \"true\", supported: false",
        ),
        (
            r#""model_type": "qwen2", "use_sliding_window": true"#,
            "use_sliding_window is \"true\", supported: false",
        ),
        (r#""model_type": "gemma3_text""#, "use_bidirectional_attention is \"false\", supported: true"),
        (
            r#""model_type": "gemma3_text", "use_bidirectional_attention": true, "attn_logit_softcapping": 50.0"#,
            "attn_logit_softcapping is \"50.0\", supported: null",
        ),
        (r#""model_type": "nomic_bert""#, "activation_function is \"gelu_new\", supported: swiglu, gelu"),
        (
            r#""model_type": "nomic_bert", "hidden_size": 768, "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}"#,
            "activation_function: missing, and hidden_act is given: that is the newer layout, which is not supported",
        ),
        (
            r#""model_type": "nomic_bert", "activation_function": "swiglu""#,
            "rotary_emb_fraction is \"0.0\", supported: 1, 1.0",
        ),
        (
            r#""model_type": "nomic_bert", "activation_function": "swiglu", "rotary_emb_fraction": 1, "rotary_emb_interleaved": true"#,
            "rotary_emb_interleaved is \"true\", supported: false",
        ),
        (
            r#""model_type": "nomic_bert", "activation_function": "gelu", "rotary_emb_fraction": 1, "num_shared_experts": 2"#,
            "num_shared_experts is \"2\", supported: 0",
        ),
    ];
    for (fields, why) in cases {
        let error = open(&format!("{{{fields}}}")).unwrap_err();
        assert_eq!(error, format!("config.json: {why}"));
    }
}

/// What the best known models of the newer families say of themselves, as far as it matters or could be misread.
#[test]
fn published_configurations_are_read() {
    let nomic = open(
        r#"{"activation_function": "swiglu", "architectures": ["NomicBertModel"], "causal": false,
        "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": false, "mlp_fc2_bias": false,
        "model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12,
        "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": false, "prenorm": false,
        "qkv_proj_bias": false, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null,
        "scale_attn_weights": true, "type_vocab_size": 2, "use_rms_norm": false, "vocab_size": 30528}"#,
    )
    .unwrap();
    assert_eq!((nomic.max_input_length(), nomic.head_dim(), nomic.type_vocab_size), (8192, 64, 2));
    let gte = open(
        r#"{"architectures": ["NewModel"], "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "logn_attention_clip1": false,
        "logn_attention_scale": false, "max_position_embeddings": 8192, "model_type": "new",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pack_qkv": true, "pad_token_id": 0,
        "position_embedding_type": "rope", "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 500000,
        "type_vocab_size": 0, "unpad_inputs": false, "use_memory_efficient_attention": false,
        "vocab_size": 30528}"#,
    )
    .unwrap();
    assert_eq!((gte.max_input_length(), gte.head_dim(), gte.type_vocab_size), (8192, 64, 0));
    let jina = open(
        r#"{"architectures": ["JinaBertForMaskedLM"], "attention_probs_dropout_prob": 0.0,
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "emb_pooler": "mean", "feed_forward_type": "geglu", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 8192,
        "model_max_length": 8192, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 0, "position_embedding_type": "alibi", "type_vocab_size": 2, "vocab_size": 30528}"#,
    )
    .unwrap();
    assert_eq!((jina.max_input_length(), jina.head_dim(), jina.type_vocab_size), (8192, 64, 2));
    let modernbert = open(
        r#"{"architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "classifier_pooling": "mean",
        "decoder_bias": true, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "hidden_activation": "gelu", "hidden_size": 768, "intermediate_size": 1152, "layer_norm_eps": 1e-05,
        "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192,
        "model_type": "modernbert", "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12,
        "num_hidden_layers": 22, "position_embedding_type": "absolute", "vocab_size": 50368}"#,
    )
    .unwrap();
    assert_eq!((modernbert.max_input_length(), modernbert.head_dim()), (8192, 64));
    let qwen3 = open(
        r#"{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 32768,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151669}"#,
    )
    .unwrap();
    assert_eq!((qwen3.max_input_length(), qwen3.head_dim(), qwen3.num_key_value_heads), (32768, 128, 8));
    let gte = open(
        r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 1536, "intermediate_size": 8960, "is_causal": false, "max_position_embeddings": 131072,
        "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 12, "num_hidden_layers": 28,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151646}"#,
    )
    .unwrap();
    assert_eq!((gte.max_input_length(), gte.head_dim(), gte.num_key_value_heads), (131_072, 128, 2));
    let e5 = open(
        r#"{"architectures": ["MistralModel"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pad_token_id": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "vocab_size": 32000}"#,
    )
    .unwrap();
    assert_eq!((e5.max_input_length(), e5.head_dim(), e5.num_key_value_heads), (4096, 128, 8));
    let gemma = open(
        r#"{"_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": false,
        "attn_logit_softcapping": null, "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 768, "intermediate_size": 1152,
        "max_position_embeddings": 2048, "model_type": "gemma3_text", "num_attention_heads": 3,
        "num_hidden_layers": 24, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512,
        "use_bidirectional_attention": true, "vocab_size": 262144}"#,
    )
    .unwrap();
    assert_eq!(
        (gemma.max_input_length(), gemma.head_dim(), gemma.hidden_act),
        (2048, 256, Activation::GeluTanh)
    );
    let deberta = open(
        r#"{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-7, "max_position_embeddings": 512,
        "max_relative_positions": -1, "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pos_att_type": "p2c|c2p", "position_biased_input": false,
        "position_buckets": 256, "relative_attention": true, "share_att_key": true, "type_vocab_size": 0,
        "vocab_size": 128100}"#,
    )
    .unwrap();
    assert_eq!((deberta.max_input_length(), deberta.head_dim(), deberta.type_vocab_size), (512, 64, 0));
    let experts = open(
        r#"{"activation_function": "gelu", "architectures": ["NomicBertModel"], "causal": false,
        "expert_choice_router": false, "ffn_div": 1, "layer_norm_epsilon": 1e-05, "max_trained_positions": 2048,
        "mlp_fc1_bias": true, "mlp_fc2_bias": true, "model_type": "nomic_bert", "moe_every_n_layers": 2,
        "moe_normalize_expert_weights": false, "moe_resid_pdrop": 0.0, "moe_top_k": 2, "n_embd": 768, "n_head": 12,
        "n_inner": 3072, "n_layer": 12, "n_positions": 2048, "num_experts": 8, "num_shared_experts": 0,
        "pad_token_id": 1, "prenorm": false, "qkv_proj_bias": true, "rotary_emb_base": 10000,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false, "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null, "type_vocab_size": 1, "vocab_size": 250048}"#,
    )
    .unwrap();
    assert_eq!((experts.max_input_length(), experts.head_dim(), experts.type_vocab_size), (2048, 64, 1));
    let llama = open(
        r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
        "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": true, "vocab_size": 128256}"#,
    )
    .unwrap();
    assert_eq!((llama.max_input_length(), llama.head_dim(), llama.num_key_value_heads), (131_072, 64, 8));
    let mpnet = open(
        r#"{"architectures": ["MPNetForMaskedLM"], "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "model_type": "mpnet", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "relative_attention_num_buckets": 32, "vocab_size": 30527}"#,
    )
    .unwrap();
    assert_eq!((mpnet.max_input_length(), mpnet.type_vocab_size), (512, 0));
}
