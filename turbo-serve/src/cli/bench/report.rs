//! What a bench prints: an aligned table, or one JSON object per line.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use turbo_models::graph::kernels::limits::Limits;

use super::workload::Policy;
use crate::cli::output::{self, ceilings, ms, percent, rate};

/// Who was measured, on what; the first fields of every JSON line.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Subject {
    /// The engine.
    pub(super) peer: &'static str,
    /// The model, by the name of its folder.
    pub(super) model: String,
    /// Type that is computed in.
    pub(super) variant: String,
    /// Threads that share a batch.
    pub(super) threads: usize,
}

/// A batch of sequences of one length.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) seq_len: u32,
    pub(super) median_ms: f64,
    pub(super) p10: f64,
    pub(super) p90: f64,
    pub(super) floor_ms: f64,
    pub(super) gflops: f64,
}

/// A stream of requests under one policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stream {
    pub(super) workload: String,
    pub(super) policy: String,
    pub(super) total_s: f64,
    pub(super) requests_per_s: f64,
    pub(super) tokens_per_s: f64,
    #[serde(skip)]
    pub(super) batches: usize,
    #[serde(skip)]
    pub(super) floor: Duration,
}

impl Stream {
    /// From the time of every batch.
    pub(super) fn new(
        (workload, lengths): (&str, &[u32]),
        policy: Policy,
        times: &[Duration],
        floor: Duration,
    ) -> Self {
        let total = times.iter().sum::<Duration>().as_secs_f64();
        let tokens: u64 = lengths.iter().copied().map(u64::from).sum();
        Stream {
            workload: workload.to_owned(),
            policy: policy.to_string(),
            total_s: rounded(total, 4),
            requests_per_s: rounded(lengths.len() as f64 / total, 3),
            tokens_per_s: rounded(tokens as f64 / total, 1),
            batches: times.len(),
            floor,
        }
    }
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    #[serde(flatten)]
    subject: &'a Subject,
    #[serde(flatten)]
    measured: &'a T,
}

/// In which form results are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Columns.
    Table,
    /// One object per line.
    Json,
}

/// Prints results as they come.
pub(super) struct Printer {
    pub(super) form: Form,
    /// From where to where a run goes.
    pub(super) span: String,
    pub(super) subject: Subject,
}

impl Printer {
    /// Who runs where, and what this machine can do.
    pub(super) fn heading(&self, device: &str, limits: &Limits) -> Result<()> {
        let Subject { model, variant, .. } = &self.subject;
        self.person(&format!(
            "{model}, {variant}, packed, {}, on {device}\nthis machine, measured now: {}\n",
            self.span,
            ceilings(limits)
        ))
    }

    /// The heads of the columns of [`Printer::case`].
    pub(super) fn case_heads(&self) -> Result<()> {
        self.person(&format!(
            "{:>5}  {:>7}  {:>10}  {:>10}  {:>10}  {:>10}  {:>12}  {:>7}",
            "batch", "seq_len", "median_ms", "p10", "p90", "floor_ms", "floor/median", "GFLOP/s"
        ))
    }

    /// One case.
    pub(super) fn case(&self, case: &Case) -> Result<()> {
        self.line(case, || {
            let Case { batch, seq_len, median_ms, p10, p90, floor_ms, gflops } = *case;
            format!(
                "{batch:>5}  {seq_len:>7}  {median_ms:>10.3}  {p10:>10.3}  {p90:>10.3}  {floor_ms:>10.3}  \
                 {:>10.0} %  {:>7}",
                percent(floor_ms, median_ms),
                rate(gflops)
            )
        })
    }

    /// The heads of the columns of [`Printer::stream`].
    pub(super) fn stream_heads(&self, workload: &str, lengths: &[u32]) -> Result<()> {
        let tokens: u64 = lengths.iter().copied().map(u64::from).sum();
        self.person(&format!(
            "{workload}: {} requests, {tokens} tokens\n{:<10}  {:>7}  {:>9}  {:>10}  {:>10}  {:>9}  {:>11}",
            lengths.len(),
            "policy",
            "batches",
            "total_s",
            "requests/s",
            "tokens/s",
            "floor_s",
            "floor/total"
        ))
    }

    /// One policy.
    pub(super) fn stream(&self, stream: &Stream) -> Result<()> {
        self.line(stream, || {
            let Stream { policy, batches, total_s, requests_per_s, tokens_per_s, floor, .. } = stream;
            let floor = floor.as_secs_f64();
            format!(
                "{policy:<10}  {batches:>7}  {total_s:>9.3}  {requests_per_s:>10.2}  {tokens_per_s:>10.0}  \
                 {floor:>9.3}  {:>9.0} %",
                percent(floor, *total_s)
            )
        })
    }

    fn line<T: Serialize>(&self, measured: &T, table: impl FnOnce() -> String) -> Result<()> {
        match self.form {
            Form::Table => output::line(&table()),
            Form::Json => output::line(&serde_json::to_string(&Line { subject: &self.subject, measured })?),
        }
    }

    /// Text that is left out of JSON.
    pub(super) fn person(&self, text: &str) -> Result<()> {
        match self.form {
            Form::Table => output::line(text),
            Form::Json => Ok(()),
        }
    }
}

/// Milliseconds with four decimals.
pub(super) fn rounded_ms(time: Duration) -> f64 {
    rounded(ms(time), 4)
}

/// `value` to so many decimals.
pub(super) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}
