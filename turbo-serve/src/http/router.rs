//! The routes, and the state that all of them share.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{OriginalUri, Request, State},
    handler::Handler,
    http::{StatusCode, Uri, request::Parts},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use tower::util::MapRequest;

use super::{
    Metrics,
    ability::Ability,
    body::{discard, unasked},
    call, cohere, dashboard,
    error::{ApiError, KserveError, OpenAiError, RerankError, TeiError},
    kserve,
    model_path::{behind_model, in_one_segment},
    observe, openai,
    openapi::{self, Operation},
    pipeline, rerank,
    target::{NAME, Target, VERSION},
    tei,
    unpack::unpacked,
    vertex, vllm,
};
use crate::{engine::ModelInfo, grpc, models::Models, request_span};

/// Options of the HTTP routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Most bytes of a request's body, counted after decompression; a larger body gets 413.
    pub payload_limit: usize,
    /// Most documents of a request in Cohere's or Jina's form, and most pairs of one in vLLM's. The engine is asked in
    /// parts of as many as the model takes at once; if that is more than this limit, a request may have that many.
    pub max_rerank_documents: usize,
    /// What `POST /` asks of an embedding model.
    pub root_task: RootTask,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { payload_limit: 2_000_000, max_rerank_documents: 1000, root_task: RootTask::Vectors }
    }
}

/// What `POST /` asks of an embedding model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootTask {
    /// Its vectors, unless `inputs` are sentences to compare.
    Vectors,
    /// The similarity of texts.
    Similarity,
}

/// State that every handler can access; cheap to clone.
#[derive(Clone)]
pub(super) struct Server(Arc<Shared>);

struct Shared {
    models: Models,
    metrics: Metrics,
    options: HttpOptions,
}

impl Server {
    pub(super) fn models(&self) -> &Models {
        &self.0.models
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The ability that `POST /` with this body asks of this model.
    fn root_ability(&self, model: &ModelInfo, body: &[u8]) -> Ability {
        let compares = || self.0.options.root_task == RootTask::Similarity || tei::compares(body);
        match Ability::of(model) {
            Ability::Embed | Ability::EmbedSparse if compares() => Ability::Similarity,
            ability => ability,
        }
    }

    pub(super) fn payload_limit(&self) -> usize {
        self.0.options.payload_limit
    }

    pub(super) fn max_rerank_documents(&self) -> usize {
        self.0.options.max_rerank_documents
    }
}

/// All routes of the server, for [`net::serve`](crate::net::serve()) or for nesting in another server. For a single
/// model it is enough to pass its engine. Nested at `/turbo`, the route `/` is `/turbo`, without a trailing slash.
pub fn router(models: impl Into<Models>, metrics: Metrics, options: HttpOptions) -> Router {
    let server = Server(Arc::new(Shared { models: models.into(), metrics, options }));
    let routes = Router::new()
        .merge(routes().router)
        .merge(kserve::routes().router)
        .nest(&format!("/models/{{{NAME}}}"), routes().router)
        .nest(&format!("/models/{{{NAME}}}/versions/{{{VERSION}}}"), routes().router)
        .method_not_allowed_fallback(wrong_method);
    // A model's name with a `/` in it matches no route as it stands: it is encoded, and routed again.
    let again: Router = routes.clone().fallback(unknown_route).with_state(server.clone());
    let routes = routes.fallback_service(MapRequest::new(again, in_one_segment));
    unpacked(routes, options.payload_limit)
        .layer(middleware::from_fn_with_state(server.clone(), observe::observe))
        .layer(middleware::from_fn(request_span::span))
        .with_state(server)
}

/// Routes, and the OpenAPI document's entry for each operation.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Server>,
    /// Method, path and entry.
    pub(super) operations: Vec<(&'static str, String, Operation)>,
}

impl Routes {
    pub(super) fn get<H: Handler<T, Server>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        told: Operation,
    ) -> Self {
        self.route("get", path, get_alone(handler), told)
    }

    pub(super) fn post<H: Handler<T, Server>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        told: Operation,
    ) -> Self {
        self.route("post", path, post(handler), told)
    }

    fn route(
        self,
        method: &'static str,
        path: &'static str,
        route: MethodRouter<Server>,
        told: Operation,
    ) -> Self {
        self.several(path, route, [(method, path.to_owned(), told)])
    }

    /// Adds one route that serves several paths and methods of the document.
    pub(super) fn several(
        mut self,
        path: &'static str,
        route: MethodRouter<Server>,
        told: impl IntoIterator<Item = (&'static str, String, Operation)>,
    ) -> Self {
        self.operations.extend(told);
        Self { router: self.router.route(path, route), ..self }
    }
}

/// A `GET` route whose handler uses no body.
pub(super) fn get_alone<H: Handler<T, Server>, T: 'static>(handler: H) -> MethodRouter<Server> {
    get(handler).route_layer(middleware::from_fn(unasked))
}

/// The routes of the default model, or of the model that a prefix of the path names.
pub(super) fn routes() -> Routes {
    use openapi::{
        cohere as as_cohere, openai as as_openai, pipeline as task, rerank as ranks, server as about,
        tei as as_tei, vllm as as_vllm,
    };
    Routes::default()
        .post("/embed", tei::embed, as_tei::embed())
        .post("/embed_all", tei::embed_all, as_tei::embed_all())
        .post("/embed_sparse", tei::embed_sparse, as_tei::embed_sparse())
        .post("/similarity", tei::similarity, as_tei::similarity())
        .post("/predict", tei::predict, as_tei::predict())
        .post("/rerank", rerank::rerank, ranks::any())
        .post("/v1/rerank", rerank::rerank_documents, ranks::documents("rerank_v1"))
        .post("/v2/rerank", rerank::rerank_documents, ranks::documents("rerank_v2"))
        .post("/score", vllm::score, as_vllm::score("score"))
        .post("/v1/score", vllm::score, as_vllm::score("score_v1"))
        .post("/classify", vllm::classes, as_vllm::classify())
        .post("/pooling", vllm::pooling, as_vllm::pooling())
        .post("/v2/embed", cohere::embed, as_cohere::embed())
        .post("/pipeline/feature-extraction", tei::embed, task::feature_extraction())
        .post("/pipeline/sentence-similarity", tei::similarity, task::sentence_similarity())
        .post("/pipeline/text-classification", pipeline::text_classification, task::text_classification())
        .post("/pipeline/token-classification", pipeline::token_classification, task::token_classification())
        .post("/pipeline/question-answering", pipeline::question_answering, task::question_answering())
        .post("/pipeline/fill-mask", pipeline::fill_mask, task::fill_mask())
        .post("/tokenize", tei::tokenize, as_tei::tokenize())
        .post("/decode", tei::decode, as_tei::decode())
        .post("/v1/embeddings", openai::embeddings, as_openai::embeddings("embeddings_v1"))
        .post("/embeddings", openai::embeddings, as_openai::embeddings("embeddings"))
        .get("/v1/models", openai::list, as_openai::models())
        .get("/v1/models/{*name}", openai::retrieve, as_openai::model())
        .get("/info", tei::info, about::info())
        .get("/health", tei::health, about::health("health"))
        .get("/ping", tei::health, about::health("ping"))
        .get("/", tei::health, about::health("root_health"))
        .post("/", what_it_is_for, as_tei::root("root"))
        .post("/invocations", what_it_is_for, as_tei::root("invocations"))
        .post("/vertex", vertex::vertex, as_tei::vertex())
        .get("/metrics", tei::metrics, about::metrics())
        .get("/openapi.json", openapi::openapi, about::openapi("openapi"))
        .get("/api-doc/openapi.json", openapi::openapi, about::openapi("api_doc"))
        .get("/docs", openapi::page, about::page())
        .get("/dashboard", dashboard::page, about::dashboard())
        .get("/dashboard/data", dashboard::data, about::dashboard_data())
}

/// `POST /`: forwards the request to the route for the model's task.
async fn what_it_is_for(State(server): State<Server>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let (bytes, target) = match read_for(&mut head, body, &server).await {
        Ok(read) => read,
        Err(error) => return TeiError::from(error).into_response(),
    };
    let ability = server.root_ability(&target.engine().info().model, &bytes);
    target.hand_on(&mut head);
    ask(ability, server, Request::from_parts(head, Body::from(bytes))).await
}

/// The body of a request, and the model that its path names, or the default one.
async fn read_for(head: &mut Parts, body: Body, server: &Server) -> Result<(Vec<u8>, Target), ApiError> {
    let (bytes, urgency) = call::read(head, body, server).await?;
    Ok((bytes, Target::of(head, server, None, urgency).await?))
}

/// Calls the handler of the route for an ability.
pub(super) async fn ask(ability: Ability, server: Server, request: Request) -> Response {
    match ability {
        Ability::Embed => tei::embed.call(request, server).await,
        Ability::EmbedAll => tei::embed_all.call(request, server).await,
        Ability::EmbedSparse => tei::embed_sparse.call(request, server).await,
        Ability::Similarity => tei::similarity.call(request, server).await,
        Ability::Predict => tei::predict.call(request, server).await,
        Ability::Rerank => rerank::rerank.call(request, server).await,
        Ability::Score => vllm::score.call(request, server).await,
        Ability::Pool => vllm::pooling.call(request, server).await,
        Ability::TokenClassification => pipeline::token_classification.call(request, server).await,
        Ability::QuestionAnswering => pipeline::question_answering.call(request, server).await,
        Ability::FillMask => pipeline::fill_mask.call(request, server).await,
    }
}

async fn unknown_route(OriginalUri(uri): OriginalUri, request: Request) -> Response {
    let message = format!("no route `{}`", uri.path());
    refuse(&uri, request, ApiError::refused(StatusCode::NOT_FOUND, message)).await
}

async fn wrong_method(OriginalUri(uri): OriginalUri, request: Request) -> Response {
    let message = format!("`{}` does not take {}", uri.path(), request.method());
    refuse(&uri, request, ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, message)).await
}

/// Refuses a request with an error in the form of its protocol.
pub(super) async fn refuse(uri: &Uri, request: Request, error: ApiError) -> Response {
    let (head, body) = request.into_parts();
    if grpc::is_call(&head.headers) {
        return grpc::refused(&error); // its stream may have no end, and HTTP/2 needs none
    }
    discard(&head, body).await;
    refused(uri.path(), error)
}

/// The error response to a request for this path, in the form of its protocol.
pub(crate) fn refused(path: &str, error: ApiError) -> Response {
    let path = behind_model(path); // a model may be called as a part of another protocol's paths
    if path.ends_with("/v1/rerank") || path.ends_with("/v2/rerank") {
        RerankError::from(error).into_response()
    } else if path != "/v2/embed" && (path == "/v2" || path.starts_with("/v2/")) {
        KserveError::from(error).into_response()
    } else if path.contains("/v1/")
        || ["/embeddings", "/score", "/classify", "/pooling", "/v2/embed"]
            .iter()
            .any(|route| path.ends_with(route))
    {
        OpenAiError::from(error).into_response()
    } else {
        TeiError::from(error).into_response()
    }
}
