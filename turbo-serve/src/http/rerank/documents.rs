//! `POST /v1/rerank` and `POST /v2/rerank`, as the clients of Cohere and Jina call them. The answer has the fields that
//! either reads; fields of the body that are not named here are ignored.

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::order::{best_first, check, check_in_parts, check_query, pairs};
use crate::{
    engine::{InferResponse, OutputKind},
    http::{
        answer::{Question, answer_in_parts, new_id},
        call::{Call, RequestBody},
        cut::{check_cut, cut},
        error::{ApiError, RerankError},
        inputs::{Count, Documents, at_least_one},
        metrics::Arity,
        router::Server,
        tei::score_function,
        vllm::fields::{Padding, check_padding, check_template, word},
    },
    tasks::IfFull,
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

/// `{"results": [{"index", "relevance_score", "document"}], …}`, the best first.
pub(in crate::http) async fn rerank(
    State(server): State<Server>,
    Call { target, body, received }: Call<DocumentsBody>,
) -> Result<Response, RerankError> {
    let DocumentsBody { query, documents: Documents(documents), rank_fields, instruction, .. } = body;
    check(&target, "documents", documents.len())?;
    check_in_parts(&server, &target, "documents", documents.len(), "documents")?;
    check_fields(rank_fields.as_deref())?;
    check_padding(body.padding)?;
    check_template(body.chat_template_kwargs)?;
    check_query(&target, "query", &query, documents.len())?;
    let top_n = at_least_one("top_n", body.top_n)?.unwrap_or(usize::MAX);
    let returned = body.return_documents.unwrap_or(false).then(|| documents.clone());
    let most_tokens = at_least_one("max_tokens_per_doc", body.max_tokens_per_doc)?;
    check_cut(&target, "max_tokens_per_doc", most_tokens)?;
    let target = target.begun()?;
    let (documents, if_full) = match most_tokens {
        Some(limit) => cut(&target, documents, limit, IfFull::Fails).await?,
        None => (documents, IfFull::Fails),
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
    Ok(answer_in_parts(target, question, pairs(query, documents), if_full, write).await?)
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
