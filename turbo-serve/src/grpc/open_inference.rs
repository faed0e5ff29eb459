//! `inference.GRPCInferenceService`: KServe's Open Inference Protocol v2, implemented by [`kserve`].

use std::{collections::HashMap, future::ready, sync::mpsc, task::Poll, time::Instant};

use futures_util::{StreamExt, stream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    calls::{Answered, Ask, CallHead, Calls},
    observe::Call,
    proto::open_inference::{
        DataType, InferBatchStatistics, InferParameter, InferStatistics, InferTensorContents, ModelConfig,
        ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelInput,
        ModelMetadataRequest, ModelMetadataResponse, ModelOutput, ModelReadyRequest, ModelReadyResponse,
        ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse,
        RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
        RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
        ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
        ServerReadyRequest, ServerReadyResponse, StatisticDuration,
        grpc_inference_service_server::GrpcInferenceService,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
        model_infer_response::InferOutputTensor,
        model_metadata_response::TensorMetadata,
        repository_index_response::ModelIndex,
    },
    streams::{AT_ONCE, Answers, Places, arrived},
};
use crate::{
    engine::Spent,
    http::{ApiError, Arity},
    kserve::{
        self, Announced, Asked, Elements, Indexed, InputTensor, Metadata, OutputTensor, Parameter, Stats,
        TensorInfo, Values,
    },
    models::{Served, Wanted},
    net::Held,
};

/// Longest request id, in bytes, that is returned with an error: remembered ids are not counted among the bytes in
/// flight.
const LONGEST_ID: usize = 1024;

/// A model and a version, each unset if empty.
fn wanted<'a>(name: &'a str, version: &'a str) -> Wanted<'a> {
    let said = |text: &'a str| Some(text).filter(|text| !text.is_empty());
    Wanted { name: said(name), version: said(version) }
}

impl Ask for ModelInferRequest {
    type Answer = ModelInferResponse;
    const COUNTED: Option<Arity> = Some(Arity::Batch);

    fn wanted<'a>(&'a self, _: &'a CallHead) -> Wanted<'a> {
        wanted(&self.model_name, &self.model_version)
    }

    async fn ask(self, served: &Served, received: Instant) -> Result<Answered<ModelInferResponse>, ApiError> {
        let (id, raw) = (self.id.clone(), !self.raw_input_contents.is_empty());
        let served = served.clone().begun()?;
        let (model_name, model_version) = (served.name().to_owned(), served.version().to_owned());
        let write = move |tensors: Vec<OutputTensor>| {
            let raw_output_contents = if raw { tensors.iter().map(bytes).collect() } else { Vec::new() };
            let outputs = tensors.into_iter().map(|tensor| output(tensor, raw)).collect();
            let parameters = HashMap::new();
            Ok(ModelInferResponse { model_name, model_version, id, parameters, outputs, raw_output_contents })
        };
        let (message, usage) = kserve::answer(served.engine(), asked(self, received)?, write).await?;
        Ok(Answered { message, usage })
    }
}

fn asked(request: ModelInferRequest, received: Instant) -> Result<Asked, ApiError> {
    let (inputs, raw) = (request.inputs, request.raw_input_contents);
    let inputs = if raw.is_empty() {
        inputs.into_iter().map(input).collect::<Result<_, _>>()?
    } else if raw.len() == inputs.len() {
        let inputs = inputs.into_iter().zip(&raw);
        let read = |(tensor, raw): (InferInputTensor, &Vec<u8>)| {
            kserve::check_memory("input", &tensor.name, tensor.parameters.keys())?;
            Announced::new(tensor.name, tensor.datatype, &tensor.shape)?.of_raw(raw)
        };
        inputs.map(read).collect::<Result<_, _>>()?
    } else {
        let (got, expected) = (raw.len(), inputs.len());
        let said =
            format!("`raw_input_contents` has {got} tensors, expected one for each of {expected} inputs");
        return Err(ApiError::validation(said));
    };
    let outputs = request.outputs.into_iter().map(requested).collect::<Result<_, _>>()?;
    Ok(Asked { parameters: parameters(request.parameters), inputs, outputs, received })
}

fn input(tensor: InferInputTensor) -> Result<InputTensor, ApiError> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = tensor;
    kserve::check_memory("input", &name, parameters.keys())?;
    let contents = contents.unwrap_or_default();
    let elements = match &*datatype {
        "BYTES" => Elements::Bytes(contents.bytes_contents),
        "BOOL" => Elements::Integers(contents.bool_contents.into_iter().map(i64::from).collect()),
        "INT64" => Elements::Integers(contents.int64_contents),
        "UINT8" | "UINT16" | "UINT32" => {
            Elements::Integers(contents.uint_contents.into_iter().map(i64::from).collect())
        }
        // Values too large for a token id saturate, and are refused by its range check.
        "UINT64" => {
            let value = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            Elements::Integers(contents.uint64_contents.into_iter().map(value).collect())
        }
        _ => Elements::Integers(contents.int_contents.into_iter().map(i64::from).collect()),
    };
    Announced::new(name, datatype, &shape)?.of(elements)
}

fn requested(output: InferRequestedOutputTensor) -> Result<kserve::Wanted, ApiError> {
    let InferRequestedOutputTensor { name, mut parameters } = output;
    kserve::check_memory("output", &name, parameters.keys())?;
    kserve::Wanted::new(name, parameters.remove(kserve::CLASSIFICATION).map(parameter).as_ref())
}

fn parameters(parameters: HashMap<String, InferParameter>) -> Vec<(String, Parameter)> {
    parameters.into_iter().map(|(name, choice)| (name, parameter(choice))).collect()
}

fn parameter(choice: InferParameter) -> Parameter {
    match choice.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => Parameter::Bool(value),
        Some(ParameterChoice::Int64Param(value)) => Parameter::Integer(value),
        Some(ParameterChoice::Uint64Param(value)) => {
            i64::try_from(value).map_or(Parameter::Other, Parameter::Integer)
        }
        Some(ParameterChoice::StringParam(value)) => Parameter::Text(value),
        Some(ParameterChoice::DoubleParam(_)) | None => Parameter::Other,
    }
}

fn bytes(tensor: &OutputTensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    tensor.write_raw(&mut bytes);
    bytes
}

/// A tensor of the answer: with its elements, or without if they go as `raw` bytes beside it.
fn output(tensor: OutputTensor, raw: bool) -> InferOutputTensor {
    let shape = tensor.shape.iter().map(|&size| size as i64).collect();
    let (name, datatype) = (tensor.name.to_owned(), tensor.datatype().to_owned());
    let contents = (!raw).then(|| match tensor.values {
        Values::F32(values) => InferTensorContents { fp32_contents: values, ..Default::default() },
        Values::I64(values) => InferTensorContents { int64_contents: values, ..Default::default() },
        Values::Text(texts) => {
            let bytes_contents = texts.into_iter().map(String::into_bytes).collect();
            InferTensorContents { bytes_contents, ..Default::default() }
        }
    });
    InferOutputTensor { name, datatype, shape, parameters: HashMap::new(), contents }
}

#[async_trait]
impl GrpcInferenceService for Calls {
    type ModelStreamInferStream = Answers<ModelStreamInferResponse>;

    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: kserve::is_ready(&self.models, None) }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = kserve::is_ready(&self.models, Some(wanted(&name, &version)));
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: kserve::NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: kserve::EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let ModelMetadataRequest { name, version } = message;
        let served = self.lease(wanted(&name, &version), &metadata).await?;
        let Metadata { name, versions, inputs, outputs, .. } = kserve::metadata(&self.models, &served);
        let told = |tensors: Vec<TensorInfo>| tensors.into_iter().map(TensorMetadata::from).collect();
        Ok(Response::new(ModelMetadataResponse {
            name,
            versions,
            platform: kserve::PLATFORM.to_owned(),
            inputs: told(inputs),
            outputs: told(outputs),
        }))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let ModelConfigRequest { name, version } = message;
        let served = self.lease(wanted(&name, &version), &metadata).await?;
        let config = ModelConfig::from(kserve::metadata(&self.models, &served));
        Ok(Response::new(ModelConfigResponse { config: Some(config) }))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        self.answer(request).await
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Answers<ModelStreamInferResponse>>, Status> {
        let head = self.head(request.metadata())?;
        let (calls, arrived) = (self.clone(), arrived(&request));
        let call = request.extensions().get::<Call>().cloned();
        // An error that ends the messages ends the call, after the answers to earlier messages. Reported in a message
        // instead, it would leave the client waiting for answers to everything it has sent since.
        let (end, ended) = mpsc::channel();
        let until_end = move |_: &mut (), message: Result<_, Status>| {
            ready(message.map_err(|status| end.send(status)).ok())
        };
        // Each message has one answer, in order, so the ids arrive in the order of the answers.
        let (id_of_next, ids) = mpsc::channel();
        let coming = arrived.clone();
        let remember = move |message: ModelInferRequest| {
            // An error says that the answers are no longer read.
            drop(id_of_next.send(Some(&message.id).filter(|id| id.len() <= LONGEST_ID).cloned()));
            calls.count(&message, coming.as_ref()).map(|()| message)
        };
        let messages = self.clone().coming(None, request).scan((), until_end).map(remember);
        let places = Places::new(AT_ONCE);
        let answers = self.clone().ask_each(head, AT_ONCE, arrived, places.clone().read(messages));
        let told = move |answer: Result<(Answered<ModelInferResponse>, Option<Held>), Status>| {
            let id = ids.try_recv().ok().flatten();
            let (error_message, infer_response, held) = match answer {
                Ok((answered, held)) => (String::new(), Some(answered.message), held),
                // The id tells the client which of its requests failed, as Triton does.
                Err(status) => {
                    call.iter().for_each(|call| call.log_message(&status));
                    let response = id.map(|id| ModelInferResponse { id, ..ModelInferResponse::default() });
                    (status.message().to_owned(), response, None)
                }
            };
            Ok((ModelStreamInferResponse { error_message, infer_response }, held))
        };
        let end = stream::poll_fn(move |_| Poll::Ready(ended.try_recv().ok().map(Err)));
        Ok(Response::new(places.give_out(answers.map(told).chain(end).boxed())))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let wanted = Some(wanted(&name, &version)).filter(|wanted| wanted.name.is_some());
        let stats = kserve::statistics(&self.models, wanted);
        let stats = stats.map_err(|error| self.refuse(&error.into()))?;
        let model_stats = stats.into_iter().map(ModelStatistics::from).collect();
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let index = kserve::index(&self.models, request.into_inner().ready);
        let models = index.into_iter().map(ModelIndex::from).collect();
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest { model_name, parameters, .. } = request.into_inner();
        kserve::check_load(parameters.into_keys()).map_err(|error| self.refuse(&error))?;
        self.models.load(&model_name).await.map_err(|error| self.refuse(&error.into()))?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let unloaded = self.models.unload(&request.into_inner().model_name).await;
        unloaded.map_err(|error| self.refuse(&error.into()))?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }
}

impl From<TensorInfo> for TensorMetadata {
    fn from(tensor: TensorInfo) -> Self {
        let TensorInfo { name, datatype, shape } = tensor;
        Self { name: name.to_owned(), datatype: datatype.to_owned(), shape }
    }
}

impl From<Metadata> for ModelConfig {
    fn from(metadata: Metadata) -> Self {
        let data_type = |tensor: &TensorInfo| {
            let known = DataType::from_str_name(&tensor.data_type());
            known.expect("datatypes of tensors are the protocol's").into()
        };
        let named = |tensor: &TensorInfo| (tensor.name.to_owned(), data_type(tensor), tensor.dims());
        let input = |(name, data_type, dims)| ModelInput { name, data_type, dims };
        let output = |(name, data_type, dims)| ModelOutput { name, data_type, dims };
        Self {
            name: metadata.name,
            platform: kserve::PLATFORM.to_owned(),
            max_batch_size: i32::try_from(metadata.max_batch_size).unwrap_or(i32::MAX),
            input: metadata.inputs.iter().map(named).map(input).collect(),
            output: metadata.outputs.iter().map(named).map(output).collect(),
            backend: kserve::PLATFORM.to_owned(),
        }
    }
}

impl From<Indexed> for ModelIndex {
    fn from(indexed: Indexed) -> Self {
        let Indexed { name, version, state, reason } = indexed;
        Self { name, version, state: state.to_owned(), reason }
    }
}

impl From<Stats> for ModelStatistics {
    fn from(stats: Stats) -> Self {
        let Stats { name, version, done } = stats;
        let inference_stats = InferStatistics {
            success: Some(done.answered.into()),
            fail: Some(done.failed.into()),
            queue: Some(done.queue.into()),
            compute_input: Some(done.tokenization.into()),
            compute_infer: Some(done.inference.into()),
            compute_output: Some(done.finish.into()),
            cache_hit: Some(done.known.into()),
            cache_miss: Some(done.unknown.into()),
        };
        let batch = |(&size, &took): (&usize, &Spent)| InferBatchStatistics {
            batch_size: size as u64,
            compute_infer: Some(took.into()),
            ..InferBatchStatistics::default()
        };
        Self {
            name,
            version,
            last_inference: done.last.map_or(0, kserve::millis),
            inference_count: done.inputs,
            execution_count: kserve::count(&done.batches),
            inference_stats: Some(inference_stats),
            batch_stats: done.batches.iter().map(batch).collect(),
        }
    }
}

impl From<Spent> for StatisticDuration {
    fn from(spent: Spent) -> Self {
        Self { count: spent.count, ns: kserve::nanos(spent.time) }
    }
}
