//! Answers: those that need no computation, and the way from rows to a response.
//!
//! | file | what it does |
//! |---|---|
//! | `recall` | looks each input up in the cache before it is queued |
//! | `promises` | lets equal inputs share one computation |
//! | `ticket` | gathers the answers to the inputs of one request, and sends them to its client |
//! | `finish` | makes the response: cuts and normalises rows, adds up the usage |

pub(super) mod finish;
pub(super) mod promises;
pub(super) mod recall;
pub(super) mod ticket;
