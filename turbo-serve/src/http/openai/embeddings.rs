//! `POST /v1/embeddings`, as OpenAI's clients call it.

use axum::response::Response;
use serde::Deserialize;

use crate::{
    engine::{InferResponse, OutputKind},
    http::{
        ability::Ability,
        answer::{Question, answer},
        call::{Call, RequestBody},
        error::{ApiError, OpenAiError},
        inputs::{Count, Inputs},
        write::{self, Encoding},
    },
};

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

/// `POST /v1/embeddings`: normalised rows; inputs that are too long are treated as the server does by default.
pub(in crate::http) async fn embeddings(
    Call { target, body, received }: Call<EmbeddingsBody>,
) -> Result<Response, OpenAiError> {
    Ability::Embed.check(&target.engine().info().model)?;
    let target = target.writing(write::BYTES_PER_VALUE);
    if body.input.0.inputs.is_empty() {
        return Err(ApiError::empty("`input` cannot be empty").into());
    }
    let question = Question {
        inputs: body.input.0,
        output: OutputKind::Pooled { normalize: true, dimensions: body.dimensions.map(|Count(count)| count) },
        truncation: None,
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
    Ok(answer(&target, question, write).await?)
}
