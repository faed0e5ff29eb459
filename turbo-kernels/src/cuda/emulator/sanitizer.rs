//! AddressSanitizer, in a process that runs under it: poisons the bytes that a kernel must not touch.

use std::{ffi::c_void, sync::OnceLock};

use crate::cuda::Address;

/// The part of `sanitizer/asan_interface.h` that is used.
#[derive(Clone, Copy)]
pub(super) struct Sanitizer {
    poison: unsafe extern "C" fn(*const c_void, usize),
    unpoison: unsafe extern "C" fn(*const c_void, usize),
}

impl Sanitizer {
    /// The sanitizer; `None` in a process without one.
    pub(super) fn of_this_process() -> Option<Sanitizer> {
        static FOUND: OnceLock<Option<Sanitizer>> = OnceLock::new();
        *FOUND.get_or_init(Sanitizer::find)
    }

    #[cfg(unix)]
    fn find() -> Option<Sanitizer> {
        let this = libloading::os::unix::Library::this();
        // SAFETY: this is the type that the header declares.
        let poison = unsafe { this.get(b"__asan_poison_memory_region\0") };
        // SAFETY: as above.
        let unpoison = unsafe { this.get(b"__asan_unpoison_memory_region\0") };
        Some(Sanitizer { poison: *poison.ok()?, unpoison: *unpoison.ok()? })
    }

    #[cfg(not(unix))]
    fn find() -> Option<Sanitizer> {
        None
    }
}

/// Allocations of which only some bytes may be touched, until this is dropped.
pub(super) struct Confined {
    sanitizer: Sanitizer,
    allocations: Vec<(Address, usize)>,
}

impl Confined {
    /// Allows only the spans `allowed` inside `allocations`, which live as long as this.
    pub(super) fn new(
        sanitizer: Sanitizer,
        allocations: Vec<(Address, usize)>,
        allowed: &[(Address, usize)],
    ) -> Confined {
        let confined = Confined { sanitizer, allocations };
        for span in &confined.allocations {
            // SAFETY: poisoning changes no memory; an access to poisoned memory ends the process.
            unsafe { (sanitizer.poison)(pointer(span.0), span.1) };
        }
        for span in allowed {
            // SAFETY: the span lies in an allocation.
            unsafe { (sanitizer.unpoison)(pointer(span.0), span.1) };
        }
        confined
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        for span in &self.allocations {
            // SAFETY: this is an allocation, all of whose bytes may be touched again.
            unsafe { (self.sanitizer.unpoison)(pointer(span.0), span.1) };
        }
    }
}

fn pointer(address: Address) -> *const c_void {
    std::ptr::with_exposed_provenance(address.0 as usize)
}
