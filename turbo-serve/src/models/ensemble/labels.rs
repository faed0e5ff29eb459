//! The vectors of labels: made once for a model, and again when another answers by its name.

use std::sync::{Arc, Mutex, PoisonError};

use super::run::UNIT;
use crate::{
    engine::{EngineError, InferRequest, Input},
    models::Served,
    tasks::{NoRoom, infer_in_parts},
};

/// The texts that stand for labels, and their vectors.
#[derive(Debug, Default)]
pub(super) struct LabelVectors {
    texts: Vec<String>,
    /// Of which load of a model they are.
    known: Mutex<Option<(u64, Vectors)>>,
}

type Vectors = Arc<Vec<Vec<f32>>>;

impl LabelVectors {
    pub(super) fn new(texts: Vec<String>) -> Self {
        Self { texts, known: Mutex::default() }
    }

    /// The vectors that this model gives them.
    pub(super) async fn of(&self, model: &Served, prompt: Option<&str>) -> Result<Vectors, EngineError> {
        if let Some((_, vectors)) = self.known().as_ref().filter(|(load, _)| *load == model.load()) {
            return Ok(Arc::clone(vectors));
        }
        // Concurrent requests compute the same: it happens seldom, and no request waits for another one that may be
        // cancelled.
        let inputs = self.texts.iter().cloned().map(Input::Text);
        let prompt_name = prompt.map(str::to_owned);
        let request = InferRequest { prompt_name, ..InferRequest::new(Vec::new(), UNIT) };
        // Whoever compares with labels has taken a step before.
        let answer = infer_in_parts(model.engine(), request, inputs, NoRoom::Waits).await?;
        let vectors: Vectors = Arc::new(answer.rows.into_iter().map(|row| row.values).collect());
        *self.known() = Some((model.load(), Arc::clone(&vectors)));
        Ok(vectors)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Option<(u64, Vectors)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
