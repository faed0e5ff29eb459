//! Operations that are captured once and then enqueued all at once, as a CUDA graph.

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

/// The result of a stream capture: a graph that cannot be run yet.
pub(super) struct Captured(cu::CUgraph);

impl Captured {
    /// Ends the recording of `stream`, whose context is this thread's.
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

/// Warns at the first failure that a recording failed: its operations can be enqueued one by one, which takes longer.
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

// SAFETY: the driver accepts a graph from any thread, one thread at a time.
unsafe impl Send for Runnable {}

impl Drop for Runnable {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once and destroyed once; the driver waits for a run that is under way.
            unsafe { cu::cuGraphExecDestroy(self.handle) };
        }
    }
}

/// A recording, and everything that its operations use besides their arguments. Scratch is freed only after all
/// operations that are under way. So are kernels: the blocks that they use keep the GPU alive, and are freed after the
/// operations, too.
#[derive(Debug)]
pub(super) struct Replay {
    graph: Runnable,
    stream: Arc<RawStream>,
    _scratch: Option<Arc<Scratch>>,
    shared: Arc<Shared>,
}

impl Replay {
    /// A recording of what was captured on `stream`, with the kernels of `shared` and products that use `scratch`.
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
        // SAFETY: graph, stream, kernels and scratch are alive; the caller answers for all other memory that the graph
        // uses.
        let launched = unsafe { cu::cuGraphLaunch(self.graph.handle, self.stream.handle) };
        check("replay a recording", launched).inspect_err(tell)
    }
}
