//! `POST /vertex`: several requests in one, as Google's Vertex AI sends them, each in the form of the route for the
//! model's task; and the other paths that Vertex AI may use.

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery},
    middleware,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};

use super::{
    ability::Ability,
    answer::json,
    call::{Call, RequestBody},
    error::{ApiError, Failure, TeiError},
    router::{Server, ask},
    target::Target,
    tei::compares,
};
use crate::engine::EngineError;

/// The paths that Vertex AI uses if they are not `/vertex` and `/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VertexPaths {
    /// Path at which `POST` means `POST /vertex`.
    pub predict: Option<String>,
    /// Path at which `GET` means `GET /health`.
    pub health: Option<String>,
}

impl VertexPaths {
    /// The router with these paths added; they take precedence over its routes. To be applied outermost, so that the
    /// layers that guard the usual paths guard these, too.
    pub fn before(self, router: Router) -> Router {
        if self == Self::default() {
            return router;
        }
        let usual = move |mut request: Request| {
            let path = Some(request.uri().path());
            let usual = match *request.method() {
                Method::POST if self.predict.as_deref() == path => Some("/vertex"),
                Method::GET if self.health.as_deref() == path => Some("/health"),
                _ => None,
            };
            if let Some(usual) = usual {
                *request.uri_mut() = Uri::from(PathAndQuery::from_static(usual));
            }
            std::future::ready(request)
        };
        // A router's layers run after its own routes were matched. This router has none, so its layer runs before the
        // inner router matches its routes.
        Router::new().fallback_service(router).layer(middleware::map_request(usual))
    }
}

/// The body of `POST /vertex`.
#[derive(Deserialize)]
pub(super) struct VertexBody {
    instances: Vec<Value>,
}

impl RequestBody for VertexBody {
    type Error = TeiError;
}

/// `{"predictions": […]}`: the answer to each instance, or the first error. The instances share batches. Each is a
/// request of its own, so there may be as many as the model has slots: the platform sends 64 by default. They begin
/// together: a server that is stopping still answers all of them.
pub(super) async fn vertex(
    State(server): State<Server>,
    Call { target, body, .. }: Call<VertexBody>,
) -> Result<Response, TeiError> {
    let (got, limit) = (body.instances.len(), target.engine().info().max_concurrent_requests);
    if got > limit {
        return Err(ApiError::from(EngineError::TooManyInputs { got, limit }).into());
    }
    let target = target.begun()?;
    let mut asked = JoinSet::new();
    for (index, instance) in body.instances.into_iter().enumerate() {
        let answer = answer(server.clone(), target.clone(), instance);
        let answer = async move { (index, answer.await) };
        asked.spawn(answer.instrument(Span::current()));
    }
    let mut predictions = vec![Bytes::new(); got];
    // Returning early drops the set, and so cancels the other instances.
    while let Some(answered) = asked.join_next().await {
        let (index, answer) =
            answered.map_err(|error| ApiError::backend(format!("an instance was not answered: {error}")))?;
        match answer {
            Ok(prediction) => predictions[index] = prediction,
            Err(refusal) => return Ok(of_instance(index, refusal)),
        }
    }
    Ok(json([b"{\"predictions\":[", predictions.join(&b","[..]).as_slice(), b"]}"].concat()))
}

/// The refusal of one instance.
struct Refusal {
    status: StatusCode,
    headers: HeaderMap,
    failure: Option<Failure>,
    body: Bytes,
}

/// The body of the answer that the instance's route gives.
async fn answer(server: Server, target: Target, instance: Value) -> Result<Bytes, Refusal> {
    let body = instance.to_string();
    let ability = match Ability::of(&target.engine().info().model) {
        // A ranker can also score a text.
        Ability::Rerank if instance.get("inputs").is_some() => Ability::Predict,
        Ability::Embed | Ability::EmbedSparse if compares(body.as_bytes()) => Ability::Similarity,
        ability => ability,
    };
    let (mut head, body) = Request::new(Body::from(body)).into_parts();
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    target.hand_on(&mut head);
    let answer = ask(ability, server, Request::from_parts(head, body)).await;
    let (head, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body in memory can be read");
    if head.status.is_success() {
        return Ok(body);
    }
    let failure = head.extensions.get().copied();
    Err(Refusal { status: head.status, headers: head.headers, failure, body })
}

/// The refusal as a response that names the instance.
fn of_instance(index: usize, Refusal { status, mut headers, failure, body }: Refusal) -> Response {
    let mut said: Value = serde_json::from_slice(&body).expect("every refusal is JSON");
    for field in ["error", "message", "detail"] {
        if let Some(Value::String(sentence)) = said.get_mut(field) {
            sentence.insert_str(0, &format!("instances[{index}]: "));
        }
    }
    headers.remove(header::CONTENT_LENGTH);
    let mut response = (status, headers, said.to_string()).into_response();
    if let Some(failure) = failure {
        response.extensions_mut().insert(failure);
    }
    response
}
