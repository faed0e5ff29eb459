//! What every call does between its message and its answer: find the model, run the request, count it, report timings.

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

/// Bytes written for each value: four in a message, and four in its encoding.
pub(super) const WRITTEN: usize = 2 * size_of::<f32>();

/// The metadata key that names the model.
const MODEL: &str = "x-model";

/// A request message to a model, alone or in a stream.
pub(super) trait Ask: Send + 'static {
    /// The message that answers it.
    type Answer: Message + 'static;

    /// How it is counted; `None` for requests that only need the tokenizer, and for parts of a stream that counts as
    /// one.
    const COUNTED: Option<Arity>;

    /// Whether its answer has a row for each token.
    const OF_TOKENS: bool = false;

    /// The model that the message names; `called` is the one in the call's metadata, for messages that cannot name one.
    fn wanted<'a>(&'a self, called: &'a CallHead) -> Wanted<'a> {
        called.wanted()
    }

    /// Answers a message that arrived at `received`. Dropping the future cancels the request.
    fn ask(
        self,
        served: &Served,
        received: Instant,
    ) -> impl Future<Output = Result<Answered<Self::Answer>, ApiError>> + Send;
}

/// An answer, and its usage and timings.
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

/// What a call's metadata say: the model's name, or none for the default one, and the urgency.
#[derive(Clone)]
pub(super) struct CallHead {
    name: Option<String>,
    urgency: Urgency,
}

impl CallHead {
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
    /// Parses the metadata of a call, and counts failures.
    pub(super) fn head(&self, metadata: &MetadataMap) -> Result<CallHead, Status> {
        CallHead::of(metadata).map_err(|error| self.refuse(&error))
    }

    /// Answers a unary call.
    pub(super) async fn answer<Q: Ask + Message>(
        &self,
        request: Request<Q>,
    ) -> Result<Response<Q::Answer>, Status> {
        let received = Instant::now();
        let head = self.head(request.metadata())?;
        let arrived = request.extensions().get::<Arrived>();
        self.count(request.get_ref(), arrived)?;
        let planned = arrived.map(Arrived::planned);
        let asked = (request.into_inner(), received);
        let (answered, served) = self.ask(&head, asked, None, planned).await?;
        let mut response = Response::new(answered.message);
        if Q::COUNTED.is_some() {
            *response.metadata_mut() = Answerer::of(&served).took(&answered.usage, received);
        }
        Ok(response)
    }

    /// Runs a message that arrived at `received` and counts it; also returns the model that answered. If no slot is
    /// free it waits at the `door`, if one is given. Room for the answer is reserved in `planned`, if bytes in flight
    /// are counted.
    pub(super) async fn ask<Q: Ask>(
        &self,
        head: &CallHead,
        (message, received): (Q, Instant),
        door: Option<Door>,
        planned: Option<Planned>,
    ) -> Result<(Answered<Q::Answer>, Served), Status> {
        // A lease for each message and not for a stream: an endless stream would keep a model from being unloaded.
        let (wanted, urgency) = (message.wanted(head), head.urgency);
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

    /// Counts the unpacked size of a message.
    pub(super) fn count(&self, message: &impl Message, arrived: Option<&Arrived>) -> Result<(), Status> {
        let Some(arrived) = arrived else { return Ok(()) };
        arrived.unpacked_message(message.encoded_len()).map_err(|error| self.refuse(&error.into()))
    }

    /// Reserves room for an answer's encoding; fails if there is none.
    pub(super) fn hold(&self, answer: &impl Message, planned: Option<&Planned>) -> Result<(), Status> {
        let Some(planned) = planned else { return Ok(()) };
        planned.fits(answer.encoded_len()).map_err(|error| self.refuse(&error.into()))
    }

    /// Leases the model that a call names, waiting for it until the call's deadline at most.
    pub(super) async fn lease_for(&self, head: &CallHead) -> Result<Served, Status> {
        self.lease_by(head.wanted(), head.urgency.deadline).await
    }

    /// Leases the model that a message names, waiting for it until the call's deadline at most.
    pub(super) async fn lease(&self, wanted: Wanted<'_>, metadata: &MetadataMap) -> Result<Served, Status> {
        let urgency = urgency(metadata).map_err(|error| self.refuse(&error))?;
        self.lease_by(wanted, urgency.deadline).await
    }

    async fn lease_by(&self, wanted: Wanted<'_>, deadline: Option<Instant>) -> Result<Served, Status> {
        self.models.lease_by(wanted, deadline).await.map_err(|error| self.refuse(&error.into()))
    }

    /// Counts a failure, and returns its gRPC status.
    pub(super) fn refuse(&self, error: &ApiError) -> Status {
        let Failure(reason) = error.failure();
        self.metrics.failed(reason);
        status(error)
    }
}

/// What is reported of a model with its answers; a copy, so that it does not hold a lease.
pub(super) struct Answerer {
    name: String,
    compute_type: HeaderValue,
}

impl Answerer {
    pub(super) fn of(served: &Served) -> Self {
        let model = &served.engine().info().model;
        Self { name: model.name.clone(), compute_type: headers::compute_type(&model.device) }
    }

    /// The metadata with an answer's usage and timings, as over HTTP.
    pub(super) fn took(self, usage: &Usage, received: Instant) -> MetadataMap {
        request_span::took(&self.name, usage);
        MetadataMap::from_headers(headers::of(usage, self.compute_type, received.elapsed()))
    }
}
