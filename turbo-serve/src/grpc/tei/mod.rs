//! text-embeddings-inference's services, message by message.

mod classify;
mod embed;
mod info;
mod tokens;

use super::{calls::Answered, proto::tei as proto};
use crate::{
    engine::{Infer, InferRequest, Input, ModelInfo, OutputKind, Row, Truncation, Usage},
    http::{Ability, ApiError, caught, check_finite},
};

/// A request for one row of one input.
struct Question {
    input: Input,
    output: OutputKind,
    truncate: bool,
    /// The number in the message, unchecked.
    truncation_direction: i32,
    prompt_name: Option<String>,
}

impl Question {
    /// Runs it on a model, which must have `ability`.
    async fn ask(self, engine: &dyn Infer, ability: Ability) -> Result<(Row, Usage), ApiError> {
        let model = &engine.info().model;
        check(ability, model)?;
        let request = InferRequest {
            truncation: Some(truncation(self.truncate, self.truncation_direction)?),
            prompt_name: self.prompt_name.into(),
            ..InferRequest::new(vec![self.input], self.output)
        };
        let mut response = caught(|| engine.infer(request)).await?;
        check_finite(&response.rows)?;
        let row = response.rows.pop().ok_or_else(|| ApiError::backend("inference failed: no answer"))?;
        Ok((row, response.usage))
    }
}

fn check(ability: Ability, model: &ModelInfo) -> Result<(), ApiError> {
    if ability.is_of(model) {
        return Ok(());
    }
    Err(ApiError::wrong_model(format!("this needs {}, and the model is for {}", ability.needs(), model.task)))
}

/// Fields left out decode as defaults: `truncate` is `false`, and the direction is right.
fn truncation(truncate: bool, direction: i32) -> Result<Truncation, ApiError> {
    let direction = proto::TruncationDirection::try_from(direction).map_err(|_| {
        ApiError::validation(format!("`truncation_direction` is {direction}, expected 0 (right) or 1 (left)"))
    })?;
    Ok(match (truncate, direction) {
        (false, _) => Truncation::Off,
        (true, proto::TruncationDirection::Left) => Truncation::Left,
        (true, proto::TruncationDirection::Right) => Truncation::Right,
    })
}

fn metadata(usage: &Usage) -> proto::Metadata {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let timings = &usage.timings;
    proto::Metadata {
        compute_chars: number(usage.characters),
        compute_tokens: number(usage.tokens),
        total_time_ns: nanos(timings.total),
        tokenization_time_ns: nanos(timings.tokenization),
        queue_time_ns: nanos(timings.queue),
        inference_time_ns: nanos(timings.inference),
    }
}

/// Saturates at what the message's field can hold.
fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
