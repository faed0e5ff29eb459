//! A span for each request is exported to an OpenTelemetry collector.

use std::{collections::BTreeMap, sync::mpsc, thread};

use axum::Router;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, status::StatusCode},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};
use tonic::{Code, Request, Response, Status};
use turbo_serve::net;

use crate::{
    PATIENCE,
    server::{Server, Signal, run, tiny_model},
};

/// A collector that keeps what it receives.
struct Collector {
    address: String,
    received: mpsc::Receiver<ExportTraceServiceRequest>,
    _stop: oneshot::Sender<()>,
}

struct Receiving(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Receiving {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let (sender, received) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                let service = TraceServiceServer::new(Receiving(sender));
                let router = Router::new().route_service(path, service);
                net::serve([listener.into()], router, async { drop(stopped.await) }, PATIENCE).await
            })
        });
        let address = told.recv_timeout(PATIENCE).unwrap().to_string();
        Self { address, received, _stop: stop }
    }

    /// All spans that `server` sends until its end, and the service's name.
    fn spans_until_the_end_of(self, server: Server) -> (Vec<Span>, Vec<KeyValue>) {
        let (code, output) = server.end(Signal::Terminate);
        assert_eq!(code, Some(0), "{output}");
        let (mut spans, mut resource) = (Vec::new(), Vec::new());
        for of_one in self.received.try_iter().flat_map(|request| request.resource_spans) {
            resource = of_one.resource.unwrap().attributes;
            spans.extend(of_one.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        (spans, resource)
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<&str, Value> {
    let value = |pair: &KeyValue| match pair.value.clone()?.value? {
        Any::StringValue(text) => Some(Value::from(text)),
        Any::IntValue(number) => Some(Value::from(number)),
        other => panic!("{other:?}"),
    };
    pairs.iter().filter_map(|pair| Some((pair.key.as_str(), value(pair)?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_span_tells_what_a_request_took_and_whose_it_is() {
    let collector = Collector::start();
    let endpoint = format!("--otlp-endpoint=http://{}", collector.address);
    let server = Server::start(&[&endpoint, "--otlp-service-name=ours"]);
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let traceparent = format!("00-{trace}-{parent}-01");
    let headers = [("traceparent", traceparent.as_str()), ("x-request-id", "mine")];
    let answer = server.post_with_headers("/embed", &json!({ "inputs": "the cat" }), &headers);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-request-id"], "mine");
    let named = server.post_with_headers("/embed", &json!({ "inputs": "the cat", "truncate": 1 }), &[]);
    assert_eq!(named.status(), 422);
    let given = named.headers()["x-request-id"].to_str().unwrap().to_owned();

    let (spans, resource) = collector.spans_until_the_end_of(server);
    assert_eq!(attributes(&resource)["service.name"], "ours");
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert!(spans.iter().all(|span| span.name == "POST /embed"), "{spans:?}");
    let (answered, refused) = (&spans[0], &spans[1]);
    assert_eq!((hex(&answered.trace_id), hex(&answered.parent_span_id)), (trace.into(), parent.into()));
    let told = attributes(&answered.attributes);
    for (key, value) in [
        ("id", json!("mine")),
        ("http.request.method", json!("POST")),
        ("url.path", json!("/embed")),
        ("http.route", json!("/embed")),
        ("http.response.status_code", json!(200)),
        ("model", json!("tiny-sentence")),
    ] {
        assert_eq!(told[key], value, "{key}");
    }
    assert!(told["tokens"].as_u64() > Some(2), "{told:?}");
    let whole = (answered.end_time_unix_nano - answered.start_time_unix_nano) / 1000;
    let parts = ["tokenization_us", "queue_us", "inference_us"].map(|part| told[part].as_u64().unwrap());
    assert!(parts[2] > 0 && parts.iter().sum::<u64>() <= whole + 3, "{parts:?} in {whole}");
    assert_ne!(hex(&refused.trace_id), trace);
    let told = attributes(&refused.attributes);
    assert_eq!((&told["id"], &told["http.response.status_code"]), (&json!(given), &json!(422)));
    assert!(!told.contains_key("tokens"), "{told:?}");
}

/// Clients may request any path, and a collector groups spans by their names.
#[test]
fn a_span_is_named_after_its_route() {
    let collector = Collector::start();
    let server = Server::start(&[&format!("--otlp-endpoint=http://{}", collector.address)]);
    assert_eq!(server.get("/nowhere").0, 404);
    for path in ["/models/x/embed", "/models/org/x/embed"] {
        assert_eq!(server.post(path, &json!({ "inputs": "the cat" })).0, 200, "{path}");
    }
    server.call_in_vain();
    let (spans, _) = collector.spans_until_the_end_of(server);
    let route = |span: &Span| attributes(&span.attributes).get("http.route").cloned();
    let named: Vec<_> = spans.iter().map(|span| (span.name.as_str(), route(span))).collect();
    let expected = [
        ("GET", None),
        ("POST /models/{model}/embed", Some(json!("/models/{model}/embed"))),
        ("POST /models/{model}/embed", Some(json!("/models/{model}/embed"))),
        ("tei.v1.Predict/Predict", Some(json!("/tei.v1.Predict/{method}"))),
    ];
    assert_eq!(named, expected);
}

#[test]
fn a_span_tells_that_its_request_failed() {
    let collector = Collector::start();
    let server = Server::start(&[&format!("--otlp-endpoint=http://{}", collector.address)]);
    // Answered, refused, and not for this model.
    for (path, body, expected) in [
        ("/embed", json!({ "inputs": "the cat" }), 200),
        ("/embed", json!({ "inputs": [] }), 400),
        ("/predict", json!({ "inputs": "the cat" }), 424),
    ] {
        assert_eq!(server.post(path, &body).0, expected, "{path} {body}");
    }
    assert_eq!(server.call_in_vain().code(), Code::FailedPrecondition);
    let (spans, _) = collector.spans_until_the_end_of(server);
    let codes: Vec<i32> =
        spans.iter().map(|span| span.status.as_ref().map_or(0, |status| status.code)).collect();
    let (unset, error) = (StatusCode::Unset as i32, StatusCode::Error as i32);
    assert_eq!(codes, [unset, unset, error, error]);
}

#[test]
fn without_a_collector_requests_are_answered_all_the_same() {
    // no collector listens there
    let server = Server::start(&["--otlp-endpoint=http://127.0.0.1:1"]);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the cat" })).0, 200);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.lines().count() < 12, "{output}");
    let model = tiny_model();
    let arguments = ["serve", "--hostname=127.0.0.1", "--port=0", "--model-id", model.to_str().unwrap()];
    for wrong in ["not a url", "localhost:4317", "ftp://localhost", "http://"] {
        let (code, output) = run(&[&arguments[..], &["--otlp-endpoint", wrong]].concat());
        assert_eq!(code, Some(1), "{wrong}");
        let expected = format!("--otlp-endpoint `{wrong}`: expected a URL such as");
        assert!(output.contains(&expected), "{output}");
    }
}
