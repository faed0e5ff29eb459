//! What is reported about a server and its models.

use super::outputs::{Tensor, given};
use crate::{
    engine::ModelInfo,
    http::Ability,
    models::{Composition, Models, Served},
};

/// The server's name.
pub(crate) const NAME: &str = "turbo";

/// What runs its models.
pub(crate) const PLATFORM: &str = "turbo";

/// The protocol's extensions that are supported besides what every server must support.
pub(crate) const EXTENSIONS: [&str; 5] =
    ["binary_tensor_data", "classification", "model_repository", "parameters", "statistics"];

/// The description of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: &'static str,
    pub(crate) datatype: &'static str,
    /// -1 for a size that depends on the request.
    pub(crate) shape: Vec<i64>,
}

impl TensorInfo {
    /// Its datatype in the spelling of Triton's configuration.
    pub(crate) fn data_type(&self) -> String {
        match self.datatype {
            "BYTES" => "TYPE_STRING".to_owned(),
            datatype => format!("TYPE_{datatype}"),
        }
    }

    /// Its sizes for one input; there is always at least one size.
    pub(crate) fn dims(&self) -> Vec<i64> {
        match self.shape.get(1..) {
            None | Some([]) => vec![1],
            Some(dims) => dims.to_vec(),
        }
    }
}

/// The inputs of a model: text, or ids if it has ids and no tokenizer. An ensemble that scores reads a query beside
/// each text, and nothing else.
fn inputs_of(served: &Served) -> Vec<TensorInfo> {
    let info = served.engine().info();
    if info.tokenization_workers > 0 || info.model.vocab_size == 0 {
        let reads_pairs = served.composition() != Composition::Model && Ability::Rerank.is_of(&info.model);
        let shape = if reads_pairs { vec![-1, 2] } else { vec![-1] };
        return vec![TensorInfo { name: "text", datatype: "BYTES", shape }];
    }
    let integers = |name| TensorInfo { name, datatype: "INT64", shape: vec![-1, -1] };
    vec![integers("input_ids"), integers("attention_mask")]
}

/// The outputs that a model can give.
fn outputs_of(model: &ModelInfo) -> Vec<TensorInfo> {
    let (usual, others) = given(model.task);
    let info = |&tensor: &Tensor| TensorInfo {
        name: tensor.name(),
        datatype: if tensor == Tensor::AttentionMask { "INT64" } else { "FP32" },
        shape: tensor.shape(model),
    };
    usual.iter().chain(others).map(info).collect()
}

/// What is reported about a model.
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) versions: Vec<String>,
    /// Most inputs of one request.
    pub(crate) max_batch_size: usize,
    pub(crate) inputs: Vec<TensorInfo>,
    pub(crate) outputs: Vec<TensorInfo>,
}

/// The metadata of a served model; `versions` has all versions of its name.
pub(crate) fn metadata(models: &Models, served: &Served) -> Metadata {
    let info = served.engine().info();
    let versions = models.list().into_iter().filter(|entry| entry.name == served.name());
    Metadata {
        name: served.name().to_owned(),
        versions: versions.map(|entry| entry.version).collect(),
        max_batch_size: info.max_client_batch_size,
        inputs: inputs_of(served),
        outputs: outputs_of(&info.model),
    }
}
