//! Whether a request is taken: it needs a slot for each input, room for its answers, and a chance to be in time.
//!
//! | file | what it knows |
//! |---|---|
//! | `admission` | slots: all that a request needs at once, or none |
//! | `answer_room` | bytes of answers that are promised and not yet written |
//! | `forecast` | when an answer would be there, by what waits, what runs and what batches cost |
//! | `urgency` | deadlines and priorities |
//! | `waiting` | how many inputs wait, and since when |
//! | `abandoned` | the flag that cancels all that was taken |

pub(super) mod abandoned;
pub(super) mod admission;
pub(super) mod answer_room;
pub(super) mod forecast;
pub(super) mod urgency;
pub(super) mod waiting;
