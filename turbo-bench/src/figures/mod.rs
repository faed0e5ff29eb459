//! One figure, one file or folder: its data, its run, its plot. What several of them need lies beside them.

pub mod cpu;
pub mod gpu;
pub mod planning;
#[cfg(unix)]
pub mod serve;

pub mod agree;
pub mod rounds;
pub mod selection;
pub mod verdict;

mod chart;
mod numbers;
mod order;
mod svg;
