//! `POST /pipeline/text-classification`.

use axum::response::Response;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use turbo_models::tasks::{TaskError, classify};

use crate::{
    engine::{InferResponse, Input, OutputKind, Row, ScoreFunction},
    http::{
        ability::Ability,
        answer::{Question, answer},
        call::{Call, RequestBody},
        error::TeiError,
        inputs::{Count, Object, TextList, at_least_one},
        metrics::Arity,
        tei::check_labels,
        write::check_finite,
    },
};

/// The request's body.
#[derive(Deserialize)]
pub(in crate::http) struct ClassifyBody {
    inputs: TextList,
    parameters: Option<Object<Parameters>>,
}

#[derive(Default, Deserialize)]
struct Parameters {
    function_to_apply: Option<Function>,
    top_k: Option<Count>,
    candidate_labels: Option<IgnoredAny>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Function {
    Sigmoid,
    Softmax,
    None,
}

impl RequestBody for ClassifyBody {
    type Error = TeiError;
}

#[derive(Serialize)]
struct Label<'a> {
    label: &'a str,
    score: f32,
}

/// `[[{"label", "score"}]]`, nested for a single text, too; the best first.
pub(in crate::http) async fn text_classification(
    Call { target, body, received }: Call<ClassifyBody>,
) -> Result<Response, TeiError> {
    let model = &target.engine().info().model;
    Ability::Predict.check(&target)?;
    let Parameters { function_to_apply, top_k, candidate_labels } = body.parameters.unwrap_or_default().0;
    check_labels(model, candidate_labels)?;
    let function = match function_to_apply {
        None => model.score_function,
        Some(Function::Sigmoid) => ScoreFunction::Sigmoid,
        Some(Function::Softmax) => ScoreFunction::Softmax,
        Some(Function::None) => ScoreFunction::Identity,
    };
    let (labels, top_k) = (model.labels.clone(), at_least_one("top_k", top_k)?.unwrap_or(usize::MAX));
    let inputs = body.inputs.texts.into_iter().map(Input::Text).collect();
    let question = Question::new(Arity::Batch, OutputKind::RAW, received);
    let write = move |response: &InferResponse| {
        check_finite(&response.rows)?;
        let of_row = |row: &Row| -> Result<Vec<Label<'_>>, TaskError> {
            let scores = classify(&row.values, function)?.into_iter().take(top_k);
            Ok(scores.map(|it| Label { label: &labels[it.index], score: it.score }).collect())
        };
        let all = response.rows.iter().map(of_row).collect::<Result<Vec<_>, _>>()?;
        Ok(serde_json::to_vec(&all).expect("numbers and strings are always JSON"))
    };
    Ok(answer(&target, question, inputs, write).await?)
}
