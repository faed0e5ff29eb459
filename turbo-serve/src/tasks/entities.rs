//! Entities: labelled parts of texts.

use std::ops::Range;

use turbo_models::tasks::{self, Aggregation};

use super::{Found, Meter, aside, check_task, input};
use crate::engine::{
    Encoding, EngineError, Extent, Infer, InferRequest, OutputKind, Row, Task, Texts, TokenizeRequest,
    Truncation,
};

/// Texts to look for entities in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityRequest {
    /// One to `max_client_batch_size` texts.
    pub texts: Vec<String>,
    /// How the labels of tokens become those of entities.
    pub aggregation: Aggregation,
    /// Labels of entities to leave out, such as `O`.
    pub ignored: Vec<String>,
    /// What happens to texts that are too long; `None` is the server's default.
    pub truncation: Option<Truncation>,
}

/// A part of a text with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundEntity {
    /// Its label.
    pub label: String,
    /// Between 0 and 1.
    pub score: f32,
    /// Its bytes of the text, at character boundaries.
    pub bytes: Range<usize>,
    /// Its tokens.
    pub tokens: Range<usize>,
    /// The first of them, as the vocabulary writes it.
    pub token: String,
}

/// The entities of each text, in its order.
///
/// # Errors
/// Those of the engine; [`EngineError::NoSuchRows`] where its model is not for [`Task::TokenClassification`].
///
/// # Panics
/// When it is polled outside a tokio runtime.
pub async fn entities(
    engine: &dyn Infer,
    request: EntityRequest,
) -> Result<Found<Vec<Vec<FoundEntity>>>, EngineError> {
    check_task(engine, Task::TokenClassification, "entity")?;
    let EntityRequest { texts, aggregation, ignored, truncation } = request;
    let mut meter = Meter::start(texts.iter().map(|text| text.chars().count()).sum());
    let extent = Extent::Input(truncation.unwrap_or_else(|| engine.info().default_truncation()));
    let texts = texts.into_iter().map(Texts::One).collect();
    let tokenized = engine.tokenize(TokenizeRequest::new(texts, extent)).await?;
    let encodings: Vec<_> = tokenized.into_iter().flat_map(|it| it.encodings).collect();
    meter.tokenized();

    let inputs = encodings.iter().map(|encoding| input(encoding, Vec::new())).collect();
    let response = engine.infer(InferRequest::new(inputs, OutputKind::Tokens)).await?;
    meter.inferred(&response.usage);
    let labels = engine.info().model.labels.clone();
    let found = aside(move || {
        let ignored: Vec<&str> = ignored.iter().map(String::as_str).collect();
        let of_text = |(encoding, row): (&Encoding, &Row)| {
            let found = tasks::entities(encoding, &row.values, &labels, aggregation, &ignored)?;
            let owned = found.into_iter().map(|entity| FoundEntity {
                label: entity.label.to_owned(),
                score: entity.score,
                bytes: entity.bytes,
                token: encoding.tokens[entity.tokens.start].clone(),
                tokens: entity.tokens,
            });
            Ok(owned.collect())
        };
        encodings.iter().zip(&response.rows).map(of_text).collect()
    });
    Ok(meter.finish(found.await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::fake::{Crowded, run};

    #[test]
    fn a_model_for_something_else_has_no_entities() {
        let request = || EntityRequest {
            texts: vec!["b".to_owned()],
            aggregation: Aggregation::None,
            ignored: Vec::new(),
            truncation: None,
        };
        let refused = run(entities(&Crowded::new(Task::QuestionAnswering), request())).unwrap_err();
        assert_eq!(refused.to_string(), "this model is for question-answering: it has no entity rows");
        assert!(run(entities(&Crowded::new(Task::TokenClassification), request())).is_ok());
    }
}
