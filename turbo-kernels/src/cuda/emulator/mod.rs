//! The processor acting as a GPU: the same device code, compiled as C++ and run thread by thread.
//!
//! ```text
//! common.cuh + family.cu ──cuda_on_cpu──▶ C++ ──compiler──▶ library ──▶ one fiber per CUDA thread
//! ```
//!
//! For tests: it finds what a GPU hides (a missing barrier, a lane that is not there, shared memory before it is
//! written) and needs a C++ compiler when it runs, none when the crate is built.

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

/// Which of the threads that can go on does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The next one.
    Forward,
    /// The one before.
    Reverse,
    /// Any, by a generator of this seed.
    Seeded(u64),
}

/// A change of device code, to see whether a test finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edit {
    /// What is replaced where it is first found in a unit, if it is.
    pub from: &'static str,
    /// What stands there instead.
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

/// Whether this process runs under AddressSanitizer, which then sees what kernels touch.
#[must_use]
pub fn is_sanitized() -> bool {
    Sanitizer::of_this_process().is_some()
}

impl Emulator {
    /// # Errors
    /// When there is no C++ compiler (`c++`, or what `CXX` names), or the system is not Linux.
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

    /// The same GPU, which runs all device code changed.
    #[must_use]
    pub fn edited(self, edit: Edit) -> Emulator {
        Emulator { edit: Some(edit), ..self }
    }

    /// The same GPU, as one of this compute capability.
    #[must_use]
    pub fn of_capability(mut self, compute_capability: (u32, u32)) -> Emulator {
        self.info.compute_capability = compute_capability;
        self
    }

    /// From now on an operation runs when the host waits for it. A check whether it is done runs the oldest operation
    /// alone, so it shows that the host went on, and in which order, without a clock.
    pub fn lag(&self) {
        self.operations.lag();
    }

    /// Operations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.operations.waiting()
    }

    /// An emulated GPU for a test, or none, in which case the test says so and ends.
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

    /// From now on there are no more than so many free bytes.
    pub fn leave_free(&self, bytes: u64) {
        self.memory.leave_free(bytes);
    }

    /// Allocations so far.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.memory.asked()
    }
}

// SAFETY: memory is the host's, of as many bytes as were requested, and all operations are in one list, which is done
// before any goes; `freed` is one.
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
