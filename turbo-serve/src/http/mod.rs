//! The engine over HTTP: the routes of text-embeddings-inference, OpenAI's and Cohere's embeddings, Cohere's and Jina's
//! rerankers, vLLM's scores, classes and rows, the tasks of Hugging Face's inference clients, KServe's Open Inference
//! Protocol, and Vertex AI's predictions.
//!
//! In: the bytes of a request. Out: the bytes of an answer. The computation in between belongs to the [`Infer`];
//! nothing here knows a model, a tokenizer or a batch.
//!
//! ```text
//! bytes ─▶ call (limit, type, JSON, ─▶ tei / openai ─▶ InferRequest ─▶ Infer
//!          and which model)         ─▶ pipeline ─▶ tasks ─▶ several ──────▲
//! bytes ◀─ write (floats) ◀─ headers, metrics ◀─────── InferResponse ◀────┘
//!      ◀─ error (one JSON body per protocol, whatever went wrong)
//! ```
//!
//! | route | answer |
//! |---|---|
//! | `POST /embed` | `[[f32]]`, a vector per input |
//! | `POST /embed_all` | `[[[f32]]]`, a vector per token of each input |
//! | `POST /embed_sparse` | `[[{"index", "value"}]]`, a sparse vector per input: vocabulary entries and their weights |
//! | `POST /similarity` | `[f32]`, the similarity of each sentence to the source sentence |
//! | `POST /predict` | `[{"score", "label"}]`, or a list of such lists; the best first |
//! | `POST /rerank` | `[{"index", "score", "text"}]`, the best first; for `documents` as below |
//! | `POST /v1/rerank`, `POST /v2/rerank` | Cohere's and Jina's results, the best first |
//! | `POST /score`, `POST /v1/score` | vLLM's list of scores, in the order of the pairs |
//! | `POST /classify` | vLLM's list of labels, each with the probabilities of all labels |
//! | `POST /pooling` | vLLM's list of rows: one per input, or one per token |
//! | `POST /v2/embed` | Cohere's vectors, grouped by embedding type |
//! | `POST /pipeline/{task}` | the tasks of Hugging Face's inference clients, in their formats |
//! | `POST /tokenize`, `POST /decode` | texts to tokens, and token ids to texts |
//! | `POST /`, `POST /invocations` | the answer of the route for the model's task |
//! | `POST /vertex` | `{"predictions": […]}`, the answer of that route to each instance |
//! | `POST /v1/embeddings`, `POST /embeddings` | OpenAI's list of embeddings |
//! | `GET /v1/models`, `GET /v1/models/{name}` | the names that a request may use |
//! | `/v2/…` | KServe's Open Inference Protocol: tensors in, tensors out, and what is served |
//! | `GET /info` | what is served, and its limits |
//! | `GET /health`, `/ping`, `/` | 200, or 503 while requests are not answered |
//! | `GET /openapi.json`, `/api-doc/openapi.json`, `/docs` | the OpenAPI document, and a page that shows it |
//! | `GET /dashboard`, `GET /dashboard/data` | a [page](crate::dashboard) that shows what the server does, and its data |
//! | `GET /metrics` | Prometheus text, names in [`metric_names`](crate::metric_names) |
//!
//! With several models, `/models/{name}` or `/models/{name}/versions/{version}` before any of these paths selects one
//! ([`Wanted`]), and so does the field `model` of OpenAI's, Cohere's, Jina's and vLLM's bodies. Without either, the
//! default model answers. KServe's paths name the model themselves.
//!
//! Headers say how urgent a request is: `X-Request-Deadline-Ms` is the time from now for which its client waits,
//! `X-Request-Priority` one of `low`, `normal` and `high`. A request that cannot be answered in time is refused at
//! once: with 429 if other requests are the reason, with 504 if it would miss its client's deadline even alone. A
//! request that was accepted and not answered in time gets 504.
//!
//! An error is always JSON: `{"error": …, "error_type": "Validation"}` on TEI's routes,
//! `{"message": …, "code": 422, "type": "Validation"}` on OpenAI's, with an `error` that says it as OpenAI does, the
//! same with `detail` instead where documents are ranked, and `{"error": …}` on KServe's. Beyond
//! text-embeddings-inference, that holds for bodies that are not JSON, too large or of another type, for unknown routes
//! and wrong methods, and a refused request is told when to come back (`Retry-After`, `retry-after-ms`).
//!
//! [`Infer`]: crate::engine::Infer
//! [`Wanted`]: crate::models::Wanted

mod ability;
mod answer;
mod body;
mod call;
mod cohere;
mod cut;
mod dashboard;
mod error;
pub(crate) mod headers;
mod inputs;
mod kserve;
mod metrics;
mod model_path;
mod observe;
mod openai;
mod openapi;
mod pipeline;
mod rerank;
mod router;
mod target;
mod tei;
mod unpack;
mod urgency;
mod vertex;
mod vllm;
mod write;

pub(crate) use ability::Ability;
pub(crate) use answer::{caught, written};
pub(crate) use body::{SLOWEST, patience, patience_at, too_slow};
pub(crate) use error::{ApiError, ErrorType, Failure};
pub(crate) use metrics::Arity;
pub(crate) use model_path::{behind_model, is_of_a_model, route_behind_long_name};
pub(crate) use observe::turn_away;
pub(crate) use rerank::check_copies;
pub(crate) use router::refused;
pub(crate) use tei::{Token, score_function, tokens};
pub(crate) use urgency::urgency;
pub(crate) use write::check_finite;

pub use metrics::{Metrics, MetricsError};
pub use router::{HttpOptions, RootTask, router};
pub use vertex::VertexPaths;
