//! From texts to ids, within the model's limits.
//!
//! | file | what it does |
//! |---|---|
//! | `tokenize` | defines the interface to a tokenizer, and the requests that need nothing else |
//! | `rules` | checks inputs and encodes them: prompts, length limits, truncation |
//! | `prompts` | defines the prompts that a model expects before a text |
//! | `instruction` | defines the instruction by which a model judges pairs |
//! | `tokenizing` | has a request encoded: on the calling thread if it is short, else on tokenizer threads |
//! | `lanes` | runs the tokenizer threads: one queue for short texts, one for long ones |
//! | `gather` | collects what the threads make of one request's inputs, and hands it on as a whole |

pub(super) mod gather;
pub(super) mod instruction;
pub(super) mod lanes;
pub(super) mod prompts;
pub(super) mod rules;
pub(super) mod tokenize;
pub(super) mod tokenizing;
