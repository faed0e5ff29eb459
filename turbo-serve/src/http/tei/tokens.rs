//! The routes of the tokenizer alone: `/tokenize`, `/decode`.

use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        DecodeRequest, Encoding, EngineError, Extent, SpecialTokens, Texts, TokenizeRequest, Tokenized,
    },
    http::{
        answer::{caught, elsewhere, json},
        call::{Call, RequestBody},
        error::{ApiError, TeiError},
        inputs::{IdLists, TextList},
    },
};

/// Body of `POST /tokenize`.
#[derive(Deserialize)]
pub(in crate::http) struct TokenizeBody {
    inputs: TextList,
    add_special_tokens: Option<bool>,
    prompt_name: Option<String>,
}

/// Body of `POST /decode`.
#[derive(Deserialize)]
pub(in crate::http) struct DecodeBody {
    ids: IdLists,
    skip_special_tokens: Option<bool>,
}

impl RequestBody for TokenizeBody {
    type Error = TeiError;
}

impl RequestBody for DecodeBody {
    type Error = TeiError;
}

/// One token. `start` and `stop` are byte offsets into the text, prompt included; special tokens have none.
#[derive(Serialize)]
pub(crate) struct Token<'a> {
    pub(crate) id: u32,
    pub(crate) text: &'a str,
    pub(crate) special: bool,
    pub(crate) start: Option<usize>,
    pub(crate) stop: Option<usize>,
}

/// `[[{"id", "text", "special", "start", "stop"}]]`.
pub(in crate::http) async fn tokenize(
    Call { target, body, .. }: Call<TokenizeBody>,
) -> Result<Response, TeiError> {
    let special = match body.add_special_tokens.unwrap_or(true) {
        true => SpecialTokens::With,
        false => SpecialTokens::Without,
    };
    let texts = body.inputs.texts.into_iter().map(Texts::One).collect();
    let prompt = target.engine().info().model.prompts.choose(&body.prompt_name.into());
    let prompt = prompt.map_err(ApiError::from)?;
    let request = TokenizeRequest { prompt, ..TokenizeRequest::new(texts, Extent::Whole(special)) };
    let tokenized = caught(|| target.engine().tokenize(request)).await?;
    // 2 MB of text may be two million tokens, and each is a hundred bytes of JSON.
    let body = elsewhere(move || {
        let all: Vec<Vec<Token<'_>>> = tokenized.iter().map(tokens).collect();
        Ok(serde_json::to_vec(&all).expect("numbers and strings are always JSON"))
    });
    Ok(json(body.await?))
}

/// The tokens of a text.
pub(crate) fn tokens(tokenized: &Tokenized) -> Vec<Token<'_>> {
    let (Texts::One(text) | Texts::Pair(text, _)) = &tokenized.texts;
    let of = |encoding| (0..Encoding::len(encoding)).map(move |index| token(encoding, index, text));
    tokenized.encodings.iter().flat_map(of).collect()
}

fn token<'a>(encoding: &'a Encoding, index: usize, text: &'a str) -> Token<'a> {
    let (id, special) = (encoding.input_ids[index], encoding.special[index]);
    if special {
        return Token { id, text: &encoding.tokens[index], special, start: None, stop: None };
    }
    let bytes = encoding.offsets[index].clone();
    let (start, stop) = (Some(bytes.start), Some(bytes.end));
    Token { id, text: text.get(bytes).unwrap_or_default(), special, start, stop }
}

/// `[str]`.
pub(in crate::http) async fn decode(
    Call { target, body, .. }: Call<DecodeBody>,
) -> Result<Response, TeiError> {
    let ids = body.ids.0;
    if ids.is_empty() {
        return Err(ApiError::empty("`ids` cannot be empty").into());
    }
    if let Some(input) = ids.iter().position(Vec::is_empty) {
        return Err(ApiError::from(EngineError::EmptyInput { input }).into());
    }
    let special = match body.skip_special_tokens.unwrap_or(true) {
        true => SpecialTokens::Without,
        false => SpecialTokens::With,
    };
    let texts = caught(|| target.engine().decode(DecodeRequest::new(ids, special))).await?;
    Ok(json(serde_json::to_vec(&texts).expect("strings are always JSON")))
}
