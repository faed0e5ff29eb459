//! What a model looks like: `config.json`, as published. Defaults are those of the transformers library.

use std::{fmt::Display, io, path::Path};

use serde_json::Value;
use turbo_kernels::Activation;

use crate::{ModelError, architectures::Architecture, json::JsonObject};

/// The sizes and choices of a model. Fields are named as in `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family of the model: `bert`.
    pub model_type: String,
    /// Rows of the word embedding table.
    pub vocab_size: usize,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Number of identical layers.
    pub num_hidden_layers: u32,
    /// Heads of each attention; divides `hidden_size`.
    pub num_attention_heads: usize,
    /// Width between the two matrices of the feed-forward part.
    pub intermediate_size: usize,
    /// What is applied between them.
    pub hidden_act: Activation,
    /// Rows of the position table: the longest input.
    pub max_position_embeddings: usize,
    /// Rows of the token type table.
    pub type_vocab_size: usize,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f32,
    /// Type of the stored weights, as the file says; computation is in f32 whatever it is.
    pub torch_dtype: Option<String>,
}

impl ModelConfig {
    /// Reads `config.json` of the folder `dir`, and finds the architecture it names.
    pub(crate) fn open(dir: &Path) -> Result<(Self, &'static Architecture), ModelError> {
        let file = dir.join("config.json");
        let Some(json) = JsonObject::open(file.clone())? else {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
            return Err(ModelError::Read { file, source });
        };
        let architecture = architecture(&json)?;
        refuse_variants(&json)?;
        let config = Self {
            model_type: architecture.model_type.to_owned(),
            vocab_size: size(&json, "vocab_size", 30522)?,
            hidden_size: size(&json, "hidden_size", 768)?,
            num_hidden_layers: count(&json, "num_hidden_layers", 12)?,
            num_attention_heads: size(&json, "num_attention_heads", 12)?,
            intermediate_size: size(&json, "intermediate_size", 3072)?,
            hidden_act: activation(&json)?,
            max_position_embeddings: size(&json, "max_position_embeddings", 512)?,
            type_vocab_size: size(&json, "type_vocab_size", 2)?,
            layer_norm_eps: epsilon(&json)?,
            torch_dtype: json.get("dtype")?.or(json.get("torch_dtype")?),
        };
        if !config.hidden_size.is_multiple_of(config.num_attention_heads) {
            let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
            let why = format!("{heads} heads do not divide hidden_size {hidden}");
            return Err(json.wrong("num_attention_heads", why));
        }
        Ok((config, architecture))
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

/// `model_type` decides; files without one are told by the name of the model's class.
fn architecture(json: &JsonObject) -> Result<&'static Architecture, ModelError> {
    let all = crate::architectures::ALL;
    let supported = || all.iter().map(|known| known.model_type).collect::<Vec<_>>().join(", ");
    if let Some(model_type) = json.get::<String>("model_type")? {
        let known = all.iter().find(|known| known.model_type == model_type);
        return known.ok_or_else(|| json.unsupported("model_type", model_type, supported()));
    }
    let classes: Vec<String> = json.get("architectures")?.unwrap_or_default();
    let known = all.iter().find(|known| classes.iter().any(|class| class.starts_with(known.class_prefix)));
    known.ok_or_else(|| json.wrong("model_type", format!("missing, supported: {}", supported())))
}

/// Fields that change what the model computes in ways nothing here does.
fn refuse_variants(json: &JsonObject) -> Result<(), ModelError> {
    const FIXED: [(&str, &str); 3] =
        [("position_embedding_type", "absolute"), ("is_decoder", "false"), ("add_cross_attention", "false")];
    for (field, only) in FIXED {
        let value = match json.get::<Value>(field)? {
            None => continue,
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        };
        if value != only {
            return Err(json.unsupported(field, value, only));
        }
    }
    Ok(())
}

fn size(json: &JsonObject, field: &'static str, default: u32) -> Result<usize, ModelError> {
    Ok(count(json, field, default)? as usize)
}

/// A positive number. It is trusted only after the weights were found to have it: nothing is allocated by it.
fn count(json: &JsonObject, field: &'static str, default: u32) -> Result<u32, ModelError> {
    match json.get(field)?.unwrap_or(default) {
        0 => Err(out_of_range(json, field, 0, "at least 1")),
        count => Ok(count),
    }
}

fn epsilon(json: &JsonObject) -> Result<f32, ModelError> {
    const FIELD: &str = "layer_norm_eps";
    let epsilon: f64 = json.get(FIELD)?.unwrap_or(1e-12);
    if (0.0..1.0).contains(&epsilon) {
        Ok(epsilon as f32)
    } else {
        Err(out_of_range(json, FIELD, epsilon, "at least 0 and below 1"))
    }
}

fn out_of_range(json: &JsonObject, field: &'static str, got: impl Display, expected: &str) -> ModelError {
    json.wrong(field, format!("is {got}, expected {expected}"))
}

fn activation(json: &JsonObject) -> Result<Activation, ModelError> {
    const FIELD: &str = "hidden_act";
    let name: String = json.get(FIELD)?.unwrap_or_else(|| "gelu".to_owned());
    let supported = "gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish, tanh";
    Ok(match name.as_str() {
        "gelu" => Activation::GeluErf,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "tanh" => Activation::Tanh,
        _ => return Err(json.unsupported(FIELD, name, supported)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::GeluErf,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            torch_dtype: None,
        };
        assert_eq!(config, expected);
        assert_eq!(config.head_dim(), 64);
    }

    #[test]
    fn the_class_tells_the_family_when_nothing_else_does() {
        assert_eq!(open(r#"{"architectures": ["BertForMaskedLM"]}"#).unwrap().model_type, "bert");
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
        let cases = [
            (r#""model_type": "gpt2""#, r#"config.json: model_type is "gpt2", supported: bert"#),
            (r#""model_type": null"#, "config.json: model_type: missing, supported: bert"),
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
            (
                r#""layer_norm_eps": -1"#,
                "config.json: layer_norm_eps: is -1, expected at least 0 and below 1",
            ),
        ];
        for (field, expected) in cases {
            let config = if field.contains("model_type\"") {
                format!("{{{field}}}")
            } else {
                format!(r#"{{"model_type": "bert", {field}}}"#)
            };
            assert_eq!(open(&config).unwrap_err(), expected);
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
}
