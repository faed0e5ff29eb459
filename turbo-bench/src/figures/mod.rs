//! One figure, one file: its data, its run, its plot.

pub mod cpu;
pub mod planning;
