//! `tei.v1.Embed`: dense vectors, sparse ones, and one per token.

use std::time::Instant;

use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Answered, Question, metadata,
    proto::{
        EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseRequest,
        EmbedSparseResponse, SparseValue, TokenEmbedding, embed_server::Embed,
    },
};
use crate::{
    engine::{Input, OutputKind},
    grpc::{
        calls::{Ask, Calls},
        streams::Answers,
    },
    http::{Ability, ApiError, Arity},
    models::Served,
};

impl Ask for EmbedRequest {
    type Answer = EmbedResponse;
    const COUNTED: Option<Arity> = Some(Arity::Single);

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<EmbedResponse>, ApiError> {
        let question = Question {
            input: Input::Text(self.inputs),
            output: OutputKind::Pooled {
                normalize: self.normalize.unwrap_or(true),
                dimensions: self.dimensions.map(|dimensions| dimensions as usize),
            },
            truncate: self.truncate,
            truncation_direction: self.truncation_direction,
            prompt_name: self.prompt_name,
        };
        let (row, usage) = question.ask(served.engine(), Ability::Embed).await?;
        let message = EmbedResponse { embeddings: row.values, metadata: Some(metadata(&usage)) };
        Ok(Answered { message, usage })
    }
}

impl Ask for EmbedSparseRequest {
    type Answer = EmbedSparseResponse;
    const COUNTED: Option<Arity> = Some(Arity::Single);

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<EmbedSparseResponse>, ApiError> {
        let question = Question {
            input: Input::Text(self.inputs),
            output: OutputKind::RAW,
            truncate: self.truncate,
            truncation_direction: self.truncation_direction,
            prompt_name: self.prompt_name,
        };
        let (row, usage) = question.ask(served.engine(), Ability::EmbedSparse).await?;
        let weights = (0..).zip(row.values).filter(|&(_, value)| value != 0.0);
        let sparse_embeddings = weights.map(|(index, value)| SparseValue { index, value }).collect();
        let message = EmbedSparseResponse { sparse_embeddings, metadata: Some(metadata(&usage)) };
        Ok(Answered { message, usage })
    }
}

impl Ask for EmbedAllRequest {
    type Answer = EmbedAllResponse;
    const COUNTED: Option<Arity> = Some(Arity::Single);
    const OF_TOKENS: bool = true;

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<EmbedAllResponse>, ApiError> {
        let question = Question {
            input: Input::Text(self.inputs),
            output: OutputKind::Tokens,
            truncate: self.truncate,
            truncation_direction: self.truncation_direction,
            prompt_name: self.prompt_name,
        };
        let (row, usage) = question.ask(served.engine(), Ability::EmbedAll).await?;
        let token_embeddings = row.rows().map(|row| TokenEmbedding { embeddings: row.to_vec() }).collect();
        let message = EmbedAllResponse { token_embeddings, metadata: Some(metadata(&usage)) };
        Ok(Answered { message, usage })
    }
}

#[async_trait]
impl Embed for Calls {
    type EmbedStreamStream = Answers<EmbedResponse>;
    type EmbedSparseStreamStream = Answers<EmbedSparseResponse>;
    type EmbedAllStreamStream = Answers<EmbedAllResponse>;

    async fn embed(&self, request: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        self.answer(request).await
    }

    async fn embed_stream(
        &self,
        request: Request<Streaming<EmbedRequest>>,
    ) -> Result<Response<Answers<EmbedResponse>>, Status> {
        self.answer_each(request).await
    }

    async fn embed_sparse(
        &self,
        request: Request<EmbedSparseRequest>,
    ) -> Result<Response<EmbedSparseResponse>, Status> {
        self.answer(request).await
    }

    async fn embed_sparse_stream(
        &self,
        request: Request<Streaming<EmbedSparseRequest>>,
    ) -> Result<Response<Answers<EmbedSparseResponse>>, Status> {
        self.answer_each(request).await
    }

    async fn embed_all(
        &self,
        request: Request<EmbedAllRequest>,
    ) -> Result<Response<EmbedAllResponse>, Status> {
        self.answer(request).await
    }

    async fn embed_all_stream(
        &self,
        request: Request<Streaming<EmbedAllRequest>>,
    ) -> Result<Response<Answers<EmbedAllResponse>>, Status> {
        self.answer_each(request).await
    }
}
