//! From answers to a response: the last steps per row, off the worker thread.

use std::time::Duration;

use turbo_models::l2_normalize;

use super::ticket::Answer;
use crate::engine::{InferResponse, OutputKind, Row, Timings, Usage};

/// The response to a request that was answered after `total`. `answers` are in the order of its inputs, at least one,
/// with rows of `row_len` values.
///
/// A pooled row is cut to the first `dimensions` values and then normalised: a Matryoshka prefix has norm 1 again.
pub(in crate::engine) fn finish(
    answers: Vec<Answer>,
    output: OutputKind,
    row_len: usize,
    characters: usize,
    total: Duration,
) -> InferResponse {
    let inputs = u32::try_from(answers.len()).unwrap_or(u32::MAX).max(1);
    let mean = |of: fn(&Answer) -> Duration| answers.iter().map(of).sum::<Duration>() / inputs;
    let (tokenization, queue, inference) =
        (mean(|answer| answer.tokenization), mean(|answer| answer.queue), mean(|answer| answer.inference));
    let tokens = answers.iter().map(|answer| answer.tokens).sum();
    let rows = answers.into_iter().map(|answer| row(answer, output, row_len)).collect();
    let timings = Timings { total, tokenization, queue, inference };
    InferResponse { rows, usage: Usage { timings, characters, tokens } }
}

fn row(Answer { mut values, tokens, .. }: Answer, output: OutputKind, row_len: usize) -> Row {
    match output {
        OutputKind::Tokens | OutputKind::Selected => Row { values, row_len, tokens },
        OutputKind::Pooled { normalize, dimensions } => {
            values.truncate(dimensions.unwrap_or(row_len));
            if normalize {
                l2_normalize(&mut values);
            }
            Row { row_len: values.len(), values, tokens }
        }
    }
}
