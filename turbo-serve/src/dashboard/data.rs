//! The data that the page shows, as JSON. Names include the units; times count from the model's start.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use turbo_sched::{Candidate, Source};

use crate::{
    engine::{
        EngineInfo, Health, Infer, Layout, Task,
        observed::{
            Batch, BatchSecond, Class, CostMap, INTERVAL, Latencies, Line, Memory, Misses, Observed, Origins,
            Percentiles, RequestSecond, SECONDS, Totals,
        },
        resident_bytes,
    },
    metric_names::{EMBED, PREDICT},
    models::{Entry, Models, NotServed, State, Wanted},
};

/// The data of one model, and of the server.
#[derive(Serialize)]
pub struct Data {
    server: ServerView,
    models: Vec<ModelView>,
    /// The requested model.
    model: ModelView,
    /// `None` while it is not loaded.
    engine: Option<EngineView>,
    /// `None` if its engine keeps no record.
    observed: Option<ObservedView>,
}

/// The data of the `wanted` model, which is never loaded for this.
///
/// # Errors
/// [`NotServed`] if there is no such model.
pub fn data(models: &Models, wanted: Wanted<'_>) -> Result<Data, NotServed> {
    let model = ModelView::from(models.entry(wanted)?);
    let served = models.find(wanted).ok();
    let engine = served.as_ref().map(|served| served.engine());
    Ok(Data {
        server: ServerView { version: env!("CARGO_PKG_VERSION"), resident_bytes: resident_bytes() },
        models: models.list().into_iter().map(ModelView::from).collect(),
        model,
        engine: engine.map(|engine| {
            let label = served.as_ref().and_then(|served| served.label()).map(str::to_owned);
            EngineView::new(engine.info(), engine.health(), label)
        }),
        observed: engine.and_then(Infer::observed).map(ObservedView::from),
    })
}

#[derive(Serialize)]
struct ServerView {
    version: &'static str,
    resident_bytes: Option<u64>,
}

#[derive(Serialize)]
struct ModelView {
    name: String,
    version: String,
    state: &'static str,
    /// Why the model is not loaded, if that is known.
    reason: Option<String>,
}

impl From<Entry> for ModelView {
    fn from(Entry { name, version, state, .. }: Entry) -> Self {
        let (state, reason) = match state {
            State::OnDemand => ("on demand", None),
            State::Loading => ("loading", None),
            State::Ready => ("ready", None),
            State::Unloading => ("unloading", None),
            State::Unloaded => ("unloaded", None),
            State::Unavailable { reason } => ("unavailable", Some(reason)),
        };
        Self { name, version, state, reason }
    }
}

#[derive(Serialize)]
struct EngineView {
    model_id: String,
    task: String,
    dtype: &'static str,
    device: String,
    health: &'static str,
    max_input_length: usize,
    max_batch_tokens: usize,
    max_concurrent_requests: usize,
    cache_bytes: Option<usize>,
    /// Value of the label `model` of its metrics.
    label: Option<String>,
    /// The mask token, if its tokenizer has one.
    mask_token: Option<String>,
    /// The name of the metric that counts its answered inputs.
    answered_metric: &'static str,
}

impl EngineView {
    fn new(info: &EngineInfo, health: Health, label: Option<String>) -> Self {
        let names = match info.model.task {
            Task::Embedding { .. } | Task::SparseEmbedding => EMBED,
            _ => PREDICT,
        };
        Self {
            model_id: info.model.model_id.clone(),
            task: info.model.task.to_string(),
            dtype: info.model.dtype,
            device: info.model.device.clone(),
            health: match health {
                Health::Ready => "ready",
                Health::Starting => "starting",
                Health::Failing => "failing",
                Health::Stopping => "stopping",
            },
            max_input_length: info.max_input_length,
            max_batch_tokens: info.max_batch_tokens,
            max_concurrent_requests: info.max_concurrent_requests,
            cache_bytes: info.cache_bytes,
            label,
            mask_token: info.model.mask_token.as_ref().map(|mask| mask.text.clone()),
            answered_metric: names.success,
        }
    }
}

#[derive(Serialize)]
struct ObservedView {
    began_unix_ms: u64,
    now_s: f64,
    kept_s: u64,
    totals: TotalsView,
    waiting: usize,
    oldest_wait_ms: Option<f64>,
    until_empty_ms: f64,
    classes: Vec<ClassView>,
    unseen_batches: u64,
    batches: Vec<BatchView>,
    batch_seconds: Vec<BatchSecondView>,
    request_seconds: Vec<RequestSecondView>,
    latencies: LatenciesView,
    costs: CostsView,
    memory: MemoryView,
}

impl From<Observed> for ObservedView {
    fn from(observed: Observed) -> Self {
        Self {
            began_unix_ms: unix_ms(observed.began),
            now_s: observed.now.as_secs_f64(),
            kept_s: SECONDS,
            totals: observed.totals.into(),
            waiting: observed.waiting,
            oldest_wait_ms: observed.oldest_wait.map(ms),
            until_empty_ms: ms(observed.until_empty),
            classes: observed.classes.into_iter().map(Into::into).collect(),
            unseen_batches: observed.unseen,
            batches: observed.batches.into_iter().map(Into::into).collect(),
            batch_seconds: observed.batch_seconds.into_iter().map(Into::into).collect(),
            request_seconds: observed.request_seconds.into_iter().map(Into::into).collect(),
            latencies: observed.latencies.into(),
            costs: observed.costs.into(),
            memory: observed.memory.into(),
        }
    }
}

#[derive(Serialize)]
struct ClassView {
    priority: &'static str,
    waiting: usize,
    answered: u64,
    inputs_of_minute: u64,
    minute: Option<PercentilesView>,
}

impl From<Class> for ClassView {
    fn from(Class { priority, waiting, answered, inputs, minute }: Class) -> Self {
        let (priority, minute) = (priority.name(), minute.map(Into::into));
        Self { priority, waiting, answered, inputs_of_minute: inputs, minute }
    }
}

#[derive(Serialize)]
struct MemoryView {
    largest_planned_bytes: usize,
    last_planned_bytes: usize,
    weights_bytes: usize,
    activations_bytes: usize,
}

impl From<Memory> for MemoryView {
    fn from(Memory { largest_planned, last_planned, held }: Memory) -> Self {
        Self {
            largest_planned_bytes: largest_planned,
            last_planned_bytes: last_planned,
            weights_bytes: held.weights,
            activations_bytes: held.activations,
        }
    }
}

#[derive(Serialize)]
struct TotalsView {
    batches: u64,
    inputs: u64,
    tokens: u64,
    padded_tokens: u64,
    answered: u64,
    #[serde(flatten)]
    origins: OriginsView,
    #[serde(flatten)]
    misses: MissesView,
}

impl From<Totals> for TotalsView {
    fn from(totals: Totals) -> Self {
        let Totals { batches, inputs, tokens, padded_tokens, answered, origins, misses } = totals;
        let (origins, misses) = (origins.into(), misses.into());
        Self { batches, inputs, tokens, padded_tokens, answered, origins, misses }
    }
}

#[derive(Serialize)]
struct OriginsView {
    cache_memory: u64,
    cache_folder: u64,
    cache_redis: u64,
    cache_shared: u64,
    cache_misses: u64,
}

impl From<Origins> for OriginsView {
    fn from(Origins { memory, folder, redis, shared, misses }: Origins) -> Self {
        Self {
            cache_memory: memory,
            cache_folder: folder,
            cache_redis: redis,
            cache_shared: shared,
            cache_misses: misses,
        }
    }
}

#[derive(Serialize)]
struct MissesView {
    refused_slots: u64,
    refused_deadline: u64,
    expired: u64,
    late: u64,
}

impl From<Misses> for MissesView {
    fn from(Misses { slots, deadline, expired, late }: Misses) -> Self {
        Self { refused_slots: slots, refused_deadline: deadline, expired, late }
    }
}

#[derive(Serialize)]
struct BatchView {
    number: u64,
    done_s: f64,
    seq_lens: Vec<u32>,
    batch_size: usize,
    max_seq_len: u32,
    tokens: u64,
    padded_tokens: u64,
    waiting: usize,
    predicted_ms: f64,
    took_ms: f64,
    longest_wait_ms: f64,
    mean_wait_ms: f64,
}

impl From<Batch> for BatchView {
    fn from(batch: Batch) -> Self {
        let Candidate { batch_size, max_seq_len, total_tokens, .. } = batch.candidate;
        Self {
            number: batch.number,
            done_s: batch.done.as_secs_f64(),
            batch_size,
            max_seq_len,
            tokens: total_tokens,
            padded_tokens: batch.candidate.padded_tokens(),
            seq_lens: batch.seq_lens,
            waiting: batch.waiting,
            predicted_ms: ms(batch.predicted),
            took_ms: ms(batch.took),
            longest_wait_ms: ms(batch.longest_wait),
            mean_wait_ms: ms(batch.mean_wait),
        }
    }
}

#[derive(Serialize)]
struct BatchSecondView {
    second: u64,
    batches: u64,
    inputs: u64,
    tokens: u64,
    padded_tokens: u64,
    took_ms: f64,
    most_waiting: usize,
    largest_inputs: usize,
    largest_tokens: u64,
    planned_bytes: Option<usize>,
}

impl From<(u64, BatchSecond)> for BatchSecondView {
    fn from((second, sum): (u64, BatchSecond)) -> Self {
        Self {
            second,
            batches: sum.batches,
            inputs: sum.inputs,
            tokens: sum.tokens,
            padded_tokens: sum.padded_tokens,
            took_ms: ms(sum.took),
            most_waiting: sum.most_waiting,
            largest_inputs: sum.largest.batch_size,
            largest_tokens: sum.largest.total_tokens,
            planned_bytes: sum.planned_bytes,
        }
    }
}

#[derive(Serialize)]
struct RequestSecondView {
    second: u64,
    answered: u64,
    #[serde(flatten)]
    origins: OriginsView,
    #[serde(flatten)]
    misses: MissesView,
}

impl From<(u64, RequestSecond)> for RequestSecondView {
    fn from((second, RequestSecond { answered, origins, misses }): (u64, RequestSecond)) -> Self {
        Self { second, answered, origins: origins.into(), misses: misses.into() }
    }
}

#[derive(Serialize)]
struct LatenciesView {
    inputs_of_minute: u64,
    minute: Option<PercentilesView>,
    interval_s: u64,
    intervals: Vec<IntervalView>,
}

#[derive(Serialize)]
struct IntervalView {
    began_s: f64,
    #[serde(flatten)]
    percentiles: PercentilesView,
}

#[derive(Serialize)]
struct PercentilesView {
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
}

impl From<Latencies> for LatenciesView {
    fn from(Latencies { inputs, minute, intervals }: Latencies) -> Self {
        let interval = |(began, percentiles): (Duration, Percentiles)| IntervalView {
            began_s: began.as_secs_f64(),
            percentiles: percentiles.into(),
        };
        Self {
            inputs_of_minute: inputs,
            minute: minute.map(Into::into),
            interval_s: INTERVAL.as_secs(),
            intervals: intervals.into_iter().map(interval).collect(),
        }
    }
}

impl From<Percentiles> for PercentilesView {
    fn from(Percentiles { p50, p90, p99 }: Percentiles) -> Self {
        Self { p50_ms: ms(p50), p90_ms: ms(p90), p99_ms: ms(p99) }
    }
}

#[derive(Serialize)]
struct CostsView {
    layout: &'static str,
    seq_lens: Vec<u32>,
    batch_sizes: Vec<usize>,
    /// A row for each length, `None` where no such batch is formed.
    cells_ms: Vec<Vec<Option<f64>>>,
    /// Whether each cell is outside the measured range.
    extrapolated: Vec<Vec<bool>>,
    line_ms: Option<LineView>,
    measured: Vec<MeasuredView>,
}

#[derive(Serialize)]
struct LineView {
    fixed: f64,
    per_token: f64,
    per_len_sq: f64,
    per_request: f64,
}

#[derive(Serialize)]
struct MeasuredView {
    batch_size: usize,
    max_seq_len: u32,
    tokens: u64,
    took_ms: f64,
}

impl From<CostMap> for CostsView {
    fn from(map: CostMap) -> Self {
        let rows = || map.cells.chunks(map.batch_sizes.len().max(1));
        let in_ms = |Line { fixed, per_token, per_len_sq, per_request }: Line| LineView {
            fixed: fixed * 1e3,
            per_token: per_token * 1e3,
            per_len_sq: per_len_sq * 1e3,
            per_request: per_request * 1e3,
        };
        Self {
            layout: match map.layout {
                Layout::Packed => "packed",
                Layout::Padded => "padded",
            },
            cells_ms: rows()
                .map(|row| row.iter().map(|cell| cell.map(|cell| cell.seconds * 1e3)).collect())
                .collect(),
            extrapolated: rows()
                .map(|row| {
                    row.iter().map(|cell| cell.is_some_and(|it| it.source == Source::Extrapolated)).collect()
                })
                .collect(),
            line_ms: map.line.map(in_ms),
            measured: map
                .measured
                .iter()
                .map(|batch| MeasuredView {
                    batch_size: batch.candidate.batch_size,
                    max_seq_len: batch.candidate.max_seq_len,
                    tokens: batch.candidate.total_tokens,
                    took_ms: ms(batch.took),
                })
                .collect(),
            seq_lens: map.seq_lens,
            batch_sizes: map.batch_sizes,
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::{
        HeldBytes, Priority,
        observed::{Cell, MeasuredBatch},
    };

    #[test]
    fn the_numbers_are_those_that_were_observed_in_the_units_of_their_names() {
        let ms = Duration::from_millis;
        let candidate: Candidate = [3, 5, 2].into_iter().collect();
        let origins = Origins { memory: 1, folder: 4, redis: 5, shared: 2, misses: 3 };
        let misses = Misses { slots: 11, deadline: 12, expired: 13, late: 14 };
        let percentiles = Percentiles { p50: ms(2), p90: ms(30), p99: ms(400) };
        let second = BatchSecond {
            batches: 4,
            inputs: 9,
            tokens: 40,
            padded_tokens: 60,
            took: ms(700),
            most_waiting: 11,
            largest: candidate,
            planned_bytes: Some(4096),
        };
        let cell = |seconds, source| Some(Cell { seconds, source });
        let observed = Observed {
            began: UNIX_EPOCH + ms(1_700_000_000_123),
            now: ms(61_500),
            totals: Totals {
                batches: 1,
                inputs: 2,
                tokens: 3,
                padded_tokens: 4,
                answered: 5,
                origins: Origins { memory: 6, folder: 16, redis: 17, shared: 7, misses: 8 },
                misses: Misses { slots: 21, deadline: 22, expired: 23, late: 24 },
            },
            waiting: 9,
            oldest_wait: Some(ms(70)),
            until_empty: ms(350),
            classes: vec![Class {
                priority: Priority::High,
                waiting: 3,
                answered: 31,
                inputs: 32,
                minute: Some(percentiles),
            }],
            batches: vec![Batch {
                number: 12,
                done: ms(61_250),
                seq_lens: vec![3, 5, 2],
                candidate,
                waiting: 6,
                predicted: ms(10),
                took: ms(12),
                longest_wait: ms(8),
                mean_wait: ms(4),
            }],
            batch_seconds: vec![(60, second)],
            request_seconds: vec![(61, RequestSecond { answered: 6, origins, misses })],
            latencies: Latencies {
                inputs: 77,
                minute: Some(percentiles),
                intervals: vec![(ms(55_000), percentiles)],
            },
            costs: CostMap {
                layout: Layout::Packed,
                seq_lens: vec![1, 8],
                batch_sizes: vec![1, 2],
                cells: vec![
                    cell(0.001, Source::Interpolated),
                    cell(0.002, Source::Extrapolated),
                    cell(0.004, Source::Measured),
                    None,
                ],
                line: Some(Line { fixed: 0.5, per_token: 0.25, per_len_sq: 0.125, per_request: 0.0625 }),
                measured: vec![MeasuredBatch { candidate, took: ms(9) }],
            },
            memory: Memory {
                largest_planned: 65536,
                last_planned: 4095,
                held: HeldBytes { weights: 123, activations: 70000 },
            },
            unseen: 10,
        };
        let percentiles = json!({ "p50_ms": 2.0, "p90_ms": 30.0, "p99_ms": 400.0 });
        let expected = json!({
            "began_unix_ms": 1_700_000_000_123_u64, "now_s": 61.5, "kept_s": 180,
            "totals": {
                "batches": 1, "inputs": 2, "tokens": 3, "padded_tokens": 4, "answered": 5,
                "cache_memory": 6, "cache_folder": 16, "cache_redis": 17, "cache_shared": 7, "cache_misses": 8,
                "refused_slots": 21, "refused_deadline": 22, "expired": 23, "late": 24,
            },
            "waiting": 9, "oldest_wait_ms": 70.0, "until_empty_ms": 350.0,
            "classes": [{
                "priority": "high", "waiting": 3, "answered": 31, "inputs_of_minute": 32, "minute": percentiles,
            }], "unseen_batches": 10,
            "batches": [{
                "number": 12, "done_s": 61.25, "seq_lens": [3, 5, 2], "batch_size": 3, "max_seq_len": 5,
                "tokens": 10, "padded_tokens": 15, "waiting": 6, "predicted_ms": 10.0, "took_ms": 12.0,
                "longest_wait_ms": 8.0, "mean_wait_ms": 4.0,
            }],
            "batch_seconds": [{
                "second": 60, "batches": 4, "inputs": 9, "tokens": 40, "padded_tokens": 60, "took_ms": 700.0,
                "most_waiting": 11, "largest_inputs": 3, "largest_tokens": 10, "planned_bytes": 4096,
            }],
            "request_seconds": [
                {
                    "second": 61, "answered": 6, "cache_memory": 1, "cache_folder": 4, "cache_redis": 5,
                    "cache_shared": 2, "cache_misses": 3, "refused_slots": 11, "refused_deadline": 12,
                    "expired": 13, "late": 14,
                },
            ],
            "latencies": {
                "inputs_of_minute": 77, "minute": percentiles, "interval_s": 5,
                "intervals": [{ "began_s": 55.0, "p50_ms": 2.0, "p90_ms": 30.0, "p99_ms": 400.0 }],
            },
            "costs": {
                "layout": "packed", "seq_lens": [1, 8], "batch_sizes": [1, 2],
                "cells_ms": [[1.0, 2.0], [4.0, null]], "extrapolated": [[false, true], [false, false]],
                "line_ms": { "fixed": 500.0, "per_token": 250.0, "per_len_sq": 125.0, "per_request": 62.5 },
                "measured": [{ "batch_size": 3, "max_seq_len": 5, "tokens": 10, "took_ms": 9.0 }],
            },
            "memory": {
                "largest_planned_bytes": 65536, "last_planned_bytes": 4095, "weights_bytes": 123,
                "activations_bytes": 70000,
            },
        });
        assert_eq!(serde_json::to_value(ObservedView::from(observed)).unwrap(), expected);
    }
}
