//! gRPC with its own client: what HTTP answers, in messages; streams, health, reflection, keys.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{body::Body, http};
use futures_util::{StreamExt, stream};
use prost::Message;
use tonic::{
    Code, Request, Status, Streaming,
    codec::CompressionEncoding,
    metadata::{MetadataMap, MetadataValue},
    transport::Channel,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};
use tower::ServiceExt;
use turbo_serve::{
    engine::{
        DecodeRequest, EngineError, EngineInfo, Health, Infer, InferRequest, InferResponse, Input, ModelInfo,
        Pending, Prompts, TokenizeRequest, Tokenized,
    },
    grpc::{
        self,
        proto::tei::{
            self, EmbedAllRequest, EmbedRequest, EmbedResponse, EmbedSparseRequest, EncodeRequest,
            InfoRequest, Metadata, ModelType, PredictPairRequest, PredictRequest, RerankRequest,
            RerankStreamRequest, embed_client::EmbedClient, info_client::InfoClient,
            predict_client::PredictClient, rerank_client::RerankClient, tokenize_client::TokenizeClient,
        },
    },
    http::Metrics,
    net::{InFlightLimits, bounded, protect},
};

use crate::fake::{
    Fake, PAYLOAD_LIMIT, Running, Server, classifier, counter, embedding, routes, row, sparse, wait_until,
};

pub(crate) async fn channel(server: &Running) -> Channel {
    Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap()
}

async fn embedder(server: &Running) -> EmbedClient<Channel> {
    EmbedClient::new(channel(server).await)
}

pub(crate) fn embed(text: &str) -> EmbedRequest {
    EmbedRequest { inputs: text.to_owned(), truncate: true, ..EmbedRequest::default() }
}

fn vector(text: &str) -> Vec<f32> {
    row(&Input::Text(text.to_owned()), 0).to_vec()
}

fn number(metadata: &MetadataMap, name: &str) -> u64 {
    let value = metadata.get(name).unwrap_or_else(|| panic!("no {name} in {metadata:?}"));
    value.to_str().unwrap().parse().unwrap()
}

/// Failures for this reason so far. Other tests of this process count, too.
fn failures(reason: &str) -> u64 {
    let metrics = Metrics::install().unwrap().render();
    counter(&metrics, &format!("te_request_failure{{err=\"{reason}\"}}"))
}

#[track_caller]
pub(crate) fn assert_status<T>(what: &str, answer: Result<T, Status>, code: Code, said: &str) {
    let Err(status) = answer else { panic!("{what}: it is answered") };
    assert_eq!(status.code(), code, "{what}: {status}");
    assert!(status.message().contains(said), "{what}: {status} does not say {said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn embeddings_are_those_of_http() {
    let server = Server::start();
    let mut client = embedder(&server).await;
    let request = EmbedRequest {
        normalize: Some(false),
        dimensions: Some(2),
        truncation_direction: tei::TruncationDirection::Left.into(),
        ..embed("a text")
    };
    let answer = client.embed(request).await.unwrap();
    for (name, value) in [
        ("x-compute-characters", 6),
        ("x-compute-tokens", 7),
        ("x-tokenization-time", 1),
        ("x-queue-time", 2),
        ("x-inference-time", 3),
    ] {
        assert_eq!(number(answer.metadata(), name), value, "{name}");
    }
    assert_eq!(answer.metadata().get("x-compute-type").unwrap(), "cpu");
    let answer = answer.into_inner();
    assert_eq!(answer.embeddings, vector("a text")[..2]);
    let took = Metadata {
        compute_chars: 6,
        compute_tokens: 7,
        total_time_ns: 7_500_000,
        tokenization_time_ns: 1_900_000,
        queue_time_ns: 2_100_000,
        inference_time_ns: 3_999_000,
    };
    assert_eq!(answer.metadata, Some(took));
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    let asked = turbo_serve::engine::OutputKind::Pooled { normalize: false, dimensions: Some(2) };
    assert_eq!((seen.output, seen.truncation), (asked, Some(turbo_serve::engine::Truncation::Left)));

    client.embed(EmbedRequest { inputs: "a".to_owned(), ..EmbedRequest::default() }).await.unwrap();
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    let asked = turbo_serve::engine::OutputKind::Pooled { normalize: true, dimensions: None };
    assert_eq!((seen.output, seen.truncation), (asked, Some(turbo_serve::engine::Truncation::Off)));

    let request = EmbedAllRequest { inputs: "ab".to_owned(), ..EmbedAllRequest::default() };
    let all = client.embed_all(request).await.unwrap().into_inner().token_embeddings;
    let all: Vec<Vec<f32>> = all.into_iter().map(|token| token.embeddings).collect();
    let expected = [0, 1, 2].map(|token| row(&Input::Text("ab".to_owned()), token).to_vec());
    assert_eq!(all, expected);

    let server = Server::with_model(sparse());
    let request = EmbedSparseRequest { inputs: "ab".to_owned(), ..EmbedSparseRequest::default() };
    let weights = embedder(&server).await.embed_sparse(request).await.unwrap().into_inner().sparse_embeddings;
    let weights: Vec<(u32, f32)> = weights.iter().map(|weight| (weight.index, weight.value)).collect();
    assert_eq!(weights, (0..).zip(vector("ab")).filter(|&(_, value)| value != 0.0).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn labels_and_ranks_are_those_of_http() {
    let server = Server::with_model(classifier(["x", "y"]));
    let mut client = PredictClient::new(channel(&server).await);
    let labels = |answer: tei::PredictResponse| -> Vec<(String, f32)> {
        answer.predictions.into_iter().map(|it| (it.label, it.score)).collect()
    };
    let by_http = |body: &str| -> Vec<(String, f32)> {
        let reply = server.post("/predict", body).json();
        let label = |it: &serde_json::Value| {
            (it["label"].as_str().unwrap().to_owned(), it["score"].as_f64().unwrap() as f32)
        };
        reply.as_array().unwrap().iter().map(label).collect()
    };
    for raw_scores in [false, true] {
        let request = PredictRequest {
            inputs: "a".to_owned(),
            truncate: true,
            raw_scores,
            ..PredictRequest::default()
        };
        let answer = client.predict(request).await.unwrap().into_inner();
        assert_eq!(labels(answer), by_http(&format!(r#"{{"inputs":"a","raw_scores":{raw_scores}}}"#)));
    }
    let pair = |texts: &[&str]| PredictPairRequest {
        inputs: texts.iter().map(|&text| text.to_owned()).collect(),
        truncate: true,
        ..PredictPairRequest::default()
    };
    let answer = client.predict_pair(pair(&["a", "b"])).await.unwrap().into_inner();
    assert_eq!(labels(answer), by_http(r#"{"inputs":["a","b"]}"#));
    let answer = client.predict_pair(pair(&["a"])).await.unwrap().into_inner();
    assert_eq!(labels(answer), by_http(r#"{"inputs":"a"}"#));
    for (texts, said) in [(&[][..], "`inputs` has 0 texts"), (&["a", "b", "c", "d"], "`inputs` has 4 texts")]
    {
        assert_status(said, client.predict_pair(pair(texts)).await, Code::InvalidArgument, said);
    }

    let server = Server::with_model(classifier(["score"]));
    let mut client = RerankClient::new(channel(&server).await);
    let texts = ["one", "two", "three"].map(str::to_owned);
    let request = RerankRequest {
        query: "q".to_owned(),
        texts: texts.to_vec(),
        truncate: true,
        return_text: true,
        ..RerankRequest::default()
    };
    let alone = client.rerank(request).await.unwrap().into_inner().ranks;
    let body = r#"{"query":"q","texts":["one","two","three"],"return_text":true}"#;
    let by_http = server.post("/rerank", body).json();
    for (rank, expected) in alone.iter().zip(by_http.as_array().unwrap()) {
        assert_eq!(u64::from(rank.index), expected["index"]);
        assert_eq!(rank.score, expected["score"].as_f64().unwrap() as f32);
        assert_eq!(rank.text.as_deref(), expected["text"].as_str());
    }
    assert_eq!(alone.len(), 3);

    // the first message determines the answer's form
    let messages = texts.iter().enumerate().map(|(index, text)| RerankStreamRequest {
        query: "q".to_owned(),
        text: text.clone(),
        truncate: true,
        raw_scores: index > 0,
        return_text: index == 0,
        ..RerankStreamRequest::default()
    });
    let answer = client.rerank_stream(stream::iter(messages.collect::<Vec<_>>())).await.unwrap();
    assert_eq!(number(answer.metadata(), "x-compute-tokens"), 6 + 6 + 8);
    let answer = answer.into_inner();
    assert_eq!(answer.ranks, alone);
    let took = answer.metadata.unwrap();
    assert_eq!((took.compute_chars, took.queue_time_ns), (4 + 4 + 6, 2_100_000));
    assert_status(
        "none",
        client.rerank_stream(stream::empty()).await,
        Code::InvalidArgument,
        "no texts to rank",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn texts_become_tokens_and_tokens_texts() {
    let server = Server::start();
    let mut client = TokenizeClient::new(channel(&server).await);
    let encode = |add_special_tokens| EncodeRequest {
        inputs: "aé".to_owned(),
        add_special_tokens,
        ..EncodeRequest::default()
    };
    let tokens = client.tokenize(encode(true)).await.unwrap().into_inner().tokens;
    let places: Vec<_> = tokens.iter().map(|token| (token.special, token.start, token.stop)).collect();
    assert_eq!(
        places,
        [(true, None, None), (false, Some(0), Some(1)), (false, Some(1), Some(3)), (true, None, None)]
    );
    assert_eq!(tokens[2].text, "é");
    let plain = client.tokenize(encode(false)).await.unwrap().into_inner().tokens;
    assert_eq!(plain, tokens[1..3]);

    let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    for (skip_special_tokens, expected) in [(true, "aé"), (false, "^aé$")] {
        let request = tei::DecodeRequest { ids: ids.clone(), skip_special_tokens };
        let text = client.decode(request).await.unwrap().into_inner().text;
        assert_eq!(text, expected);
    }
    let answers = client.tokenize_stream(stream::iter([encode(true), encode(false)])).await.unwrap();
    let answers: Vec<_> = answers.into_inner().map(|answer| answer.unwrap().tokens.len()).collect().await;
    assert_eq!(answers, [4, 2]);
    let decode = |id| tei::DecodeRequest { ids: vec![id], skip_special_tokens: true };
    let answers = client.decode_stream(stream::iter([decode(97), decode(98)])).await.unwrap();
    let answers: Vec<_> = answers.into_inner().map(|answer| answer.unwrap().text).collect().await;
    assert_eq!(answers, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_served_is_told() {
    for (model, expected) in [
        (embedding(), ModelType::Embedding),
        (classifier(["x", "y"]), ModelType::Classifier),
        (classifier(["x"]), ModelType::Reranker),
    ] {
        let server = Server::with_model(model);
        let info = InfoClient::new(channel(&server).await).info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.model_type(), expected);
        assert_eq!(
            (&*info.model_id, &*info.model_dtype, &*info.version),
            ("models/fake", "float32", "1.2.3")
        );
        assert_eq!((info.max_client_batch_size, info.max_batch_requests), (8, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn statuses_are_those_of_text_embeddings_inference() {
    let server = Server::start();
    let mut client = embedder(&server).await;
    for (text, code, said) in [
        ("overloaded", Code::ResourceExhausted, "overloaded"),
        ("expired", Code::DeadlineExceeded, "not answered within 50 ms"),
        ("tokenizer", Code::FailedPrecondition, "it is of no use"),
        ("no tokenizer", Code::FailedPrecondition, "send token ids"),
        ("backend", Code::FailedPrecondition, "on fire"),
        ("panic", Code::FailedPrecondition, "the engine panicked"),
        ("nan", Code::FailedPrecondition, "has the value NaN"),
        ("stopping", Code::Unavailable, "stopping"),
        ("invalid id", Code::InvalidArgument, "token id 1000"),
    ] {
        assert_status(text, client.embed(embed(text)).await, code, said);
        let answers =
            client.embed_stream(stream::iter([embed("a"), embed(text)])).await.unwrap().into_inner();
        if text != "overloaded" {
            let answers: Vec<_> = answers.collect().await;
            assert_eq!(answers.len(), 2, "{text}: {answers:?}");
            assert_eq!(answers[0].as_ref().unwrap().embeddings, vector("a"));
            assert_status(text, answers[1].clone(), code, said);
        }
    }
    let status = client.embed(embed("overloaded")).await.unwrap_err();
    assert_eq!(number(status.metadata(), "grpc-retry-pushback-ms"), 1201);

    let long = "a".repeat(30);
    for (request, said) in [
        (EmbedRequest { truncation_direction: 7, ..embed("a") }, "`truncation_direction` is 7"),
        (EmbedRequest { dimensions: Some(0), ..embed("a") }, "`dimensions` is 0"),
        (EmbedRequest { prompt_name: Some("x".to_owned()), ..embed("a") }, "`prompt_name` is `x`"),
        (EmbedRequest { truncate: false, ..embed(&long) }, "31 tokens"),
    ] {
        assert_status(said, client.embed(request).await, Code::InvalidArgument, said);
    }
    let large = client.embed(embed(&"a".repeat(PAYLOAD_LIMIT))).await;
    assert_status("large", large, Code::OutOfRange, "10000");

    let sparse =
        client.embed_sparse(EmbedSparseRequest { inputs: "a".to_owned(), ..Default::default() }).await;
    assert_status(
        "sparse",
        sparse,
        Code::FailedPrecondition,
        "this needs an embedding model with SPLADE pooling",
    );
    let channel = channel(&server).await;
    let predict = PredictClient::new(channel.clone()).predict(PredictRequest::default()).await;
    assert_status("predict", predict, Code::FailedPrecondition, "this needs a sequence classifier");
    let ranks = RerankClient::new(channel.clone());
    let message = RerankStreamRequest::default();
    let rerank = ranks.clone().rerank_stream(stream::iter([message.clone(), message])).await;
    assert_status(
        "rerank",
        rerank,
        Code::FailedPrecondition,
        "this needs a sequence classifier with one label",
    );

    let server = Server::with_model(classifier(["x"]));
    let mut ranks = RerankClient::new(self::channel(&server).await);
    let texts = |count| RerankRequest { texts: vec!["a".to_owned(); count], ..RerankRequest::default() };
    assert_status("none", ranks.rerank(texts(0)).await, Code::InvalidArgument, "`texts` cannot be empty");
    assert_status("nine", ranks.rerank(texts(9)).await, Code::InvalidArgument, "batch size 9 > maximum");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_there_is_not_is_unimplemented() {
    let server = Server::start();
    for path in ["/tei.v1.Embed/Nothing", "/tei.v1.Nothing/Embed"] {
        let mut client = tonic::client::Grpc::new(channel(&server).await);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<EmbedRequest, EmbedResponse>::default();
        let answer = client.unary(Request::new(embed("a")), path.parse().unwrap(), codec).await;
        assert_status(path, answer, Code::Unimplemented, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_of_a_stream_have_the_order_of_its_questions_and_come_at_once() {
    let server = Server::start();
    let mut client = embedder(&server).await;
    let texts = ["slow", "a", "b", "slow", "c"];
    let answers = client.embed_stream(stream::iter(texts.map(embed))).await.unwrap().into_inner();
    let answers: Vec<Vec<f32>> = answers.map(|answer| answer.unwrap().embeddings).collect().await;
    assert_eq!(answers, texts.map(vector));

    // the client sends each message after the answer to the one before
    let (questions, asked) = tokio::sync::mpsc::channel(1);
    let asked = stream::unfold(asked, |mut asked| async { Some((asked.recv().await?, asked)) });
    let mut answers = client.embed_stream(asked).await.unwrap().into_inner();
    for text in ["a", "b", "c"] {
        questions.send(embed(text)).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().embeddings, vector(text));
    }
    drop(questions);
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_stream_has_asked_is_withdrawn_when_it_ends() {
    let server = Server::start();
    let count = |count: &AtomicUsize| count.load(SeqCst);
    let engine = &server.engine;
    let mut client = embedder(&server).await;

    // at most half of the slots are taken at a time
    let answers = client.embed_stream(stream::iter(vec![embed("wait"); 1000])).await.unwrap();
    wait_until("256 questions", || count(&engine.waiting) == 256);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((count(&engine.waiting), count(&engine.withdrawn)), (256, 0));
    drop(answers);
    wait_until("their withdrawal", || count(&engine.withdrawn) == 256);

    // an error ends a stream
    let open = stream::iter(["a", "slow", "backend", "wait"].map(embed)).chain(stream::pending());
    let answers: Vec<_> = client.embed_stream(open).await.unwrap().into_inner().collect().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
    assert_status("last", answers[2].clone(), Code::FailedPrecondition, "on fire");
    wait_until("the last one's withdrawal", || count(&engine.withdrawn) == 257);

    // so does a client that disconnects
    let mut other = embedder(&server).await;
    let asked = tokio::spawn(async move { other.embed(embed("wait")).await });
    wait_until("the request", || count(&engine.waiting) == 258);
    asked.abort();
    wait_until("its withdrawal", || count(&engine.withdrawn) == 258);
}

/// An engine that refuses requests at first.
struct Crowded {
    fake: Fake,
    /// How many requests it refuses.
    refusals: AtomicUsize,
    /// Free slots that it reports.
    room: AtomicUsize,
}

impl Crowded {
    fn new(refusals: usize, room: usize) -> Arc<Self> {
        Arc::new(Self { fake: Fake::new(Health::Ready), refusals: refusals.into(), room: room.into() })
    }

    fn serve(self: &Arc<Self>) -> Running {
        Running::start(grpc::router(Arc::clone(self), Metrics::install().unwrap(), PAYLOAD_LIMIT))
    }
}

impl Infer for Crowded {
    fn info(&self) -> &EngineInfo {
        self.fake.info()
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        let refused = self.refusals.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if refused {
            // longer than the test would wait
            let retry_after = Duration::from_secs(1000);
            return Box::pin(async move { Err(EngineError::Overloaded { retry_after }) });
        }
        self.fake.infer(request)
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        self.fake.tokenize(request)
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        self.fake.decode(request)
    }

    fn has_room(&self, inputs: usize) -> bool {
        inputs <= self.room.load(SeqCst)
    }

    fn health(&self) -> Health {
        self.fake.health()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_waits_for_room() {
    let server = Crowded::new(10, usize::MAX).serve();
    let mut client = embedder(&server).await;
    assert_status("alone", client.embed(embed("a")).await, Code::ResourceExhausted, "overloaded");
    let texts = ["a", "b", "c", "d"];
    let answers = client.embed_stream(stream::iter(texts.map(embed))).await.unwrap().into_inner();
    let answers: Vec<Vec<f32>> = answers.map(|answer| answer.unwrap().embeddings).collect().await;
    assert_eq!(answers, texts.map(vector));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_waits_for_room_hears_when_his_time_is_over() {
    let within = |millis: &str, text: &str| {
        let mut request = Request::new(stream::iter([embed(text)]).chain(stream::pending()));
        // Not as `grpc-timeout`, for a gRPC client would itself give up then.
        request.metadata_mut().insert("x-request-deadline-ms", millis.parse().unwrap());
        request
    };
    for (refusals, room) in [(usize::MAX, usize::MAX), (0, 0)] {
        let server = Crowded::new(refusals, room).serve();
        let asked = embedder(&server).await.embed_stream(within("50", "a")).await;
        let mut answers = asked.unwrap().into_inner();
        let answer = tokio::time::timeout(Duration::from_secs(5), answers.message());
        let answer = answer.await.expect("it has waited for too long");
        assert_status("expired", answer, Code::DeadlineExceeded, "not answered within");
    }
    let answers = embedder(&Server::start()).await.embed_stream(within("60000", "too late")).await.unwrap();
    let answer = answers.into_inner().message().await;
    assert_status("too late", answer, Code::ResourceExhausted, "is predicted in 1250 ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn while_a_message_waits_for_room_others_stay_with_their_client() {
    const ALL: usize = 400;
    let engine = Crowded::new(0, 0);
    let server = engine.serve();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let messages = stream::repeat_with(move || {
        count.fetch_add(1, SeqCst);
        embed(&"a".repeat(PAYLOAD_LIMIT - 100))
    });
    let answers = embedder(&server).await.embed_stream(messages.take(ALL)).await.unwrap().into_inner();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The window of a stream is 64 KiB; the client holds some messages of its own.
    let ahead = sent.load(SeqCst);
    assert!((2..200).contains(&ahead), "{ahead} messages were sent");
    engine.room.store(usize::MAX, SeqCst);
    assert_eq!(answers.filter(|answer| std::future::ready(answer.is_ok())).count().await, ALL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_is_not_read_does_not_stop_other_calls_of_its_connection() {
    let server = Crowded::new(0, 0).serve();
    let channel = channel(&server).await;
    let messages = stream::iter(vec![embed(&"a".repeat(PAYLOAD_LIMIT - 100)); 400]);
    let _answers = EmbedClient::new(channel.clone()).embed_stream(messages).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await; // the client has sent as much as the window allows
    let mut health = HealthClient::new(channel);
    let checked = tokio::time::timeout(Duration::from_secs(5), health.check(HealthCheckRequest::default()));
    let status = checked.await.expect("it is stopped").unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::Serving);
}

/// The messages come one by one, so each is a DATA frame of its own. h2 ends a connection with many short frames that
/// are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_of_short_texts_that_wait_do_not_end_their_connection() {
    let engine = Crowded::new(0, 0);
    let server = engine.serve();
    let channel = channel(&server).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let messages = stream::iter(vec![embed("a"); 10_000]);
        let messages = messages.then(|message| async {
            tokio::task::yield_now().await;
            message
        });
        let answers = EmbedClient::new(channel.clone()).embed_stream(messages).await.unwrap();
        streams.push(answers.into_inner());
    }
    tokio::time::sleep(Duration::from_millis(1500)).await; // they have sent as much as the windows allow
    let mut health = HealthClient::new(channel);
    let checked = tokio::time::timeout(Duration::from_secs(5), health.check(HealthCheckRequest::default()));
    let status = checked.await.expect("it is stopped").unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::Serving);
    engine.room.store(usize::MAX, SeqCst);
    for mut answers in streams {
        assert_eq!(answers.message().await.unwrap().unwrap().embeddings, vector("a"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_anybody_may_ask_is_short() {
    let server = Server::start();
    let service = "a".repeat(100_000);
    let checked = HealthClient::new(channel(&server).await).check(HealthCheckRequest { service }).await;
    assert_status("health", checked, Code::OutOfRange, "65536 bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_refusal_repeats_is_short() {
    let services = grpc::router(Arc::new(Fake::new(Health::Ready)), Metrics::install().unwrap(), 100_000);
    let server = Running::start(services);
    let long = "a".repeat(20_000);
    let request = EmbedRequest { prompt_name: Some(long.clone()), ..embed("a") };
    let refused = embedder(&server).await.embed(request).await;
    assert_status("prompt", refused, Code::InvalidArgument, "`prompt_name`");
    let checked = HealthClient::new(channel(&server).await).check(HealthCheckRequest { service: long }).await;
    assert_status("health", checked, Code::NotFound, "no service `aaa");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tokens_that_there_is_no_room_for_are_given_up() {
    let limits = InFlightLimits { bodies: usize::MAX, answers: 200_000 };
    let services = grpc::router(Arc::new(Fake::new(Health::Ready)), Metrics::install().unwrap(), 100_000);
    let server = Running::start(bounded(services, limits));
    let mut client = TokenizeClient::new(channel(&server).await);
    let mut encode = async |bytes| {
        client.tokenize(EncodeRequest { inputs: "a".repeat(bytes), ..Default::default() }).await
    };
    assert_eq!(encode(1_000).await.unwrap().into_inner().tokens.len(), 1_000);
    assert_status("fifteen bytes for each", encode(20_000).await, Code::InvalidArgument, "200000 bytes");
    assert_eq!(encode(5_000).await.unwrap().into_inner().tokens.len(), 5_000);
    // Messages of a stream are held while they wait, and released with it.
    for (bytes, fit) in [(2_000, 20), (20_000, 0)] {
        let texts = stream::iter(vec![EncodeRequest { inputs: "a".repeat(bytes), ..Default::default() }; 20]);
        let answers = client.tokenize_stream(texts).await.unwrap().into_inner();
        let came = answers.filter(|answer| std::future::ready(answer.is_ok())).count().await;
        assert_eq!(came, fit, "texts of {bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn messages_count_until_they_are_answered() {
    let limits = InFlightLimits { bodies: 100_000, answers: usize::MAX };
    let serve = |engine: Arc<dyn Infer>| {
        let services = grpc::router(engine, Metrics::install().unwrap(), 100_000);
        Running::start(bounded(services, limits))
    };
    let server = serve(Arc::new(Fake::new(Health::Ready)));
    let mut client = embedder(&server).await;
    let message = embed(&"a".repeat(4_000));
    for _ in 0..30 {
        client.embed(message.clone()).await.unwrap();
    }
    let many = stream::iter(vec![message.clone(); 300]);
    let answers = client.embed_stream(many).await.unwrap().into_inner();
    assert_eq!(answers.filter(|answer| std::future::ready(answer.is_ok())).count().await, 300);

    // A waiting message holds its bytes until its client disconnects.
    let prompt = "a".repeat(60_000);
    let prompts = Prompts { named: [(prompt.clone(), String::new())].into(), default: None };
    let engine = Arc::new(Fake::of(ModelInfo { prompts, ..embedding() }, Health::Ready));
    let server = serve(engine.clone());
    let waiting = EmbedRequest { inputs: "wait".to_owned(), prompt_name: Some(prompt), ..message };
    let other = EmbedRequest { inputs: "a".to_owned(), ..waiting.clone() };
    let mut client = embedder(&server).await;
    let mut one = client.clone();
    let waits = tokio::spawn(async move { one.embed(waiting).await });
    // Otherwise it may be the one that is refused.
    wait_until("the one that waits", || engine.waiting.load(SeqCst) == 1);
    let before = failures("overloaded");
    let refused = client.embed(other.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("--max-body-bytes-in-flight"), "{refused}");
    assert_eq!(number(refused.metadata(), "grpc-retry-pushback-ms"), 1000);
    assert!(failures("overloaded") > before);
    waits.abort();
    while client.embed(other.clone()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_say_to_be_a_call_is_none_and_holds_nothing() {
    let limits = InFlightLimits { bodies: 100_000, answers: usize::MAX };
    let services = grpc::router(Arc::new(Fake::new(Health::Ready)), Metrics::install().unwrap(), 100_000);
    let services = bounded(services, limits);
    let message = embed(&"a".repeat(60_000)).encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for (method, path) in [
        ("POST", "/tei.v1.Embed/EmbedStream"),
        ("POST", "/grpc.health.v1.Health/Check"),
        ("GET", "/tei.v1.Embed/EmbedStream"),
    ] {
        let half = stream::iter([Ok::<_, Infallible>(message[..50_000].to_vec())]);
        let request = http::Request::builder().method(method).uri(path);
        let request = request.body(Body::from_stream(half.chain(stream::pending()))).unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), services.clone().oneshot(request)).await;
        assert_eq!(answer.expect("it is waited for").unwrap().status(), 415, "{method} {path}");
    }
    let call = http::Request::post("/tei.v1.Embed/Embed").header("content-type", "application/grpc+proto");
    let answer = services.oneshot(call.body(Body::from(message)).unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("grpc-status")), (200, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn texts_that_go_back_with_their_ranks_count_until_the_end() {
    let limits = InFlightLimits { bodies: 100_000, answers: usize::MAX };
    let engine = Arc::new(Fake::of(classifier(["x"]), Health::Ready));
    let services = grpc::router(engine, Metrics::install().unwrap(), 100_000);
    let server = Running::start(bounded(services, limits));
    let mut client = RerankClient::new(channel(&server).await);
    let mut ranks = async |texts: usize, return_text| {
        let text = "a".repeat(20_000);
        let message = RerankStreamRequest { text, truncate: true, return_text, ..Default::default() };
        client.rerank_stream(stream::iter(vec![message; texts])).await
    };
    for (texts, return_text) in [(2, true), (2, true), (4, false), (2, true)] {
        let ranks = ranks(texts, return_text).await.unwrap().into_inner().ranks;
        let returned = ranks.iter().filter(|rank| rank.text.is_some()).count();
        assert_eq!((ranks.len(), returned), (texts, if return_text { texts } else { 0 }));
    }
    let refused = ranks(4, true).await;
    assert_status("no room", refused, Code::ResourceExhausted, "--max-body-bytes-in-flight");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn packed_messages_are_taken_and_bounded_by_what_they_become() {
    const PAYLOAD: usize = 100_000;
    let limits = InFlightLimits { bodies: 80_000, answers: usize::MAX };
    let engine = Arc::new(Fake::new(Health::Ready));
    let services = grpc::router(engine, Metrics::install().unwrap(), PAYLOAD);
    let server = Running::start(bounded(services.clone(), limits));
    let unbounded = Running::start(services);
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = embedder(&server).await.send_compressed(encoding);
        let text = "a".repeat(100);
        let answer = client.embed(embed(&text)).await.unwrap().into_inner();
        assert_eq!(answer.embeddings, vector(&text), "{encoding}");
        // Each may unpack to tens of thousands of bytes, but none does.
        let answers = client.embed_stream(stream::iter(vec![embed(&text); 50])).await.unwrap().into_inner();
        let came = answers.filter(|answer| std::future::ready(answer.is_ok())).count().await;
        assert_eq!(came, 50, "{encoding}");
        let large = embed(&"a".repeat(90_000));
        let refused = client.embed(large.clone()).await;
        assert_status("no room", refused, Code::ResourceExhausted, "--max-body-bytes-in-flight");
        let mut client = embedder(&unbounded).await.send_compressed(encoding);
        client.embed(large).await.unwrap();
        let refused = client.embed(embed(&"a".repeat(PAYLOAD))).await;
        assert_status("too large", refused, Code::ResourceExhausted, "size limit, of 100000 bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fields_are_counted_before_there_is_memory_for_them() {
    let services = grpc::router(
        Arc::new(Fake::of(classifier(["x"]), Health::Ready)),
        Metrics::install().unwrap(),
        1 << 20,
    );
    let server = Running::start(services);
    let mut ranks = RerankClient::new(channel(&server).await);
    let texts = RerankRequest { texts: vec![String::new(); 20_000], ..RerankRequest::default() };
    let before = failures("validation");
    assert_status("many", ranks.rerank(texts).await, Code::InvalidArgument, "more than 16384 fields");
    assert!(failures("validation") > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_that_says_nothing_does_not_keep_the_server_from_stopping() {
    let server = Server::with_health(Health::Stopping);
    let channel = channel(&server).await;
    let silent = || stream::pending::<EmbedRequest>();
    let answers = EmbedClient::new(channel.clone()).embed_stream(silent()).await.unwrap().into_inner();
    let answers: Vec<_> = answers.collect().await;
    assert_status("silent", answers[0].clone(), Code::Unavailable, "stopping");
    assert_eq!(answers.len(), 1);
    let ranks = RerankClient::new(channel.clone()).rerank_stream(stream::pending()).await;
    assert_status("silent ranks", ranks, Code::Unavailable, "stopping");
    let mut reflection = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let told = reflection.server_reflection_info(stream::pending()).await.unwrap().into_inner();
    let told = tokio::time::timeout(Duration::from_secs(5), told.count()).await;
    assert_eq!(told, Ok(0), "reflection");
    let watch = HealthClient::new(channel).watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(statuses(watch).await, [ServingStatus::NotServing]);
}

async fn statuses(watch: Streaming<tonic_health::pb::HealthCheckResponse>) -> Vec<ServingStatus> {
    watch.map(|response| response.unwrap().status()).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn health_is_told_by_service() {
    use ServingStatus::{NotServing, Serving};
    for (model, health, expected) in [
        (embedding(), Health::Ready, [Serving, Serving, Serving, NotServing, NotServing]),
        (sparse(), Health::Ready, [Serving, Serving, Serving, NotServing, NotServing]),
        (classifier(["x", "y"]), Health::Ready, [Serving, Serving, NotServing, Serving, NotServing]),
        (classifier(["x"]), Health::Ready, [Serving, Serving, NotServing, Serving, Serving]),
        (embedding(), Health::Failing, [NotServing, Serving, NotServing, NotServing, NotServing]),
        (embedding(), Health::Starting, [NotServing, Serving, NotServing, NotServing, NotServing]),
    ] {
        let server = Running::start(routes(Fake::of(model, health).into()));
        let mut client = HealthClient::new(channel(&server).await);
        let services = ["", "tei.v1.Info", "tei.v1.Embed", "tei.v1.Predict", "tei.v1.Rerank"];
        for (service, expected) in services.into_iter().zip(expected) {
            let request = || HealthCheckRequest { service: service.to_owned() };
            let status = client.check(request()).await.unwrap().into_inner().status();
            assert_eq!(status, expected, "{service:?} of a model that is {health:?}");
            let mut watch = client.watch(request()).await.unwrap().into_inner();
            assert_eq!(watch.message().await.unwrap().unwrap().status(), expected);
        }
        let unknown = || HealthCheckRequest { service: "tei.v1.Nothing".to_owned() };
        assert_status(
            "unknown",
            client.check(unknown()).await,
            Code::NotFound,
            "no service `tei.v1.Nothing`",
        );
        let mut watch = client.watch(unknown()).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn services_are_told_by_reflection() {
    const ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";
    let server = Server::start();
    let mut v1 = v1::server_reflection_client::ServerReflectionClient::new(channel(&server).await);
    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let list = v1::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let answer = v1.server_reflection_info(stream::iter([list])).await.unwrap().into_inner().message().await;
    let answer = answer.unwrap().unwrap().message_response;
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(services)) = answer else {
        panic!("{answer:?}");
    };
    let services: Vec<String> = services.service.into_iter().map(|service| service.name).collect();
    for service in ["tei.v1.Info", "tei.v1.Embed", "tei.v1.Predict", "tei.v1.Rerank", "tei.v1.Tokenize"] {
        assert!(services.iter().any(|name| name == service), "{service} is not in {services:?}");
    }
    for service in ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", ALPHA] {
        assert!(services.iter().any(|name| name == service), "{service} is not in {services:?}");
    }

    let mut alpha = v1alpha::server_reflection_client::ServerReflectionClient::new(channel(&server).await);
    let symbol = "tei.v1.EmbedRequest".to_owned();
    let file = v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol);
    let file = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(file) };
    let answer =
        alpha.server_reflection_info(stream::iter([file])).await.unwrap().into_inner().message().await;
    let answer = answer.unwrap().unwrap().message_response;
    assert!(
        matches!(
            answer,
            Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
        ),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_key_is_for_calls_too() {
    let key = "secret".parse().unwrap();
    let server = Running::start(protect(routes(Fake::new(Health::Ready).into()), key));
    let channel = channel(&server).await;
    let mut client = EmbedClient::new(channel.clone());
    assert_status("none", client.embed(embed("a")).await, Code::Unauthenticated, "expected the header");
    let with = |value: &'static str| {
        let mut request = Request::new(embed("a"));
        request.metadata_mut().insert("authorization", MetadataValue::from_static(value));
        request
    };
    assert_status(
        "wrong",
        client.embed(with("Bearer other")).await,
        Code::Unauthenticated,
        "not this server's",
    );
    client.embed(with("Bearer secret")).await.unwrap();
    let health = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    assert_eq!(health.unwrap().into_inner().status(), ServingStatus::Serving);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_calls_deadline_and_class_reach_the_engine() {
    let server = Server::start();
    let mut client = embedder(&server).await;
    let asked = std::time::Instant::now();
    let mut request = Request::new(embed("a"));
    request.set_timeout(Duration::from_secs(30)); // sent as `grpc-timeout`
    request.metadata_mut().insert("x-request-priority", "high".parse().unwrap());
    client.embed(request).await.unwrap();
    let seen = server.engine.seen.lock().unwrap().take().unwrap().urgency;
    let within = seen.deadline.unwrap() - asked;
    assert!(within >= Duration::from_secs(30) && within < Duration::from_secs(40), "{within:?}");
    assert_eq!(seen.priority, turbo_serve::engine::Priority::High);

    for (name, value, said) in [
        ("grpc-timeout", &b"soon"[..], "`grpc-timeout` is `soon`, expected at most eight digits and a unit"),
        ("x-request-priority", b"urgent", "is `urgent`, expected one of `low`, `normal`, `high`"),
        ("x-model", b"\xff", "`x-model` is not text"),
    ] {
        let mut request = Request::new(embed("a"));
        request.metadata_mut().insert(name, MetadataValue::try_from(value).unwrap());
        let before = failures("validation");
        assert_status(name, client.embed(request).await, Code::InvalidArgument, said);
        assert!(failures("validation") > before, "{name}: it is counted");
    }
    let status = client.embed(embed("too late")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(number(status.metadata(), "grpc-retry-pushback-ms"), 1201);
}
