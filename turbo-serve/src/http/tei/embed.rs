//! The routes that give vectors, or compare them: `/embed`, `/embed_all`, `/embed_sparse`, `/similarity`.

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{TruncationDirection, truncation};
use crate::{
    engine::{Input, OutputKind},
    http::{
        ability::Ability,
        answer::{Question, answer},
        body::{Json, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Count, Counted, Inputs, Object},
        router::Server,
        write,
    },
};

/// Body of `POST /embed`.
#[derive(Deserialize)]
pub(in crate::http) struct EmbedBody {
    inputs: Inputs,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    prompt_name: Option<String>,
    normalize: Option<bool>,
    dimensions: Option<Count>,
}

/// Body of `POST /embed_all` and `POST /embed_sparse`: as [`EmbedBody`], without what concerns dense pooled rows.
#[derive(Deserialize)]
pub(in crate::http) struct EmbedAllBody {
    inputs: Inputs,
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    prompt_name: Option<String>,
}

/// Body of `POST /similarity`.
#[derive(Deserialize)]
pub(in crate::http) struct SimilarityBody {
    inputs: Object<Sentences>,
    parameters: Option<Object<Parameters>>,
}

#[derive(Deserialize)]
struct Sentences {
    source_sentence: String,
    sentences: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    truncate: Option<bool>,
    truncation_direction: Option<TruncationDirection>,
    prompt_name: Option<String>,
}

impl RequestBody for EmbedBody {
    type Error = TeiError;
}

impl RequestBody for EmbedAllBody {
    type Error = TeiError;
}

impl RequestBody for SimilarityBody {
    type Error = TeiError;
}

/// `[[f32]]`, nested for a single input too.
pub(in crate::http) async fn embed(
    State(server): State<Server>,
    Json { body, received }: Json<EmbedBody>,
) -> Result<Response, TeiError> {
    Ability::Embed.check(&server.engine().info().model)?;
    let question = Question {
        inputs: body.inputs.0,
        output: OutputKind::Pooled {
            normalize: body.normalize.unwrap_or(true),
            dimensions: body.dimensions.map(|Count(count)| count),
        },
        truncation: Some(truncation(&server, body.truncate, body.truncation_direction)),
        prompt_name: body.prompt_name,
        received,
    };
    Ok(answer(&server, question, |response| Ok(write::embeddings(&response.rows)?)).await?)
}

/// `[[[f32]]]`, a row per token.
pub(in crate::http) async fn embed_all(
    State(server): State<Server>,
    body: Json<EmbedAllBody>,
) -> Result<Response, TeiError> {
    Ability::EmbedAll.check(&server.engine().info().model)?;
    let question = body.question(&server, OutputKind::Tokens);
    Ok(answer(&server, question, |response| Ok(write::token_embeddings(&response.rows)?)).await?)
}

/// `[[{"index", "value"}]]`, the weights that are not 0.
pub(in crate::http) async fn embed_sparse(
    State(server): State<Server>,
    body: Json<EmbedAllBody>,
) -> Result<Response, TeiError> {
    Ability::EmbedSparse.check(&server.engine().info().model)?;
    let question = body.question(&server, OutputKind::RAW);
    Ok(answer(&server, question, |response| Ok(write::sparse_embeddings(&response.rows)?)).await?)
}

impl Json<EmbedAllBody> {
    fn question(self, server: &Server, output: OutputKind) -> Question {
        let Self { body, received } = self;
        Question {
            inputs: body.inputs.0,
            output,
            truncation: Some(truncation(server, body.truncate, body.truncation_direction)),
            prompt_name: body.prompt_name,
            received,
        }
    }
}

/// `[f32]`, the cosine between the source sentence and each of the others.
pub(in crate::http) async fn similarity(
    State(server): State<Server>,
    Json { body, received }: Json<SimilarityBody>,
) -> Result<Response, TeiError> {
    Ability::Similarity.check(&server.engine().info().model)?;
    let Sentences { source_sentence, sentences } = body.inputs.0;
    if sentences.is_empty() {
        return Err(ApiError::empty("`inputs.sentences` cannot be empty").into());
    }
    let parameters = body.parameters.unwrap_or_default().0;
    let inputs = [source_sentence].into_iter().chain(sentences).map(Input::Text).collect();
    let question = Question {
        inputs: Counted::batch(inputs),
        output: OutputKind::Pooled { normalize: true, dimensions: None },
        truncation: Some(truncation(&server, parameters.truncate, parameters.truncation_direction)),
        prompt_name: parameters.prompt_name,
        received,
    };
    Ok(answer(&server, question, |response| Ok(write::cosines(&response.rows)?)).await?)
}
