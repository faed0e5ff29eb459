//! `POST /v1/embeddings`, as OpenAI's clients call it.

use axum::response::Response;
use serde::Deserialize;

use crate::{
    engine::{EngineError, InferResponse, OutputKind},
    http::{
        ability::Ability,
        answer::{Question, answer_in_parts},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Count, Counted, Inputs},
        target::Target,
        write::{self, Encoding},
    },
    tasks::NoRoom,
};

/// Most inputs of a request, for models that take fewer at once. Clients send as many as OpenAI takes, unasked.
///
/// Source: OpenAI's API reference, "Create embeddings": the array `input` may be no longer.
const MAX_INPUTS: usize = 2048;

/// Body of `POST /v1/embeddings`. Fields not named here are ignored, `user` among them; `null` is as
/// good as leaving one out.
#[derive(Deserialize)]
pub(in crate::http) struct EmbeddingsBody {
    input: Inputs,
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<Count>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    Float,
    Base64,
}

impl RequestBody for EmbeddingsBody {
    type Error = OpenAiError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// `POST /v1/embeddings`: normalised rows, asked for in parts of as many inputs as the model takes; inputs that are too
/// long are treated as the server does by default.
pub(in crate::http) async fn embeddings(
    Call { target, body, received }: Call<EmbeddingsBody>,
) -> Result<Response, OpenAiError> {
    Ability::Embed.check(&target)?;
    let target = target.writing(write::BYTES_PER_VALUE);
    let Counted { inputs, arity } = body.input.0;
    if inputs.is_empty() {
        return Err(ApiError::empty("`input` cannot be empty").into());
    }
    check_count(&target, inputs.len())?;
    let dimensions = body.dimensions.map(|Count(count)| count);
    let row_len = target.engine().info().model.rows.pooled.unwrap_or(0);
    if let Some(planned) = target.planned() {
        planned.check(inputs.len() * row_len.min(dimensions.unwrap_or(row_len))).map_err(ApiError::from)?;
    }
    let question = Question {
        inputs: Counted { inputs: Vec::new(), arity },
        output: OutputKind::Pooled { normalize: true, dimensions },
        truncation: None,
        max_input_length: None,
        prompt_name: None,
        received,
    };
    let encoding = match body.encoding_format {
        Some(EncodingFormat::Float) | None => Encoding::Float,
        Some(EncodingFormat::Base64) => Encoding::Base64,
    };
    let model = target.engine().info().model.name.clone();
    let write = move |response: &InferResponse| {
        Ok(write::openai_list(&response.rows, encoding, &model, response.usage.tokens)?)
    };
    let target = target.begun()?;
    Ok(answer_in_parts(&target, question, inputs.into_iter(), NoRoom::Fails, write).await?)
}

/// Refuses more inputs than a request may have.
pub(in crate::http) fn check_count(target: &Target, got: usize) -> Result<(), ApiError> {
    let limit = MAX_INPUTS.max(target.engine().info().max_client_batch_size);
    match got > limit {
        true => Err(EngineError::TooManyInputs { got, limit }.into()),
        false => Ok(()),
    }
}
