//! A call of a route: the fields of its body, and the model that it is for, asked as urgently as its head says.

use std::time::Instant;

use axum::{
    extract::{FromRequest, Request},
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
        let urgency = urgency(&head.headers); // the client's time runs from the head on
        let found = Target::in_head(&mut head, server).await;
        let (found, urgency) = match (found, urgency) {
            (Ok(found), Ok(urgency)) => (found, urgency),
            (Err(error), _) => {
                discard(&head.headers, body).await;
                return Err(ApiError::from(error).into());
            }
            (_, Err(error)) => {
                discard(&head.headers, body).await;
                return Err(error.into());
            }
        };
        let bytes = body::json(&head.headers, body, server.payload_limit()).await?;
        let received = Instant::now();
        let body: T = body::parse(&bytes)?;
        let target = match found {
            Some(found) => found,
            None => Target::named(server, body.model()).await.map_err(ApiError::from)?,
        };
        Ok(Self { target: target.urgent(urgency), body, received })
    }
}
