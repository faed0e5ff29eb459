//! From texts to ids, within the model's limits.
//!
//! | file | what it does |
//! |---|---|
//! | `tokenize` | the interface to a tokenizer |
//! | `rules` | checks inputs and encodes them: prompts, length limits, truncation |
//! | `prompts`, `instruction` | what stands before a text, or judges a pair |
//! | `tokenizing` | encodes on the calling thread or on tokenizer threads |
//! | `lanes` | those threads: one queue for short texts, one for long ones |
//! | `gather` | puts the parts of a request together again |

pub(super) mod gather;
pub(super) mod instruction;
pub(super) mod lanes;
pub(super) mod prompts;
pub(super) mod rules;
pub(super) mod tokenize;
pub(super) mod tokenizing;
