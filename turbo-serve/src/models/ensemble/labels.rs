//! The vectors of labels, computed once for each load of a model.

use std::sync::{Arc, Mutex, PoisonError};

use super::run::UNIT;
use crate::{
    engine::{EngineError, InferRequest, Input},
    models::Served,
    tasks::{IfFull, infer_in_parts},
};

/// The texts that stand for labels, and their vectors.
#[derive(Debug, Default)]
pub(super) struct LabelVectors {
    texts: Vec<String>,
    /// The vectors with the [load](Served::load) that computed them.
    known: Mutex<Option<(u64, Vectors)>>,
}

type Vectors = Arc<Vec<Vec<f32>>>;

impl LabelVectors {
    pub(super) fn new(texts: Vec<String>) -> Self {
        Self { texts, known: Mutex::default() }
    }

    /// The vectors that this model computes.
    pub(super) async fn of(&self, model: &Served, prompt: Option<&str>) -> Result<Vectors, EngineError> {
        if let Some((_, vectors)) = self.known().as_ref().filter(|(load, _)| *load == model.load()) {
            return Ok(Arc::clone(vectors));
        }
        // Requests that arrive meanwhile compute the same again. That is rare, and sharing one computation would make
        // them depend on a request that may be cancelled.
        let inputs = self.texts.iter().cloned().map(Input::Text);
        let prompt_name = prompt.map(str::to_owned).into();
        let request = InferRequest { prompt_name, ..InferRequest::new(Vec::new(), UNIT) };
        // The request has run a step before, so it is not refused here.
        let answer = infer_in_parts(model.engine(), request, inputs, IfFull::Waits).await?;
        let vectors: Vectors = Arc::new(answer.rows.into_iter().map(|row| row.values).collect());
        *self.known() = Some((model.load(), Arc::clone(&vectors)));
        Ok(vectors)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Option<(u64, Vectors)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
