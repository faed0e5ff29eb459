//! `tei.v1.Info`: what is served, and within which limits.

use tonic::{Request, Response, Status, async_trait};

use super::{
    number,
    proto::{InfoRequest, InfoResponse, ModelType, info_server::Info},
};
use crate::{
    engine::{EngineInfo, ModelInfo, Task},
    grpc::calls::Calls,
};

#[async_trait]
impl Info for Calls {
    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let served = self.lease_for(&self.head(request.metadata())?).await?;
        Ok(Response::new(served.engine().info().into()))
    }
}

impl From<&EngineInfo> for InfoResponse {
    fn from(info: &EngineInfo) -> Self {
        let model = &info.model;
        Self {
            version: info.version.to_owned(),
            sha: None,
            docker_label: None,
            model_id: model.model_id.clone(),
            model_sha: model.sha.clone(),
            model_dtype: model.dtype.to_owned(),
            model_type: model_type(model).into(),
            max_concurrent_requests: number(info.max_concurrent_requests),
            max_input_length: number(info.max_input_length),
            max_batch_tokens: number(info.max_batch_tokens),
            max_batch_requests: info.max_batch_requests.map(number),
            max_client_batch_size: number(info.max_client_batch_size),
            tokenization_workers: number(info.tokenization_workers),
        }
    }
}

fn model_type(model: &ModelInfo) -> ModelType {
    match model.task {
        Task::Embedding { .. } | Task::SparseEmbedding => ModelType::Embedding,
        Task::SequenceClassification if model.labels.len() == 1 => ModelType::Reranker,
        Task::SequenceClassification => ModelType::Classifier,
        Task::TokenClassification => ModelType::TokenClassifier,
        Task::QuestionAnswering => ModelType::QuestionAnswering,
        Task::MaskedLm => ModelType::MaskedLm,
    }
}
