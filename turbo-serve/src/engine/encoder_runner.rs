//! An encoder of turbo-models, as the engine's [`Runner`].

use std::time::{Duration, Instant};

use turbo_models::{
    CacheUse, Checkpoint, Encoder, EncoderKernels, EncoderMemory, EncoderOptions, ModelError, RowKind,
    Staging,
    graph::{
        GraphError,
        kernels::{DeviceError, KernelError},
    },
};
use turbo_sched::Candidate;

use super::{
    BuildRunner, Capacity, DeviceLost, HeldBytes, MAX_SELECTED, Progress, Rows, RunError, Runner, Sequence,
    start::{reserved::Reserved, resident::available_bytes},
};

/// Compiles the checkpoint, with memory for the capacity.
pub(super) fn build<D: EncoderKernels>(
    device: D,
    checkpoint: Checkpoint,
    options: EncoderOptions,
) -> BuildRunner {
    Box::new(move |capacity| {
        let started = Instant::now();
        let encoder = Encoder::new(device.clone(), &checkpoint, options.clone()).map_err(failed)?;
        tell(&encoder, started.elapsed());
        let selects = encoder.selected_len().is_some();
        let mut runner = EncoderRunner {
            encoder,
            staging: Staging::new(),
            capacity,
            selects,
            stopped: false,
            reserved: Reserved::default(),
        };
        runner.reserve(capacity)?;
        Ok(Box::new(runner))
    })
}

/// Logs the memory of the weights, and whether they were restored from the cache.
fn tell<D: EncoderKernels>(encoder: &Encoder<D>, took: Duration) {
    let EncoderMemory { packed_bytes, table_bytes, .. } = encoder.memory();
    let (packed_mb, tables_mb, took_ms) =
        (packed_bytes / 1_000_000, table_bytes / 1_000_000, took.as_millis() as u64);
    let Some(CacheUse { file, restored, packed, warning }) = encoder.cache_use() else {
        return tracing::info!(packed_mb, tables_mb, took_ms, "weights are packed");
    };
    if let Some(warning) = warning {
        tracing::warn!(file = %file.display(), warning, "packed weights are not kept, or not used");
    }
    let file = file.display();
    if *packed == 0 && *restored > 0 {
        tracing::info!(packed_mb, tables_mb, took_ms, %file, "packed weights are those of an earlier start");
    } else {
        tracing::info!(packed_mb, tables_mb, took_ms, %file, "weights are packed");
    }
}

fn of_models(capacity: Capacity, selects: bool) -> turbo_models::Capacity {
    let Capacity { batch_size, total_tokens, max_seq_len } = capacity;
    let selected_rows = if selects { (batch_size * MAX_SELECTED).min(total_tokens) } else { 0 };
    turbo_models::Capacity { batch_size, total_tokens, max_seq_len, selected_rows }
}

/// An encoder. On a device that computes asynchronously, the next batch is launched behind the running one.
struct EncoderRunner<D: EncoderKernels> {
    encoder: Encoder<D>,
    staging: Staging,
    capacity: Capacity,
    /// Whether it gives rows of selected tokens.
    selects: bool,
    /// Whether the last batch was cancelled.
    stopped: bool,
    /// Its reserved memory, which the system counts as free until it is touched.
    reserved: Reserved,
}

impl<D: EncoderKernels> Runner for EncoderRunner<D> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn depth(&self) -> usize {
        self.encoder.depth()
    }

    fn footprint(&mut self, batch: &Candidate) -> usize {
        let capacity = Capacity {
            batch_size: batch.batch_size,
            total_tokens: usize::try_from(batch.total_tokens).unwrap_or(usize::MAX),
            max_seq_len: batch.max_seq_len as usize,
        };
        self.encoder.planned_bytes(of_models(capacity, self.selects))
    }

    fn held_bytes(&self) -> HeldBytes {
        let EncoderMemory { packed_bytes, table_bytes, footprint_bytes, output_bytes, scratch_bytes } =
            self.encoder.memory();
        HeldBytes {
            weights: packed_bytes + table_bytes,
            activations: footprint_bytes + output_bytes + scratch_bytes,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        match self.encoder.free_bytes() {
            // a device that computes in the memory of the process
            Ok(None) => Some(available_bytes()?.saturating_sub(self.reserved.of_others())),
            Ok(free) => free,
            // a device that cannot report it fails when memory is reserved
            Err(_) => None,
        }
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        let of_models = of_models(capacity, self.selects);
        self.encoder.reserve(of_models).map_err(failed)?;
        self.staging = Staging::with_capacity(of_models);
        self.capacity = capacity;
        if let Ok(None) = self.encoder.free_bytes() {
            self.reserved.set(self.held_bytes().activations as u64);
        }
        Ok(())
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        self.staging.clear();
        let mut wanted = [false; RowKind::ALL.len()];
        for Sequence { input_ids, token_type_ids, selected, rows } in batch {
            self.encoder.push(&mut self.staging, input_ids, token_type_ids)?;
            if self.selects {
                self.staging.select(selected)?;
            }
            match rows {
                Some(rows) => wanted[RowKind::from(rows) as usize] = true,
                None => wanted = [true; RowKind::ALL.len()],
            }
        }
        self.reserved.touched(self.staging.total_tokens() as f64 / self.capacity.total_tokens as f64);
        let rows = RowKind::ALL.into_iter().filter(|&rows| wanted[rows as usize]);
        if self.depth() > 1 {
            return self.encoder.run_behind(&self.staging, rows).map_err(failed);
        }
        let ran = self.encoder.run_for(&self.staging, rows, keep_going);
        self.stopped = matches!(ran, Err(ModelError::Graph(GraphError::Stopped)));
        if self.stopped { Ok(()) } else { ran.map_err(failed) }
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(match self.encoder.is_done().map_err(failed)? {
            _ if self.stopped => Progress::Stopped,
            true => Progress::Done,
            false => Progress::Running,
        })
    }

    fn read(&mut self, sequence: usize, rows: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        match rows {
            Rows::Pooled => self.encoder.pooled(sequence, to),
            Rows::Tokens => self.encoder.tokens(sequence, to),
            Rows::Selected => self.encoder.selected(sequence, to),
        }
        .map_err(failed)
    }

    fn release(&mut self) {
        self.stopped = false;
        self.encoder.forget_oldest();
    }
}

/// The runner's error for an encoder's error, which is [`DeviceLost`] if the device is lost.
fn failed(error: ModelError) -> RunError {
    let is_lost = matches!(
        &error,
        ModelError::Graph(
            GraphError::Device(DeviceError::Lost { .. })
                | GraphError::Kernel(KernelError::Device(DeviceError::Lost { .. }))
        )
    );
    let error = RunError::from(error);
    if is_lost { DeviceLost(error).into() } else { error }
}

impl From<Rows> for RowKind {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Pooled => RowKind::Pooled,
            Rows::Tokens => RowKind::Tokens,
            Rows::Selected => RowKind::Selected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_device_is_lost_is_told_as_that() {
        let lost = || DeviceError::Lost { what: "wait", why: "it fell off the bus".into() };
        let other = DeviceError::Failed { what: "wait", why: "it is busy".into() };
        for (error, is_lost) in [
            (GraphError::from(lost()), true),
            (KernelError::from(lost()).into(), true),
            (other.into(), false),
            (GraphError::Stopped, false),
        ] {
            let told = failed(error.into());
            assert_eq!(told.is::<DeviceLost>(), is_lost, "{told}");
        }
    }
}
