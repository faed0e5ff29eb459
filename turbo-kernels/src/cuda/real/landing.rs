//! Copies to pinned memory: the host goes on, and checks now and then whether they are done.

use std::sync::Arc;

use super::{
    context::{Context, Event, Pinned, RawStream},
    cu,
    error::check,
};
use crate::{
    cuda::{Address, Landing},
    device::DeviceError,
};

/// Pinned memory, and an event that marks the last copy to it.
#[derive(Debug)]
pub(super) struct PinnedLanding {
    stream: Arc<RawStream>,
    memory: Option<Pinned>,
    /// Marks the last copy.
    copied: Event,
    /// Bytes of the last copy.
    bytes: usize,
}

impl PinnedLanding {
    pub(super) fn new(context: &Arc<Context>, stream: &Arc<RawStream>) -> Result<Self, DeviceError> {
        Ok(Self { stream: stream.clone(), memory: None, copied: Event::new(context)?, bytes: 0 })
    }
}

impl Landing for PinnedLanding {
    fn reserve(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < bytes) {
            // waits for the last copy, whose memory is freed and whose values are not read any more
            self.copied.synchronize()?;
            (self.memory, self.bytes) = (None, 0);
            // with room for somewhat longer copies, since pinning memory can take as long as a batch
            let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
            self.memory = Some(Pinned::new(self.stream.context(), bytes)?);
        }
        Ok(())
    }

    unsafe fn fetch(&mut self, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.reserve(bytes)?;
        // held until the copy is marked: a recording begun by another thread would include it, and write here with each
        // replay
        let _outside = self.stream.outside_recordings("copy from the GPU")?;
        self.stream.context().enter()?;
        self.bytes = bytes;
        if let Some(memory) = self.memory.as_mut().filter(|_| bytes > 0) {
            // SAFETY: the caller promises that `from` holds `bytes` bytes; as many bytes are pinned here, belong to
            // `self` alone, and live until the copy is done.
            check("copy from the GPU", unsafe {
                cu::cuMemcpyDtoHAsync_v2(memory.first().cast(), from.0, bytes, self.stream.handle)
            })?;
        }
        self.copied.record(&self.stream)
    }

    fn has_landed(&mut self) -> Result<bool, DeviceError> {
        self.copied.is_passed()
    }

    fn bytes(&mut self) -> Result<&[u8], DeviceError> {
        self.copied.synchronize()?;
        let bytes = self.bytes;
        Ok(self.memory.as_mut().map_or(&[], |memory| &memory.bytes_mut()[..bytes]))
    }
}

impl Drop for PinnedLanding {
    /// Frees memory after the copy. On a lost GPU, no copy is under way.
    fn drop(&mut self) {
        drop(self.copied.synchronize());
    }
}
