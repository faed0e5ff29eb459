//! Many questions in one call: answered in their order, a bounded number at a time.

use std::{pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use super::calls::{Answered, Ask, Calls, Model};
use crate::{engine::EngineError, http::ApiError, models::NotServed, tasks::NoRoom};

/// How often a stream that waits for its client looks whether there still is a model.
const LOOK: Duration = Duration::from_millis(250);

/// What a client gets of a stream.
pub(super) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

impl Calls {
    /// Answers each message of a stream with one.
    pub(super) async fn answer_each<Q: Ask>(
        &self,
        request: Request<Streaming<Q>>,
    ) -> Result<Response<Answers<Q::Answer>>, Status> {
        let model = Model::of(request.metadata())?;
        let at_once = self.at_once(&model).await?;
        let messages = self.clone().messages(Some(model.clone()), request.into_inner());
        let answers = self.clone().ask_each(model, at_once, messages);
        Ok(Response::new(answers.map_ok(|answered| answered.message).boxed()))
    }

    /// Most questions of one stream that are asked at a time: enough to fill batches, and room for others.
    pub(super) async fn at_once(&self, model: &Model) -> Result<usize, Status> {
        let served = self.lease(model.wanted()).await?;
        Ok((served.engine().info().max_concurrent_requests / 2).max(1))
    }

    /// Asks for each message; the answers have their order. What is asked is withdrawn when the stream is dropped.
    pub(super) fn ask_each<Q: Ask>(
        self,
        model: Model,
        at_once: usize,
        messages: impl Stream<Item = Result<Q, Status>> + Send,
    ) -> impl Stream<Item = Result<Answered<Q::Answer>, Status>> + Send {
        let ask = move |message: Result<Q, Status>| {
            let (calls, model) = (self.clone(), model.clone());
            async move { Ok(calls.ask(&model, message?, NoRoom::Waits).await?.0) }
        };
        messages.map(ask).buffered(at_once)
    }

    /// The same where a stream may ask several models.
    pub(super) fn at_once_of_all(&self) -> usize {
        let slots =
            self.models.ready().iter().map(|model| model.engine().info().max_concurrent_requests).min();
        (slots.unwrap_or(0) / 2).max(1)
    }

    /// The messages of a client until it has no more, or nobody can answer them any more: that is the last one. Without
    /// a `model` they may be for any.
    pub(super) fn messages<Q: Send + 'static>(
        self,
        model: Option<Model>,
        messages: Streaming<Q>,
    ) -> impl Stream<Item = Result<Q, Status>> + Send {
        let end = Box::pin(async move { self.refuse(&self.end(model.as_ref()).await) });
        stream::unfold(Some((messages, end)), |open| async move {
            let (mut messages, mut end) = open?;
            tokio::select! {
                message = messages.message() => match message.transpose()? {
                    Ok(message) => Some((Ok(message), Some((messages, end)))),
                    Err(status) => Some((Err(status), None)),
                },
                status = &mut end => Some((Err(status), None)),
            }
        })
    }

    /// Waits until nobody could answer, and says why. A stream whose client says nothing would keep the server from
    /// stopping.
    async fn end(&self, model: Option<&Model>) -> ApiError {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.are_stopping() {
                return EngineError::Stopping.into();
            }
            match model.map(|model| self.models.find(model.wanted())) {
                None | Some(Ok(_) | Err(NotServed::NotReady { .. } | NotServed::Unavailable { .. })) => {}
                Some(Err(error)) => return error.into(),
            }
        }
    }
}
