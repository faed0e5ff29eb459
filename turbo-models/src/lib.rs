//! Graphs and weights of published transformer checkpoints, from a folder to vectors
