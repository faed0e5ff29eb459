//! `POST /v1/embeddings`, as OpenAI's clients call it.

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    engine::{EngineError, InferResponse, OutputKind},
    http::{
        ability::Ability,
        answer::{Question, answer_in_parts},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Count, Counted, Inputs, Whole},
        target::Target,
        vllm::fields::{
            Cut, Padding, Side, check_input, check_padding, check_special_tokens, not_null, word,
        },
        write::{self, Encoding},
    },
    tasks::IfFull,
};

/// Most inputs of a request, unless the model takes more at once. Clients send as many as OpenAI takes, without asking.
///
/// Source: OpenAI's API reference, "Create embeddings": the array `input` may be no longer.
const MAX_INPUTS: usize = 2048;

/// Body of `POST /v1/embeddings`, with vLLM's fields besides OpenAI's. Fields that are not named here are ignored,
/// `user` among them; for optional ones, `null` counts as leaving them out.
#[derive(Deserialize)]
pub(in crate::http) struct EmbeddingsBody {
    #[serde(default, deserialize_with = "not_null")]
    input: Option<Inputs>,
    model: Option<String>,
    #[serde(default, deserialize_with = "word")]
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<Count>,
    messages: Option<IgnoredAny>,
    /// Which of the model's prompts is put before each text, as on text-embeddings-inference's routes.
    prompt_name: Option<String>,
    truncate_prompt_tokens: Option<Whole>,
    #[serde(default, deserialize_with = "word")]
    truncation_side: Option<Side>,
    /// Whether rows are normalised, by the field's current name.
    use_activation: Option<bool>,
    /// The same by its older name.
    normalize: Option<bool>,
    #[serde(default, deserialize_with = "word")]
    padding: Option<Padding>,
    add_special_tokens: Option<bool>,
    embed_dtype: Option<String>,
    #[serde(default, deserialize_with = "word")]
    endianness: Option<Endianness>,
}

/// The byte order of numbers in base64.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum Endianness {
    Native,
    Little,
    Big,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

impl EncodingFormat {
    pub(in crate::http) fn encoding(self) -> Encoding {
        match self {
            Self::Float => Encoding::Float,
            Self::Base64 => Encoding::Base64,
        }
    }
}

impl RequestBody for EmbeddingsBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// `POST /v1/embeddings`: a row per input, normalised by default, computed in parts of as many inputs as the model
/// takes. Inputs that are too long are treated as the request says, or else as the server does by default.
pub(in crate::http) async fn embeddings(
    Call { target, body, received }: Call<EmbeddingsBody>,
) -> Result<Response, OpenAiError> {
    Ability::Embed.check(&target)?;
    let target = target.writing(write::BYTES_PER_VALUE);
    let Counted { inputs, arity } = check_input(body.input, body.messages)?;
    check_padding(body.padding)?;
    check_special_tokens(body.add_special_tokens)?;
    let encoding = body.encoding_format.unwrap_or_default().encoding();
    check_bytes(encoding, body.embed_dtype.as_deref(), body.endianness)?;
    let Cut { truncation, max_input_length } =
        Cut::of(&target, body.truncate_prompt_tokens, body.truncation_side)?;
    check_count(&target, inputs.len())?;
    let dimensions = body.dimensions.map(|Count(count)| count);
    let row_len = target.engine().info().model.rows.pooled.unwrap_or(0);
    target.check_values(inputs.len() * row_len.min(dimensions.unwrap_or(row_len)))?;
    let normalize = body.use_activation.or(body.normalize).unwrap_or(true);
    let output = OutputKind::Pooled { normalize, dimensions };
    let question = Question {
        truncation,
        max_input_length,
        prompt_name: body.prompt_name.into(),
        ..Question::new(arity, output, received)
    };
    let model = target.engine().info().model.name.clone();
    let write = move |response: &InferResponse| {
        Ok(write::openai_list(&response.rows, encoding, &model, response.usage.tokens)?)
    };
    Ok(answer_in_parts(target, question, inputs.into_iter(), IfFull::Fails, write).await?)
}

/// Refuses base64 of anything but what is written: little-endian `f32`s.
pub(in crate::http) fn check_bytes(
    encoding: Encoding,
    embed_dtype: Option<&str>,
    endianness: Option<Endianness>,
) -> Result<(), ApiError> {
    let wrong = |field, got: &str, expected| {
        Err(ApiError::validation(format!("`{field}` is {got:?}, expected {expected:?} for base64")))
    };
    match (encoding, embed_dtype, endianness) {
        (Encoding::Base64, Some(dtype), _) if dtype != "float32" => wrong("embed_dtype", dtype, "float32"),
        (Encoding::Base64, _, Some(Endianness::Big)) => wrong("endianness", "big", "little"),
        _ => Ok(()),
    }
}

/// Refuses more inputs than a request may have.
pub(in crate::http) fn check_count(target: &Target, got: usize) -> Result<(), ApiError> {
    let limit = MAX_INPUTS.max(target.engine().info().max_client_batch_size);
    match got > limit {
        true => Err(EngineError::TooManyInputs { got, limit }.into()),
        false => Ok(()),
    }
}
