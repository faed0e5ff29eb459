//! The processor acting as a GPU: it runs the same device code, compiled as C++, thread by thread.
//!
//! ```text
//! common.cuh + family.cu ──cuda_on_cpu──▶ C++ ──compiler──▶ library ──▶ one fiber per CUDA thread
//! ```
//!
//! It is for tests: it finds mistakes that a GPU hides (a missing barrier, a lane that does not exist, reads of shared
//! memory that was never written). It needs a C++ compiler when it runs, and none when the crate is built.

mod compile;
mod library;
mod memory;
mod product;
mod sanitizer;
mod stream;

#[cfg(test)]
mod tests;

use std::{env, sync::Arc};

use memory::{MEMORY_BYTES, Memory};
use sanitizer::Sanitizer;
use stream::{EmulatedStream, Operations};

use super::{Address, DeviceInfo, Driver, Freed, Stream};
use crate::device::DeviceError;

/// The order in which threads that can continue do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The next thread first.
    Forward,
    /// The previous thread first.
    Reverse,
    /// Any thread, chosen by a generator with this seed.
    Seeded(u64),
}

/// A change of device code, to check that a test finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edit {
    /// The text whose first occurrence in a unit is replaced, if there is one.
    pub from: &'static str,
    /// The replacement.
    pub to: &'static str,
}

/// An emulated GPU.
#[derive(Debug)]
pub struct Emulator {
    order: Order,
    edit: Option<Edit>,
    info: DeviceInfo,
    memory: Arc<Memory>,
    freed: Freed,
    operations: Arc<Operations>,
}

/// Whether this process runs under AddressSanitizer, which then checks the memory that kernels touch.
#[must_use]
pub fn is_sanitized() -> bool {
    Sanitizer::of_this_process().is_some()
}

impl Emulator {
    /// # Errors
    /// When there is no C++ compiler (`c++`, or the one that `CXX` names), or the system is not Linux.
    pub fn new(order: Order) -> Result<Emulator, DeviceError> {
        let failed = |why: &str| DeviceError::Failed { what: "emulate a GPU", why: why.to_owned() };
        if cfg!(not(target_os = "linux")) {
            return Err(failed("stacks and shared memory are made as Linux has them"));
        }
        compile::compiler_version().map_err(failed)?;
        let info = DeviceInfo {
            name: "emulated GPU".to_owned(),
            compute_capability: (9, 0),
            multiprocessors: 4,
            memory_bytes: MEMORY_BYTES,
        };
        let memory: Arc<Memory> = Arc::default();
        let operations = Arc::new(Operations::new(&memory));
        Ok(Emulator { order, edit: None, info, memory, freed: Freed::default(), operations })
    }

    /// The same GPU, which applies `edit` to all device code.
    #[must_use]
    pub fn edited(self, edit: Edit) -> Emulator {
        Emulator { edit: Some(edit), ..self }
    }

    /// The same GPU with this compute capability.
    #[must_use]
    pub fn of_capability(mut self, compute_capability: (u32, u32)) -> Emulator {
        self.info.compute_capability = compute_capability;
        self
    }

    /// Delays operations from now on: each runs when the host waits for it. A check whether an operation is done runs
    /// only the oldest one. So a test shows, without a clock, that the host went on, and in which order.
    pub fn lag(&self) {
        self.operations.lag();
    }

    /// The number of operations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.operations.waiting()
    }

    /// An emulated GPU for a test, or `None`, in which case this says so and the test ends.
    ///
    /// # Panics
    /// When there is no compiler although `TURBO_REQUIRE_EMULATOR=1`.
    #[must_use]
    pub fn or_skip(order: Order) -> Option<Emulator> {
        let emulator = Emulator::new(order);
        let required = env::var_os("TURBO_REQUIRE_EMULATOR").is_some_and(|value| value == "1");
        match emulator {
            Err(error) if required => panic!("TURBO_REQUIRE_EMULATOR=1: {error}"),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
            Ok(emulator) => Some(emulator),
        }
    }

    /// Leaves `bytes` bytes of memory free.
    pub fn leave_free(&self, bytes: u64) {
        self.memory.leave_free(bytes);
    }

    /// The number of allocations so far.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.memory.asked()
    }
}

// SAFETY: memory is the host's, with as many bytes as were requested; all operations are in one list, which is done
// before any memory is freed; there is one `freed`.
unsafe impl Driver for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.memory.free_bytes())
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.memory.allocate(bytes)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        self.operations.do_all();
        // SAFETY: the caller's promise; nothing is enqueued any more.
        unsafe { self.memory.free(address, bytes) }
    }

    fn freed(&self) -> &Freed {
        &self.freed
    }

    fn stream(&self) -> Result<Box<dyn Stream>, DeviceError> {
        Ok(Box::new(EmulatedStream::new(self.order, self.edit, &self.operations)))
    }
}
