//! Before the first request: what batches cost here, and how large they may be.
//!
//! | file | what it does |
//! |---|---|
//! | `warm_up` | runs batches and measures them |
//! | `cost_cache` | keeps what was measured on disk |
//! | `fastest` | times a run, without what else the machine does |
//! | `batch_tokens` | tokens of a batch: given, or by time and memory |
//! | `resident`, `reserved` | memory that is held, free, or promised |

pub(super) mod batch_tokens;
pub(super) mod cost_cache;
pub(super) mod fastest;
pub(super) mod reserved;
pub(super) mod resident;
pub(super) mod warm_up;
