//! `POST /pooling`: a row for each input, or for each of its tokens.

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};
use turbo_models::{l2_normalize, tasks::scores};

use super::{
    created,
    fields::{
        Cut, Padding, Side, activation, check_input, check_padding, check_special_tokens, not_null, refuse,
        word,
    },
    id_of,
};
use crate::{
    engine::{InferResponse, ModelInfo, OutputKind, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer, answer_in_parts},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Counted, Inputs, Whole},
        openai::{EncodingFormat, Endianness, check_bytes, check_count},
        write::{self, PoolingHead},
    },
    tasks::IfFull,
};

/// The request's body.
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

/// What a request asks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolingTask {
    Embed,
    TokenEmbed,
    Classify,
    TokenClassify,
}

/// How a row is activated.
#[derive(Clone, Copy)]
enum Activation {
    Nothing,
    Norm,
    Scores(ScoreFunction),
}

/// `{"data": [{"index", "object": "pooling", "data"}], …}` in the order of the inputs.
pub(in crate::http) async fn pooling(
    Call { target, body, received }: Call<PoolingBody>,
) -> Result<Response, OpenAiError> {
    Ability::Pool.check(&target)?;
    refuse("data", body.data, "no plugin reads it; send `input`")?;
    refuse("dimensions", body.dimensions, "use it with `/v1/embeddings`")?;
    let Counted { inputs, arity } = check_input(body.input, body.messages)?;
    check_padding(body.padding)?;
    check_special_tokens(body.add_special_tokens)?;
    let model = &target.engine().info().model;
    let task = PoolingTask::of(model, body.task.as_deref())?;
    if !task.is_of_tokens() {
        check_count(&target, inputs.len())?;
    }
    let format = body.encoding_format.unwrap_or_default();
    check_bytes(format.encoding(), body.embed_dtype.as_deref(), body.endianness)?;
    let Cut { truncation, max_input_length } =
        Cut::of(&target, body.truncate_prompt_tokens, body.truncation_side)?;
    let active = activation([body.use_activation, body.activation, body.softmax]).or(body.normalize);
    let (output, activation) = task.asks(model, active.unwrap_or(true));
    let (name, row_len) = (model.name.clone(), model.row_len(output).unwrap_or(0));
    let target = target.writing(format.encoding().bytes_per_value());
    let id = id_of("pooling", body.request_id);
    let write = move |response: &InferResponse| {
        let head = PoolingHead { id: &id, created: created(), model: &name, tokens: response.usage.tokens };
        let of_tokens = task.is_of_tokens();
        let activate = |row: &mut [f32]| activation.apply(row);
        Ok(write::pooling_list(&response.rows, format.encoding(), of_tokens, activate, head)?)
    };
    let question = Question { truncation, max_input_length, ..Question::new(arity, output, received) };
    if task.is_of_tokens() {
        // the size of such an answer is not known before the inputs are tokenized, so they are all asked for at once
        return Ok(answer(&target, question, inputs, write).await?);
    }
    target.check_values(inputs.len() * row_len)?;
    Ok(answer_in_parts(target, question, inputs.into_iter(), IfFull::Fails, write).await?)
}

impl PoolingTask {
    /// The task that a request names, or else the first that the model can do.
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

    /// The rows that the engine is asked for, and how they are activated.
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
    /// Activates a row, whose values are finite.
    fn apply(self, row: &mut [f32]) {
        match self {
            Self::Nothing => {}
            Self::Norm => l2_normalize(row),
            Self::Scores(function) => {
                row.copy_from_slice(&scores(row, function).expect("numbers have scores"));
            }
        }
    }
}
