//! One figure, one file or folder: its data, its run, its plot. What several of them need lies beside them.

pub mod cpu;
pub mod gpu;
pub mod planning;

pub mod agree;
pub mod verdict;

mod numbers;
mod order;
mod svg;
