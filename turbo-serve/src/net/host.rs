//! Whom a request is for: HTTP/1.1 says it once, in `Host` (RFC 9112, section 3.2). A proxy that reads the first of two, or
//! what it takes for granted where there is none, would not ask for what is answered here.

use axum::{
    extract::Request,
    http::{StatusCode, Version, header},
    middleware::Next,
    response::Response,
};

use crate::http::{ApiError, turn_away};

/// Refuses a request of HTTP/1.1 that does not say it, or more than once.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || request.version() != Version::HTTP_11 {
        return next.run(request).await;
    }
    let message = format!("expected the header `Host` once, got it {hosts} times");
    turn_away(request, ApiError::refused(StatusCode::BAD_REQUEST, message)).await
}
