//! KServe's Open Inference Protocol v2, apart from its two transports, REST and gRPC: tensors in, tensors out.
//!
//! ```text
//! JSON, binary ─▶ InputTensor ─▶ inputs ─▶ InferRequest ─▶ Infer
//! messages     ─▶                                            │
//! JSON, binary ◀─ OutputTensor ◀─ outputs ◀─ InferResponse ◀─┘
//! messages     ◀─
//! ```
//!
//! The transports are in [`http`](crate::http) (`/v2/…`) and [`grpc`](crate::grpc) (`inference.GRPCInferenceService`).
//!
//! | input | datatype, shape | |
//! |---|---|---|
//! | `text` | `BYTES [n]` or `[n, 1]` | texts in UTF-8; `[n, 2]` for pairs of texts, the only form for ensembles that score |
//! | `input_ids` | integers `[n, len]` | instead of text: ids, special tokens included |
//! | `attention_mask` | integers or `BOOL`, `[n, len]` | 0 where `input_ids` are padding, at one end |
//! | `token_type_ids` | integers `[n, len]` | segments, for models that have several |
//!
//! A single tensor of `BYTES` is the text, whatever its name.
//!
//! | a model for | gives |
//! |---|---|
//! | embeddings | `sentence_embedding FP32 [n, hidden]`; on request `token_embeddings [n, len, hidden]`, `attention_mask` |
//! | sparse embeddings | `sentence_embedding [n, vocab]` |
//! | sequence classification | `logits [n, labels]`, and `scores`: probabilities |
//! | token classification | `logits [n, len, labels]`, `attention_mask INT64 [n, len]` |
//! | question answering | `start_logits [n, len]`, `end_logits [n, len]`, `attention_mask` |
//! | masked words | `logits [n, masks, vocab]`, a row for every mask token |
//!
//! Rows of different lengths are padded with 0; `attention_mask` marks those that are tokens. Parameters of a request:
//! `truncate`, `truncation_direction` (`left`, `right`), `prompt_name`, `normalize`, `dimensions`, and Triton's
//! `timeout` (microseconds) and `priority` (1 before 2 before 3); others are ignored.

mod answer;
mod inputs;
mod metadata;
mod outputs;
mod parameters;
mod repository;
mod tensor;

pub(crate) use answer::{Asked, answer};
pub(crate) use metadata::{EXTENSIONS, Metadata, NAME, PLATFORM, TensorInfo, metadata};
pub(crate) use outputs::{CLASSIFICATION, Wanted};
pub(crate) use parameters::{Parameter, check_memory, flag};
pub(crate) use repository::{Indexed, Stats, check_load, count, index, is_ready, millis, nanos, statistics};
pub(crate) use tensor::{Announced, Elements, InputTensor, OutputTensor, Values};
