//! What a family calls the sizes of a model in `config.json`, and what they are by default.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::Value;
use turbo_graph::{Activation, Positions};

use crate::{ModelError, json::JsonObject};

/// Where one property of a model comes from.
#[derive(Clone, Copy)]
pub(crate) enum Setting<T> {
    /// This field, or this default if the field is absent.
    Field(&'static str, T),
    /// The same for all models of the family, whatever the file says.
    Always(T),
}

/// What is read from the file of every model of a family. Families differ in a few of these fields, so most are written
/// `ConfigFields { .., ..bert::FIELDS }`. Defaults are those of the transformers library.
#[derive(Clone, Copy)]
pub(crate) struct ConfigFields {
    pub(crate) vocab_size: Setting<u32>,
    /// `None`: as wide as `hidden_size`.
    pub(crate) embedding_size: Option<Setting<u32>>,
    pub(crate) hidden_size: Setting<u32>,
    pub(crate) num_hidden_layers: Setting<u32>,
    pub(crate) num_attention_heads: Setting<u32>,
    pub(crate) num_key_value_heads: KeyValueHeads,
    pub(crate) head_dim: HeadDim,
    pub(crate) intermediate_size: Setting<u32>,
    pub(crate) hidden_act: Setting<&'static str>,
    pub(crate) max_position_embeddings: Setting<u32>,
    /// `None`: no token types.
    pub(crate) type_vocab_size: Option<Setting<u32>>,
    pub(crate) layer_norm_eps: Setting<f64>,
    /// Which rows of the position table tokens take: with `AfterPad`, those behind the padding token that this field
    /// names.
    pub(crate) positions: Setting<Positions>,
    /// If this field is given, positions are stretched beyond this many, and inputs end there.
    pub(crate) stretched_behind: Option<(&'static str, Setting<u32>)>,
    /// How many tokens a causal model sees, its own included; null for all. Inputs end there: up to that length the
    /// window hides nothing, whether the model is causal or lets tokens see all others.
    pub(crate) causal_window: Option<Setting<u32>>,
    /// Fields that say whether tokens see those behind them. If none of them is given, a model of the family is causal.
    pub(crate) causal_fields: &'static [&'static str],
    /// Aliases of fields, each with the field it means: `attribute_map` of the transformers library.
    pub(crate) attribute_map: &'static [(&'static str, &'static str)],
    /// A field of the supported layout, and the one that a newer, unsupported layout has instead.
    pub(crate) newer_layout: Option<(&'static str, &'static str)>,
    /// A field and its value in this family, if another family, later in the list, has the same `model_type`.
    pub(crate) told_by: Option<(&'static str, &'static str)>,
    /// Other fields that must have certain values.
    pub(crate) only: &'static [Only],
}

impl ConfigFields {
    /// Whether a file with the family's `model_type` belongs to this family.
    pub(crate) fn are_meant(&self, json: &JsonObject) -> Result<bool, ModelError> {
        let Some((field, told)) = self.told_by else { return Ok(true) };
        Ok(json.get::<Value>(field)?.is_some_and(|value| value == told))
    }

    /// Refuses a file of the newer layout: read as one of the supported layout, it would get the defaults of all
    /// fields.
    pub(crate) fn check_layout(&self, json: &JsonObject) -> Result<(), ModelError> {
        let Some((field, newer)) = self.newer_layout else { return Ok(()) };
        match (json.get::<Value>(field)?, json.get::<Value>(newer)?) {
            (None, Some(_)) => {
                let why = "that is the newer layout, which is not supported";
                Err(json.wrong(field, format!("missing, and {newer} is given: {why}")))
            }
            _ => Ok(()),
        }
    }
}

/// How many key and value heads there are.
#[derive(Clone, Copy)]
pub(crate) enum KeyValueHeads {
    /// As many as query heads.
    Shared,
    /// As many as this field says; if it is absent, as [`Self::Shared`].
    SharedUnless(&'static str),
    /// As many as this setting says; null is the same as [`Self::Shared`].
    Own(Setting<u32>),
}

impl KeyValueHeads {
    /// The number in the file; `None` if there are as many as query heads.
    pub(crate) fn given(self, json: &JsonObject) -> Result<Option<usize>, ModelError> {
        match self {
            Self::Shared => Ok(None),
            Self::SharedUnless(field) => given_size(field, json),
            Self::Own(setting) if json.is_null(setting.name()) => Ok(None),
            Self::Own(setting) => setting.size(json).map(Some),
        }
    }

    /// Its name in error messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared => "model_type",
            Self::SharedUnless(field) => field,
            Self::Own(setting) => setting.name(),
        }
    }
}

/// The size in `field`, if the field is given.
fn given_size(field: &'static str, json: &JsonObject) -> Result<Option<usize>, ModelError> {
    json.get::<u32>(field)?.map(|given| Setting::Field(field, given).size(json)).transpose()
}

/// How many columns a head has.
#[derive(Clone, Copy)]
pub(crate) enum HeadDim {
    /// The heads divide up `hidden_size`.
    Shared,
    /// As many as this field says; if it is absent, as [`Self::Shared`].
    SharedUnless(&'static str),
    /// As many as this setting says.
    Own(Setting<u32>),
}

impl HeadDim {
    /// The number in the file; `None` if the heads divide up `hidden_size`.
    pub(crate) fn given(self, json: &JsonObject) -> Result<Option<usize>, ModelError> {
        match self {
            Self::Shared => Ok(None),
            Self::Own(setting) => setting.size(json).map(Some),
            Self::SharedUnless(field) => given_size(field, json),
        }
    }
}

/// A field that changes what a model computes, and the values that are implemented.
pub(crate) struct Only {
    pub(crate) field: &'static str,
    /// As JSON, strings without their quotes.
    pub(crate) values: &'static [&'static str],
    /// The value if the field is absent or null.
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
    /// Its name in error messages.
    pub(crate) const fn name(&self) -> &'static str {
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
    /// A positive number. It is not trusted before the weights were found to match it: nothing is allocated by it.
    pub(crate) fn count(self, json: &JsonObject) -> Result<u32, ModelError> {
        match self.value(json)? {
            0 => Err(self.out_of_range(json, 0, "at least 1")),
            count => Ok(count),
        }
    }

    /// Like [`Self::count`], and at most `limit`.
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
