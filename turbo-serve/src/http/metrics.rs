//! Metrics of requests, and the text that Prometheus reads.
//!
//! Metrics are global to the process, like the `metrics` macros: the engine records them where it works, and several
//! servers in one process count together, so that each shows the totals.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    thread,
    time::Duration,
};

use metrics::{Counter, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::{
    engine::{Timings, resident_bytes},
    metric_names::{
        BATCH_COST_ERROR, BATCH_FILL, BATCH_NEXT_SIZE, BATCH_NEXT_TOKENS, ERR, METHOD,
        PROCESS_RESIDENT_MEMORY, REQUEST_COUNT, REQUEST_DURATION, REQUEST_FAILURE,
        REQUEST_INFERENCE_DURATION, REQUEST_INPUT_LENGTH, REQUEST_QUEUE_DURATION, REQUEST_SUCCESS,
        REQUEST_TOKENIZATION_DURATION, labels, method,
    },
};

/// How often recorded durations are folded into their buckets, whether or not `/metrics` is read: otherwise a server
/// that is not scraped would keep each of them.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why metrics cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricsError {
    /// The process has a recorder that was not installed here. If it is Prometheus', pass its handle to
    /// [`Metrics::from`].
    #[error("the process has another metrics recorder already: expected none, or the one of an earlier call")]
    OtherRecorder,
}

/// Where requests are counted and what `/metrics` shows; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    prometheus: PrometheusHandle,
    requests: Arc<Requests>,
    /// Metrics of models that have a label, by that label.
    labelled: Arc<RwLock<HashMap<String, Arc<Requests>>>>,
}

/// Handles to the metrics of every request, looked up once.
struct Requests {
    single: Method,
    batch: Method,
    duration: Histogram,
    tokenization: Histogram,
    queue: Histogram,
    inference: Histogram,
}

struct Method {
    count: Counter,
    success: Counter,
}

/// Whether a request's `inputs` were a single input or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    Single,
    Batch,
}

impl Metrics {
    /// Installs a Prometheus recorder for the process, with the buckets of text-embeddings-inference. Call it before an
    /// engine starts: what is recorded before is lost. Later calls return the same.
    ///
    /// # Errors
    /// [`MetricsError::OtherRecorder`] when another recorder is installed.
    pub fn install() -> Result<Self, MetricsError> {
        static INSTALLED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| {
            let recorder = with_buckets(PrometheusBuilder::new()).build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder).ok()?;
            keep_up(handle.clone());
            Some(handle)
        });
        installed.clone().map(Self::from).ok_or(MetricsError::OtherRecorder)
    }

    /// All metrics of the process in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        if let Some(bytes) = resident_bytes() {
            gauge!(PROCESS_RESIDENT_MEMORY).set(bytes as f64);
        }
        self.prometheus.render()
    }

    /// These metrics, with requests counted for the model with this label.
    pub(crate) fn of(&self, label: Option<&str>) -> Self {
        let Some(label) = label else { return self.clone() };
        let known = self.labelled.read().unwrap_or_else(PoisonError::into_inner).get(label).cloned();
        let requests = known.unwrap_or_else(|| {
            let mut labelled = self.labelled.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(labelled.entry(label.to_owned()).or_insert_with(|| Requests::new(Some(label)).into()))
        });
        Self { requests, ..self.clone() }
    }

    /// A request was parsed.
    pub(crate) fn received(&self, arity: Arity) {
        self.requests.method(arity).count.increment(1);
    }

    /// A request was answered with 200, `total` after it arrived.
    pub(crate) fn answered(&self, arity: Arity, timings: &Timings, total: Duration) {
        let requests = &self.requests;
        requests.method(arity).success.increment(1);
        requests.duration.record(total.as_secs_f64());
        requests.tokenization.record(timings.tokenization.as_secs_f64());
        requests.queue.record(timings.queue.as_secs_f64());
        requests.inference.record(timings.inference.as_secs_f64());
    }

    /// A request failed; `reason` is one of [`failure`](crate::metric_names::failure).
    pub(crate) fn failed(&self, reason: &'static str) {
        counter!(REQUEST_FAILURE, ERR => reason).increment(1);
    }
}

impl From<PrometheusHandle> for Metrics {
    /// Shows the metrics of a recorder that the program has installed and maintains itself.
    fn from(prometheus: PrometheusHandle) -> Self {
        Self { prometheus, requests: Arc::new(Requests::new(None)), labelled: Arc::default() }
    }
}

impl Requests {
    fn new(label: Option<&str>) -> Self {
        let method = |method: &'static str| Method {
            count: counter!(REQUEST_COUNT, labels(label, [(METHOD, method)])),
            success: counter!(REQUEST_SUCCESS, labels(label, [(METHOD, method)])),
        };
        let labels = labels(label, []);
        Self {
            single: method(method::SINGLE),
            batch: method(method::BATCH),
            duration: histogram!(REQUEST_DURATION, labels.iter()),
            tokenization: histogram!(REQUEST_TOKENIZATION_DURATION, labels.iter()),
            queue: histogram!(REQUEST_QUEUE_DURATION, labels.iter()),
            inference: histogram!(REQUEST_INFERENCE_DURATION, labels.iter()),
        }
    }

    fn method(&self, arity: Arity) -> &Method {
        match arity {
            Arity::Single => &self.single,
            Arity::Batch => &self.batch,
        }
    }
}

/// Folds recorded values into their buckets at intervals, for as long as the process lives.
fn keep_up(prometheus: PrometheusHandle) {
    let upkeep = move || {
        loop {
            thread::sleep(UPKEEP);
            prometheus.run_upkeep();
        }
    };
    if let Err(error) = thread::Builder::new().name("metrics".to_owned()).spawn(upkeep) {
        tracing::warn!(%error, "no thread for metrics: they take memory until `/metrics` is read");
    }
}

/// Sets the buckets. Durations: 35 buckets from 15 µs, each 1.5 times the one before. Sizes and lengths: powers of two.
/// A batch's fill: tenths. Cost errors: from 0.01 to 4, each about twice the one before.
fn with_buckets(builder: PrometheusBuilder) -> PrometheusBuilder {
    let durations: Vec<f64> = (1..=35).map(|n| 1e-5 * 1.5_f64.powi(n)).collect();
    let powers_of_two = |count: i32| (0..count).map(|n| 2.0_f64.powi(n)).collect::<Vec<_>>();
    [
        (Matcher::Suffix("duration".to_owned()), durations),
        (Matcher::Full(BATCH_FILL.to_owned()), (1..=10).map(|n| f64::from(n) / 10.0).collect()),
        (
            Matcher::Full(BATCH_COST_ERROR.to_owned()),
            vec![0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 1.0, 2.0, 4.0],
        ),
        (Matcher::Full(REQUEST_INPUT_LENGTH.to_owned()), powers_of_two(20)),
        (Matcher::Full(BATCH_NEXT_SIZE.to_owned()), powers_of_two(13)),
        (Matcher::Full(BATCH_NEXT_TOKENS.to_owned()), powers_of_two(21)),
    ]
    .into_iter()
    .fold(builder, |builder, (matcher, buckets)| {
        builder.set_buckets_for_metric(matcher, &buckets).expect("no list of buckets is empty")
    })
}
