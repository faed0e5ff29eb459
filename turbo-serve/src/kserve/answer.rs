//! Answers a request: from input tensors to output tensors.

use std::time::Instant;

use turbo_models::tasks::mask_positions;

use super::{
    InputTensor, OutputTensor, Parameter, Wanted, inputs,
    outputs::{self, Tensor, size},
    parameters::Parameters,
};
use crate::{
    engine::{
        Encoded, Extent, Infer, InferRequest, Input, OutputKind, Row, Rows, Task, Texts, TokenizeRequest,
        Truncation, Usage,
    },
    http::{ApiError, caught, check_finite, written},
    tasks::{self, Door},
};

/// What a client asks.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) parameters: Vec<(String, Parameter)>,
    pub(crate) inputs: Vec<InputTensor>,
    /// The outputs that are wanted; if there are none, the usual ones.
    pub(crate) outputs: Vec<Wanted>,
    /// When the request arrived.
    pub(crate) received: Instant,
}

/// Returns what `write` makes of the output tensors, and the usage. The tensors are made only where they are written,
/// because they may be far larger than the rows that are held; so they never wait. Dropping the future cancels the
/// request.
pub(crate) async fn answer<T: Send + 'static>(
    engine: &dyn Infer,
    asked: Asked,
    write: impl FnOnce(Vec<OutputTensor>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Usage), ApiError> {
    let (info, task) = (engine.info(), engine.info().model.task);
    let parameters = Parameters::read(asked.parameters, asked.received)?;
    let wanted = outputs::wanted(task, &asked.outputs)?;
    let said = parameters.truncation(info);
    let truncation = said.unwrap_or_else(|| info.default_truncation());
    let mut inputs = inputs::read(asked.inputs, info.max_client_batch_size)?;
    if task == Task::MaskedLm {
        inputs = select_masks(engine, inputs, truncation).await?;
    } else {
        let encoded = inputs.iter_mut().filter_map(|input| match input {
            Input::Encoded(encoded) => Some(encoded),
            _ => None,
        });
        encoded.for_each(|encoded| inputs::cut(encoded, truncation, info.max_input_length));
    }
    let request = InferRequest {
        truncation: said,
        prompt_name: parameters.prompt_name.clone().into(),
        urgency: parameters.urgency,
        ..InferRequest::new(inputs, OutputKind::RAW)
    };
    let mut answers = Answers::default();
    for rows in [Rows::Pooled, Rows::Tokens, Rows::Selected] {
        if wanted.iter().any(|(tensor, _)| tensor.rows(task) == rows) {
            let request = InferRequest { output: output(rows, task, &parameters), ..request.clone() };
            answers.ask(engine, rows, request).await?;
        }
    }
    let Answers { rows, usage } = answers;
    let values = rows.iter().map(|(_, rows)| outputs::values_in(rows)).sum();
    let model = info.model.clone();
    let answer = written(values, move || {
        let tensor = |(tensor, classes): (Tensor, Option<usize>)| {
            let of = rows.iter().find(|(rows, _)| tensor.rows(task) == *rows);
            let (_, rows) = of.expect("what is wanted was asked for");
            outputs::tensor(tensor, classes, rows, &model)
        };
        write(wanted.into_iter().map(tensor).collect::<Result<_, _>>()?)
    });
    Ok((answer.await?, usage))
}

/// An engine's answers so far.
#[derive(Default)]
struct Answers {
    rows: Vec<(Rows, Vec<Row>)>,
    usage: Usage,
}

impl Answers {
    /// Asks for rows of another kind. Kinds are asked for one after the other, so that a request never needs more slots
    /// than it has inputs. All but the first wait for room: a request that has begun is finished.
    async fn ask(&mut self, engine: &dyn Infer, rows: Rows, request: InferRequest) -> Result<(), ApiError> {
        let response = if self.rows.is_empty() {
            caught(|| engine.infer(request)).await?
        } else {
            let deadline = request.urgency.or(engine.urgency()).deadline;
            let request = InferRequest { retries: true, ..request };
            let asked = async {
                let ask = || engine.infer(request.clone());
                tasks::patiently(engine, &Door::default(), request.inputs.len(), deadline, ask).await
            };
            caught(|| Box::pin(asked)).await?
        };
        check_finite(&response.rows)?;
        self.usage = match self.rows.is_empty() {
            true => response.usage,
            false => Usage { timings: self.usage.timings + response.usage.timings, ..self.usage },
        };
        self.rows.push((rows, response.rows));
        Ok(())
    }
}

fn output(rows: Rows, task: Task, parameters: &Parameters) -> OutputKind {
    match (rows, task) {
        (Rows::Pooled, Task::Embedding { .. }) => OutputKind::Pooled {
            normalize: parameters.normalize.unwrap_or(true),
            dimensions: parameters.dimensions,
        },
        (Rows::Pooled, _) => OutputKind::RAW,
        (Rows::Tokens, _) => OutputKind::Tokens,
        (Rows::Selected, _) => OutputKind::Selected,
    }
}

/// Selects the mask tokens of each input.
async fn select_masks(
    engine: &dyn Infer,
    inputs: Vec<Input>,
    truncation: Truncation,
) -> Result<Vec<Input>, ApiError> {
    let model = &engine.info().model;
    let Some(mask) = &model.mask_token else {
        return Err(ApiError::wrong_model("the model's tokenizer has no mask token"));
    };
    let mut encoded = encoded(engine, inputs, truncation).await?;
    let mut most = 0;
    for input in &mut encoded {
        let masks = mask_positions(&input.input_ids, mask.id);
        most = most.max(masks.len());
        input.selected = masks.into_iter().filter_map(|mask| u32::try_from(mask).ok()).collect();
    }
    size(encoded.len(), most, model.rows.selected.unwrap_or(0))?;
    Ok(encoded.into_iter().map(Input::Encoded).collect())
}

/// The tokens that the model reads of each input, cut. The inputs are all texts, or none is.
async fn encoded(
    engine: &dyn Infer,
    inputs: Vec<Input>,
    truncation: Truncation,
) -> Result<Vec<Encoded>, ApiError> {
    let (mut texts, mut encoded) = (Vec::new(), Vec::new());
    for input in inputs {
        match input {
            Input::Text(text) => texts.push(Texts::One(text)),
            Input::Pair(first, second) => texts.push(Texts::Pair(first, second)),
            Input::Ids(input_ids) => encoded.push(Encoded { input_ids, ..Encoded::default() }),
            Input::Encoded(input) => encoded.push(input),
        }
    }
    if texts.is_empty() {
        let limit = engine.info().max_input_length;
        encoded.iter_mut().for_each(|input| inputs::cut(input, truncation, limit));
        return Ok(encoded);
    }
    let request = TokenizeRequest::new(texts, Extent::Input(truncation));
    let tokenized = caught(|| engine.tokenize(request)).await?;
    Ok(tokenized.iter().flat_map(|it| &it.encodings).map(tasks::encoded).collect())
}
