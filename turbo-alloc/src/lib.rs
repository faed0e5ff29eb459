//! Usage records in, chunk offsets out: a memory planner for tensors whose sizes change from run to run
