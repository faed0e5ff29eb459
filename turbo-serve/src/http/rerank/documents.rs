//! `POST /v1/rerank` and `POST /v2/rerank`, as the clients of Cohere and Jina call them. The answer has the fields that
//! either reads; fields of the body that are not named here are ignored.

use std::hash::{BuildHasher, Hasher, RandomState};

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::order::{best_first, check, check_copies, check_count, pairs};
use crate::{
    engine::{Extent, InferResponse, OutputKind, Pending, SpecialTokens, Texts, TokenizeRequest, Tokenized},
    http::{
        answer::{Question, answer_in_parts, caught},
        call::{Call, RequestBody},
        error::{ApiError, RerankError},
        inputs::{Count, Documents, at_least_one},
        metrics::Arity,
        router::Server,
        target::Target,
        tei::score_function,
        vllm::fields::{Padding, check_padding, check_template, word},
    },
    tasks::{AT_ONCE, Door, NoRoom, patiently},
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct DocumentsBody {
    model: Option<String>,
    query: String,
    documents: Documents,
    top_n: Option<Count>,
    return_documents: Option<bool>,
    max_tokens_per_doc: Option<Count>,
    rank_fields: Option<Vec<String>>,
    instruction: Option<String>,
    #[serde(default, deserialize_with = "word")]
    padding: Option<Padding>,
    chat_template_kwargs: Option<IgnoredAny>,
}

impl RequestBody for DocumentsBody {
    type Error = RerankError;

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

#[derive(Serialize)]
struct Reranked<'a> {
    id: String,
    object: &'static str,
    model: &'a str,
    results: Vec<Ranked<'a>>,
    meta: Meta,
    usage: Usage,
}

#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
}

#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
}

/// What Cohere's clients read besides the results.
#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: Tokens,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

/// Nothing is billed here, but some clients expect this field.
#[derive(Serialize)]
struct BilledUnits {
    search_units: usize,
}

#[derive(Serialize)]
struct Tokens {
    input_tokens: usize,
}

/// What Jina's clients read besides the results.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The remedy for too many documents.
const FEWER: &str = "send fewer documents at a time, or raise `--max-rerank-documents`";

/// `{"results": [{"index", "relevance_score", "document"}], …}`, the best first.
pub(in crate::http) async fn rerank(
    State(server): State<Server>,
    Call { target, body, received }: Call<DocumentsBody>,
) -> Result<Response, RerankError> {
    let DocumentsBody { query, documents: Documents(documents), rank_fields, instruction, .. } = body;
    let at_a_time = target.engine().info().max_client_batch_size;
    let limit = server.max_rerank_documents().max(at_a_time);
    check(&target, "documents", documents.len())?;
    check_count(documents.len(), limit).map_err(|error| error.with_remedy(FEWER))?;
    check_fields(rank_fields.as_deref())?;
    check_padding(body.padding)?;
    check_template(body.chat_template_kwargs)?;
    check_at_once(&target, "documents", documents.len(), at_a_time)?;
    check_copies("query", &query, documents.len().min(AT_ONCE * at_a_time))?;
    let top_n = at_least_one("top_n", body.top_n)?.unwrap_or(usize::MAX);
    let returned = body.return_documents.unwrap_or(false).then(|| documents.clone());
    let most_tokens = at_least_one("max_tokens_per_doc", body.max_tokens_per_doc)?;
    check_cut(&target, "max_tokens_per_doc", most_tokens)?;
    let target = target.begun()?;
    let (documents, no_room) = match most_tokens {
        Some(limit) => cut(&target, documents, limit, NoRoom::Fails).await?,
        None => (documents, NoRoom::Fails),
    };
    let model = &target.engine().info().model;
    let (name, function) = (model.name.clone(), score_function(model, None));
    let write = move |response: &InferResponse| {
        let document = |index: usize| returned.as_ref().map(|all| Document { text: &all[index] });
        let ranked = |(index, relevance_score)| Ranked { index, relevance_score, document: document(index) };
        let input_tokens = response.usage.tokens;
        let reranked = Reranked {
            id: new_id("rerank"),
            object: "list",
            model: &name,
            results: best_first(response, function)?.into_iter().take(top_n).map(ranked).collect(),
            meta: Meta {
                api_version: ApiVersion { version: "2" },
                billed_units: BilledUnits { search_units: 1 },
                tokens: Tokens { input_tokens },
            },
            usage: Usage { prompt_tokens: input_tokens, total_tokens: input_tokens },
        };
        Ok(serde_json::to_vec(&reranked).expect("numbers and strings are always JSON"))
    };
    let question = Question { instruction, ..Question::new(Arity::Batch, OutputKind::RAW, received) };
    Ok(answer_in_parts(target, question, pairs(query, documents), no_room, write).await?)
}

/// Refuses to rank documents by any field but `text`.
fn check_fields(rank_fields: Option<&[String]>) -> Result<(), ApiError> {
    match rank_fields {
        None => Ok(()),
        Some([field]) if field == "text" => Ok(()),
        Some(fields) => Err(ApiError::validation(format!(
            "`rank_fields` is {fields:?}, expected [\"text\"]: put all that is to be ranked into `text`"
        ))),
    }
}

/// Refuses more texts than go at a time for an ensemble that retrieves: it would retrieve from each part separately.
pub(in crate::http) fn check_at_once(
    target: &Target,
    field: &str,
    texts: usize,
    at_a_time: usize,
) -> Result<(), ApiError> {
    if !target.retrieves() || texts <= at_a_time {
        return Ok(());
    }
    let name = target.name();
    Err(ApiError::validation(format!(
        "there are {texts} `{field}`, expected at most {at_a_time} (`max_client_batch_size`): the ensemble \
         `{name}` retrieves from all of them at once"
    )))
}

/// Refuses to cut texts to the number of tokens in `field` for an ensemble: each of its models counts tokens of its
/// own.
pub(in crate::http) fn check_cut(
    target: &Target,
    field: &str,
    most_tokens: Option<usize>,
) -> Result<(), ApiError> {
    if most_tokens.is_none() || !target.is_ensemble() {
        return Ok(());
    }
    Err(ApiError::validation(format!(
        "`{field}` is not possible here: each model of the ensemble `{}` counts its own tokens; leave it out, and send \
         texts that are short enough",
        target.name()
    )))
}

/// Cuts each document after its first `limit` tokens. Once the tokenizer has been asked, later requests to the engine
/// wait for room: if they failed, the work done so far would be wasted.
pub(in crate::http) async fn cut(
    target: &Target,
    mut documents: Vec<String>,
    limit: usize,
    mut no_room: NoRoom,
) -> Result<(Vec<String>, NoRoom), ApiError> {
    let (engine, door) = (target.engine(), Door::default());
    let deadline = engine.urgency().deadline;
    let long: Vec<usize> =
        (0..documents.len()).filter(|&index| may_exceed(&documents[index], limit)).collect();
    for some in long.chunks(engine.info().max_client_batch_size) {
        let texts = some.iter().map(|&index| Texts::One(documents[index].clone())).collect();
        let extent = Extent::Whole(SpecialTokens::Without);
        let retries = no_room == NoRoom::Waits;
        let request = TokenizeRequest { retries, ..TokenizeRequest::new(texts, extent) };
        let ask = || -> Pending<'_, Vec<Tokenized>> {
            let asked = engine.tokenize(request.clone());
            Box::pin(async move { asked.await.map_err(|error| error.renumbered(|input| some[input])) })
        };
        let tokenized = match no_room {
            NoRoom::Fails => caught(ask).await?,
            NoRoom::Waits => caught(|| Box::pin(patiently(engine, &door, some.len(), deadline, ask))).await?,
        };
        no_room = NoRoom::Waits;
        for (&index, tokenized) in some.iter().zip(&tokenized) {
            let end = end_of(tokenized, limit, &documents[index]);
            documents[index].truncate(end);
        }
    }
    Ok((documents, no_room))
}

/// Whether a text may have more tokens than `limit`: most texts can be ruled out without tokenizing them. In ASCII, a
/// token is at least one byte, except the mark that some tokenizers put before a text. Other characters may grow before
/// they become tokens (NFKC writes one of three bytes as eighteen letters).
fn may_exceed(text: &str, limit: usize) -> bool {
    text.len() >= limit || !text.is_ascii()
}

/// The byte at which the first `limit` tokens end.
fn end_of(tokenized: &Tokenized, limit: usize, text: &str) -> usize {
    let ends = tokenized.encodings.iter().flat_map(|encoding| &encoding.offsets).map(|bytes| bytes.end);
    // A token may end inside a character, whose rest is the next token.
    ends.take(limit).last().map_or(text.len(), |end| text.floor_char_boundary(end))
}

/// A new id for an answer of this kind. It is random: each of the standard library's random states has its own keys.
pub(in crate::http) fn new_id(kind: &str) -> String {
    format!("{kind}-{:016x}", RandomState::new().build_hasher().finish())
}
