//! Kernels by name: compiled, loaded and looked up at their first launch.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::CString,
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use super::{compiler::Compiler, context::Context, cu, cubins::Cubins, error::check};
use crate::{
    cuda::{Kernel, Module},
    device::DeviceError,
};

/// The code in front of every file of kernels.
const COMMON: &str = include_str!("../common.cuh");
/// Bytes of shared memory that a block may use without opting in to more.
const USUAL_SHARED_BYTES: u32 = 48 * 1024;

/// The source that NVRTC compiles for a file of kernels.
pub(super) fn unit(module: &Module) -> String {
    format!("{COMMON}\n#line 1 \"{}.cu\"\n{}", module.name, module.source)
}

/// The kernels of one GPU.
#[derive(Debug)]
pub(super) struct Modules {
    context: Arc<Context>,
    compiler: Compiler,
    cubins: Cubins,
    /// Loaded modules by the address of the [`Module`], of which there is one per file.
    loaded: Mutex<HashMap<usize, Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    handle: cu::CUmodule,
    functions: HashMap<&'static str, Arc<Function>>,
}

// SAFETY: the driver accepts a module from any thread.
unsafe impl Send for Loaded {}

/// A loaded kernel, which stays loaded as long as its [`Modules`] live.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) handle: cu::CUfunction,
    /// The most dynamic shared memory that its launches may request so far.
    shared_bytes: Mutex<u32>,
}

// SAFETY: the driver accepts a function from any thread, from several at once.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Modules {
    pub(super) fn new(context: &Arc<Context>, compiler: Compiler, cubins: Cubins) -> Self {
        Self { context: context.clone(), compiler, cubins, loaded: Mutex::default() }
    }

    /// The loaded kernel, in the current context.
    pub(super) fn function(&self, kernel: Kernel) -> Result<Arc<Function>, DeviceError> {
        // a panic below leaves previously loaded modules valid
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = ptr::from_ref(kernel.module) as usize;
        let loaded = match loaded.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.load(kernel.module)?),
        };
        loaded.function(kernel.name)
    }

    fn load(&self, module: &Module) -> Result<Loaded, DeviceError> {
        let source = unit(module);
        let name = format!("{}-{}", module.name, self.compiler.architecture());
        let identity = format!("{}\n{source}", self.compiler.identity());
        let cubin = self.cubins.get_or_make(&name, &identity, || self.compiler.compile(&source));
        let cubin = cubin.map_err(|why| DeviceError::Failed { what: "compile kernels", why })?;
        let mut handle = ptr::null_mut();
        // SAFETY: the cubin came from NVRTC, or intact from a file; the driver checks and copies it.
        check("load kernels", unsafe { cu::cuModuleLoadData(&mut handle, cubin.as_ptr().cast()) })?;
        Ok(Loaded { handle, functions: HashMap::new() })
    }
}

impl Drop for Modules {
    /// Unloads the modules. No enqueued operation may run their kernels any more.
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for loaded in self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
                // SAFETY: loaded once and unloaded once, in its context.
                unsafe { cu::cuModuleUnload(loaded.handle) };
            }
        }
    }
}

impl Loaded {
    fn function(&mut self, name: &'static str) -> Result<Arc<Function>, DeviceError> {
        if let Some(function) = self.functions.get(name) {
            return Ok(function.clone());
        }
        let symbol = CString::new(name).expect("names of kernels have no zeros");
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded; one handle is written.
        match unsafe { cu::cuModuleGetFunction(&mut handle, self.handle, symbol.as_ptr()) } {
            cu::CUresult::CUDA_ERROR_NOT_FOUND => {
                return Err(DeviceError::Failed {
                    what: "find a kernel",
                    why: format!("there is no {name}"),
                });
            }
            answer => check("find a kernel", answer)?,
        }
        let function = Arc::new(Function { handle, shared_bytes: Mutex::new(USUAL_SHARED_BYTES) });
        self.functions.insert(name, function.clone());
        Ok(function)
    }
}

impl Function {
    /// Lets launches request `bytes` bytes of dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        use cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MAX_SHARED;
        if bytes <= USUAL_SHARED_BYTES {
            return Ok(());
        }
        let mut allowed = self.shared_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > *allowed {
            // SAFETY: the function is loaded.
            check("raise a kernel's shared memory", unsafe {
                cu::cuFuncSetAttribute(self.handle, MAX_SHARED, bytes as i32)
            })?;
            *allowed = bytes;
        }
        Ok(())
    }
}
