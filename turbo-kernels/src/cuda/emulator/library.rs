//! Compiled device code, loaded once per process.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    slice,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use libloading::Library;

use super::{Edit, Order, compile::compile};
use crate::cuda::{LaunchShape, Module};

/// `turbo::Launch` of `block.h`.
#[repr(C)]
struct Launch {
    grid: [c_uint; 3],
    block: c_uint,
    shared_bytes: c_uint,
    order: c_uint,
    seed: u64,
}

/// The function that `TURBO_LAUNCHER` defines to run a kernel.
type Launcher = unsafe extern "C" fn(*const Launch, *mut *mut c_void, c_uint, *mut c_char, usize) -> c_int;

/// The function that `TURBO_LAUNCHER` defines to tell the number of parameters, and the bytes of each.
type Parameters = unsafe extern "C" fn(*mut c_uint) -> *const c_uint;

/// A kernel of a module.
struct Found {
    launcher: Launcher,
    parameter_bytes: Vec<usize>,
}

/// The kernels of one module.
pub(super) struct Kernels {
    found: HashMap<String, Found>,
    /// Holds the code, so it is never unloaded before the launchers.
    _library: Library,
}

/// The address of a module's source, and its edit.
type Key = (usize, Option<Edit>);

/// A module's kernels, or the compiler's messages about it.
type Loaded = Arc<OnceLock<Result<Kernels, String>>>;

impl Kernels {
    /// Calls `use_them` with the kernels of `module`, changed if there is an edit.
    ///
    /// # Errors
    /// The compiler's messages.
    pub(super) fn of<T>(
        module: &Module,
        edit: Option<Edit>,
        use_them: impl FnOnce(&Kernels) -> Result<T, String>,
    ) -> Result<T, String> {
        static MODULES: Mutex<Option<HashMap<Key, Loaded>>> = Mutex::new(None);
        let loaded = {
            let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (module.source.as_ptr().addr(), edit);
            Arc::clone(modules.get_or_insert_default().entry(key).or_default())
        };
        // other threads that need the same module wait here for its compiler, and those that need another do not
        loaded
            .get_or_init(|| {
                let unit = module.unit();
                let edited = edit.map(|Edit { from, to }| unit.replacen(from, to, 1));
                Kernels::load(module.name, &edited.unwrap_or(unit))
            })
            .as_ref()
            .map_err(Clone::clone)
            .and_then(use_them)
    }

    fn load(name: &str, unit: &str) -> Result<Kernels, String> {
        let compiled = compile(name, unit)?;
        // SAFETY: the library was made from our own header and kernels, whose initialisers only set up an empty list.
        let library = unsafe { Library::new(&compiled.library) }.map_err(|error| error.to_string())?;
        let mut found = HashMap::new();
        for kernel in compiled.kernels {
            let symbol = format!("turbo_launch_{kernel}");
            // SAFETY: `TURBO_LAUNCHER` defines this symbol with the type of `Launcher`.
            let launcher =
                *unsafe { library.get::<Launcher>(symbol.as_bytes()) }.map_err(|error| error.to_string())?;
            let symbol = format!("turbo_parameters_{kernel}");
            // SAFETY: `TURBO_LAUNCHER` defines this symbol with the type of `Parameters`.
            let parameters = *unsafe { library.get::<Parameters>(symbol.as_bytes()) }
                .map_err(|error| error.to_string())?;
            let mut count = 0;
            // SAFETY: one number is written, and the result points to that many numbers, for as long as the library is
            // loaded.
            let bytes = unsafe { slice::from_raw_parts(parameters(&mut count), count as usize) };
            let parameter_bytes = bytes.iter().map(|&bytes| bytes as usize).collect();
            found.insert(kernel, Found { launcher, parameter_bytes });
        }
        Ok(Kernels { found, _library: library })
    }

    /// The bytes of each parameter of kernel `name`.
    ///
    /// # Errors
    /// When there is no such kernel.
    pub(super) fn parameter_bytes(&self, name: &str) -> Result<&[usize], String> {
        self.kernel(name).map(|found| &found.parameter_bytes[..])
    }

    fn kernel(&self, name: &str) -> Result<&Found, String> {
        self.found.get(name).ok_or_else(|| format!("there is no kernel {name}"))
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// The mistake that the emulator found.
    ///
    /// # Safety
    /// As for [`crate::cuda::Stream::launch`].
    pub(super) unsafe fn launch(
        &self,
        name: &str,
        shape: LaunchShape,
        order: Order,
        args: &mut [*mut c_void],
    ) -> Result<(), String> {
        let launcher = self.kernel(name)?.launcher;
        let (order, seed) = match order {
            Order::Forward => (0, 0),
            Order::Reverse => (1, 0),
            Order::Seeded(seed) => (2, seed),
        };
        let LaunchShape { grid, block, shared_bytes } = shape;
        let launch = Launch { grid, block, shared_bytes, order, seed };
        let mut error = [0 as c_char; 512];
        let count = c_uint::try_from(args.len()).map_err(|error| error.to_string())?;
        // SAFETY: the launcher reads `launch`, `count` pointers and the values behind them, and writes a text that ends
        // within the capacity; the caller vouches for the accesses of the kernel.
        let code =
            unsafe { launcher(&raw const launch, args.as_mut_ptr(), count, error.as_mut_ptr(), error.len()) };
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the launcher has ended the text with a zero.
        Err(unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy().into_owned())
    }
}
