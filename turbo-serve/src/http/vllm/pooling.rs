//! `POST /pooling`: what a model makes of its inputs as a whole, or of each of their tokens.

use std::borrow::Cow;

use axum::response::Response;
use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};
use turbo_models::tasks::TaskError;

use super::{
    List,
    classify::probabilities,
    fields::{
        Cut, Padding, Side, activation, check_input, check_padding, check_special_tokens, not_null, refuse,
        word,
    },
    id_of,
};
use crate::{
    engine::{InferResponse, ModelInfo, OutputKind, Row, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer, answer_in_parts},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Counted, Inputs, Whole},
        openai::{EncodingFormat, Endianness, check_bytes, check_count},
        write::{self, Encoding, check_finite},
    },
    tasks::NoRoom,
};

/// Its body.
#[derive(Deserialize)]
pub(in crate::http) struct PoolingBody {
    model: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    input: Option<Inputs>,
    messages: Option<IgnoredAny>,
    data: Option<IgnoredAny>,
    task: Option<String>,
    dimensions: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "word")]
    encoding_format: Option<EncodingFormat>,
    embed_dtype: Option<String>,
    #[serde(default, deserialize_with = "word")]
    endianness: Option<Endianness>,
    use_activation: Option<bool>,
    activation: Option<bool>,
    softmax: Option<bool>,
    normalize: Option<bool>,
    truncate_prompt_tokens: Option<Whole>,
    #[serde(default, deserialize_with = "word")]
    truncation_side: Option<Side>,
    #[serde(default, deserialize_with = "word")]
    padding: Option<Padding>,
    add_special_tokens: Option<bool>,
    request_id: Option<String>,
}

impl RequestBody for PoolingBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Embed,
    TokenEmbed,
    Classify,
    TokenClassify,
}

/// What becomes of a row.
#[derive(Clone, Copy)]
enum Activation {
    Nothing,
    Norm,
    Scores(ScoreFunction),
}

#[derive(Serialize)]
struct Pooled<'a> {
    index: usize,
    object: &'static str,
    data: Data<'a>,
}

/// The values of an input: a list, a list for each token, or all of them as base64.
struct Data<'a> {
    values: Cow<'a, [f32]>,
    row_len: usize,
    of_tokens: bool,
    encoding: Encoding,
}

/// `{"data": [{"index", "object": "pooling", "data"}], …}` in the order of the inputs.
pub(in crate::http) async fn pooling(
    Call { target, body, received }: Call<PoolingBody>,
) -> Result<Response, OpenAiError> {
    Ability::Pool.check(&target)?;
    refuse("data", body.data, "no plugin reads it; send `input`")?;
    refuse("dimensions", body.dimensions, "`/v1/embeddings` has it")?;
    let Counted { inputs, arity } = check_input(body.input, body.messages)?;
    check_padding(body.padding)?;
    check_special_tokens(body.add_special_tokens)?;
    check_count(&target, inputs.len())?;
    let encoding = body.encoding_format.unwrap_or_default().encoding();
    check_bytes(encoding, body.embed_dtype.as_deref(), body.endianness)?;
    let Cut { truncation, max_input_length } =
        Cut::of(&target, body.truncate_prompt_tokens, body.truncation_side)?;
    // A value is copied where something becomes of it.
    let target = target.writing(encoding.bytes_per_value() + size_of::<f32>());
    let model = &target.engine().info().model;
    let task = Task::of(model, body.task.as_deref())?;
    let active = activation([body.use_activation, body.activation, body.softmax]).or(body.normalize);
    let (output, becomes) = task.asks(model, active.unwrap_or(true));
    let (name, row_len) = (model.name.clone(), model.row_len(output).unwrap_or(0));
    let id = id_of("pooling", body.request_id);
    let write = move |response: &InferResponse| {
        check_finite(&response.rows)?;
        let rows = response.rows.iter().enumerate();
        let data: Vec<Pooled<'_>> = rows
            .map(|(index, row)| {
                let values = becomes.values(row)?;
                let data = Data { values, row_len: row.row_len, of_tokens: task.is_of_tokens(), encoding };
                Ok(Pooled { index, object: "pooling", data })
            })
            .collect::<Result<_, TaskError>>()?;
        Ok(List::new(id, &name, data, response.usage.tokens).json())
    };
    let question = |inputs| Question {
        inputs: Counted { inputs, arity },
        output,
        truncation,
        max_input_length,
        prompt_name: None,
        received,
    };
    if task.is_of_tokens() {
        // How large such an answer is nobody knows before the inputs are tokens, so it is asked for at once.
        return Ok(answer(&target, question(inputs), write).await?);
    }
    if let Some(planned) = target.planned() {
        planned.check(inputs.len() * row_len).map_err(ApiError::from)?;
    }
    let target = target.begun()?;
    let question = question(Vec::new());
    Ok(answer_in_parts(&target, question, inputs.into_iter(), NoRoom::Fails, write).await?)
}

impl Task {
    /// The one that a request names, or the first of those that the model can do.
    fn of(model: &ModelInfo, name: Option<&str>) -> Result<Self, ApiError> {
        let possible: &[Self] = match Ability::of(model) {
            Ability::Embed => &[Self::Embed, Self::TokenEmbed],
            Ability::EmbedSparse => &[Self::Embed],
            Ability::TokenClassification => &[Self::TokenClassify],
            _ => &[Self::Classify],
        };
        let Some(name) = name else { return Ok(possible[0]) };
        possible.iter().copied().find(|task| task.name() == name).ok_or_else(|| {
            let names: Vec<String> = possible.iter().map(|task| format!("{:?}", task.name())).collect();
            ApiError::validation(format!(
                "`task` is {name:?}, expected {}, which this model can do",
                names.join(" or ")
            ))
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::TokenEmbed => "token_embed",
            Self::Classify => "classify",
            Self::TokenClassify => "token_classify",
        }
    }

    fn is_of_tokens(self) -> bool {
        matches!(self, Self::TokenEmbed | Self::TokenClassify)
    }

    /// The rows that the engine is asked for, and what becomes of them if they are not left as they are.
    fn asks(self, model: &ModelInfo, active: bool) -> (OutputKind, Activation) {
        let scores = match active {
            true => Activation::Scores(model.score_function),
            false => Activation::Nothing,
        };
        match self {
            Self::Embed => (OutputKind::Pooled { normalize: active, dimensions: None }, Activation::Nothing),
            Self::TokenEmbed if active => (OutputKind::Tokens, Activation::Norm),
            Self::TokenEmbed => (OutputKind::Tokens, Activation::Nothing),
            Self::Classify => (OutputKind::RAW, scores),
            Self::TokenClassify => (OutputKind::Tokens, scores),
        }
    }
}

impl Activation {
    /// What becomes of all rows of an input.
    fn values(self, row: &Row) -> Result<Cow<'_, [f32]>, TaskError> {
        let mut values = Vec::new();
        match self {
            Self::Nothing => return Ok(Cow::Borrowed(&row.values)),
            Self::Norm => {
                values.reserve(row.values.len());
                row.rows().for_each(|row| values.extend(of_norm_one(row)));
            }
            Self::Scores(function) => {
                values.reserve(row.values.len());
                for logits in row.rows() {
                    values.extend(probabilities(logits, function)?);
                }
            }
        }
        Ok(Cow::Owned(values))
    }
}

/// The row divided by its L2 norm; one of zeros stays that.
fn of_norm_one(row: &[f32]) -> impl Iterator<Item = f32> {
    // The square of an f32 is exact in f64.
    let square: f64 = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let norm = square.sqrt().max(f64::MIN_POSITIVE);
    row.iter().map(move |&value| (f64::from(value) / norm) as f32)
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.encoding, self.of_tokens) {
            (Encoding::Base64, _) => serializer.serialize_str(&write::base64(&self.values)),
            (_, true) => serializer.collect_seq(self.values.chunks_exact(self.row_len.max(1))),
            (_, false) => self.values.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_norm_one_or_are_zeros() {
        for (row, expected) in [
            (vec![3.0, -4.0], vec![0.6, -0.8]),
            (vec![0.0, 0.0], vec![0.0, 0.0]),
            (vec![f32::MAX, 0.0], vec![1.0, 0.0]),
            (vec![f32::MIN_POSITIVE / 1024.0], vec![1.0]),
        ] {
            assert_eq!(of_norm_one(&row).collect::<Vec<_>>(), expected, "{row:?}");
        }
    }
}
