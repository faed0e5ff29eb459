//! The routes of models that score how well a text fits a query, in the forms of three APIs.
//!
//! | route | body | answer |
//! |---|---|---|
//! | `/rerank` | text-embeddings-inference's `texts` | `[{"index", "score", "text"}]` |
//! | `/rerank`, `/v1/rerank`, `/v2/rerank` | Cohere's and Jina's `documents` | `{"results": [{"index", "relevance_score", "document"}], …}` |

mod documents;
mod order;
mod texts;

use axum::{
    body::Body,
    extract::{Request, State},
    handler::Handler,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{call, error::TeiError, router::Server};

pub(super) use documents::rerank as rerank_documents;
pub(crate) use order::check_copies;
pub(super) use order::{check_in_parts, check_query, scores};
use texts::rerank as rerank_texts;

/// The fields that tell the APIs apart.
#[derive(Deserialize)]
struct Fields {
    texts: Option<IgnoredAny>,
    documents: Option<IgnoredAny>,
}

/// `POST /rerank`: the fields of its body say which API it is for.
pub(super) async fn rerank(State(server): State<Server>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let bytes = match call::read(&mut head, body, &server).await {
        Ok((bytes, _)) => bytes,
        Err(error) => return TeiError::from(error).into_response(),
    };
    // Whatever is wrong with the body is reported by the route that reads it.
    let of_documents = serde_json::from_slice(&bytes)
        .is_ok_and(|Fields { texts, documents }| texts.is_none() && documents.is_some());
    let request = Request::from_parts(head, Body::from(bytes));
    if of_documents {
        rerank_documents.call(request, server).await
    } else {
        rerank_texts.call(request, server).await
    }
}
