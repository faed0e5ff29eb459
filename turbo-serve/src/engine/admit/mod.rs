//! Decides whether a request is accepted: it needs a slot for each input, an answer in time, and room for that answer.
//!
//! | file | what it does |
//! |---|---|
//! | `admission` | reserves slots: all that a request needs, or none |
//! | `forecast` | predicts when a request will be answered, from what waits, what runs and what batches cost |
//! | `urgency` | defines deadlines and priorities |
//! | `answer_room` | reserves room for an answer before it is computed |
//! | `waiting` | counts the inputs that wait for a batch, for metrics and dashboards |
//! | `abandoned` | cancels all accepted requests, by a flag that every thread checks |

pub(super) mod abandoned;
pub(super) mod admission;
pub(super) mod answer_room;
pub(super) mod forecast;
pub(super) mod urgency;
pub(super) mod waiting;
