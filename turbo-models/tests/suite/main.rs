//! All tests of the public interface, in one program.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod as_published;
mod bits;
mod broken_folders;
mod common;
mod copies;
mod digest;
mod dtypes;
mod families;
mod folders;
mod golden;
mod heads_and_labels;
mod logit_score;
mod long;
mod minilm;
mod outputs;
mod packed_cache;
mod pipelines;
mod positions;
mod sentences;
mod similarity;
mod tasks;
mod tokenizer;
mod tokenizer_broken;
mod tokenizer_golden;
mod tokenizer_truncation;
mod word_matrices;
