//! What a family's `config.json` calls the sizes of a model, and what they are where it does not say.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::Value;
use turbo_graph::{Activation, Positions};

use crate::{ModelError, json::JsonObject};

/// One thing that a model has.
#[derive(Clone, Copy)]
pub(crate) enum Setting<T> {
    /// In this field, or this where the field is absent.
    Field(&'static str, T),
    /// The same for all models of the family, whatever the file says.
    Always(T),
}

/// What is read of every model of a family. One family differs from another in a few of these, so that its own are
/// written `ConfigFields { .., ..bert::FIELDS }`. Defaults are those of the transformers library.
#[derive(Clone, Copy)]
pub(crate) struct ConfigFields {
    pub(crate) vocab_size: Setting<u32>,
    /// `None`: as wide as `hidden_size`.
    pub(crate) embedding_size: Option<Setting<u32>>,
    pub(crate) hidden_size: Setting<u32>,
    pub(crate) num_hidden_layers: Setting<u32>,
    pub(crate) num_attention_heads: Setting<u32>,
    /// `None`, or absent: as many as heads of queries.
    pub(crate) num_key_value_heads: Option<&'static str>,
    /// `None`: the heads share out `hidden_size`.
    pub(crate) head_dim: Option<Setting<u32>>,
    pub(crate) intermediate_size: Setting<u32>,
    pub(crate) hidden_act: Setting<&'static str>,
    pub(crate) max_position_embeddings: Setting<u32>,
    /// `None`: no token types.
    pub(crate) type_vocab_size: Option<Setting<u32>>,
    pub(crate) layer_norm_eps: Setting<f64>,
    /// Where the tokens stand in the position table: behind the padding token of this field.
    pub(crate) positions: Setting<Positions>,
    /// Where this field is given, positions are stretched behind this many, and inputs end there.
    pub(crate) stretched_behind: Option<(&'static str, Setting<u32>)>,
    /// What else must be as it is here.
    pub(crate) only: &'static [Only],
}

/// A field that changes what the models compute, and the values for which they are drawn right.
pub(crate) struct Only {
    pub(crate) field: &'static str,
    /// As JSON, strings without their quotes.
    pub(crate) values: &'static [&'static str],
    /// What counts where the field is absent or null.
    pub(crate) default: &'static str,
}

impl Only {
    /// Refuses every other value.
    pub(crate) fn check(&self, json: &JsonObject) -> Result<(), ModelError> {
        let value = match json.get::<Value>(self.field)? {
            None => self.default.to_owned(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        };
        match self.values.contains(&value.as_str()) {
            true => Ok(()),
            false => Err(json.unsupported(self.field, value, self.values.join(", "))),
        }
    }
}

impl<T: Copy + DeserializeOwned> Setting<T> {
    pub(crate) fn value(self, json: &JsonObject) -> Result<T, ModelError> {
        match self {
            Setting::Field(field, default) => Ok(json.get(field)?.unwrap_or(default)),
            Setting::Always(value) => Ok(value),
        }
    }
}

impl<T> Setting<T> {
    /// What an error calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Setting::Field(field, _) => field,
            Setting::Always(_) => "model_type",
        }
    }

    fn out_of_range(&self, json: &JsonObject, got: impl Display, expected: &str) -> ModelError {
        json.wrong(self.name(), format!("is {got}, expected {expected}"))
    }
}

impl Setting<u32> {
    /// A positive number. It is trusted only after the weights were found to have it: nothing is allocated by it.
    pub(crate) fn count(self, json: &JsonObject) -> Result<u32, ModelError> {
        match self.value(json)? {
            0 => Err(self.out_of_range(json, 0, "at least 1")),
            count => Ok(count),
        }
    }

    /// As [`Self::count`], at most `limit`.
    pub(crate) fn count_up_to(self, limit: u32, json: &JsonObject) -> Result<u32, ModelError> {
        match self.count(json)? {
            count if count > limit => Err(self.out_of_range(json, count, &format!("at most {limit}"))),
            count => Ok(count),
        }
    }

    pub(crate) fn size(self, json: &JsonObject) -> Result<usize, ModelError> {
        Ok(self.count(json)? as usize)
    }
}

impl Setting<f64> {
    pub(crate) fn epsilon(self, json: &JsonObject) -> Result<f32, ModelError> {
        match self.value(json)? {
            epsilon if (0.0..1.0).contains(&epsilon) => Ok(epsilon as f32),
            other => Err(self.out_of_range(json, other, "at least 0 and below 1")),
        }
    }
}

impl Setting<Positions> {
    pub(crate) fn positions(self, json: &JsonObject) -> Result<Positions, ModelError> {
        match self {
            Setting::Field(field, Positions::AfterPad { pad_id }) => {
                Ok(Positions::AfterPad { pad_id: json.get(field)?.unwrap_or(pad_id) })
            }
            Setting::Field(_, positions) | Setting::Always(positions) => Ok(positions),
        }
    }
}

impl Setting<&'static str> {
    pub(crate) fn word(self, json: &JsonObject) -> Result<String, ModelError> {
        match self {
            Setting::Field(field, default) => Ok(json.get(field)?.unwrap_or_else(|| default.to_owned())),
            Setting::Always(name) => Ok(name.to_owned()),
        }
    }

    pub(crate) fn activation(self, json: &JsonObject) -> Result<Activation, ModelError> {
        let name = self.word(json)?;
        let supported = "gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish, tanh";
        Ok(match name.as_str() {
            "gelu" => Activation::GeluErf,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            "tanh" => Activation::Tanh,
            _ => return Err(json.unsupported(self.name(), name, supported)),
        })
    }
}
