//! The worker thread, the queue in front of it, and its turns on the device.
//!
//! | file | what it does |
//! |---|---|
//! | `job` | one input on its way to the runner, and how it is answered |
//! | `inbox` | the channel to the worker |
//! | `queue` | receives inputs on the channel, and forms batches of them with the batcher of turbo-sched |
//! | `guarded_runner` | catches panics of the runner, and rebuilds it after one |
//! | `worker` | submits batches to the runner, polls them, and answers with their rows |
//! | `lead` | determines how long before a batch is done the next one is submitted |
//! | `turns` | lets engines that share a device take turns |

pub(super) mod guarded_runner;
pub(super) mod inbox;
pub(super) mod job;
pub(super) mod lead;
pub(super) mod queue;
pub(super) mod turns;
pub(super) mod worker;
