//! What all rerank routes ask of the model, and how its answer becomes a ranking.

use turbo_models::tasks::{classify, rank};

use crate::{
    engine::{EngineError, InferResponse, Input, Row, ScoreFunction},
    http::{ability::Ability, error::ApiError, router::Server, target::Target, write::check_finite},
    tasks::AT_ONCE,
};

/// Refuses if this model does not rank, or if there are no texts.
pub(super) fn check(target: &Target, field: &str, texts: usize) -> Result<(), ApiError> {
    Ability::Rerank.check(target)?;
    match texts {
        0 => Err(ApiError::empty(format!("`{field}` cannot be empty"))),
        _ => Ok(()),
    }
}

/// Refuses more texts than `limit`. Called before the query is copied for each text: a query of a megabyte and three
/// hundred thousand empty texts fit into 2 MB.
pub(super) fn check_count(got: usize, limit: usize) -> Result<(), ApiError> {
    match got > limit {
        true => Err(EngineError::TooManyInputs { got, limit }.into()),
        false => Ok(()),
    }
}

/// Refuses more texts, given in `field`, than a request that is answered in parts may have; `what` is their name for the
/// remedy.
pub(in crate::http) fn check_in_parts(
    server: &Server,
    target: &Target,
    field: &str,
    texts: usize,
    what: &str,
) -> Result<(), ApiError> {
    let at_a_time = target.engine().info().max_client_batch_size;
    let limit = server.max_rerank_documents().max(at_a_time);
    check_count(texts, limit).map_err(|error| {
        error.with_remedy(&format!("send fewer {what} at a time, or raise `--max-rerank-documents`"))
    })?;
    check_at_once(target, field, texts, at_a_time)
}

/// Refuses more texts than go at a time for an ensemble that retrieves: it would retrieve from each part separately.
fn check_at_once(target: &Target, field: &str, texts: usize, at_a_time: usize) -> Result<(), ApiError> {
    if !target.retrieves() || texts <= at_a_time {
        return Ok(());
    }
    let name = target.name();
    Err(ApiError::validation(format!(
        "there are {texts} `{field}`, expected at most {at_a_time} (`max_client_batch_size`): the ensemble \
         `{name}` retrieves from all of them at once"
    )))
}

/// Refuses a query, given in `field`, that is too large to be copied for each text of the parts in progress.
pub(in crate::http) fn check_query(
    target: &Target,
    field: &str,
    query: &str,
    texts: usize,
) -> Result<(), ApiError> {
    let at_a_time = target.engine().info().max_client_batch_size;
    check_copies(field, query, texts.min(AT_ONCE * at_a_time))
}

/// Most bytes that the copies of a query, one for each text, take at a time: enough for two requests of 32 texts, with
/// a query that nearly fills a body of the default limit.
const MOST_COPIED: usize = 128 << 20;

/// Refuses a query, given in `field`, if this many copies of it at a time would take too much memory.
pub(crate) fn check_copies(field: &str, query: &str, copies: usize) -> Result<(), ApiError> {
    if query.len().saturating_mul(copies) <= MOST_COPIED {
        return Ok(());
    }
    let (got, most) = (query.len(), MOST_COPIED / copies);
    Err(ApiError::validation(format!(
        "`{field}` has {got} bytes, at most {most} are possible with {copies} texts"
    )))
}

/// The model's inputs: the query beside each text, copied only when the input is asked for.
pub(super) fn pairs(query: String, texts: Vec<String>) -> impl Iterator<Item = Input> {
    texts.into_iter().map(move |text| Input::Pair(query.clone(), text))
}

/// The index of each text and its score, the best first.
pub(super) fn best_first(
    response: &InferResponse,
    function: ScoreFunction,
) -> Result<Vec<(usize, f32)>, ApiError> {
    let scores = scores(response, function)?;
    Ok(rank(&scores).into_iter().map(|index| (index, scores[index])).collect())
}

/// The score of each pair.
pub(in crate::http) fn scores(
    response: &InferResponse,
    function: ScoreFunction,
) -> Result<Vec<f32>, ApiError> {
    check_finite(&response.rows)?;
    let score = |row: &Row| classify(&row.values, function).map(|scores| scores[0].score);
    Ok(response.rows.iter().map(score).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_copied_as_often_as_there_is_memory_for() {
        let body = "q".repeat(2_000_000);
        for copies in [0, 1, 64] {
            assert!(
                check_copies("query", &body, copies).is_ok(),
                "the usual limits refuse nothing: {copies}"
            );
        }
        assert!(check_copies("query", &"q".repeat(100_000), 1000).is_ok());
        let error = check_copies("query", &body, 1000).unwrap_err();
        assert_eq!(error.message(), "`query` has 2000000 bytes, at most 134217 are possible with 1000 texts");
    }
}
