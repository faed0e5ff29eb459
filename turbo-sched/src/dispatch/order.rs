//! Which request and which batch goes first. Whatever compares as less goes first.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use super::request::{Priority, Request};
use crate::cost::{BatchTotal, PerRequest};

/// Which of several batches goes first where neither priorities nor deadlines decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOrder {
    /// The batch that would be the oldest if each request had arrived later by a few times its cost: among similar
    /// requests the oldest goes first, and a long one lets short ones pass for a few times as long as it would hold
    /// them up. If batches are bounded by their time, so that a batch gains nothing by waiting, short requests of a mix
    /// have six tenths of the mean latency that they have with [`BatchOrder::OldestFirst`], and long ones an eighth
    /// more (`tests/cpu.rs`).
    AgeAndCost,
    /// The batch of the request that arrived first. Meanwhile the others gain company, so that batches are larger under
    /// load: in simulation, this order carries more traffic, with the shorter tail.
    OldestFirst,
    /// The batch of least cost per request: Smith's rule, which minimises the mean wait of a queue that gets no more
    /// requests. On a machine that is not busy, the mean gains a few percent and the tail loses more, since long
    /// requests are always passed over; on a busy one, both are worse.
    CheapestFirst,
}

/// How much later than its arrival a request counts, as a multiple of its cost. Values between 2 and 8 make no
/// difference.
const COURTESY: f64 = 4.0;

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
        // Nothing goes before the highest priority with a deadline at the epoch, except overdue requests that arrived
        // earlier.
        return (Reverse(Priority(u8::MAX)), Duration::ZERO, request.arrived);
    }
    (Reverse(request.priority), request.deadline.unwrap_or(Duration::MAX), request.arrived)
}

/// The rank of a batch that holds no overdue request.
pub(super) fn of_batch<'a>(
    requests: impl Iterator<Item = &'a Request>,
    cost: BatchTotal,
    order: BatchOrder,
) -> Rank {
    let mut rank = Rank {
        priority: Priority::default(),
        deadline: Duration::MAX,
        arrived: Duration::MAX,
        cost: PerRequest::default(),
    };
    let mut batch_size = 0;
    for request in requests {
        // Only members of its highest priority count: a batch must not go first for the priority of one and the
        // deadline, or the age, of another.
        if request.priority > rank.priority {
            rank =
                Rank { priority: request.priority, deadline: Duration::MAX, arrived: Duration::MAX, ..rank };
        }
        if request.priority == rank.priority {
            rank.deadline = rank.deadline.min(request.deadline.unwrap_or(Duration::MAX));
            rank.arrived = rank.arrived.min(request.arrived);
        }
        batch_size += 1;
    }
    match order {
        BatchOrder::AgeAndCost => {
            let courtesy = BatchTotal(COURTESY * cost.per_request(batch_size).0).as_duration();
            Rank { arrived: rank.arrived.saturating_add(courtesy), ..rank }
        }
        BatchOrder::OldestFirst => rank,
        BatchOrder::CheapestFirst => {
            Rank { arrived: Duration::ZERO, cost: cost.per_request(batch_size), ..rank }
        }
    }
}

/// Compares by the highest priority in a batch, then by deadline and arrival at that priority, then by cost per
/// request. Fields that the [`BatchOrder`] does not use are equal in all ranks.
pub(super) struct Rank {
    priority: Priority,
    deadline: Duration,
    arrived: Duration,
    cost: PerRequest,
}

impl Rank {
    pub(super) fn total_cmp(&self, other: &Self) -> Ordering {
        let exact = |rank: &Self| (Reverse(rank.priority), rank.deadline, rank.arrived);
        exact(self).cmp(&exact(other)).then(self.cost.0.total_cmp(&other.cost.0))
    }
}
