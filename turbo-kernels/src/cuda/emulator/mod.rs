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

#[cfg(test)]
mod tests;

use std::{env, ffi::c_void, sync::Arc};

use library::Kernels;
use memory::{MEMORY_BYTES, Memory};
use sanitizer::Sanitizer;

use super::{Address, DeviceInfo, Driver, Kernel, LaunchShape, Product, Stream};
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
            shared_bytes: 227 << 10,
        };
        Ok(Emulator { order, edit: None, info, memory: Arc::default() })
    }

    /// The same GPU, which runs all device code changed.
    #[must_use]
    pub fn edited(self, edit: Edit) -> Emulator {
        Emulator { edit: Some(edit), ..self }
    }

    /// An emulated GPU for a test, or none, in which case the test says so and ends.
    ///
    /// # Panics
    /// When there is no compiler although `TURBO_REQUIRE_EMULATOR` is set.
    #[must_use]
    pub fn or_skip(order: Order) -> Option<Emulator> {
        let emulator = Emulator::new(order);
        let required = env::var_os("TURBO_REQUIRE_EMULATOR").is_some_and(|value| value != "0");
        match emulator {
            Err(error) if required => panic!("TURBO_REQUIRE_EMULATOR is set: {error}"),
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

    /// How often memory was asked for.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.memory.asked()
    }
}

impl Driver for Emulator {
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
        // SAFETY: the caller's promise; streams do everything at once.
        unsafe { self.memory.free(address, bytes) }
    }

    fn stream(&self) -> Result<Box<dyn Stream>, DeviceError> {
        let memory = Arc::clone(&self.memory);
        let (order, edit) = (self.order, self.edit);
        Ok(Box::new(EmulatedStream { order, edit, memory, confined_to: Vec::new() }))
    }
}

/// Does each operation before it returns.
struct EmulatedStream {
    order: Order,
    edit: Option<Edit>,
    memory: Arc<Memory>,
    /// What the next kernel may touch.
    confined_to: Vec<(Address, usize)>,
}

impl Stream for EmulatedStream {
    unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let failed = |why| DeviceError::Failed { what: kernel.name, why };
        let _confined = self.memory.confine(&std::mem::take(&mut self.confined_to));
        Kernels::of(kernel.module, self.edit, |kernels| {
            // SAFETY: the caller's promise.
            unsafe { kernels.launch(kernel.name, shape, self.order, args) }
        })
        .map_err(failed)
    }

    fn confine(&mut self, spans: &[(Address, usize)]) {
        self.confined_to = spans.to_vec();
    }

    unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { product::multiply(&self.memory, product) }
    }

    unsafe fn upload(&mut self, from: &[u8], to: Address) -> Result<(), DeviceError> {
        let to = self.memory.locate(to, from.len())?;
        // SAFETY: as many bytes lie there; the caller vouches for nobody else's using them, so they are not `from`.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.memory.locate(from, to.len())?;
        // SAFETY: as many bytes lie there, in memory that no slice of the host's is in.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}
