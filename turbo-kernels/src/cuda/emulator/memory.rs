//! Host memory that serves as device memory, with known bounds.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::sanitizer::{Confined, Sanitizer};
use crate::{
    cuda::Address,
    device::{ALIGNMENT, DeviceError},
};

/// The memory that an emulated device pretends to have.
pub(super) const MEMORY_BYTES: u64 = 8 << 30;

/// All live allocations: their sizes by address.
#[derive(Debug)]
pub(super) struct Memory {
    live: Mutex<BTreeMap<u64, usize>>,
    /// All bytes of the device.
    bytes: AtomicU64,
    /// The number of allocations so far.
    asked: AtomicU64,
}

impl Default for Memory {
    fn default() -> Self {
        let bytes = AtomicU64::new(MEMORY_BYTES);
        Memory { live: Mutex::default(), bytes, asked: AtomicU64::new(0) }
    }
}

impl Memory {
    pub(super) fn free_bytes(&self) -> u64 {
        let taken = self.live().values().map(|bytes| *bytes as u64).sum();
        self.bytes.load(Relaxed).saturating_sub(taken)
    }

    pub(super) fn leave_free(&self, bytes: u64) {
        let taken = self.bytes.load(Relaxed).saturating_sub(self.free_bytes());
        self.bytes.store(taken + bytes, Relaxed);
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    pub(super) fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.asked.fetch_add(1, Relaxed);
        let refused = DeviceError::OutOfMemory { bytes };
        let Some(layout) = layout(bytes).filter(|_| bytes as u64 <= self.free_bytes()) else {
            return Err(refused);
        };
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(layout) }.expose_provenance() as u64;
        if address == 0 {
            return Err(refused);
        }
        self.live().insert(address, bytes);
        Ok(Address(address))
    }

    /// # Safety
    /// Nothing uses the allocation any more.
    ///
    /// # Panics
    /// When there is no such allocation.
    pub(super) unsafe fn free(&self, address: Address, bytes: usize) {
        let freed = self.live().remove(&address.0);
        assert_eq!(
            freed,
            Some(bytes),
            "freed {bytes} bytes at {address:?}, where an allocation has {freed:?}"
        );
        let layout = layout(bytes).expect("it was allocated with this layout");
        // SAFETY: `allocate` returned it with this layout, and it has not been freed: it was in the list.
        unsafe { dealloc(pointer(address), layout) };
    }

    /// A pointer to `bytes` bytes of one allocation.
    ///
    /// # Errors
    /// When they do not lie in one allocation.
    pub(super) fn locate(&self, address: Address, bytes: usize) -> Result<*mut u8, DeviceError> {
        let live = self.live();
        let Some((first, len)) = live.range(..=address.0).next_back().filter(|_| bytes > 0) else {
            // no bytes are read or written, so the address may lie in no allocation
            let why = format!("{bytes} bytes at {address:?} are in no allocation");
            return if bytes == 0 {
                Ok(pointer(address))
            } else {
                Err(DeviceError::Failed { what: "memory", why })
            };
        };
        let offset = (address.0 - first) as usize;
        let end = offset.saturating_add(bytes);
        if end > *len {
            return Err(DeviceError::Bounds { offset, end, block_bytes: *len });
        }
        Ok(pointer(address))
    }

    /// Makes the sanitizer, if there is one, report accesses outside of `spans` while the result lives. Without spans,
    /// all accesses are allowed.
    pub(super) fn confine(&self, spans: &[(Address, usize)]) -> Option<Confined> {
        let sanitizer = Sanitizer::of_this_process().filter(|_| !spans.is_empty())?;
        let live: Vec<_> = self.live().iter().map(|(first, bytes)| (Address(*first), *bytes)).collect();
        Some(Confined::new(sanitizer, live, spans))
    }

    fn live(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, usize>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address.0 as usize)
}

/// The layout of exactly as many bytes as requested, so that a sanitizer finds accesses beyond them.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}
