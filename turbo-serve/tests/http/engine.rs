//! The protocols over the real engine with a trivial model: the effects of admission, queue and worker as clients see
//! them.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use turbo_sched::{Candidate, Layout};
use turbo_serve::{
    engine::{
        BatchTokens, Capacity, DecodeRequest, Engine, EngineConfig, EngineInfo, Health, Infer, InferRequest,
        InferResponse, Model, ModelInfo, Pending, Progress, RowLens, Rows, RunError, Runner, Sequence,
        TokenizeRequest, Tokenized,
    },
    http::{HttpOptions, Metrics, router},
    net::{InFlightLimits, bounded},
};

use crate::{
    fake::{self, CountOnDrop, Running, assert_tei, wait_until},
    lifecycle::request,
};

/// A batch with this id panics.
const PANICS: u32 = 901;

/// Answers `[first id, number of tokens]`, per token `[id, position]`. While closed, batches do not end.
struct Echo {
    hand: Arc<Hand>,
    capacity: Capacity,
    batch: Vec<Vec<u32>>,
}

/// A test's control over the model.
#[derive(Default)]
struct Hand {
    closed: AtomicBool,
    sequences: AtomicUsize,
}

impl Runner for Echo {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        self.capacity = capacity;
        Ok(())
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        batch.total_tokens as usize
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        _keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        self.batch = batch.map(|sequence| sequence.input_ids.to_vec()).collect();
        self.hand.sequences.fetch_add(self.batch.len(), Ordering::SeqCst);
        assert!(!self.batch.iter().flatten().any(|&id| id == PANICS), "an invariant broke");
        while self.hand.closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(Progress::Done)
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        let ids = &self.batch[sequence];
        match rows {
            Rows::Pooled => to.extend([ids[0] as f32, ids.len() as f32]),
            Rows::Tokens => to.extend(ids.iter().enumerate().flat_map(|(i, &id)| [id as f32, i as f32])),
            Rows::Selected => return Err("it has no such rows".into()),
        }
        Ok(())
    }
}

/// The engine, with counts of requests that it received and that have ended, answered or not.
struct Seen {
    engine: Engine,
    asked: AtomicUsize,
    ended: AtomicUsize,
}

impl Infer for Seen {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        Box::pin(async {
            let _ended = CountOnDrop(&self.ended);
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.engine.infer(request).await
        })
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.engine.tokenize(request)
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.engine.decode(request)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }
}

/// A server with the real engine; at most four inputs at a time.
struct Whole {
    server: Running,
    seen: Arc<Seen>,
    hand: Arc<Hand>,
}

fn start() -> Whole {
    start_within(InFlightLimits { bodies: usize::MAX, answers: usize::MAX })
}

/// The same for a server with these limits on bytes in flight.
fn start_within(limits: InFlightLimits) -> Whole {
    let metrics = Metrics::install().unwrap();
    let hand = Arc::new(Hand::default());
    let built = Arc::clone(&hand);
    let model = Model {
        info: ModelInfo {
            name: "echo".into(),
            rows: RowLens { pooled: Some(2), tokens: Some(2), selected: None },
            max_input_length: 8,
            ..fake::embedding()
        },
        layout: Layout::Packed,
        tokenizer: None,
        padding_id: None,
        identity: None,
        fingerprint: None,
        build: Box::new(move |capacity| {
            Ok(Box::new(Echo { hand: Arc::clone(&built), capacity, batch: Vec::new() }))
        }),
    };
    let config = EngineConfig {
        max_batch_tokens: BatchTokens::AtMost(64),
        max_concurrent_requests: 4,
        max_client_batch_size: 4,
        warm_up: Duration::ZERO,
        ..EngineConfig::default()
    };
    let engine = Engine::start(model, &config).unwrap();
    let seen = Arc::new(Seen { engine, asked: 0.into(), ended: 0.into() });
    let server = Running::start(bounded(router(seen.clone(), metrics, HttpOptions::default()), limits));
    hand.sequences.store(0, Ordering::SeqCst); // those of the warm-up
    Whole { server, seen, hand }
}

impl Whole {
    /// Sends a request without waiting for its answer, and waits until its batch has started.
    fn send_and_hold(&self, body: &str) -> TcpStream {
        self.hand.closed.store(true, Ordering::SeqCst);
        let mut client = TcpStream::connect(self.server.address).unwrap();
        client.write_all(request(body).as_bytes()).unwrap();
        wait_until("its batch", || self.hand.sequences.load(Ordering::SeqCst) > 0);
        client
    }

    fn release(&self) {
        self.hand.closed.store(false, Ordering::SeqCst);
    }
}

#[test]
fn ids_are_used_verbatim() {
    let whole = start();
    let reply = whole.server.post("/embed", r#"{"inputs":[[7,8,9],[11]],"normalize":false}"#);
    assert_eq!(reply.json(), json!([[7.0, 3.0], [11.0, 1.0]]));
    let reply = whole.server.post("/embed", r#"{"inputs":[3,4],"normalize":true,"dimensions":1}"#);
    assert_eq!(reply.json(), json!([[1.0]]));
    let reply = whole.server.post("/embed_all", r#"{"inputs":[5,6]}"#);
    assert_eq!(reply.json(), json!([[[5.0, 0.0], [6.0, 1.0]]]));
    assert_eq!(reply.header("x-compute-tokens"), "2");
    assert_eq!(reply.header("x-compute-characters"), "2");
}

#[test]
fn answers_are_bounded_before_they_are_computed() {
    // two values for each token: 4 bytes each, and 14 for writing each
    let of_tokens = |tokens: usize| tokens * 2 * (4 + 14);
    let limit = of_tokens(8) + 100;
    let whole = start_within(InFlightLimits { bodies: usize::MAX, answers: limit });
    let ask = |inputs: &str| whole.server.post("/embed_all", format!(r#"{{"inputs":{inputs}}}"#));
    let (long, longer) = ("[1,2,3,4,5,6,7,8]", "[[1,2,3,4,5,6,7,8],[1,2,3]]");
    let said = format!(
        "would take {} bytes, but the server holds at most {limit} bytes of answers (`--max-answer-bytes-in-flight`): \
         send fewer or shorter inputs",
        of_tokens(11)
    );
    assert_tei("alone too large", &ask(longer), 422, "Validation", &said);
    assert_eq!(whole.hand.sequences.load(Ordering::SeqCst), 0, "nothing was computed for it");

    whole.hand.closed.store(true, Ordering::SeqCst);
    // the refusal takes room, too, until the server notices that it was read
    let ask_until_there_is_room = || {
        let mut reply = None;
        wait_until("room", || {
            reply = Some(ask(long)).filter(|reply| reply.status != 429);
            reply.is_some()
        });
        reply.unwrap()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(ask_until_there_is_room);
        wait_until("its batch", || whole.hand.sequences.load(Ordering::SeqCst) == 1);
        let refused = ask(long);
        let said = format!("{} bytes of answers that were not read yet, of at most {limit}", of_tokens(8));
        assert_tei("beside the first", &refused, 429, "Overloaded", &said);
        assert_eq!((refused.header("retry-after"), refused.header("retry-after-ms")), ("1", "1000"));
        whole.release();
        assert_eq!(first.join().unwrap().status, 200);
    });
    wait_until("room", || ask(long).status == 200);
    assert_eq!(whole.hand.sequences.load(Ordering::SeqCst), 2, "the refused one was not computed");
}

#[test]
fn what_the_engine_refuses() {
    let whole = start();
    for (body, status, error_type, said) in [
        (json!({"inputs": []}), 400, "Empty", "cannot be empty"),
        (json!({"inputs": [[1], []]}), 400, "Empty", "input 1 has no tokens"),
        (json!({"inputs": [[1], [2, 1000]]}), 422, "Validation", "input 1 has token id 1000"),
        (
            json!({"inputs": [[1], [2], [3], [4], [5]]}),
            422,
            "Validation",
            "batch size 5 > maximum allowed batch size 4",
        ),
        (json!({"inputs": [1, 2, 3, 4, 5, 6, 7, 8, 9], "truncate": false}), 422, "Validation", "9 tokens"),
        (json!({"inputs": [1], "dimensions": 3}), 422, "Validation", "`dimensions` is 3"),
        (json!({"inputs": "text"}), 422, "Tokenizer", "no tokenizer"),
        (json!({"inputs": [PANICS]}), 424, "Backend", "an invariant broke"),
    ] {
        let reply = whole.server.post("/embed", body.to_string());
        assert_tei(&body.to_string(), &reply, status, error_type, said);
        let next = whole.server.post("/embed", r#"{"inputs":[3],"normalize":false}"#);
        assert_eq!(next.json(), json!([[3.0, 1.0]]), "after {body}");
    }
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let whole = start();
    let mut held = whole.send_and_hold(r#"{"inputs":[[1],[2]]}"#);
    let reply = whole.server.post("/embed", r#"{"inputs":[[3],[4],[5]]}"#);
    assert_tei("3 where 2 fit", &reply, 429, "Overloaded", "overloaded");
    let seconds: u64 = reply.header("retry-after").parse().unwrap();
    let millis: u64 = reply.header("retry-after-ms").parse().unwrap();
    assert_eq!(seconds, millis.div_ceil(1000));
    whole.release();
    let mut answer = [0; 12];
    held.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(whole.server.post("/embed", r#"{"inputs":[[3],[4],[5]]}"#).status, 200);
}

#[test]
fn parts_of_a_request_wait_for_slots_and_are_one_answer() {
    let whole = start();
    // The engine takes four at a time, and has no more slots.
    let input: Vec<[u32; 1]> = (1..=10).map(|id| [id]).collect();
    let reply = whole.server.post("/v1/embeddings", json!({ "input": input }).to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 10, "total_tokens": 10 }));
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), input.len());
    for (row, [id]) in data.iter().zip(&input) {
        // the id and the number of tokens, which is 1, normalised
        let [first, second] = [0, 1].map(|at| row["embedding"][at].as_f64().unwrap());
        assert!((first / second - f64::from(*id)).abs() < 1e-4, "{id}: {row}");
    }
    assert_eq!(whole.hand.sequences.load(Ordering::SeqCst), 10);
}

#[test]
fn parts_of_an_answer_that_is_too_large_are_not_computed() {
    // two values for each input: 4 bytes each, and 14 for writing each
    let limit = 9 * 2 * (4 + 14);
    let whole = start_within(InFlightLimits { bodies: usize::MAX, answers: limit });
    let ask = |path: &str, inputs: u32| {
        let input: Vec<[u32; 1]> = (1..=inputs).map(|id| [id]).collect();
        whole.server.post(path, json!({ "input": input }).to_string())
    };
    for path in ["/v1/embeddings", "/pooling"] {
        // the bytes of the previous refusal may still be counted
        let mut last = None;
        wait_until("room", || last.insert(ask(path, 10)).status != 429);
        let refused = last.unwrap();
        assert_eq!(refused.status, 422, "{path}: {}", refused.text());
        assert!(refused.text().contains("would take 360 bytes"), "{path}: {}", refused.text());
    }
    assert_eq!(whole.hand.sequences.load(Ordering::SeqCst), 0, "nothing was computed for them");
    for path in ["/v1/embeddings", "/pooling"] {
        wait_until("room", || ask(path, 5).status == 200);
    }
}

#[test]
fn what_a_gone_client_wanted_is_not_computed() {
    let whole = start();
    let held = whole.send_and_hold(r#"{"inputs":[1]}"#);
    let mut gone = TcpStream::connect(whole.server.address).unwrap();
    gone.write_all(request(r#"{"inputs":[[2],[3]]}"#).as_bytes()).unwrap();
    wait_until("the second request", || whole.seen.asked.load(Ordering::SeqCst) == 2);
    drop(gone);
    wait_until("its end", || whole.seen.ended.load(Ordering::SeqCst) == 1);
    whole.release();
    drop(held);
    let three = r#"{"inputs":[[4],[5],[6]]}"#;
    wait_until("free slots", || whole.server.post("/embed", three).status == 200);
    assert_eq!(whole.hand.sequences.load(Ordering::SeqCst), 1 + 3, "[1], and the last three");
}

#[test]
fn stopping_answers_what_was_accepted_and_ends_the_engine() {
    let mut whole = start();
    let mut held = whole.send_and_hold(r#"{"inputs":[1],"normalize":false}"#);
    whole.server.stop();
    std::thread::sleep(Duration::from_millis(20));
    whole.release();
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("[[1.0,1.0]]"), "{answer}");
    whole.server.join();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), whole.seen.engine.stop())
            .await
            .expect("the engine ends");
    });
}

#[test]
fn the_engines_metrics_are_shown() {
    let whole = start();
    assert_eq!(whole.server.post("/embed", r#"{"inputs":[[1],[2,3]]}"#).status, 200);
    for (name, kind) in [
        ("te_request_count", "counter"),
        ("te_request_success", "counter"),
        ("te_request_duration", "histogram"),
        ("te_request_tokenization_duration", "histogram"),
        ("te_request_queue_duration", "histogram"),
        ("te_request_inference_duration", "histogram"),
        ("te_request_input_length", "histogram"),
        ("te_embed_count", "counter"),
        ("te_embed_success", "counter"),
        ("te_embed_duration", "histogram"),
        ("te_embed_tokenization_duration", "histogram"),
        ("te_embed_queue_duration", "histogram"),
        ("te_embed_inference_duration", "histogram"),
        ("te_queue_size", "gauge"),
        ("te_batch_next_size", "histogram"),
        ("te_batch_next_tokens", "histogram"),
        ("turbo_batch_fill", "histogram"),
        ("turbo_batch_cost_error", "histogram"),
        ("turbo_batch_cost_error_median", "gauge"),
        ("turbo_admission_refusals", "counter"),
        ("turbo_deadline_misses", "counter"),
        ("turbo_priority_queue_size", "gauge"),
        ("turbo_priority_duration", "histogram"),
        ("turbo_planned_bytes", "gauge"),
        ("turbo_used_bytes", "gauge"),
        ("process_resident_memory_bytes", "gauge"),
    ] {
        // a batch's cost is counted after its answers were sent
        let line = format!("# TYPE {name} {kind}\n");
        wait_until(&line, || whole.server.get("/metrics").text().contains(&line));
    }
    let metrics = whole.server.get("/metrics");
    assert!(metrics.text().contains(r#"te_batch_next_tokens_bucket{le="1048576"}"#));
}
