//! A GPU as a [`Driver`].

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::{
    compiler::Compiler,
    context::{Context, RawStream, describe, give_memory, take_memory},
    cu,
    cubins::Cubins,
    error::check,
    gate,
    modules::Modules,
    products::Chosen,
    stream::GpuStream,
    unavailable::{OLDEST_GPU, Unavailable},
};
use crate::{
    cuda::{Address, DeviceInfo, Driver, Freed, Stream},
    device::DeviceError,
};

/// A GPU that the driver offers to this process.
#[derive(Clone, Debug)]
pub struct FoundGpu {
    /// Its description.
    pub info: DeviceInfo,
    /// Whether kernels run on it, or why not.
    pub usable: Result<(), Unavailable>,
}

/// The GPUs that the driver offers to this process, by ordinal.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<Vec<FoundGpu>, Unavailable> {
    let cuda = gate::ready()?;
    let look = |ordinal| -> Result<FoundGpu, Unavailable> {
        let (_, info) = describe(ordinal)?;
        let usable = compiler_for(&info, cuda).map(drop);
        Ok(FoundGpu { info, usable })
    };
    (0..cuda.gpus).map(look).collect()
}

/// The compiler for the GPU that `info` describes.
///
/// # Errors
/// Why no kernels run on it.
fn compiler_for(info: &DeviceInfo, cuda: gate::Cuda) -> Result<Compiler, Unavailable> {
    let (name, found) = (info.name.clone(), info.compute_capability);
    if found < OLDEST_GPU {
        return Err(Unavailable::OldGpu { name, found });
    }
    Compiler::new(found, cuda.nvrtc).ok_or(Unavailable::NewGpu { name, nvrtc: cuda.nvrtc })
}

/// Once this many bytes are freed, they go back to the driver without waiting for an allocation: the memory that other
/// processes lack stays below this, except while a stream records.
const MOST_WAITING: usize = 64 << 20;

/// A GPU: its memory, its streams, and everything that they share.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<Shared>);

/// The state that the streams of a GPU share and keep alive.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) modules: Modules,
    pub(super) products: Chosen,
    info: DeviceInfo,
    /// The stream that zeroes blocks, separately from all work.
    zeroing: RawStream,
    freed: Freed,
    given_back: Mutex<GivenBack>,
    pub(super) context: Arc<Context>,
}

/// Memory on its way back to the driver. Any enqueued operation may use it, so giving it back waits for the whole GPU.
/// One wait serves the hundreds of blocks of a model, rather than one wait for each block, since another model may have
/// batches under way.
#[derive(Debug, Default)]
struct GivenBack {
    /// The number of streams that record: while there are any, no thread may wait for the whole GPU.
    recordings: usize,
    /// Memory that was passed to [`Driver::free`] but has not gone back to the driver yet.
    waiting: Vec<Address>,
    /// The bytes of all waiting memory.
    bytes: usize,
}

impl Gpu {
    /// Opens GPU number `ordinal`, or returns the same one if it is already open: there is one place for each GPU that
    /// knows what a freed block must wait for, and which recordings it makes stale.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(ordinal: u32) -> Result<Self, Unavailable> {
        static OPEN: Mutex<BTreeMap<u32, Weak<Shared>>> = Mutex::new(BTreeMap::new());
        let cuda = gate::ready()?;
        if ordinal >= cuda.gpus {
            return Err(Unavailable::NoSuchGpu { ordinal, count: cuda.gpus });
        }
        // held until the GPU is open: two simultaneous callers get the same one
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Self(shared));
        }
        let shared = Arc::new(Shared::open(ordinal, cuda)?);
        open.insert(ordinal, Arc::downgrade(&shared));
        Ok(Self(shared))
    }
}

impl From<DeviceError> for Unavailable {
    /// A GPU that fails while it is opened is not available.
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Failed { what, why } => Self::Failed { what, why },
            other => Self::Failed { what: "open the GPU", why: other.to_string() },
        }
    }
}

// SAFETY: memory comes from the driver, with as many bytes as were requested, and is released when everything that was
// enqueued is done. There is one `Shared`, with `freed`, for each GPU.
unsafe impl Driver for Gpu {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.0.give_back(&mut self.0.given_back());
        self.0.context.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: a context is current; two numbers are written.
        check("ask for free memory", unsafe { cu::cuMemGetInfo_v2(&mut free, &mut all) })?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.0.give_back(&mut self.0.given_back());
        self.0.context.enter()?;
        let bytes = bytes.max(1);
        let address = take_memory(bytes)?;
        let stream = &self.0.zeroing;
        // SAFETY: the memory was just allocated, with that many bytes.
        let zeroed = unsafe { cu::cuMemsetD8Async(address.0, 0, bytes, stream.handle) };
        match check("zero memory", zeroed).and_then(|()| stream.synchronize()) {
            Ok(()) => Ok(address),
            Err(error) => {
                // SAFETY: the memory came from `take_memory`, and has not been handed out.
                unsafe { give_memory(address) };
                Err(error)
            }
        }
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        let mut given_back = self.0.given_back();
        given_back.waiting.push(address);
        given_back.bytes += bytes;
        if given_back.bytes >= MOST_WAITING {
            self.0.give_back(&mut given_back);
        }
    }

    fn freed(&self) -> &Freed {
        &self.0.freed
    }

    fn stream(&self) -> Result<Box<dyn Stream>, DeviceError> {
        Ok(Box::new(GpuStream::new(self.0.clone())?))
    }
}

impl Shared {
    fn open(ordinal: u32, cuda: gate::Cuda) -> Result<Self, Unavailable> {
        let (gpu, info) = describe(ordinal)?;
        let compiler = compiler_for(&info, cuda)?;
        let context = Context::of(gpu)?;
        Ok(Self {
            modules: Modules::new(&context, compiler, Cubins::of_this_user()),
            products: Chosen::new(&context, info.compute_capability)?,
            info,
            zeroing: RawStream::new(&context)?,
            freed: Freed::default(),
            given_back: Mutex::default(),
            context,
        })
    }

    fn given_back(&self) -> std::sync::MutexGuard<'_, GivenBack> {
        // a panic leaves a list and numbers, each of them valid
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps all memory until [`Shared::recording_ends`].
    pub(super) fn recording_begins(&self) {
        self.given_back().recordings += 1;
    }

    pub(super) fn recording_ends(&self) {
        let mut given_back = self.given_back();
        given_back.recordings -= 1;
        self.give_back(&mut given_back);
    }

    /// Gives the waiting memory back, after everything that was enqueued; while a stream records, it does nothing and
    /// leaves that for later.
    fn give_back(&self, given_back: &mut GivenBack) {
        if given_back.waiting.is_empty() || given_back.recordings > 0 {
            return;
        }
        let is_alive = match self.context.synchronize() {
            Ok(()) => true,
            // with the GPU, its memory is lost
            Err(DeviceError::Lost { .. }) => false,
            // another library of this process may be recording: operations that use the memory may not be done
            Err(_) => return,
        };
        for address in given_back.waiting.drain(..) {
            if is_alive {
                // SAFETY: the caller of `free` promised that the memory came from `allocate`, and that nothing enqueued
                // afterwards uses it; everything enqueued before is done.
                unsafe { give_memory(address) };
            }
        }
        given_back.bytes = 0;
    }
}

impl Drop for Shared {
    /// Other libraries of this process may keep the context alive, and with it all memory that is not given back.
    fn drop(&mut self) {
        self.give_back(&mut self.given_back());
    }
}
