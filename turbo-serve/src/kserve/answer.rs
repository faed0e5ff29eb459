//! A request: from tensors to tensors.

use turbo_models::tasks::mask_positions;

use super::{
    InputTensor, OutputTensor, Parameter, Wanted, inputs,
    outputs::{self, Rows, Tensor, size},
    parameters::Parameters,
};
use crate::{
    engine::{
        Encoded, Extent, Infer, InferRequest, Input, OutputKind, Prompt, Row, Task, Texts, TokenizeRequest,
        Truncation, Usage,
    },
    http::{ApiError, caught, check_finite},
    tasks,
};

/// What a client asks.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) parameters: Vec<(String, Parameter)>,
    pub(crate) inputs: Vec<InputTensor>,
    /// Those that are wanted; none: the usual ones.
    pub(crate) outputs: Vec<Wanted>,
}

/// Answers, and says what it took. Dropping the future withdraws the request.
pub(crate) async fn answer(engine: &dyn Infer, asked: Asked) -> Result<(Vec<OutputTensor>, Usage), ApiError> {
    let (info, model) = (engine.info(), &engine.info().model);
    let parameters = Parameters::read(asked.parameters)?;
    let wanted = outputs::wanted(model.task, &asked.outputs)?;
    let truncation = parameters.truncation(info);
    let mut inputs = inputs::read(asked.inputs, info.max_client_batch_size)?;
    if model.task == Task::MaskedLm {
        inputs = select_masks(engine, inputs, truncation).await?;
    }
    let ask = |rows: Rows| {
        let is_wanted = wanted.iter().any(|(tensor, _)| tensor.rows(model.task) == rows);
        let request = is_wanted.then(|| InferRequest {
            truncation: Some(truncation),
            prompt_name: parameters.prompt_name.clone(),
            urgency: parameters.urgency,
            ..InferRequest::new(inputs.clone(), output(rows, model.task, &parameters))
        });
        ask(engine, request)
    };
    let (pooled, tokens, selected) =
        tokio::try_join!(ask(Rows::Pooled), ask(Rows::Tokens), ask(Rows::Selected))?;
    let usage = [&pooled, &tokens, &selected].into_iter().flatten().map(|(_, usage)| *usage).next();
    let tensor = |(tensor, classes): (Tensor, Option<usize>)| {
        let rows = match tensor.rows(model.task) {
            Rows::Pooled => &pooled,
            Rows::Tokens => &tokens,
            Rows::Selected => &selected,
        };
        let (rows, _) = rows.as_ref().expect("what is wanted was asked for");
        outputs::tensor(tensor, classes, rows, model)
    };
    Ok((wanted.into_iter().map(tensor).collect::<Result<_, _>>()?, usage.unwrap_or_default()))
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

async fn ask(
    engine: &dyn Infer,
    request: Option<InferRequest>,
) -> Result<Option<(Vec<Row>, Usage)>, ApiError> {
    let Some(request) = request else { return Ok(None) };
    let response = caught(|| engine.infer(request)).await?;
    check_finite(&response.rows)?;
    Ok(Some((response.rows, response.usage)))
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

/// What the model reads of each input. They are all texts, or none is.
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
        return Ok(encoded);
    }
    let request = TokenizeRequest { texts, extent: Extent::Input(truncation), prompt: Prompt::None };
    let tokenized = caught(|| engine.tokenize(request)).await?;
    Ok(tokenized.iter().flat_map(|it| &it.encodings).map(tasks::encoded).collect())
}
