//! All tests of the public interface, in one program.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod bits;
mod broken_folders;
mod common;
mod digest;
mod dtypes;
mod families;
mod folders;
mod golden;
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
mod whole_folders;
