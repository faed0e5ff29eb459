//! From rows to responses, and what is known already.
//!
//! | file | what it does |
//! |---|---|
//! | `recall` | looks a sequence up in the cache before it is queued |
//! | `promises` | lets inputs that are alike share one computation |
//! | `ticket` | gathers the answers of one request |
//! | `finish` | cuts, normalises and counts, off the worker |

pub(super) mod finish;
pub(super) mod promises;
pub(super) mod recall;
pub(super) mod ticket;
