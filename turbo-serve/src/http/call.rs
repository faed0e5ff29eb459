//! A call of a route: the fields of its body, and the model that it is for, asked as urgently as its head says.

use std::time::Instant;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::request::Parts,
    response::IntoResponse,
};
use serde::de::DeserializeOwned;

use super::{
    body::{self, discard},
    error::ApiError,
    router::Server,
    target::Target,
    urgency::urgency,
};
use crate::engine::Urgency;

/// The fields of a route's request, and the protocol that words its errors.
pub(super) trait RequestBody: DeserializeOwned + Send + Sync {
    /// How failures are told.
    type Error: From<ApiError> + IntoResponse;

    /// The model that it is for, where its protocol has a field for that.
    fn model(&self) -> Option<&str> {
        None
    }
}

/// Extracts both.
pub(super) struct Call<T> {
    pub(super) target: Target,
    pub(super) body: T,
    /// When the body's last byte had come.
    pub(super) received: Instant,
}

impl<T: RequestBody> FromRequest<Server> for Call<T> {
    type Rejection = T::Error;

    async fn from_request(request: Request, server: &Server) -> Result<Self, T::Error> {
        let (mut head, body) = request.into_parts();
        let (bytes, urgency) = read(&mut head, body, server).await?;
        let received = Instant::now();
        let body: T = body::parse(&bytes)?;
        let target = Target::of(&mut head, server, body.model(), urgency).await?;
        Ok(Self { target, body, received })
    }
}

/// The body of a request for a model that is served, and how urgent its head says it is.
pub(super) async fn read(
    head: &mut Parts,
    body: Body,
    server: &Server,
) -> Result<(Vec<u8>, Urgency), ApiError> {
    let urgency = match head.extensions.get::<Urgency>() {
        Some(&urgency) => Ok(urgency),
        None => urgency(&head.headers), // the client's time runs from the head on
    };
    match Target::check(head, server).await.and(urgency) {
        Ok(urgency) => {
            head.extensions.insert(urgency); // for the handler of the route
            Ok((body::json(head, body, server.payload_limit()).await?, urgency))
        }
        Err(error) => {
            discard(head, body).await;
            Err(error)
        }
    }
}
