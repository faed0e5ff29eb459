//! Several models that answer as one: a graph of [`Step`]s, each of which reads the request or results of other steps.
//!
//! ```text
//! request.query ─┬─▶ retrieve (embedder) ─texts─▶ rerank (ranker) ─scores─▶
//! request.texts ─┘
//! request.texts ──▶ embed (embedder) ─vectors─▶ nearest (labels as texts) ─labels─▶
//! ```
//!
//! | a step | reads | gives |
//! |---|---|---|
//! | `embed` | texts | a vector for each text |
//! | `retrieve` | a query and texts | the texts nearest to the query |
//! | `rerank` | a query and texts | a score for each text |
//! | `classify` | texts | a logit per label, for each text |
//! | `nearest` | vectors | a logit per label, for each vector: how near the label's own text is |
//! | `mean` | scores, or labels, of several steps | their mean |
//!
//! An ensemble that gives scores is served as a reranker, and one that gives labels as a classifier, by every protocol
//! that has these. Texts that were not retrieved have a score of 0 and come last. The requests that a step makes count
//! against its model's limits. Steps that do not read each other run concurrently.
//!
//! A request leases all models before the first step. Once a model is unloaded, later requests to the ensemble fail,
//! but none that was accepted.

mod engine;
mod labels;
mod plan;
mod run;

use std::{collections::HashMap, sync::Arc};

pub use plan::{Does, Kind, PlanError, QUERY, Step, TEXTS};

use self::{engine::EnsembleEngine, plan::Plan};
use super::{Composition, Load, Loaded, Source, SourceError, Wanted};
use crate::engine::Infer;

/// Models that answer as one: a [`Source`] of one version.
pub struct Ensemble {
    name: String,
    plan: Plan,
    max_client_batch_size: usize,
}

/// The only version of an ensemble.
const ONLY: &str = "1";

impl Ensemble {
    /// The ensemble of these steps, of which `output` gives the result.
    ///
    /// # Errors
    /// Everything that is wrong with the steps.
    pub fn new(
        name: &str,
        steps: &[Step],
        output: &str,
        max_client_batch_size: usize,
    ) -> Result<Self, Vec<PlanError>> {
        Ok(Self { name: name.to_owned(), plan: Plan::new(steps, output)?, max_client_batch_size })
    }

    /// What it gives.
    #[must_use]
    pub fn gives(&self) -> Kind {
        self.plan.gives
    }
}

impl Source for Ensemble {
    fn versions(&self) -> Result<Vec<String>, SourceError> {
        Ok(vec![ONLY.to_owned()])
    }

    /// Waits until all of its models are loaded.
    fn load(&self, Load { models, .. }: Load<'_>) -> Result<Loaded, SourceError> {
        let runtime = tokio::runtime::Handle::current();
        let lease = |name: &str| -> Result<_, SourceError> {
            Ok((name.to_owned(), runtime.block_on(models.lease(Wanted::named(name)))?))
        };
        let members = self.plan.models().into_iter().map(lease).collect::<Result<HashMap<_, _>, _>>()?;
        let (plan, weak) = (self.plan.clone(), models.downgrade());
        let engine = EnsembleEngine::new(&self.name, plan, self.max_client_batch_size, &members, weak)?;
        let composition = Composition::Ensemble { retrieves: self.plan.retrieves() };
        Ok(Loaded { engine: Arc::new(engine) as Arc<dyn Infer>, stop: None, composition })
    }
}
