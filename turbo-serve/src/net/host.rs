//! Checks that an HTTP/1.1 request names its host exactly once, in `Host` (RFC 9112, section 3.2). If it named several
//! or none, a proxy in front might route it by another host than the one that this server answers for.

use axum::{
    extract::Request,
    http::{StatusCode, Version, header},
    middleware::Next,
    response::Response,
};

use crate::http::{ApiError, turn_away};

/// Refuses an HTTP/1.1 request with no `Host` header or several.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || request.version() != Version::HTTP_11 {
        return next.run(request).await;
    }
    let message = format!("expected the header `Host` once, got it {hosts} times");
    turn_away(request, ApiError::refused(StatusCode::BAD_REQUEST, message)).await
}
