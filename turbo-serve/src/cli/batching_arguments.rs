//! The flags that say how a queue becomes batches.

use std::{num::NonZeroU64, time::Duration};

use clap::{Args, ValueEnum};
use turbo_serve::engine::{Dispatch, Policy};

/// What a lazy server keeps where nothing is promised.
const LAZY_SLO: Duration = Duration::from_millis(100);
/// How long a lazy server waits for company, as a share of the promised time.
const LAZY_SHARE: u32 = 4;

/// `turbo serve` takes them with `#[command(flatten)]`.
#[derive(Args, Clone)]
pub(super) struct BatchingArguments {
    /// Which inputs share a batch
    ///
    /// All values but `dp` are there for comparison.
    #[arg(long, env, value_enum, default_value_t = Batching::Dp, help_heading = "Batches")]
    batching: Batching,
    /// When a batch is formed
    #[arg(long, env, value_enum, default_value_t = DispatchArgument::Hungry, help_heading = "Batches")]
    dispatch: DispatchArgument,
    /// Promised time from arrival to answer
    ///
    /// For requests that name no deadline (`X-Request-Deadline-Ms`). Those that are predicted to miss this time are
    /// refused at once (429), and those that have not begun by then are dropped (504). By default, nothing is promised.
    /// `--dispatch lazy` waits for more inputs for at most a quarter of this time, and starts a batch before half of it
    /// has passed; if nothing is promised, it does so with 100 ms.
    #[arg(long, env, value_name = "MS", alias = "slo", value_parser = promise, help_heading = "Batches")]
    slo_ms: Option<NonZeroU64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Batching {
    /// The cheapest cuts of the queue, by dynamic programming over measured costs
    Dp,
    /// The whole queue in order of arrival, as far as the limits allow with padding
    Naive,
    /// One input at a time
    None,
    /// The queue in order of arrival, until the next input would exceed the tokens of a batch: as
    /// text-embeddings-inference does
    TokenBudget,
    /// A window of the queue in order of length, filled from the shortest input on
    SortedWindow,
}

#[derive(Clone, Copy, ValueEnum)]
enum DispatchArgument {
    /// As soon as the model is free
    Hungry,
    /// When a batch is full, when more inputs would gain nothing, or before half of `--slo-ms` has passed
    Lazy,
}

/// What `--slo-ms` takes.
fn promise(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "expected whole milliseconds, at least 1; leave it out to promise nothing")
}

impl BatchingArguments {
    /// Which inputs share a batch.
    pub(super) fn policy(&self) -> Policy {
        match self.batching {
            Batching::Dp => Policy::OptimalSplit,
            Batching::Naive => Policy::WholeQueue,
            Batching::None => Policy::OneByOne,
            Batching::TokenBudget => Policy::TokenBudget,
            Batching::SortedWindow => Policy::SortedWindow,
        }
    }

    /// What is promised.
    pub(super) fn slo(&self) -> Option<Duration> {
        self.slo_ms.map(|millis| Duration::from_millis(millis.get()))
    }

    /// When a batch is formed.
    pub(super) fn dispatch(&self) -> Dispatch {
        match self.dispatch {
            DispatchArgument::Hungry => Dispatch::Hungry,
            DispatchArgument::Lazy => {
                let slo = self.slo().unwrap_or(LAZY_SLO);
                Dispatch::Lazy { timeout: slo / LAZY_SHARE, slo }
            }
        }
    }
}
