//! The start of the worker: its thread builds the model, warms it up, and then runs the worker.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use turbo_sched::{Batcher, BatcherConfig};

use super::{
    batch_tokens::longest_of,
    cost_cache::{CostCache, CostKeeper, CostKey},
    resident::resident_bytes,
    warm_up::{Warm, WarmUp},
};
use crate::engine::{
    Capacity, EngineConfig, EngineInfo, Health, Model, Runner, Seat, StartError,
    admit::{abandoned::Abandoned, forecast::Forecast},
    causes::panic_message,
    compute::{guarded_runner::GuardedRunner, inbox::Arrivals, lead::Lead, queue::Queue, worker::Worker},
    health::HealthCell,
    metrics::{MemoryMetrics, QueueMetrics},
    observed::Observer,
};

/// What the worker thread starts with.
pub(in crate::engine) struct WorkerStart {
    pub model: Model,
    pub config: EngineConfig,
    pub info: EngineInfo,
    pub arrivals: Arrivals,
    pub epoch: Instant,
    pub health: Arc<HealthCell>,
    pub abandoned: Arc<Abandoned>,
    pub observer: Arc<Observer>,
}

impl WorkerStart {
    /// Starts the thread and waits until its model is warm, or has failed; returns the largest batch and the forecast.
    pub(in crate::engine) fn spawn(self) -> Result<(JoinHandle<()>, Capacity, Arc<Forecast>), StartError> {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("turbo-worker".into());
        let health = Arc::clone(&self.health);
        let thread = thread.spawn(move || {
            let prepared = catch_unwind(AssertUnwindSafe(|| self.prepare()))
                .unwrap_or_else(|panic| Err(StartError::Panicked(panic_message(&*panic))));
            let worker = prepared.map_err(|error| ready.send(Err(error)));
            if let Ok(worker) = worker
                && ready.send(Ok((worker.runner.capacity(), Arc::clone(&worker.forecast)))).is_ok()
            {
                // A batch's panic is caught where it runs; this one is for bugs of the worker itself.
                if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                    tracing::error!("the worker has ended, no request can be answered any more");
                }
                health.set(Health::Failing);
            }
        })?;
        match is_ready.recv() {
            Ok(Ok((capacity, forecast))) => Ok((thread, capacity, forecast)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::Panicked("its thread ended".into())),
        }
    }

    /// Builds the model, measures it, and makes the worker that runs it.
    fn prepare(mut self) -> Result<Worker, StartError> {
        let seat = self.config.turns.join();
        let Warmed { mut runner, warm, cache, building } = self.warmed(&seat)?;
        let reserved_bytes = runner.footprint(&warm.capacity.largest(self.model.layout));
        tell(&warm, reserved_bytes);
        let batching = self.batching(&warm);
        let Warm { costs, capacity, measured, .. } = warm;
        let longest = u32::try_from(capacity.max_seq_len).unwrap_or(u32::MAX);
        self.observer.begins(&costs, batching.batch_limits(), longest, &measured);
        let label = self.config.label.as_deref();
        let mut memory = MemoryMetrics::new(label, Arc::clone(&self.observer));
        memory.reserved(reserved_bytes, runner.held_bytes());
        let forecast = Arc::new(Forecast::new(self.epoch, &batching, costs.clone(), seat.clone()));
        let queue = Queue::new(
            self.arrivals,
            Batcher::new(batching, costs),
            self.config.max_concurrent_requests,
            self.epoch,
            Arc::clone(&forecast),
            Arc::clone(&self.abandoned),
            QueueMetrics::new(label, Arc::clone(&self.observer)),
        );
        self.health.set(Health::Ready);
        Ok(Worker {
            runner: GuardedRunner::new(runner, self.model.build, capacity, building),
            rows: self.model.info.rows,
            queue,
            keeper: CostKeeper::new(cache),
            forecast,
            health: self.health,
            abandoned: self.abandoned,
            observer: self.observer,
            flights: VecDeque::new(),
            seat,
            lead: Lead::default(),
            memory,
        })
    }

    /// Builds the model and warms it up.
    fn warmed(&mut self, seat: &Seat) -> Result<Warmed, StartError> {
        let warm_up = WarmUp {
            layout: self.model.layout,
            vocab_size: self.model.info.vocab_size,
            budget: self.config.warm_up,
            max_batch_tokens: self.config.max_batch_tokens,
            info: &self.info,
            clock: &Instant::now,
            seat,
        };
        let started = Instant::now();
        let mut runner = (self.model.build)(Capacity::LEAST).map_err(StartError::Runner)?;
        warm_up.reserve_first(&mut *runner)?;
        let building = started.elapsed();
        let cache = self.cost_cache(warm_up.first_capacity());
        let warm = warm_up.run(&mut *runner, cache.as_ref()).map_err(StartError::Runner)?;
        Ok(Warmed { runner, building: building + warm.reserving, warm, cache })
    }

    /// How batches are formed.
    fn batching(&self, warm: &Warm) -> BatcherConfig {
        BatcherConfig {
            policy: self.config.batching,
            dispatch: self.config.dispatch,
            ..BatcherConfig::with_limits(warm.capacity.limits(warm.shared_tokens))
        }
    }

    /// The file that keeps the costs measured for this model; `None` without a folder or an identity.
    fn cost_cache(&self, measured: Capacity) -> Option<CostCache> {
        let Model { info, layout, identity, .. } = &self.model;
        let (dir, computes) = (self.config.cost_cache.as_deref()?, identity.as_deref()?);
        let key = CostKey::new(&info.name, computes, (info.dtype, &info.device), *layout, measured);
        Some(CostCache::new(dir, key))
    }
}

/// A runner that has memory for the largest batch, and whose batches were measured.
struct Warmed {
    runner: Box<dyn Runner>,
    warm: Warm,
    cache: Option<CostCache>,
    /// How long it took to build the model and to reserve its memory.
    building: Duration,
}

/// Logs how large batches may be, and the memory for them.
fn tell(warm: &Warm, reserved_bytes: usize) {
    let Warm { costs, capacity, shared_tokens, .. } = warm;
    let largest_shared = longest_of(*shared_tokens, capacity.max_seq_len);
    tracing::info!(
        max_batch_tokens = capacity.total_tokens,
        several_inputs_share = shared_tokens,
        predicted_ms = costs.cost(&largest_shared).as_duration().as_millis() as u64,
        activations_mb = reserved_bytes / 1_000_000,
        resident_mb = resident_bytes().map(|bytes| bytes / 1_000_000),
        "memory for the largest batch is reserved"
    );
}
