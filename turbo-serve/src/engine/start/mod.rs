//! Before the first request: measures what batches cost on this machine, and decides how large they may be.
//!
//! | file | what it does |
//! |---|---|
//! | `worker_start` | builds the model on the worker's thread, and makes the worker once it is warm |
//! | `warm_up` | decides by the costs how large batches may be, and reserves memory for them |
//! | `measuring` | runs batches of many sizes, and derives the cost model |
//! | `fastest` | times one batch: the fastest of a few runs |
//! | `cost_cache` | keeps measured costs on disk between runs |
//! | `batch_tokens` | determines the tokens of a batch: a given number, or by time and memory |
//! | `resident` | reads how much memory this process holds, and how much more it may take |
//! | `reserved` | counts the memory that models have reserved and not touched yet |

pub(super) mod batch_tokens;
pub(super) mod cost_cache;
pub(super) mod fastest;
mod measuring;
pub(super) mod reserved;
pub(super) mod resident;
pub(super) mod warm_up;
pub(super) mod worker_start;
