//! Operations captured once and enqueued at once, as a graph of CUDA.

use std::{
    ptr,
    sync::{Arc, Once},
};

use super::{
    context::{Context, RawStream, Scratch},
    cu,
    error::check,
    gpu::Shared,
};
use crate::{cuda::Recording, device::DeviceError};

/// What a stream captured: a graph that cannot be run yet.
pub(super) struct Captured(cu::CUgraph);

impl Captured {
    /// Ends the recording of `stream`, in whose context this thread is.
    pub(super) fn of(stream: &RawStream) -> Result<Self, DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive and records; one handle is written.
        check("end a recording", unsafe { cu::cuStreamEndCapture(stream.handle, &mut graph) })?;
        Ok(Self(graph))
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: made once and destroyed once.
        unsafe { cu::cuGraphDestroy(self.0) };
    }
}

/// Says, for the first that fails, that recordings do: their operations can be enqueued one by one, which takes longer.
pub(super) fn tell(error: &DeviceError) {
    static TOLD: Once = Once::new();
    if !matches!(error, DeviceError::Lost { .. }) {
        TOLD.call_once(|| tracing::warn!(%error, "launches that cannot be recorded take the host longer"));
    }
}

/// A graph that can be run.
#[derive(Debug)]
struct Runnable {
    context: Arc<Context>,
    handle: cu::CUgraphExec,
}

// SAFETY: the driver takes a graph from any thread, from one at a time.
unsafe impl Send for Runnable {}

impl Drop for Runnable {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once and destroyed once; the driver waits for a run that is under way.
            unsafe { cu::cuGraphExecDestroy(self.handle) };
        }
    }
}

/// A recording, and what its operations use beside their arguments. Scratch goes behind what is under way, and kernels
/// do, since blocks that they use keep the GPU, and go behind it, too.
#[derive(Debug)]
pub(super) struct Replay {
    graph: Runnable,
    stream: Arc<RawStream>,
    _scratch: Option<Arc<Scratch>>,
    shared: Arc<Shared>,
}

impl Replay {
    /// What was captured on `stream`, with the kernels of `shared` and products that use `scratch`.
    pub(super) fn new(
        captured: &Captured,
        stream: &Arc<RawStream>,
        scratch: Option<Arc<Scratch>>,
        shared: &Arc<Shared>,
    ) -> Result<Self, DeviceError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the graph is alive; one handle is written.
        check("prepare a recording", unsafe { cu::cuGraphInstantiateWithFlags(&mut handle, captured.0, 0) })?;
        let graph = Runnable { context: shared.context.clone(), handle };
        Ok(Self { graph, stream: stream.clone(), _scratch: scratch, shared: shared.clone() })
    }
}

impl Recording for Replay {
    unsafe fn replay(&self) -> Result<(), DeviceError> {
        let _outside = self.stream.outside_recordings("replay a recording")?;
        self.shared.context.enter()?;
        // SAFETY: graph and stream are alive, and so are kernels and scratch; what else it uses, the caller answers for.
        let launched = unsafe { cu::cuGraphLaunch(self.graph.handle, self.stream.handle) };
        check("replay a recording", launched).inspect_err(tell)
    }
}
