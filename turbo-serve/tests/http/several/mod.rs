//! Several models behind one port: which one answers, how they come and go, and what is counted of each.

mod changes;
mod counts;
mod ensembles;
mod health;
mod names;

use std::sync::Arc;

use axum::Router;
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tonic::{IntoRequest, Request};
use turbo_serve::{
    engine::{Health, ModelInfo},
    grpc::{self, proto::tei::RerankStreamRequest},
    http::{HttpOptions, Metrics, router},
    models::{
        Alias, Declared, Load, LoadWhen, Loaded, Models, Source, SourceError,
        ensemble::{Does, Ensemble, QUERY, Step, TEXTS},
    },
};

use crate::fake::{Fake, Reply, Running, classifier, embedding};

const UNLOADED: &str =
    "model `ranker/1` is not loaded: load it with `POST /v2/repository/models/ranker/1/load`";

/// Versions of a model, each of which reports its own name.
struct Versions {
    model: ModelInfo,
    versions: Vec<&'static str>,
}

impl Source for Versions {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.versions.iter().map(|&version| version.to_owned()).collect())
    }

    fn load(&self, Load { version, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        let model_id = format!("{}/{version}", self.model.name);
        Ok(Arc::new(Fake::of(ModelInfo { model_id, ..self.model.clone() }, Health::Ready)).into())
    }
}

fn declared(name: &str, model: ModelInfo, versions: &[&'static str], aliases: &[&str]) -> Declared {
    let alias = |alias: &&str| Alias { name: (*alias).to_owned(), version: None };
    let model = ModelInfo { name: name.to_owned(), ..model };
    Declared {
        name: name.to_owned(),
        aliases: aliases.iter().map(alias).collect(),
        version: None,
        load: LoadWhen::Start,
        source: Arc::new(Versions { model, versions: versions.to_vec() }),
    }
}

/// A model whose requests a test inspects.
struct Known(Arc<Fake>);

impl Source for Known {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec!["1".to_owned()])
    }

    fn load(&self, _: Load<'_>) -> Result<Loaded, SourceError> {
        Ok(Arc::clone(&self.0).into())
    }
}

fn known(name: &str, engine: &Arc<Fake>) -> Declared {
    Declared { source: Arc::new(Known(Arc::clone(engine))), ..declared(name, embedding(), &[], &[]) }
}

/// The ensemble `search`, of at most this many documents: one model finds the nearest, and the other ranks those.
fn search([embedder, ranker]: [&str; 2], max_client_batch_size: usize) -> Declared {
    let (query, texts) = (|| QUERY.to_owned(), || TEXTS.to_owned());
    let near = Does::Retrieve {
        model: embedder.to_owned(),
        query: query(),
        texts: texts(),
        keep: 1,
        query_prompt: None,
        texts_prompt: None,
    };
    let ranked = Does::Rerank { model: ranker.to_owned(), query: query(), texts: "near".to_owned() };
    let steps = [("near", near), ("ranked", ranked)].map(|(name, does)| Step { name: name.to_owned(), does });
    let source = Ensemble::new("search", &steps, "ranked", max_client_batch_size).unwrap();
    Declared { source: Arc::new(source), ..declared("search", classifier(["score"]), &[], &[]) }
}

/// An embedder of two versions, which is the default model, and a ranker, with the runtime that may change them; tests
/// may add other models.
struct Several {
    running: Running,
    models: Models,
    runtime: tokio::runtime::Runtime,
}

impl Several {
    fn start() -> Self {
        Self::with([])
    }

    fn with(others: impl IntoIterator<Item = Declared>) -> Self {
        Self::guarded(others, |router| router)
    }

    /// The same, with its routes behind `guard`.
    fn guarded(others: impl IntoIterator<Item = Declared>, guard: impl FnOnce(Router) -> Router) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut models = vec![
            declared("embedder", embedding(), &["1", "2"], &["org/embedder"]),
            declared("ranker", classifier(["score"]), &["1"], &[]),
        ];
        models.extend(others);
        let models = Models::new(models, None).unwrap();
        runtime.block_on(models.start()).unwrap();
        let metrics = Metrics::install().unwrap();
        let options = HttpOptions::default();
        let services = grpc::router(models.clone(), metrics.clone(), 1_000_000);
        let running = Running::start(guard(router(models.clone(), metrics, options).merge(services)));
        Self { running, models, runtime }
    }

    fn post(&self, path: &str, body: Value) -> Reply {
        self.running.post(path, body.to_string())
    }

    fn unload(&self, name: &str) {
        self.runtime.block_on(self.models.unload(name)).unwrap();
    }

    fn load(&self, name: &str) {
        self.runtime.block_on(self.models.load(name)).unwrap();
    }
}

fn rerank() -> Value {
    json!({ "query": "a", "texts": ["b", "c"] })
}

/// A call of this model.
fn call<R>(model: &str, message: impl IntoRequest<R>) -> Request<R> {
    let mut request = message.into_request();
    request.metadata_mut().insert("x-model", model.parse().unwrap());
    request
}

/// Two texts of a stream that ranks them.
fn to_rank() -> impl Stream<Item = RerankStreamRequest> {
    stream::iter(["b", "c"].map(|text| RerankStreamRequest {
        query: "a".to_owned(),
        text: text.to_owned(),
        ..RerankStreamRequest::default()
    }))
}

fn assert_openai_404(reply: &Reply, said: &str) {
    let body = reply.json();
    assert_eq!((reply.status, &body["code"]), (404, &json!("model_not_found")), "{body}");
    assert_eq!(
        (&body["error"]["code"], &body["error"]["message"]),
        (&body["code"], &body["message"]),
        "{body}"
    );
    assert!(body["message"].as_str().unwrap().contains(said), "{body}");
}
