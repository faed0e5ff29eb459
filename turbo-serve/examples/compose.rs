//! A server of one's own: `GET /nearest?to=…` beside all the usual routes.
//!
//! `cargo run --release --example compose -- models/minilm`, then
//! `curl 'localhost:3000/nearest?to=something+to+eat'`.
//!
//! `http::router` is the routes alone. What goes around it is one's own choice, inside first: gRPC (`grpc::router`, merged),
//! bounds on the bytes of all clients together (`net::bounded`), a key (`net::protect`), origins (`net::allow_origins`).
//! The binary `turbo` offers all of them; this server has the bounds. `EngineConfig::default()` keeps neither answers nor
//! measured costs, so every start measures batches, for up to ten seconds.

use std::{collections::HashMap, path::Path, sync::Arc};

use axum::{Router, extract::Query, routing::get};
use tokio::net::TcpListener;
use turbo_serve::{
    engine::{
        Cpu, CpuOptions, Engine, EngineConfig, EngineError, Infer, InferRequest, Input, Model, OpenOptions,
        OutputKind,
    },
    http::{self, HttpOptions, Metrics},
    net::{self, Ending, GRACE, InFlightLimits},
};

const WORDS: [&str; 6] = ["bread", "bicycle", "violin", "thunder", "wallet", "tiger"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "models/minilm".into());
    let metrics = Metrics::install()?;
    let device = Cpu::new(CpuOptions::default())?;
    let model = Model::open(Path::new(&folder), device, OpenOptions::default())?;
    let engine = Engine::start(model, &EngineConfig::default())?;

    let words = Arc::new(vectors(&engine, WORDS).await?);
    let options = HttpOptions::default();
    let usual = http::router(Arc::new(engine.clone()), metrics, options);
    let asked = engine.clone();
    let nearest = move |Query(query): Query<HashMap<String, String>>| async move {
        let to = query.get("to").map_or("", String::as_str);
        match vectors(&asked, [to]).await {
            Ok(vector) => nearest(&words, &vector[0]).to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let router = Router::new().route("/nearest", get(nearest)).merge(usual);
    // A body is read before its request has a slot: without bounds every connection could hold one.
    let router = net::bounded(router, InFlightLimits::of_this_machine(options.payload_limit));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let interrupted = async { tokio::signal::ctrl_c().await.expect("this process may handle Ctrl-C") };
    if net::serve([listener.into()], router, interrupted, GRACE).await == Ending::OutOfTime {
        engine.abandon();
    }
    engine.stop().await;
    Ok(())
}

/// One vector of norm 1 per text.
async fn vectors<const N: usize>(engine: &Engine, texts: [&str; N]) -> Result<Vec<Vec<f32>>, EngineError> {
    let inputs = texts.map(|text| Input::Text(text.into())).to_vec();
    let output = OutputKind::Pooled { normalize: true, dimensions: None };
    let response = engine.infer(InferRequest::new(inputs, output)).await?;
    Ok(response.rows.into_iter().map(|row| row.values).collect())
}

fn nearest(words: &[Vec<f32>], to: &[f32]) -> &'static str {
    let likeness = |word: &Vec<f32>| word.iter().zip(to).map(|(x, y)| x * y).sum::<f32>();
    let best = (0..WORDS.len()).max_by(|&a, &b| likeness(&words[a]).total_cmp(&likeness(&words[b])));
    best.map_or("", |best| WORDS[best])
}
