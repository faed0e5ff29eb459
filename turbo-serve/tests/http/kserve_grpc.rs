//! KServe's Open Inference Protocol v2 over gRPC.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use proptest::{collection::vec, prelude::*, sample::select};
use tonic::{Code, transport::Channel};
use turbo_serve::{
    engine::{Health, Input, OutputKind},
    grpc::{
        self,
        proto::open_inference::{
            InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
            ModelReadyRequest, ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
            ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
            grpc_inference_service_client::GrpcInferenceServiceClient,
            infer_parameter::ParameterChoice,
            model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
        },
    },
    http::Metrics,
    models::Models,
};

use crate::{
    fake::{Fake, PAYLOAD_LIMIT, Running, Server},
    grpc::channel,
    kserve::{elements, rows, texts},
};

async fn client(server: &Running) -> GrpcInferenceServiceClient<Channel> {
    GrpcInferenceServiceClient::new(channel(server).await)
}

/// A request with texts, as bytes beside their tensor or in it.
pub(crate) fn message(texts: &[&str], raw: bool) -> ModelInferRequest {
    let bytes: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let written = |bytes: &Vec<u8>| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let raw_input_contents = if raw { vec![bytes.iter().flat_map(written).collect()] } else { Vec::new() };
    let contents = (!raw).then(|| InferTensorContents { bytes_contents: bytes, ..Default::default() });
    ModelInferRequest {
        model_name: "fake".to_owned(),
        id: texts.concat(),
        inputs: vec![InferInputTensor {
            name: "text".to_owned(),
            datatype: "BYTES".to_owned(),
            shape: vec![texts.len() as i64],
            contents,
            ..Default::default()
        }],
        raw_input_contents,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn messages_have_their_tensors_as_bytes_or_as_numbers() {
    let server = Server::start();
    let mut client = client(&server).await;
    let expected = rows(&texts(&["a", "bc"]));
    for raw in [false, true] {
        let answer = client.model_infer(message(&["a", "bc"], raw)).await.unwrap();
        assert_eq!(answer.metadata().get("x-compute-tokens").unwrap(), "5");
        let ModelInferResponse { model_name, model_version, id, outputs, raw_output_contents, .. } =
            answer.into_inner();
        assert_eq!((&*model_name, &*model_version, &*id), ("fake", "1", "abc"));
        let [output] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!(
            (&*output.name, &*output.datatype, &output.shape[..]),
            ("sentence_embedding", "FP32", &[2, 4][..])
        );
        if raw {
            let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!((output.contents.clone(), raw_output_contents), (None, vec![bytes]));
        } else {
            assert_eq!(
                (&output.contents.as_ref().unwrap().fp32_contents, raw_output_contents.len()),
                (&expected, 0)
            );
        }
    }
    let tensor = |name: &str, datatype: &str, contents: InferTensorContents| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1, 3],
        contents: Some(contents),
        ..Default::default()
    };
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let request = ModelInferRequest {
        inputs: vec![
            tensor(
                "input_ids",
                "UINT32",
                InferTensorContents { uint_contents: vec![1, 2, 3], ..Default::default() },
            ),
            tensor(
                "attention_mask",
                "BOOL",
                InferTensorContents { bool_contents: vec![true, true, false], ..Default::default() },
            ),
        ],
        outputs: vec![InferRequestedOutputTensor { name: "attention_mask".to_owned(), ..Default::default() }],
        parameters: HashMap::from([
            ("normalize".to_owned(), parameter(ParameterChoice::BoolParam(false))),
            ("dimensions".to_owned(), parameter(ParameterChoice::Int64Param(3))),
        ]),
        ..Default::default()
    };
    let answer = client.model_infer(request).await.unwrap().into_inner();
    assert_eq!(answer.outputs[0].contents.as_ref().unwrap().int64_contents, [1, 1]);
    let seen = server.engine.seen.lock().unwrap().clone().unwrap();
    assert_eq!(seen.inputs, [Input::Ids(vec![1, 2])]);
    assert_eq!(seen.output, OutputKind::Pooled { normalize: false, dimensions: Some(3) });

    let region = parameter(ParameterChoice::StringParam("r".to_owned()));
    let region = HashMap::from([("shared_memory_region".to_owned(), region)]);
    let name = "sentence_embedding".to_owned();
    let wanted = InferRequestedOutputTensor { name, parameters: region.clone() };
    let shared_out = ModelInferRequest { outputs: vec![wanted], ..message(&["a"], false) };
    let [mut shared, mut shared_raw] = [false, true].map(|raw| message(&["a"], raw));
    for message in [&mut shared, &mut shared_raw] {
        message.inputs[0].parameters = region.clone();
    }
    let mut outside = message(&["a"], false);
    outside.inputs = vec![tensor(
        "input_ids",
        "UINT8",
        InferTensorContents { uint_contents: vec![1, 2, 999], ..Default::default() },
    )];
    let two = ModelInferRequest { raw_input_contents: vec![Vec::new(); 2], ..message(&["a"], true) };
    for (request, code, said) in [
        (message(&["backend"], false), Code::FailedPrecondition, "on fire"),
        (message(&["overloaded"], false), Code::ResourceExhausted, "overloaded"),
        (message(&[], false), Code::InvalidArgument, "cannot be empty"),
        (shared, Code::InvalidArgument, "input `text`: shared memory is not available here"),
        (shared_raw, Code::InvalidArgument, "input `text`: shared memory is not available here"),
        (
            shared_out,
            Code::InvalidArgument,
            "output `sentence_embedding`: shared memory is not available here",
        ),
        (outside, Code::InvalidArgument, "has 999, which is no `UINT8`: expected 0 to 255"),
        (two, Code::InvalidArgument, "`raw_input_contents` has 2 tensors, expected one for each of 1"),
        (
            ModelInferRequest { model_version: "7".to_owned(), ..message(&["a"], true) },
            Code::NotFound,
            "no version `7`",
        ),
    ] {
        let status = client.model_infer(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(said), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stream_goes_on_behind_what_failed() {
    let server = Server::start();
    let texts = ["slow", "a", "backend", "b"];
    let unknown = ModelInferRequest { model_version: "7".to_owned(), ..message(&["c"], true) };
    let failing = |id: String| ModelInferRequest { id, ..message(&["backend"], true) };
    let others = [
        unknown,
        message(&["d"], true),
        failing("7".to_owned()),
        failing("7".repeat(1025)),
        failing(String::new()),
    ];
    let messages: Vec<_> = texts.map(|text| message(&[text], true)).into_iter().chain(others).collect();
    let answers =
        client(&server).await.model_stream_infer(stream::iter(messages)).await.unwrap().into_inner();
    let told = answers.map(|answer| {
        let answer = answer.unwrap();
        let outputs = answer.infer_response.as_ref().map_or(0, |response| response.outputs.len());
        assert_eq!(outputs, usize::from(answer.error_message.is_empty()), "{}", answer.error_message);
        (answer.infer_response.map(|response| response.id), answer.error_message)
    });
    let told: Vec<(Option<String>, String)> = told.collect().await;
    let expected = [
        (Some("slow"), ""),
        (Some("a"), ""),
        (Some("backend"), "on fire"),
        (Some("b"), ""),
        (Some("c"), "no version `7`"),
        (Some("d"), ""),
        (Some("7"), "on fire"),
        (None, "on fire"), // its id is too long to be remembered
        (Some(""), "on fire"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for ((id, error), (expected, said)) in told.iter().zip(expected) {
        assert_eq!((id.as_deref(), error.is_empty()), (expected, said.is_empty()), "{error}");
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_leaves_no_other_message_to_be_read_ends_a_stream() {
    let large = "a".repeat(PAYLOAD_LIMIT);
    let messages = ["a", large.as_str(), "b"].map(|text| message(&[text], true));
    let server = Server::start();
    let answers =
        client(&server).await.model_stream_infer(stream::iter(messages)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.collect().await;
    let [Ok(first), Err(status)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((&*first.error_message, status.code()), ("", Code::OutOfRange), "{status}");

    let server = Server::with_health(Health::Stopping);
    let silent = stream::pending::<ModelInferRequest>();
    let answers = client(&server).await.model_stream_infer(silent).await.unwrap().into_inner();
    let answers: Vec<_> = answers.collect().await;
    let [Err(status)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn who_does_not_read_answers_keeps_no_server_from_stopping() {
    let models = Models::single(Arc::new(Fake::new(Health::Ready)));
    let services = grpc::router(models.clone(), Metrics::install().unwrap(), PAYLOAD_LIMIT);
    let messages = stream::iter(["a", "slow"].map(|text| message(&[text], true)));
    let asked = GrpcInferenceServiceClient::new(services).model_stream_infer(messages).await;
    let mut answers = asked.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    // The other message is submitted by now, and the client does not read its answer.
    let stopped = tokio::time::timeout(Duration::from_secs(5), models.stop()).await;
    stopped.expect("it waits for who does not read");
    let last = answers.message().await.unwrap().unwrap();
    assert_eq!(last.error_message, "", "what was accepted is answered");
}

#[tokio::test]
async fn statistics_do_not_count_the_time_of_who_reads_slowly() {
    const PAUSE: Duration = Duration::from_secs(2);
    let engine = Arc::new(Fake::new(Health::Ready));
    let services = grpc::router(engine, Metrics::install().unwrap(), PAYLOAD_LIMIT);
    let mut client = GrpcInferenceServiceClient::new(services);
    let messages = stream::iter(["a", "fails slowly"].map(|text| message(&[text], true)));
    let mut answers = client.model_stream_infer(messages).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    tokio::time::sleep(PAUSE).await;
    let failed = answers.message().await.unwrap().unwrap();
    assert!(failed.error_message.contains("burnt down"), "{}", failed.error_message);
    let stats = client.model_statistics(ModelStatisticsRequest::default()).await.unwrap().into_inner();
    let fail = stats.model_stats[0].inference_stats.as_ref().unwrap().fail.as_ref().unwrap();
    assert!(fail.count == 1 && u128::from(fail.ns) < PAUSE.as_nanos(), "{fail:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_time_of_a_message_runs_once() {
    let server = Server::start();
    let within = |text: &str, micros: i64| ModelInferRequest {
        parameters: HashMap::from([(
            "timeout".to_owned(),
            InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(micros)) },
        )]),
        ..message(&[text], true)
    };
    for (text, micros, said) in
        [("overloaded", 50_000, "not answered within"), ("too late", 60_000_000, "is predicted in 1250 ms")]
    {
        let messages = stream::iter([within(text, micros)]).chain(stream::pending());
        let mut answers = client(&server).await.model_stream_infer(messages).await.unwrap().into_inner();
        let answer = tokio::time::timeout(Duration::from_secs(5), answers.message());
        let answer = answer.await.expect("it has waited for too long").unwrap().unwrap();
        assert!(answer.error_message.contains(said), "{text}: {}", answer.error_message);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_tell_what_a_server_is() {
    let server = Server::start();
    let mut client = client(&server).await;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    assert_eq!(client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner().name, "turbo");
    for (version, expected) in [("", true), ("1", true), ("7", false)] {
        let request = ModelReadyRequest { name: "fake".to_owned(), version: version.to_owned() };
        assert_eq!(client.model_ready(request).await.unwrap().into_inner().ready, expected, "{version:?}");
    }
    let request = ModelMetadataRequest { name: "fake".to_owned(), ..Default::default() };
    let model = client.model_metadata(request).await.unwrap().into_inner();
    let outputs: Vec<&str> = model.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(
        (&*model.inputs[0].name, &outputs[..]),
        ("text", &["sentence_embedding", "token_embeddings", "attention_mask"][..])
    );
    client.model_infer(message(&["a", "b"], true)).await.unwrap();
    let stats =
        client.model_statistics(ModelStatisticsRequest::default()).await.unwrap().into_inner().model_stats;
    let done = stats[0].inference_stats.as_ref().unwrap();
    assert_eq!((stats[0].inference_count, done.success.as_ref().unwrap().count), (2, 1));
    let index = client.repository_index(RepositoryIndexRequest::default()).await.unwrap().into_inner().models;
    assert_eq!((&*index[0].name, &*index[0].version, &*index[0].state), ("fake", "1", "READY"));
    let load = RepositoryModelLoadRequest { model_name: "fake".to_owned(), ..Default::default() };
    let status = client.repository_model_load(load).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message().contains("--config")),
        (Code::InvalidArgument, true),
        "{status}"
    );
}

/// An input of any shape, with contents of its own or without; often those that the shape says.
fn input() -> impl Strategy<Value = InferInputTensor> {
    let name = select(&["text", "input_ids", "attention_mask", "token_type_ids"][..]);
    let datatype = select(&["BYTES", "INT64", "INT32", "UINT8", "UINT64", "BOOL", "FP32", ""][..]);
    let size = prop_oneof![9 => 0..4_i64, 1 => select(&[i64::MAX, i64::MIN, -1, 1 << 32][..])];
    let text = "[a-c\u{ff}]{0,3}".prop_map(String::into_bytes);
    let contents = (vec(any::<i64>(), 0..4), vec(any::<u64>(), 0..4), vec(text, 0..4));
    let how = (0..3_u8, vec(size, 0..3));
    (name, datatype, contents, how).prop_map(|(name, datatype, contents, (how, shape))| {
        let (int64_contents, uint64_contents, bytes_contents) = contents;
        let (datatype, shape) = match how {
            0 => ("BYTES", vec![bytes_contents.len() as i64]),
            _ => (datatype, shape),
        };
        let contents = InferTensorContents {
            bool_contents: int64_contents.iter().map(|it| it % 2 == 0).collect(),
            int_contents: int64_contents.iter().map(|&it| it as i32).collect(),
            uint_contents: uint64_contents.iter().map(|&it| it as u32).collect(),
            int64_contents,
            uint64_contents,
            bytes_contents,
            ..InferTensorContents::default()
        };
        InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape,
            contents: (how < 2).then_some(contents),
            ..InferInputTensor::default()
        }
    })
}

#[test]
fn whatever_a_message_says_is_answered() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client(&server));
    let answered = std::cell::Cell::new(0);
    let raw = prop_oneof![2 => Just(Vec::new()), 1 => vec(elements(), 0..3)];
    let message = (vec(input(), 0..3), raw);
    proptest!(ProptestConfig::with_cases(1500), |((inputs, raw_input_contents) in message)| {
        let request = ModelInferRequest { inputs, raw_input_contents, ..ModelInferRequest::default() };
        match runtime.block_on(client.clone().model_infer(request)) {
            Ok(_) => answered.set(answered.get() + 1),
            Err(status) => prop_assert_eq!(status.code(), Code::InvalidArgument, "{}", status),
        }
    });
    assert!(answered.get() > 5, "else what comes is refused too early: {answered:?}");
}
