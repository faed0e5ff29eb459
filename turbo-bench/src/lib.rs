//! The figures and tables of the papers, each described by data: model, lengths, seed, rivals. A figure runs the real
//! code and leaves a record (JSON), a plot (SVG) and a summary.
//!
//! ```text
//! Workload + Checkpoint ──figure──▶ rows ──▶ record.json · plot.svg · a few lines to read
//! ```
//!
//! | module | what it is about |
//! |---|---|
//! | [`figures`] | what each figure shows, how it is measured, and how it is drawn |
//! | [`workload`] | lengths of requests, by seed |
//! | [`checkpoint`] | random weights of a named shape |
//! | [`record`] | what a run leaves: numbers with machine, commit and date |
//! | [`fire`] | a load generator, and the servers it aims at |
//! | [`siege`] | clients that a server has to survive |
//! | [`rival`] | another engine as a process that times batches on request |
//! | [`load`] | how much other processes used the machine during a measurement |
//! | [`disturb`](mod@disturb) | a process that uses the machine on purpose |
//! | [`progress`] | how far a figure has come |
//! | [`log`] | what a process wrote to its standard error |
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
