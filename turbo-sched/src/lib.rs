//! Waiting lengths and measured costs in, batches out: schedulers for inference on inputs of varying length
