//! What to compute, in which order, in which bytes: graphs, fusion passes, memory-planned execution
