//! A call's urgency from its metadata: `grpc-timeout`, in which every gRPC client sends a deadline, and
//! `x-request-priority`.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

use crate::{
    engine::Urgency,
    http::{self, ApiError},
};

/// gRPC's metadata key for the time that a client allows.
const TIMEOUT: &str = "grpc-timeout";

/// The urgency of a call that arrived now. The deadline may also be given as over HTTP.
///
/// # Errors
/// With the value and what was expected.
pub(super) fn urgency(metadata: &MetadataMap) -> Result<Urgency, ApiError> {
    let mut said = http::urgency(metadata.as_ref())?;
    if let Some(value) = metadata.get(TIMEOUT) {
        let value = String::from_utf8_lossy(value.as_bytes());
        let timeout = timeout(&value).ok_or_else(|| {
            let expected = "at most eight digits and a unit of H, M, S, m, u, n";
            ApiError::validation(format!("`{TIMEOUT}` is `{value}`, expected {expected}"))
        })?;
        let deadline = Instant::now().checked_add(timeout);
        said = said.or(Urgency { deadline, ..Urgency::default() });
    }
    Ok(said)
}

/// Parses gRPC's notation: `250m` is a quarter of a second.
fn timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units() {
        for (value, expected) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("5n", Some(Duration::from_nanos(5))),
            ("999999999u", None),
            ("1s", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("1é", None),
        ] {
            assert_eq!(timeout(value), expected, "{value}");
        }
    }
}
