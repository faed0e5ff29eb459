//! `grpc.health.v1.Health`: whether the server answers, and which of its services.

use std::{pin::Pin, time::Duration};

use axum::http::StatusCode;
use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

use super::{
    calls::{CallHead, Calls},
    proto::{open_inference, tei},
    status::status,
};
use crate::{
    engine,
    http::{Ability, ApiError},
    models::Served,
};

/// How often a watched service's state is polled.
const LOOK: Duration = Duration::from_secs(1);

/// What a service needs from a model to be serving.
enum Needs {
    /// Nothing.
    Nothing,
    /// It has to be healthy.
    Health,
    /// It has to be healthy and have one of these abilities.
    Ability(&'static [Ability]),
}

/// What a service needs; `None` if there is no such service.
fn needs(service: &str) -> Option<Needs> {
    const OPEN_INFERENCE: &str = open_inference::grpc_inference_service_server::SERVICE_NAME;
    const EMBED: &str = tei::embed_server::SERVICE_NAME;
    const INFO: &str = tei::info_server::SERVICE_NAME;
    const PREDICT: &str = tei::predict_server::SERVICE_NAME;
    const RERANK: &str = tei::rerank_server::SERVICE_NAME;
    const TOKENIZE: &str = tei::tokenize_server::SERVICE_NAME;
    Some(match service {
        "" | OPEN_INFERENCE => Needs::Health,
        INFO | TOKENIZE => Needs::Nothing,
        EMBED => Needs::Ability(&[Ability::Embed, Ability::EmbedSparse]),
        PREDICT => Needs::Ability(&[Ability::Predict]),
        RERANK => Needs::Ability(&[Ability::Rerank]),
        _ => return None,
    })
}

impl Needs {
    fn are_met(&self, models: &[Served]) -> bool {
        let is_well = |model: &Served| model.engine().health() == engine::Health::Ready;
        match self {
            Self::Nothing => true,
            Self::Health => models.iter().all(is_well),
            Self::Ability(abilities) => {
                let can = |model: &Served| abilities.iter().any(|it| it.is_of(&model.engine().info().model));
                models.iter().any(|model| can(model) && is_well(model))
            }
        }
    }
}

impl Calls {
    /// A service's state, for the model that the call names or else for all models together.
    fn serving(&self, needs: &Needs, head: &CallHead) -> ServingStatus {
        let are_met = match (head.wanted().name, needs) {
            (None, Needs::Health) => self.models.health() == Some(engine::Health::Ready),
            (None, _) => needs.are_met(&self.models.ready()),
            (Some(_), _) => self.models.find(head.wanted()).is_ok_and(|served| needs.are_met(&[served])),
        };
        match are_met {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        }
    }

    /// Whether the server or the engine of a served model is stopping. Unloaded models do not count: they are no longer
    /// served, and their engines stop when the last lease is dropped.
    pub(super) fn are_stopping(&self) -> bool {
        let stops = |model: &Served| model.engine().health() == engine::Health::Stopping;
        self.models.is_stopping() || self.models.ready().iter().any(stops)
    }
}

#[async_trait]
impl Health for Calls {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let head = head(&request)?;
        let service = request.into_inner().service;
        let unknown = || ApiError::refused(StatusCode::NOT_FOUND, format!("no service `{service}`"));
        let needs = needs(&service).ok_or_else(|| status(&unknown()))?;
        Ok(Response::new(response(self.serving(&needs, &head))))
    }

    /// Sends a service's state, and again whenever it changes; ends when the server stops.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let head = head(&request)?;
        let needs = needs(&request.into_inner().service);
        let watch = Watch { calls: self.clone(), needs, head, told: None };
        Ok(Response::new(stream::unfold(watch, Watch::next).boxed()))
    }
}

/// A client that watches.
struct Watch {
    calls: Calls,
    needs: Option<Needs>,
    head: CallHead,
    /// The state that was sent last.
    told: Option<ServingStatus>,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let now = match &self.needs {
                Some(needs) => self.calls.serving(needs, &self.head),
                // Not an error, as the protocol demands: the service may be added.
                None => ServingStatus::ServiceUnknown,
            };
            if self.told != Some(now) {
                self.told = Some(now);
                return Some((Ok(response(now)), self));
            }
            // Going on would keep the server from stopping.
            if self.calls.are_stopping() {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What the metadata of a call say. Invalid ones do not count as a failed request, as over HTTP.
fn head(request: &Request<HealthCheckRequest>) -> Result<CallHead, Status> {
    CallHead::of(request.metadata()).map_err(|error| status(&error))
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
