//! One figure, one file: its data, its run, its plot.

pub mod encoder;
pub mod planning;
