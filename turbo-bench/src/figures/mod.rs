//! Each figure has a file or a folder, with its data, its run and its plot. Modules that several figures need lie
//! beside them.

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
