//! Who goes first, among requests and among batches. Smaller keys go first.

use std::cmp::Reverse;
use std::time::Duration;

use super::request::{Priority, Request};

/// Whether a request has been passed over for long enough.
pub(super) fn is_overdue(request: &Request, now: Duration, overdue_after: Duration) -> bool {
    now.saturating_sub(request.arrived) >= overdue_after
}

/// Order of service: overdue requests by arrival, then by priority, by deadline, by arrival.
pub(super) fn of_service(
    request: &Request,
    now: Duration,
    overdue_after: Duration,
) -> (Reverse<Priority>, Duration, Duration) {
    if is_overdue(request, now, overdue_after) {
        // Nothing goes before the highest priority with a deadline at the epoch, and only overdue requests
        // that arrived earlier go beside it.
        return (Reverse(Priority(u8::MAX)), Duration::ZERO, request.arrived);
    }
    (Reverse(request.priority), request.deadline.unwrap_or(Duration::MAX), request.arrived)
}

/// Order among batches that hold no overdue request: by highest priority, then by earliest deadline.
pub(super) fn of_batch<'a>(requests: impl Iterator<Item = &'a Request>) -> (Reverse<Priority>, Duration) {
    requests.fold((Reverse(Priority::default()), Duration::MAX), |(priority, deadline), request| {
        let earliest = request.deadline.unwrap_or(Duration::MAX).min(deadline);
        (priority.min(Reverse(request.priority)), earliest)
    })
}
