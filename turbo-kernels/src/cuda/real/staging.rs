//! Uploads through pinned memory: the host goes on as soon as its bytes have been read.

use std::sync::Arc;

use super::{
    context::{Context, Event, Pinned, RawStream},
    cu,
    error::check,
};
use crate::{cuda::Address, device::DeviceError};

/// The size of each buffer: the launch of a copy costs little compared with copying this much.
const BYTES: usize = 4 << 20;
/// Copies begin at multiples of this in a buffer, whose size is also a multiple of it.
const ALIGNMENT: usize = 256;

/// Two buffers that are used in turn. One is filled, upload by upload, until it is full; then the other is filled, once
/// the GPU has copied its contents.
#[derive(Debug)]
pub(super) struct Staging {
    buffers: [Buffer; 2],
    current: usize,
    /// Bytes of the current buffer that copies may still read.
    filled: usize,
}

#[derive(Debug)]
struct Buffer {
    bytes: Pinned,
    /// Marks the last copy out of the buffer.
    copied: Event,
}

impl Buffer {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self { bytes: Pinned::new(context, BYTES)?, copied: Event::new(context)? })
    }
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self { buffers: [Buffer::new(context)?, Buffer::new(context)?], current: 0, filled: 0 })
    }

    /// Enqueues a copy of `from` on `stream`, which is the same in every call and whose context is this thread's.
    ///
    /// # Safety
    /// `to` holds `from.len()` bytes. `self` must live until the copy is done.
    pub(super) unsafe fn upload(
        &mut self,
        stream: &RawStream,
        mut from: &[u8],
        mut to: Address,
    ) -> Result<(), DeviceError> {
        while !from.is_empty() {
            if self.filled == BYTES {
                self.turn(stream)?;
            }
            let piece;
            (piece, from) = from.split_at(from.len().min(BYTES - self.filled));
            let place = &mut self.buffers[self.current].bytes.bytes_mut()[self.filled..][..piece.len()];
            place.copy_from_slice(piece);
            // SAFETY: `place` is pinned; it is not written before the copy is done, as `filled` moves beyond it and
            // `turn` waits; it lives as long as `self`; the caller promises that `to` has room for the bytes.
            check("copy to the GPU", unsafe {
                cu::cuMemcpyHtoDAsync_v2(to.0, place.as_ptr().cast(), place.len(), stream.handle)
            })?;
            to = to.offset(piece.len());
            self.filled = (self.filled + piece.len()).next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }

    /// Switches to the other buffer, once it is free.
    fn turn(&mut self, stream: &RawStream) -> Result<(), DeviceError> {
        self.buffers[self.current].copied.record(stream)?;
        self.current = 1 - self.current;
        self.filled = 0;
        self.buffers[self.current].copied.synchronize()
    }
}
