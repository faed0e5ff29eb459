//! The figures and tables of the papers, as data: model, lengths, seed, rivals. Each runs the real code and leaves a
//! record (JSON), a plot (SVG) and a summary.
//!
//! ```text
//! Workload + Checkpoint ──figure──▶ rows ──▶ record.json · plot.svg · a few lines to read
//! ```
//!
//! | module | what it is about |
//! |---|---|
//! | [`figures`] | what each figure is of, how it is measured, and how it is drawn |
//! | [`workload`] | lengths of requests, by seed |
//! | [`checkpoint`] | random weights of a named shape |
//! | [`record`] | what a run leaves, with machine, commit and date |
//! | [`fire`] | a load generator, and servers to aim it at |
//! | [`siege`] | clients that a server has to survive |
//! | [`rival`] | another engine as a process that times batches on request |
//! | [`load`] | how much other processes used the machine meanwhile |
//! | [`disturb`](mod@disturb) | a process that uses it on purpose |
//! | [`progress`] | how far a figure is |
//! | [`log`] | what a process has said |
//!
//! `turbo-bench/peers` holds the scripts that measure other engines.

pub mod checkpoint;
pub mod disturb;
pub mod figures;
#[cfg(unix)]
pub mod fire;
pub mod load;
pub mod log;
pub mod progress;
pub mod record;
pub mod rival;
#[cfg(unix)]
pub mod siege;
pub mod workload;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
