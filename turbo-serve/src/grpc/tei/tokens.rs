//! `tei.v1.Tokenize`: texts to tokens, and back.

use std::time::Instant;

use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Answered, number,
    proto::{
        DecodeRequest, DecodeResponse, EncodeRequest, EncodeResponse, SimpleToken, tokenize_server::Tokenize,
    },
};
use crate::{
    engine::{self, EngineError, Extent, SpecialTokens, Texts, TokenizeRequest, Usage},
    grpc::{
        calls::{Ask, Calls},
        streams::Answers,
    },
    http::{ApiError, Arity, Token, caught, tokens},
    models::Served,
};

impl Ask for EncodeRequest {
    type Answer = EncodeResponse;
    const COUNTED: Option<Arity> = None;

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<EncodeResponse>, ApiError> {
        let special = match self.add_special_tokens {
            true => SpecialTokens::With,
            false => SpecialTokens::Without,
        };
        let engine = served.engine();
        let prompt = engine.info().model.prompts.choose(&self.prompt_name.into())?;
        let texts = vec![Texts::One(self.inputs)];
        let request = TokenizeRequest { prompt, ..TokenizeRequest::new(texts, Extent::Whole(special)) };
        let tokenized = caught(|| engine.tokenize(request)).await?;
        let tokens = tokenized.iter().flat_map(tokens).map(SimpleToken::from).collect();
        Ok(Answered { message: EncodeResponse { tokens }, usage: Usage::default() })
    }
}

impl From<Token<'_>> for SimpleToken {
    fn from(token: Token<'_>) -> Self {
        let Token { id, text, special, start, stop } = token;
        Self { id, text: text.to_owned(), special, start: start.map(number), stop: stop.map(number) }
    }
}

impl Ask for DecodeRequest {
    type Answer = DecodeResponse;
    const COUNTED: Option<Arity> = None;

    async fn ask(self, served: &Served, _: Instant) -> Result<Answered<DecodeResponse>, ApiError> {
        if self.ids.is_empty() {
            return Err(EngineError::EmptyInput { input: 0 }.into());
        }
        let special = match self.skip_special_tokens {
            true => SpecialTokens::Without,
            false => SpecialTokens::With,
        };
        let request = engine::DecodeRequest::new(vec![self.ids], special);
        let text = caught(|| served.engine().decode(request)).await?.concat();
        Ok(Answered { message: DecodeResponse { text }, usage: Usage::default() })
    }
}

#[async_trait]
impl Tokenize for Calls {
    type TokenizeStreamStream = Answers<EncodeResponse>;
    type DecodeStreamStream = Answers<DecodeResponse>;

    async fn tokenize(&self, request: Request<EncodeRequest>) -> Result<Response<EncodeResponse>, Status> {
        self.answer(request).await
    }

    async fn tokenize_stream(
        &self,
        request: Request<Streaming<EncodeRequest>>,
    ) -> Result<Response<Answers<EncodeResponse>>, Status> {
        self.answer_each(request).await
    }

    async fn decode(&self, request: Request<DecodeRequest>) -> Result<Response<DecodeResponse>, Status> {
        self.answer(request).await
    }

    async fn decode_stream(
        &self,
        request: Request<Streaming<DecodeRequest>>,
    ) -> Result<Response<Answers<DecodeResponse>>, Status> {
        self.answer_each(request).await
    }
}
