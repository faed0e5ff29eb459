//! CUDA's handles, each released when it is dropped.
//!
//! All handles belong to a [`Context`], which each of them keeps alive. If a destructor fails, its handle is released
//! only when the process ends: destructors fail when the GPU is lost, and then all of its memory is lost, too.

use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{cu, error::check};
use crate::{
    cuda::{Address, DeviceInfo},
    device::DeviceError,
};

/// The primary context of a GPU: the one that all libraries of this process share.
#[derive(Debug)]
pub(super) struct Context {
    gpu: cu::CUdevice,
    handle: cu::CUcontext,
}

// SAFETY: the driver lets any thread use a context, at once with others ("CUDA C++ Programming Guide", Driver API,
// Context); the handle itself never changes.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of `gpu`, a handle from the driver.
    pub(super) fn of(gpu: cu::CUdevice) -> Result<Arc<Self>, DeviceError> {
        let mut handle = ptr::null_mut();
        // SAFETY: `gpu` is one of the driver's; one handle is written.
        check("open the GPU", unsafe { cu::cuDevicePrimaryCtxRetain(&mut handle, gpu) })?;
        Ok(Arc::new(Self { gpu, handle }))
    }

    /// Makes this the current context of the calling thread, which every call below needs.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is alive as long as `self`.
        check("choose the GPU", unsafe { cu::cuCtxSetCurrent(self.handle) })
    }

    /// Waits for everything that anyone has enqueued in the context.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: no arguments; a context is current.
        check("wait for the GPU", unsafe { cu::cuCtxSynchronize() })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once and released once; no handle that belongs to it is left, since all keep it alive.
        unsafe { cu::cuDevicePrimaryCtxRelease_v2(self.gpu) };
    }
}

/// The driver's description of GPU number `ordinal`, which exists.
pub(super) fn describe(ordinal: u32) -> Result<(cu::CUdevice, DeviceInfo), DeviceError> {
    use cu::CUdevice_attribute as A;
    let mut gpu = 0;
    // SAFETY: writes one number, or fails when there is no such GPU.
    check("find the GPU", unsafe { cu::cuDeviceGet(&mut gpu, ordinal as i32) })?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `gpu` is one of the driver's; one number is written.
        check("ask for the GPU", unsafe { cu::cuDeviceGetAttribute(&mut value, attribute, gpu) })?;
        Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    let mut name = [0; 256];
    // SAFETY: writes at most as many bytes as stated, the last of them a zero.
    check("ask for the GPU's name", unsafe {
        cu::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, gpu)
    })?;
    let name = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect::<Vec<_>>();
    let mut memory_bytes = 0;
    // SAFETY: writes one number.
    check("ask for the GPU's memory", unsafe { cu::cuDeviceTotalMem_v2(&mut memory_bytes, gpu) })?;
    let info = DeviceInfo {
        name: String::from_utf8_lossy(&name).into_owned(),
        compute_capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
    };
    Ok((gpu, info))
}

/// Keeps recordings of a stream from beginning while it is held.
pub(super) struct Outside<'a>(MutexGuard<'a, bool>);

/// A stream of the driver. It waits for no other stream, not even for CUDA's default stream.
#[derive(Debug)]
pub(super) struct RawStream {
    context: Arc<Context>,
    pub(super) handle: cu::CUstream,
    /// Whether enqueued operations are recorded instead of done.
    is_recording: Mutex<bool>,
}

// SAFETY: the driver accepts a stream from any thread.
unsafe impl Send for RawStream {}
// SAFETY: and from several threads at once: each of the driver's functions locks the stream.
unsafe impl Sync for RawStream {}

impl RawStream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut handle = ptr::null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; one handle is written.
        check("make a stream", unsafe { cu::cuStreamCreate(&mut handle, flags) })?;
        Ok(Self { context: context.clone(), handle, is_recording: Mutex::new(false) })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn is_recording(&self) -> bool {
        *self.recording()
    }

    /// Records operations from now on.
    pub(super) fn begin_recording(&self) -> Result<(), DeviceError> {
        let mut outside = self.outside_recordings("begin a recording")?;
        self.context.enter()?;
        // Other threads, and loading a module on this one, are no part of the recording: nothing is forbidden to them.
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive, and is not one of CUDA's own.
        check("begin a recording", unsafe { cu::cuStreamBeginCapture_v2(self.handle, mode) })?;
        *outside.0 = true;
        Ok(())
    }

    /// Operations are done again from now on, instead of recorded.
    pub(super) fn recording_ended(&self) {
        *self.recording() = false;
    }

    /// Checks that there is no recording, and keeps any thread from beginning one while the result is held. A recording
    /// holds kernels and products only; the host's part of an operation would be done once, and not again at each
    /// replay.
    pub(super) fn outside_recordings(&self, what: &'static str) -> Result<Outside<'_>, DeviceError> {
        let is_recording = self.recording();
        if *is_recording {
            return Err(DeviceError::Failed { what, why: "this cannot be recorded".to_owned() });
        }
        Ok(Outside(is_recording))
    }

    fn recording(&self) -> MutexGuard<'_, bool> {
        self.is_recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for everything that was enqueued on the stream.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: the stream is alive as long as `self`.
        check("wait for the GPU", unsafe { cu::cuStreamSynchronize(self.handle) })
    }
}

impl Drop for RawStream {
    /// Waits for everything that was enqueued: afterwards the memory that it uses may be freed.
    fn drop(&mut self) {
        if self.synchronize().is_ok() {
            // SAFETY: made once and destroyed once, in its context.
            unsafe { cu::cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// A mark in a stream (a CUDA event).
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: cu::CUevent,
}

// SAFETY: the driver accepts an event from any thread.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut handle = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a context is current; one handle is written.
        check("make an event", unsafe { cu::cuEventCreate(&mut handle, flags) })?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Marks what was enqueued on `stream` so far.
    pub(super) fn record(&self, stream: &RawStream) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: event and stream are alive, and of one context.
        check("mark a stream", unsafe { cu::cuEventRecord(self.handle, stream.handle) })
    }

    /// Whether everything that the event marks is done; true when it marks nothing. Does not wait.
    pub(super) fn is_passed(&self) -> Result<bool, DeviceError> {
        self.context.enter()?;
        // SAFETY: the event is alive.
        match unsafe { cu::cuEventQuery(self.handle) } {
            cu::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("look for a copy", answer).map(|()| true),
        }
    }

    /// Waits until everything that the event marks is done; returns at once when it marks nothing.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: the event is alive.
        check("wait for a copy", unsafe { cu::cuEventSynchronize(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once and destroyed once, in its context.
            unsafe { cu::cuEventDestroy_v2(self.handle) };
        }
    }
}

/// Pinned host memory, which the GPU copies from or to while the host does other work.
#[derive(Debug)]
pub(super) struct Pinned {
    context: Arc<Context>,
    first: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory, owned by `self` alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut first = ptr::null_mut();
        // a driver need not support an allocation of no bytes
        // SAFETY: a context is current; one pointer is written.
        check("take pinned memory", unsafe { cu::cuMemHostAlloc(&mut first, bytes.max(1), 0) })?;
        let first = first.cast::<u8>();
        // SAFETY: the driver allocated `bytes` bytes; from here on they are initialised.
        unsafe { first.write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), first, bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// A pointer to the first byte, for a copy to write.
    pub(super) fn first(&mut self) -> *mut u8 {
        self.first
    }

    /// Its bytes. A copy that is under way must neither read bytes that are written here nor write any.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes from `first` on are allocated and initialised, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated once and freed once; the driver waits for copies from it.
            unsafe { cu::cuMemFreeHost(self.first.cast()) };
        }
    }
}

/// GPU memory that belongs to no block: scratch of a stream. It may hold anything.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Only operations of this stream use it.
    stream: Arc<RawStream>,
    pub(super) address: Address,
    pub(super) bytes: usize,
}

impl Scratch {
    pub(super) fn new(stream: &Arc<RawStream>, bytes: usize) -> Result<Self, DeviceError> {
        stream.context.enter()?;
        let address = take_memory(bytes)?;
        Ok(Self { stream: stream.clone(), address, bytes })
    }
}

impl Drop for Scratch {
    /// Frees the memory after everything that was enqueued.
    fn drop(&mut self) {
        if self.stream.synchronize().is_ok() {
            // SAFETY: allocated once and freed once; nothing is under way any more.
            unsafe { give_memory(self.address) };
        }
    }
}

/// Allocates memory in the current context, aligned to 256 bytes, with any contents.
pub(super) fn take_memory(bytes: usize) -> Result<Address, DeviceError> {
    let mut address = 0;
    // SAFETY: one address is written.
    match unsafe { cu::cuMemAlloc_v2(&mut address, bytes) } {
        cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory { bytes }),
        answer => check("take memory", answer).map(|()| Address(address)),
    }
}

/// Frees memory of the current context.
///
/// # Safety
/// The memory came from [`take_memory`] in this context and is freed once, and nothing uses it any more.
pub(super) unsafe fn give_memory(address: Address) {
    // SAFETY: the caller's promise.
    unsafe { cu::cuMemFree_v2(address.0) };
}
