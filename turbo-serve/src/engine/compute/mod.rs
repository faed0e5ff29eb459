//! The thread that computes, and what feeds it.
//!
//! | file | what it does |
//! |---|---|
//! | `queue` | the channel of jobs, and the batcher behind it |
//! | `worker` | takes batches and runs them, one after the other |
//! | `lead` | how early the next batch is handed to a GPU |
//! | `turns` | engines that share a device take turns |

pub(super) mod lead;
pub(super) mod queue;
pub(super) mod turns;
pub(super) mod worker;
