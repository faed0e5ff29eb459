//! Writing an answer's body: JSON, followed by the tensors that are sent as bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::kserve::{OutputTensor, Values};

/// Which outputs are sent as bytes after the JSON.
pub(super) struct Binary {
    /// Whether outputs for which the request says nothing are.
    pub(super) others: bool,
    pub(super) said: BTreeMap<String, bool>,
}

impl Binary {
    fn is(&self, name: &str) -> bool {
        self.said.get(name).copied().unwrap_or(self.others)
    }
}

/// The model that answers, and the request's id.
pub(super) struct Head {
    pub(super) model: String,
    pub(super) version: String,
    pub(super) id: Option<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [usize],
    #[serde(flatten)]
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Data(Data<'a>),
    /// The data follows the JSON.
    Parameters {
        binary_data_size: usize,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
    Text(&'a [String]),
}

/// The body, and the length of its JSON if bytes follow it.
pub(super) fn write(head: &Head, tensors: &[OutputTensor], binary: &Binary) -> (Vec<u8>, Option<usize>) {
    let Head { model, version, id } = head;
    let mut raw = Vec::new();
    let outputs: Vec<Told<'_>> = tensors.iter().map(|tensor| told(tensor, binary, &mut raw)).collect();
    let is_binary = outputs.iter().any(|output| matches!(output.content, Content::Parameters { .. }));
    let answer = Answer { model_name: model, model_version: version, id: id.as_deref(), outputs };
    let mut body = serde_json::to_vec(&answer).expect("numbers and strings are always JSON");
    let json_length = is_binary.then_some(body.len());
    body.append(&mut raw);
    (body, json_length)
}

/// A tensor whose elements are written into the JSON, or to `raw`.
fn told<'a>(tensor: &'a OutputTensor, binary: &Binary, raw: &mut Vec<u8>) -> Told<'a> {
    let content = if binary.is(tensor.name) {
        let before = raw.len();
        tensor.write_raw(raw);
        Content::Parameters { binary_data_size: raw.len() - before }
    } else {
        Content::Data(match &tensor.values {
            Values::F32(values) => Data::F32(values),
            Values::I64(values) => Data::I64(values),
            Values::Text(texts) => Data::Text(texts),
        })
    };
    Told { name: tensor.name, datatype: tensor.datatype(), shape: &tensor.shape, content }
}
