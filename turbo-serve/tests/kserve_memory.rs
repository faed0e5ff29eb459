//! The memory that a hostile request of KServe's protocol makes a server allocate is at most a small multiple of its
//! bytes; and padded tensors do not wait.
//!
//! A test of its own, because it counts every byte that the process has allocated.
#![allow(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod counted;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed, mpsc},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Request, Response},
};
use counted::{ALLOCATED, PEAK};
use prost::Message;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use turbo_serve::{
    engine::{BatchTokens, Cpu, CpuOptions, Engine, EngineConfig, Infer, Model, OpenOptions},
    grpc::{
        self,
        proto::open_inference::{ModelInferRequest, model_infer_request::InferInputTensor},
    },
    http::{HttpOptions, Metrics, router},
};

/// Approximate bytes of each request.
const SIZE: usize = 1 << 20;
/// Most bytes allocated at a time per byte of a request, the request itself not counted.
const FACTOR: usize = 24;
/// What routing, a runtime and the engine's own threads allocate meanwhile.
const BESIDE: usize = 256 << 10;

/// Held by the test that counts.
static ALONE: Mutex<()> = Mutex::new(());

fn start(config: &EngineConfig) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence");
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder, cpu, OpenOptions::default()).unwrap();
    let config = EngineConfig { max_batch_tokens: BatchTokens::AtMost(512), ..config.clone() };
    Engine::start(model, &config).unwrap()
}

fn routes(engine: &Engine) -> Router {
    let engine: Arc<dyn Infer> = Arc::new(engine.clone());
    let (metrics, limit) = (Metrics::install().unwrap(), 2 * SIZE);
    let options = HttpOptions { payload_limit: limit, ..HttpOptions::default() };
    let services = grpc::router(Arc::clone(&engine), metrics.clone(), limit);
    router(engine, metrics, options).merge(services)
}

/// As many copies of an item as fill a request, with commas between.
fn list(item: &str) -> String {
    let mut list = format!("{item},").repeat(SIZE / (item.len() + 1));
    list.pop();
    list
}

fn with_data(datatype: &str, item: &str) -> String {
    let data = list(item);
    format!(r#"{{"inputs":[{{"name":"input_ids","datatype":"{datatype}","shape":[1,1],"data":[{data}]}}]}}"#)
}

/// A body with its raw bytes behind JSON that says what they are.
fn with_bytes(datatype: &str, shape: &str) -> (String, Vec<u8>) {
    let json = format!(
        r#"{{"inputs":[{{"name":"input_ids","datatype":"{datatype}","shape":{shape},"parameters":{{"binary_data_size":{SIZE}}}}}]}}"#
    );
    let body = [json.as_bytes(), &vec![0; SIZE]].concat();
    (json.len().to_string(), body)
}

#[test]
fn what_a_request_takes_is_its_size_times_a_small_factor() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let routes = routes(&start(&EngineConfig::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let many: String = (0..SIZE / 8).map(|name| format!(r#""{name:x}":0,"#)).collect();
    let text = r#""inputs":[{"name":"t","datatype":"BYTES","shape":[1],"data":["a"]}]"#;
    let plain = [
        with_data("INT64", "0"),
        with_data("BYTES", r#""""#),
        with_data("INT64", "[]"),
        format!(r#"{{"parameters":{{{many}"x":0}},{text}}}"#),
        format!(r#"{{"parameters":{{"x":[{}]}},{text}}}"#, list("0")),
        format!(r#"{{"outputs":[{}],{text}}}"#, list(r#"{"name":""}"#)),
        format!(r#"{{"outputs":[{}],{text}}}"#, list(r#"{"name":"token_embeddings"}"#)),
        format!(r#"{{"inputs":[{}]}}"#, list(r#"{"name":"","datatype":"","shape":[]}"#)),
        r#"{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1099511627776,0],"data":[]}]}"#
            .to_owned(),
    ];
    for body in plain {
        check(&routes, &runtime, &body[..60.min(body.len())], || {
            Request::post("/v2/models/any/infer").body(Body::from(body.clone())).unwrap()
        });
    }
    for (datatype, shape) in [
        ("BYTES", format!("[{}]", SIZE / 4)),
        ("BYTES", "[9000000000000000000]".to_owned()),
        ("UINT8", format!("[{SIZE},1]")),
        ("BOOL", format!("[1,{SIZE}]")),
        ("INT64", "[4294967296,4294967296]".to_owned()),
    ] {
        let (length, body) = with_bytes(datatype, &shape);
        check(&routes, &runtime, &format!("{datatype} {shape}"), || {
            let request = Request::post("/v2/models/any/infer");
            let request = request.header("inference-header-content-length", &length);
            request.body(Body::from(body.clone())).unwrap()
        });
    }
    // Two bytes make a tensor without a name, and a message is decoded as a whole before it is checked.
    let tensors =
        |count| ModelInferRequest { inputs: vec![InferInputTensor::default(); count], ..Default::default() };
    let raw = ModelInferRequest { raw_input_contents: vec![Vec::new(); SIZE / 2], ..Default::default() };
    for message in [tensors(SIZE / 2), tensors(16_384), raw].map(|message| message.encode_to_vec()) {
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        check(&routes, &runtime, "a message", || {
            let request = Request::post("/inference.GRPCInferenceService/ModelInfer");
            let request = request.header("content-type", "application/grpc").header("te", "trailers");
            request.body(Body::from(frame.clone())).unwrap()
        });
    }
}

/// Has this request answered and measures the most that this takes at a time, its own bytes not counted.
#[track_caller]
fn check(routes: &Router, runtime: &Runtime, what: &str, request: impl Fn() -> Request<Body>) {
    let request = request();
    let before = ALLOCATED.load(Relaxed);
    PEAK.store(before, Relaxed);
    let answer = |response: Response<Body>| async { to_bytes(response.into_body(), usize::MAX).await };
    let answer: Bytes =
        runtime.block_on(async { answer(routes.clone().oneshot(request).await.unwrap()).await }).unwrap();
    let peak = PEAK.load(Relaxed) - before;
    let said = String::from_utf8_lossy(&answer);
    println!("{what}: {:.1} times its size, answered with {said:.120}", peak as f64 / SIZE as f64);
    assert!(peak <= FACTOR * SIZE + BESIDE, "{what}: {peak} bytes, answered with {said:.200}");
}

#[test]
fn what_is_filled_up_is_written_at_once() {
    const REQUESTS: usize = 32;
    const INPUTS: usize = 64;
    /// All inputs of a request padded to the longest, which is cut to 48 tokens of 32 values.
    const FILLED: usize = INPUTS * 48 * 32 * size_of::<f32>();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = start(&EngineConfig {
        max_client_batch_size: INPUTS,
        max_concurrent_requests: REQUESTS * INPUTS,
        ..EngineConfig::default()
    });
    let routes = routes(&engine);
    let long = ["a"; 60].join(" ");
    let mut texts = ["a"; INPUTS];
    texts[0] = &long;
    let body = serde_json::json!({
        "parameters": { "truncate": true },
        "inputs": [{ "name": "text", "datatype": "BYTES", "shape": [INPUTS], "data": texts.to_vec() }],
        "outputs": [{ "name": "token_embeddings", "parameters": { "binary_data": true } }],
    });
    let body = body.to_string();
    let ask = |_| {
        let request = Request::post("/v2/models/any/infer").body(Body::from(body.clone())).unwrap();
        let answer = routes.clone().oneshot(request);
        tokio::spawn(
            async move { to_bytes(answer.await.unwrap().into_body(), usize::MAX).await.unwrap().len() },
        )
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
    let (release, released) = mpsc::channel::<()>();
    runtime.block_on(async {
        // Nothing is written before all rows are there.
        let held = tokio::task::spawn_blocking(move || released.recv());
        let (asked, started): (Vec<_>, _) = ((0..REQUESTS).map(ask).collect(), Instant::now());
        while engine.observed().unwrap().totals.answered < (REQUESTS * INPUTS) as u64 {
            assert!(started.elapsed() < Duration::from_secs(60), "{:?}", engine.observed().unwrap().totals);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = ALLOCATED.load(Relaxed);
        PEAK.store(before, Relaxed);
        release.send(()).unwrap();
        held.await.unwrap().unwrap();
        for answer in asked {
            let bytes = answer.await.unwrap();
            assert!(bytes > FILLED, "{bytes} bytes");
        }
        let peak = PEAK.load(Relaxed) - before;
        println!("{:.1} answers at a time", peak as f64 / FILLED as f64);
        assert!(peak < REQUESTS / 2 * FILLED, "{peak} bytes");
    });
}
