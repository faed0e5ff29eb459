//! The sizes and choices of a model, from its published `config.json`. Each family says what its fields are called
//! there.

mod fields;
mod labels;

use std::{fmt::Display, path::Path};

use serde::de::DeserializeOwned;
use serde_json::Value;
use turbo_graph::{Activation, Positions};

pub(crate) use self::{
    fields::{ConfigFields, HeadDim, KeyValueHeads, Only, Setting},
    labels::{Labels, ScoreClass},
};
use crate::{
    ModelError, Task,
    architectures::{Architecture, Name},
    drawing::Bias,
    json::JsonObject,
};

/// The sizes and choices of a model. Fields are named as most `config.json` files name them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family of the model: `bert`.
    pub model_type: String,
    /// Rows of the word embedding table.
    pub vocab_size: usize,
    /// Width of the embedding tables; equals `hidden_size` unless the model projects embeddings to that width.
    pub embedding_size: usize,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Number of identical layers.
    pub num_hidden_layers: u32,
    /// Query heads of each attention.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of the feed-forward part, between its matrices.
    pub intermediate_size: usize,
    /// Activation between those matrices.
    pub hidden_act: Activation,
    /// Rows of the position table, or positions that the model's rotary angles were made for. Less where inputs must
    /// end earlier: at Mistral's window, or at the trained length of a stretched Nomic.
    pub max_position_embeddings: usize,
    /// How the tokens of an input take these positions.
    pub positions: Positions,
    /// Rows of the token type table; 0 when the model has none.
    pub type_vocab_size: usize,
    /// Epsilon of every norm, added to the variance or to the mean square.
    pub layer_norm_eps: f32,
    /// Type of the stored weights, according to the file. It does not decide the type that is computed in.
    pub torch_dtype: Option<String>,
    /// Columns of a head.
    head_dim: usize,
    /// What the logits of a classifier mean.
    labels: Labels,
    /// The file itself, for fields that only one family has.
    json: JsonObject,
}

impl ModelConfig {
    /// Reads `config.json` of the folder `dir`, and finds the architecture it names.
    pub(crate) fn open(dir: &Path) -> Result<(Self, &'static Architecture), ModelError> {
        let mut json = JsonObject::open_existing(dir.join("config.json"))?;
        let (architecture, name) = architecture(&json)?;
        let fields = &architecture.fields;
        fields.check_layout(&json)?;
        fields.attribute_map.iter().try_for_each(|&(alias, field)| json.resolve(alias, field))?;
        fields.only.iter().try_for_each(|only| only.check(&json))?;
        Ok((Self::from_json(json, name, fields)?, architecture))
    }

    fn from_json(json: JsonObject, name: &Name, fields: &ConfigFields) -> Result<Self, ModelError> {
        let hidden_size = fields.hidden_size.size(&json)?;
        let optional =
            |setting: Option<Setting<u32>>, none| setting.map_or(Ok(none), |some| some.size(&json));
        let num_attention_heads = fields.num_attention_heads.size(&json)?;
        let config = Self {
            model_type: name.model_type.to_owned(),
            vocab_size: fields.vocab_size.size(&json)?,
            embedding_size: optional(fields.embedding_size, hidden_size)?,
            hidden_size,
            num_hidden_layers: fields.num_hidden_layers.count(&json)?,
            num_attention_heads,
            num_key_value_heads: fields.num_key_value_heads.given(&json)?.unwrap_or(num_attention_heads),
            intermediate_size: fields.intermediate_size.size(&json)?,
            hidden_act: fields.hidden_act.activation(&json)?,
            max_position_embeddings: max_positions(&json, fields)?,
            positions: fields.positions.positions(&json)?,
            type_vocab_size: fields.type_vocab_size.map_or(Ok(0), |some| some.value(&json))? as usize,
            layer_norm_eps: fields.layer_norm_eps.epsilon(&json)?,
            torch_dtype: json.get("dtype")?.or(json.get("torch_dtype")?),
            head_dim: fields.head_dim.given(&json)?.unwrap_or(hidden_size / num_attention_heads),
            labels: Labels::read(&json)?,
            json,
        };
        config.check_heads(fields)?;
        config.check_positions(fields)?;
        Ok(config)
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Most tokens of one input: the number of positions that tokens can take.
    pub fn max_input_length(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.spare_positions())
    }

    /// Warns that a window ends inputs before the last position, if inputs of `longest` tokens would be longer.
    pub(crate) fn window_warning(
        &self,
        fields: &ConfigFields,
        longest: Option<usize>,
    ) -> Result<Option<String>, ModelError> {
        let positions = fields.max_position_embeddings.size(&self.json)?;
        let ends = causal_window(&self.json, fields)?
            .filter(|(_, window)| *window < longest.unwrap_or(positions).min(positions));
        Ok(ends.map(|(field, window)| {
            format!(
                "config.json: {field} is {window} of {positions} positions: inputs end there, where it hides nothing yet"
            )
        }))
    }

    /// Warns that a model is computed as causal although its authors' own code may do otherwise.
    pub(crate) fn causal_warning(&self, fields: &ConfigFields) -> Result<Option<String>, ModelError> {
        let code = self.optional::<Value>("auto_map")?;
        let has_code = code.is_some_and(|classes| classes["AutoModel"].is_string());
        let is_said = fields.causal_fields.iter().any(|field| self.is_given(field));
        let unsaid = fields.causal_fields.first().filter(|_| has_code && !is_said);
        Ok(unsaid.map(|field| {
            format!(
                "config.json: {field} is not given, the model's own code may let tokens see those behind them; computed \
                 as causal"
            )
        }))
    }

    /// The file as JSON; the value of an alias also stands under the field it means.
    pub(crate) fn text(&self) -> String {
        self.json.text()
    }

    /// The task of the model's published class; `None` for a bare encoder.
    pub(crate) fn task(&self) -> Result<Option<Task>, ModelError> {
        let classes: Vec<String> = self.json.get("architectures")?.unwrap_or_default();
        Ok(classes.iter().find_map(|class| Task::of_class(class)))
    }

    /// The published class, if it generates text: rerankers of that kind ask it for a yes or a no.
    pub(crate) fn generator(&self) -> Result<Option<String>, ModelError> {
        let classes: Vec<String> = self.json.get("architectures")?.unwrap_or_default();
        Ok(classes.into_iter().find(|class| class.ends_with("ForCausalLM")))
    }

    /// What the logits of a classifier mean.
    pub(crate) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Replaces the labels by those of a module behind the model.
    pub(crate) fn set_labels(&mut self, labels: Labels) {
        self.labels = labels;
    }

    /// Number of logits of a classifier.
    ///
    /// # Errors
    /// If the labels are invalid, which nothing else reports.
    pub(crate) fn num_labels(&self) -> Result<usize, ModelError> {
        match self.labels.names.len() {
            0 => Ok(labels::names(&self.json)?.len()),
            count => Ok(count),
        }
    }

    /// `error`, or its cause if a matrix has the wrong shape because two fields disagree about the number of labels.
    pub(crate) fn explained_by_labels(&self, error: ModelError) -> ModelError {
        let ModelError::Shape { tensor, got, .. } = &error else { return error };
        let Ok(Some((count, names))) = labels::contradiction(&self.json) else { return error };
        let why = format!(
            "is {count} and counts before the {names} names of id2label, but tensor {tensor} has shape {got:?}: make both \
             fields say what it has"
        );
        self.wrong("num_labels", why)
    }

    /// The value of `setting` in the family's own file.
    pub(crate) fn read<T: Copy + DeserializeOwned>(&self, setting: Setting<T>) -> Result<T, ModelError> {
        setting.value(&self.json)
    }

    /// A field that may be absent.
    pub(crate) fn optional<T: DeserializeOwned>(&self, field: &'static str) -> Result<Option<T>, ModelError> {
        self.json.get(field)
    }

    /// Whether the file says null, which is not always the same as leaving the field out.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.json.is_null(field)
    }

    /// Whether the file has a value other than null for the field.
    pub(crate) fn is_given(&self, field: &str) -> bool {
        self.json.iter().any(|(name, value)| name == field && !value.is_null())
    }

    /// A number of at least 1.
    pub(crate) fn count(&self, setting: Setting<u32>) -> Result<u32, ModelError> {
        setting.count(&self.json)
    }

    /// A number of at least 1 and at most `limit`.
    pub(crate) fn count_up_to(&self, limit: u32, setting: Setting<u32>) -> Result<u32, ModelError> {
        setting.count_up_to(limit, &self.json)
    }

    /// Whether something has a bias.
    pub(crate) fn bias(&self, setting: Setting<bool>) -> Result<Bias, ModelError> {
        Ok(if self.read(setting)? { Bias::With } else { Bias::Without })
    }

    /// The value of a string setting.
    pub(crate) fn word(&self, setting: Setting<&'static str>) -> Result<String, ModelError> {
        setting.word(&self.json)
    }

    /// The activation that a setting names.
    pub(crate) fn activation(&self, setting: Setting<&'static str>) -> Result<Activation, ModelError> {
        setting.activation(&self.json)
    }

    /// An error about a field.
    pub(crate) fn wrong(&self, field: &'static str, why: impl Into<String>) -> ModelError {
        self.json.wrong(field, why)
    }

    /// An error about a value that is not implemented here.
    pub(crate) fn unsupported(
        &self,
        field: &'static str,
        value: impl Display,
        supported: &str,
    ) -> ModelError {
        self.json.unsupported(field, value.to_string(), supported)
    }

    /// Rows of the position table that no token takes: those up to and including the padding row.
    fn spare_positions(&self) -> usize {
        match self.positions {
            Positions::FromZero => 0,
            Positions::AfterPad { pad_id } => (pad_id as usize).saturating_add(1),
        }
    }

    fn check_heads(&self, fields: &ConfigFields) -> Result<(), ModelError> {
        let (hidden, heads, shared) = (self.hidden_size, self.num_attention_heads, self.num_key_value_heads);
        if fields.head_dim.given(&self.json)?.is_none() && !hidden.is_multiple_of(heads) {
            let why = format!("{heads} heads do not divide {} {hidden}", fields.hidden_size.name());
            return Err(self.json.wrong(fields.num_attention_heads.name(), why));
        }
        if !heads.is_multiple_of(shared) {
            let why = format!("{shared} heads of keys and values do not divide {heads} heads");
            return Err(self.json.wrong(fields.num_key_value_heads.name(), why));
        }
        Ok(())
    }

    fn check_positions(&self, fields: &ConfigFields) -> Result<(), ModelError> {
        if self.max_input_length() > 0 {
            return Ok(());
        }
        let (rows, spare) = (self.max_position_embeddings, self.spare_positions());
        let why = format!("is {rows}, expected more than the {spare} rows up to that of pad_token_id");
        Err(self.json.wrong(fields.max_position_embeddings.name(), why))
    }
}

/// The positions that inputs may use. For a model that was stretched or sees only a window, these are the positions at
/// which that makes no difference yet.
fn max_positions(json: &JsonObject, fields: &ConfigFields) -> Result<usize, ModelError> {
    let positions = fields.max_position_embeddings.size(json)?;
    let positions = match fields.stretched_behind {
        Some((field, trained)) if json.get::<f64>(field)?.is_some() => positions.min(trained.size(json)?),
        _ => positions,
    };
    Ok(causal_window(json, fields)?.map_or(positions, |(_, window)| positions.min(window)))
}

/// How many tokens a causal model sees, and the field that says so; `None` if it sees all of them.
fn causal_window(
    json: &JsonObject,
    fields: &ConfigFields,
) -> Result<Option<(&'static str, usize)>, ModelError> {
    // null means no window, an absent field means the default
    let given = fields.causal_window.filter(|window| !json.is_null(window.name()));
    given.map(|window| Ok((window.name(), window.size(json)?))).transpose()
}

/// Finds the architecture by `model_type`; in files without one, by the name of the model's class.
fn architecture(json: &JsonObject) -> Result<(&'static Architecture, &'static Name), ModelError> {
    let all = || {
        let all = crate::architectures::ALL.iter();
        all.flat_map(|known| known.names.iter().map(move |name| (known, name)))
    };
    let supported = || {
        let mut model_types: Vec<_> = all().map(|(_, name)| name.model_type).collect();
        model_types.dedup(); // families that share one are neighbours
        model_types.join(", ")
    };
    if let Some(model_type) = json.get::<String>("model_type")? {
        for (known, name) in all().filter(|(_, name)| name.model_type == model_type) {
            if known.fields.are_meant(json)? {
                return Ok((known, name));
            }
        }
        return Err(json.unsupported("model_type", model_type, supported()));
    }
    let classes: Vec<String> = json.get("architectures")?.unwrap_or_default();
    let known = all().filter(|(_, name)| classes.iter().any(|class| class.starts_with(name.class_prefix)));
    // the longest prefix wins: "LlamaBidirectionalModel" is not a Llama
    let closest = known.max_by_key(|(_, name)| name.class_prefix.len());
    closest.ok_or_else(|| json.wrong("model_type", format!("missing, supported: {}", supported())))
}

#[cfg(test)]
mod tests;
