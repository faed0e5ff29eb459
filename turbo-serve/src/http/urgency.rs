//! A request's urgency from its head: `X-Request-Deadline-Ms` and `X-Request-Priority`.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, StatusCode};

use super::error::ApiError;
use crate::engine::{Priority, Urgency};

/// How long the client waits, in milliseconds from the arrival of the request.
const DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline-ms");
/// The name of the request's priority class; gRPC uses the same key.
const PRIORITY: HeaderName = HeaderName::from_static("x-request-priority");

/// The urgency of a request that arrived now.
///
/// # Errors
/// 400, with the value and what was expected.
pub(crate) fn urgency(headers: &HeaderMap) -> Result<Urgency, ApiError> {
    let deadline = match said(headers, &DEADLINE) {
        Some(value) => deadline(&value)?,
        None => None,
    };
    Ok(Urgency { deadline, priority: priority(headers)? })
}

/// The priority class of a request.
fn priority(headers: &HeaderMap) -> Result<Priority, ApiError> {
    let Some(value) = said(headers, &PRIORITY) else { return Ok(Priority::default()) };
    Priority::named(&value).ok_or_else(|| {
        let names = Priority::ALL.map(|class| format!("`{}`", class.name())).join(", ");
        wrong(&PRIORITY, &value, &format!("one of {names}"))
    })
}

/// A deadline that is too far away to represent counts as none.
fn deadline(value: &str) -> Result<Option<Instant>, ApiError> {
    match value.parse::<u64>() {
        Ok(millis) if millis > 0 => Ok(Instant::now().checked_add(Duration::from_millis(millis))),
        _ => Err(wrong(&DEADLINE, value, "a whole number of milliseconds, at least 1")),
    }
}

fn said(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
}

fn wrong(name: &HeaderName, value: &str, expected: &str) -> ApiError {
    ApiError::refused(StatusCode::BAD_REQUEST, format!("`{name}` is `{value}`, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(pairs: &[(HeaderName, &str)]) -> Result<Urgency, ApiError> {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        urgency(&pairs.collect())
    }

    #[test]
    fn what_is_not_said_is_not_urgent() {
        assert_eq!(of(&[]).unwrap(), Urgency::default());
        let said = of(&[(DEADLINE, " 250 "), (PRIORITY, "high")]).unwrap();
        let left = said.deadline.unwrap().saturating_duration_since(Instant::now());
        assert!(left > Duration::from_millis(200) && left <= Duration::from_millis(250), "{left:?}");
        assert_eq!(said.priority, Priority::High);
        let year = Duration::from_secs(365 * 24 * 3600);
        let patient = of(&[(DEADLINE, &u64::MAX.to_string())]).unwrap();
        assert!(patient.deadline.is_none_or(|at| at - Instant::now() > year), "no clock overflows");
    }

    #[test]
    fn what_is_wrong_is_told_with_what_was_expected() {
        let millis = "expected a whole number of milliseconds, at least 1";
        for (header, value, expected) in [
            (DEADLINE, "soon", millis),
            (DEADLINE, "0", millis),
            (DEADLINE, "-5", millis),
            (DEADLINE, "1.5", millis),
            (DEADLINE, "", millis),
            (PRIORITY, "HIGH", "expected one of `low`, `normal`, `high`"),
            (PRIORITY, "1", "expected one of `low`, `normal`, `high`"),
        ] {
            let error = of(&[(header.clone(), value)]).unwrap_err();
            assert_eq!(error.message(), format!("`{header}` is `{value}`, {expected}"));
        }
    }
}
