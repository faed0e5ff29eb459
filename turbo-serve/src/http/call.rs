//! Extracts a request: the fields of its body, the model that it is for, and the urgency from its head.

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

/// The body of a route's request, and the form of the route's errors.
pub(super) trait RequestBody: DeserializeOwned + Send + Sync {
    /// The form in which its protocol reports errors.
    type Error: From<ApiError> + IntoResponse;

    /// The model that the body names, if its protocol has a field for that.
    fn model(&self) -> Option<&str> {
        None
    }
}

/// Extracts the body, and the model that the request is for.
pub(super) struct Call<T> {
    pub(super) target: Target,
    pub(super) body: T,
    /// When the last byte of the body arrived.
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

/// Reads the body of a request, and the urgency from its head. If the path names a model, it must be served.
pub(super) async fn read(
    head: &mut Parts,
    body: Body,
    server: &Server,
) -> Result<(Vec<u8>, Urgency), ApiError> {
    let urgency = match head.extensions.get::<Urgency>() {
        Some(&urgency) => Ok(urgency),
        None => urgency(&head.headers), // the deadline counts from the head's arrival
    };
    match Target::check(head, server).await.and(urgency) {
        Ok(urgency) => {
            head.extensions.insert(urgency); // for a handler that this request is forwarded to
            Ok((body::json(head, body, server.payload_limit()).await?, urgency))
        }
        Err(error) => {
            discard(head, body).await;
            Err(error)
        }
    }
}
