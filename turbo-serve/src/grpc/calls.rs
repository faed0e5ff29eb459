//! What every call does between its message and its answer: it finds the model, asks, counts, and tells.

use std::{future::Future, time::Instant};

use axum::http::HeaderValue;
use prost::Message;
use tonic::{
    Request, Response, Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{status::status, urgency::urgency};
use crate::{
    engine::{Urgency, Usage},
    http::{ApiError, Arity, Failure, Metrics, headers},
    models::{Models, Served, Wanted},
    net::{Arrived, Planned},
    request_span,
    tasks::Door,
};

/// Bytes that are written of a value: four in a message, and four of that as it is sent.
pub(super) const WRITTEN: usize = 2 * size_of::<f32>();

/// Metadata that name the model.
const MODEL: &str = "x-model";

/// A message that asks a model for something, by itself or as one of a stream.
pub(super) trait Ask: Send + 'static {
    /// What it gets.
    type Answer: Message + 'static;

    /// How it is counted; what only the tokenizer looks at is not.
    const COUNTED: Option<Arity>;

    /// Whether its answer has a row for each token.
    const OF_TOKENS: bool = false;

    /// The model that it is for; `called` is what the call says, where the message says nothing.
    fn wanted<'a>(&'a self, called: &'a Model) -> Wanted<'a> {
        called.wanted()
    }

    /// Asks, of a message that came at `received`. Dropping the future withdraws the question.
    fn ask(
        self,
        served: &Served,
        received: Instant,
    ) -> impl Future<Output = Result<Answered<Self::Answer>, ApiError>> + Send;
}

/// An answer, and what it took.
pub(super) struct Answered<A> {
    pub(super) message: A,
    pub(super) usage: Usage,
}

/// All that calls have in common. Cheap to clone.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) models: Models,
    pub(super) metrics: Metrics,
}

/// What a call's metadata say: the name of the model that it is for, or none for the default one; and how urgent it is.
#[derive(Clone)]
pub(super) struct Model {
    name: Option<String>,
    urgency: Urgency,
}

impl Model {
    pub(super) fn of(metadata: &MetadataMap) -> Result<Self, ApiError> {
        let text = |name: &MetadataValue<_>| match name.to_str() {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(ApiError::validation(format!("`{MODEL}` is not text"))),
        };
        Ok(Self { name: metadata.get(MODEL).map(text).transpose()?, urgency: urgency(metadata)? })
    }

    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted { name: self.name.as_deref(), version: None }
    }
}

impl Calls {
    /// What the metadata of a call say.
    pub(super) fn model(&self, metadata: &MetadataMap) -> Result<Model, Status> {
        Model::of(metadata).map_err(|error| self.refuse(&error))
    }

    /// Answers a message that comes alone.
    pub(super) async fn answer<Q: Ask + Message>(
        &self,
        request: Request<Q>,
    ) -> Result<Response<Q::Answer>, Status> {
        let received = Instant::now();
        let model = self.model(request.metadata())?;
        let arrived = request.extensions().get::<Arrived>();
        self.count(request.get_ref(), arrived)?;
        let planned = arrived.map(Arrived::planned);
        let asked = (request.into_inner(), received);
        let (answered, served) = self.ask(&model, asked, None, planned).await?;
        let mut response = Response::new(answered.message);
        if Q::COUNTED.is_some() {
            *response.metadata_mut() = Answerer::of(&served).took(&answered.usage, received);
        }
        Ok(response)
    }

    /// Asks the model about a message that came then, counts, and says which model answered. Where there is no room it
    /// waits at the `door`, if there is one. The answer is held as `planned`, if bytes are counted.
    pub(super) async fn ask<Q: Ask>(
        &self,
        model: &Model,
        (message, received): (Q, Instant),
        door: Option<Door>,
        planned: Option<Planned>,
    ) -> Result<(Answered<Q::Answer>, Served), Status> {
        // For each question and not for a stream: else one that goes on would keep a model from being unloaded.
        let (wanted, urgency) = (message.wanted(model), model.urgency);
        let served = self.lease_by(wanted, urgency.deadline).await?.urgent(urgency);
        let served = match door {
            Some(door) => served.patient(door),
            None => served,
        };
        let served = match &planned {
            Some(planned) => {
                planned.written_in(WRITTEN);
                served.held_in(planned.room())
            }
            None => served,
        };
        let metrics = self.metrics.of(served.label());
        if let Some(arity) = Q::COUNTED {
            metrics.received(arity);
        }
        let answered = message.ask(&served, received).await.map_err(|error| self.refuse(&error))?;
        self.hold(&answered.message, planned.as_ref())?;
        if let Some(arity) = Q::COUNTED {
            metrics.answered(arity, &answered.usage.timings, received.elapsed());
        }
        Ok((answered, served))
    }

    /// Counts what a message became that may have come packed.
    pub(super) fn count(&self, message: &impl Message, arrived: Option<&Arrived>) -> Result<(), Status> {
        let Some(arrived) = arrived else { return Ok(()) };
        arrived.unpacked_message(message.encoded_len()).map_err(|error| self.refuse(&error.into()))
    }

    /// Holds an answer as it will be sent, if bytes are counted and there is room for it.
    pub(super) fn hold(&self, answer: &impl Message, planned: Option<&Planned>) -> Result<(), Status> {
        let Some(planned) = planned else { return Ok(()) };
        planned.fits(answer.encoded_len()).map_err(|error| self.refuse(&error.into()))
    }

    /// The model that a call names, for which it waits no longer than its deadline.
    pub(super) async fn lease_for(&self, model: &Model) -> Result<Served, Status> {
        self.lease_by(model.wanted(), model.urgency.deadline).await
    }

    /// The same where the message names it.
    pub(super) async fn lease(&self, wanted: Wanted<'_>, metadata: &MetadataMap) -> Result<Served, Status> {
        let urgency = urgency(metadata).map_err(|error| self.refuse(&error))?;
        self.lease_by(wanted, urgency.deadline).await
    }

    async fn lease_by(&self, wanted: Wanted<'_>, deadline: Option<Instant>) -> Result<Served, Status> {
        self.models.lease_by(wanted, deadline).await.map_err(|error| self.refuse(&error.into()))
    }

    /// Counts a failure, and says it in gRPC's words.
    pub(super) fn refuse(&self, error: &ApiError) -> Status {
        let Failure(reason) = error.failure();
        self.metrics.failed(reason);
        status(error)
    }
}

/// What is told of a model beside its answers; known for longer than the model may be there.
pub(super) struct Answerer {
    name: String,
    compute_type: HeaderValue,
}

impl Answerer {
    pub(super) fn of(served: &Served) -> Self {
        let model = &served.engine().info().model;
        Self { name: model.name.clone(), compute_type: headers::compute_type(&model.device) }
    }

    /// What an answer took, as over HTTP.
    pub(super) fn took(self, usage: &Usage, received: Instant) -> MetadataMap {
        request_span::took(&self.name, usage);
        MetadataMap::from_headers(headers::of(usage, self.compute_type, received.elapsed()))
    }
}
