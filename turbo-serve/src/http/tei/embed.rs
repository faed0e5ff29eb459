//! The routes that give vectors, or compare them: `/embed`, `/embed_all`, `/embed_sparse`, `/similarity`.

use std::time::Instant;

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};

use super::{TruncationDirection, truncation};
use crate::{
    engine::{Input, OutputKind},
    http::{
        ability::Ability,
        answer::{Question, Sides, answer},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{Count, Counted, Inputs, Object},
        metrics::Arity,
        target::Target,
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

/// Body of `POST /embed_all` and `POST /embed_sparse`: like [`EmbedBody`], without the options of dense pooled rows.
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
    Call { target, body, received }: Call<EmbedBody>,
) -> Result<Response, TeiError> {
    Ability::Embed.check(&target)?;
    let target = target.writing(write::BYTES_PER_VALUE);
    let output = OutputKind::Pooled {
        normalize: body.normalize.unwrap_or(true),
        dimensions: body.dimensions.map(|Count(count)| count),
    };
    let Counted { inputs, arity } = body.inputs.0;
    let question = Question {
        truncation: truncation(&target, body.truncate, body.truncation_direction),
        prompt_name: body.prompt_name.into(),
        ..Question::new(arity, output, received)
    };
    Ok(answer(&target, question, inputs, |response| Ok(write::embeddings(&response.rows)?)).await?)
}

/// `[[[f32]]]`, a row per token.
pub(in crate::http) async fn embed_all(
    Call { target, body, received }: Call<EmbedAllBody>,
) -> Result<Response, TeiError> {
    Ability::EmbedAll.check(&target)?;
    let target = target.writing(write::BYTES_PER_VALUE);
    let (question, inputs) = body.question(&target, OutputKind::Tokens, received);
    Ok(answer(&target, question, inputs, |response| Ok(write::token_embeddings(&response.rows)?)).await?)
}

/// `[[{"index", "value"}]]`, the weights that are not 0.
pub(in crate::http) async fn embed_sparse(
    Call { target, body, received }: Call<EmbedAllBody>,
) -> Result<Response, TeiError> {
    Ability::EmbedSparse.check(&target)?;
    let (question, inputs) = body.question(&target, OutputKind::RAW, received);
    Ok(answer(&target, question, inputs, |response| Ok(write::sparse_embeddings(&response.rows)?)).await?)
}

impl EmbedAllBody {
    fn question(self, target: &Target, output: OutputKind, received: Instant) -> (Question, Vec<Input>) {
        let Counted { inputs, arity } = self.inputs.0;
        let question = Question {
            truncation: truncation(target, self.truncate, self.truncation_direction),
            prompt_name: self.prompt_name.into(),
            ..Question::new(arity, output, received)
        };
        (question, inputs)
    }
}

/// Whether a body asks for the similarity of sentences: no other request to an embedding model has such `inputs`.
pub(in crate::http) fn compares(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Compared {
        inputs: Object<Source>,
    }
    #[derive(Deserialize)]
    struct Source {
        source_sentence: Option<IgnoredAny>,
    }
    // Whatever is wrong with the body is reported by the route that reads it.
    serde_json::from_slice(body).is_ok_and(|Compared { inputs }| inputs.0.source_sentence.is_some())
}

/// `[f32]`, the cosine between the source sentence and each of the others.
pub(in crate::http) async fn similarity(
    Call { target, body, received }: Call<SimilarityBody>,
) -> Result<Response, TeiError> {
    Ability::Similarity.check(&target)?;
    let Sentences { source_sentence, sentences } = body.inputs.0;
    if sentences.is_empty() {
        return Err(ApiError::empty("`inputs.sentences` cannot be empty").into());
    }
    let parameters = body.parameters.unwrap_or_default().0;
    let inputs = [source_sentence].into_iter().chain(sentences).map(Input::Text).collect();
    let output = OutputKind::Pooled { normalize: true, dimensions: None };
    let sides = Sides { fields: ["inputs.source_sentence", "inputs.sentences"], firsts: 1 };
    let question = Question {
        sides: Some(sides),
        truncation: truncation(&target, parameters.truncate, parameters.truncation_direction),
        prompt_name: parameters.prompt_name.into(),
        ..Question::new(Arity::Batch, output, received)
    };
    Ok(answer(&target, question, inputs, |response| Ok(write::cosines(&response.rows)?)).await?)
}
