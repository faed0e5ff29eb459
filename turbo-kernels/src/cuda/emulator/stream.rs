//! Operations of the emulated GPU, done immediately or when the host waits for them.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Edit, Order, library::Kernels, memory::Memory, product};
use crate::{
    cuda::{Address, Kernel, Landing, LaunchShape, Product, Recording, Stream},
    device::DeviceError,
};

/// An operation of a stream, with everything that it needs.
#[derive(Clone)]
enum Operation {
    Launch(Box<Launch>),
    Product(Box<Product>),
    Upload { from: Vec<u8>, to: Address },
    Fetch { from: Address, bytes: usize, to: Landed },
}

/// A kernel and its arguments.
#[derive(Clone)]
struct Launch {
    kernel: Kernel,
    shape: LaunchShape,
    order: Order,
    edit: Option<Edit>,
    /// The bytes of each argument, in order.
    arguments: Vec<[u8; LARGEST_ARGUMENT]>,
    /// The memory that the kernel may touch.
    confined_to: Vec<(Address, usize)>,
}

/// The most bytes of an argument: kernels take pointers and numbers.
const LARGEST_ARGUMENT: usize = 8;

/// The host memory that a copy lands in.
type Landed = Arc<Mutex<Vec<u8>>>;

/// The operations of all streams, in the order in which they were enqueued.
#[derive(Debug)]
pub(super) struct Operations {
    memory: Arc<Memory>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether operations wait until the host waits for them.
    lags: bool,
    waiting: VecDeque<Operation>,
    /// The number of operations that were enqueued so far.
    enqueued: u64,
    /// The first error of a delayed operation. From then on every wait reports it.
    failed: Option<String>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { lags, waiting, enqueued, failed } = self;
        f.debug_struct("State")
            .field("lags", lags)
            .field("waiting", &waiting.len())
            .field("enqueued", enqueued)
            .field("failed", failed)
            .finish()
    }
}

impl State {
    /// The number of operations that are done.
    fn done(&self) -> u64 {
        self.enqueued - self.waiting.len() as u64
    }

    fn do_one(&mut self, memory: &Memory) {
        let Some(operation) = self.waiting.pop_front() else { return };
        // a GPU does nothing after a failed operation
        if self.failed.is_none()
            && let Err(error) = operation.perform(memory)
        {
            self.failed = Some(error.to_string());
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        let failed = |why: &String| DeviceError::Failed { what: "an operation before", why: why.clone() };
        self.failed.as_ref().map_or(Ok(()), |why| Err(failed(why)))
    }
}

impl Operations {
    pub(super) fn new(memory: &Arc<Memory>) -> Operations {
        Operations { memory: Arc::clone(memory), state: Mutex::default() }
    }

    pub(super) fn lag(&self) {
        self.state().lags = true;
    }

    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Does `operation` now or later, and returns its number.
    fn enqueue(&self, operation: Operation) -> Result<u64, DeviceError> {
        let mut state = self.state();
        state.enqueued += 1;
        if state.lags {
            state.waiting.push_back(operation);
            return Ok(state.enqueued);
        }
        let number = state.enqueued;
        drop(state);
        operation.perform(&self.memory).map(|()| number)
    }

    /// Does all waiting operations. A failure is not reported here, since freeing memory calls this.
    pub(super) fn do_all(&self) {
        let mut state = self.state();
        while !state.waiting.is_empty() {
            state.do_one(&self.memory);
        }
    }

    /// Does the waiting operations up to number `number`.
    fn wait_for(&self, number: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        while state.done() < number.min(state.enqueued) {
            state.do_one(&self.memory);
        }
        state.check()
    }

    /// Whether operation `number` is done; if not, does the next one.
    fn is_done(&self, number: u64) -> Result<bool, DeviceError> {
        let mut state = self.state();
        state.check()?;
        let is_done = state.done() >= number;
        if !is_done {
            state.do_one(&self.memory);
        }
        Ok(is_done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operation {
    fn perform(self, memory: &Memory) -> Result<(), DeviceError> {
        match self {
            Operation::Launch(launch) => launch.perform(memory),
            // SAFETY: promised by the caller that enqueued it.
            Operation::Product(product) => unsafe { product::multiply(memory, &product) },
            Operation::Upload { from, to } => {
                let to = memory.locate(to, from.len())?;
                // SAFETY: that many bytes lie there, in memory that holds no value of the host.
                unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                Ok(())
            }
            Operation::Fetch { from, bytes, to } => {
                let from = memory.locate(from, bytes)?;
                let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
                to.resize(bytes, 0);
                // SAFETY: that many bytes lie there, in memory that holds no value of the host.
                unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), bytes) };
                Ok(())
            }
        }
    }
}

impl Launch {
    /// # Safety
    /// As for [`Stream::launch`].
    unsafe fn new(
        (kernel, shape): (Kernel, LaunchShape),
        (order, edit): (Order, Option<Edit>),
        confined_to: Vec<(Address, usize)>,
        arguments: &[*mut c_void],
    ) -> Result<Launch, String> {
        let arguments = Kernels::of(kernel.module, edit, |kernels| {
            let sizes = kernels.parameter_bytes(kernel.name)?;
            if sizes.len() != arguments.len() {
                return Err(format!("{} arguments for {} parameters", arguments.len(), sizes.len()));
            }
            let copy = |(from, &bytes): (&*mut c_void, &usize)| {
                let mut to = [0; LARGEST_ARGUMENT];
                // SAFETY: the caller promises that an argument of this type lies there; its bytes fit, or this panics.
                to[..bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), bytes) });
                to
            };
            Ok(arguments.iter().zip(sizes).map(copy).collect())
        })?;
        Ok(Launch { kernel, shape, order, edit, arguments, confined_to })
    }

    fn perform(mut self, memory: &Memory) -> Result<(), DeviceError> {
        let _confined = memory.confine(&self.confined_to);
        let mut arguments: Vec<*mut c_void> =
            self.arguments.iter_mut().map(|bytes| bytes.as_mut_ptr().cast()).collect();
        Kernels::of(self.kernel.module, self.edit, |kernels| {
            // SAFETY: promised by the caller that enqueued it; its arguments were copied.
            unsafe { kernels.launch(self.kernel.name, self.shape, self.order, &mut arguments) }
        })
        .map_err(|why| DeviceError::Failed { what: self.kernel.name, why })
    }
}

/// A stream of the emulated GPU.
pub(super) struct EmulatedStream {
    order: Order,
    edit: Option<Edit>,
    operations: Arc<Operations>,
    /// The memory that the next kernel may touch.
    confined_to: Vec<(Address, usize)>,
    /// The operations that are recorded instead of done, while a recording is under way.
    recorded: Option<Vec<Operation>>,
}

impl EmulatedStream {
    pub(super) fn new(order: Order, edit: Option<Edit>, operations: &Arc<Operations>) -> EmulatedStream {
        let operations = Arc::clone(operations);
        EmulatedStream { order, edit, operations, confined_to: Vec::new(), recorded: None }
    }

    /// Enqueues an operation that a recording can hold, or records it.
    fn put(&mut self, operation: Operation) -> Result<(), DeviceError> {
        match &mut self.recorded {
            Some(recorded) => {
                recorded.push(operation);
                Ok(())
            }
            None => self.operations.enqueue(operation).map(drop),
        }
    }

    fn refuse_in_recording(&self, what: &'static str) -> Result<(), DeviceError> {
        match self.recorded {
            Some(_) => Err(DeviceError::Failed { what, why: "this cannot be recorded".to_owned() }),
            None => Ok(()),
        }
    }
}

impl Stream for EmulatedStream {
    unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let confined_to = std::mem::take(&mut self.confined_to);
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new((kernel, shape), (self.order, self.edit), confined_to, args) };
        let launch = launch.map_err(|why| DeviceError::Failed { what: kernel.name, why })?;
        self.put(Operation::Launch(Box::new(launch)))
    }

    fn confine(&mut self, spans: &[(Address, usize)]) {
        self.confined_to = spans.to_vec();
    }

    unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.put(Operation::Product(Box::new(*product)))
    }

    unsafe fn upload(&mut self, from: &[u8], to: Address) -> Result<(), DeviceError> {
        self.refuse_in_recording("copy to the GPU")?;
        self.operations.enqueue(Operation::Upload { from: from.to_vec(), to }).map(drop)
    }

    unsafe fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        self.refuse_in_recording("copy from the GPU")?;
        let mut landing = EmulatedLanding::new(&self.operations);
        // SAFETY: the caller's promise.
        unsafe { landing.fetch(from, to.len()) }?;
        to.copy_from_slice(landing.bytes()?);
        Ok(())
    }

    fn landing(&mut self) -> Result<Box<dyn Landing>, DeviceError> {
        Ok(Box::new(EmulatedLanding::new(&self.operations)))
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.refuse_in_recording("wait for the GPU")?;
        self.operations.wait_for(u64::MAX)
    }

    fn begin_recording(&mut self) -> Result<bool, DeviceError> {
        self.refuse_in_recording("begin a recording")?;
        self.recorded = Some(Vec::new());
        Ok(true)
    }

    fn end_recording(&mut self) -> Result<Box<dyn Recording>, DeviceError> {
        let Some(recorded) = self.recorded.take() else {
            let why = "no recording is under way".to_owned();
            return Err(DeviceError::Failed { what: "end a recording", why });
        };
        Ok(Box::new(EmulatedRecording { operations: Arc::clone(&self.operations), recorded }))
    }
}

/// Recorded operations.
struct EmulatedRecording {
    operations: Arc<Operations>,
    recorded: Vec<Operation>,
}

impl std::fmt::Debug for EmulatedRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmulatedRecording").field("recorded", &self.recorded.len()).finish_non_exhaustive()
    }
}

impl Recording for EmulatedRecording {
    unsafe fn replay(&self) -> Result<(), DeviceError> {
        self.recorded.iter().try_for_each(|operation| self.operations.enqueue(operation.clone()).map(drop))
    }
}

/// Host memory that receives copies.
#[derive(Debug)]
struct EmulatedLanding {
    operations: Arc<Operations>,
    landed: Landed,
    /// The number of the last copy.
    number: u64,
    /// The bytes that were handed out last.
    bytes: Vec<u8>,
}

impl EmulatedLanding {
    fn new(operations: &Arc<Operations>) -> EmulatedLanding {
        EmulatedLanding {
            operations: Arc::clone(operations),
            landed: Landed::default(),
            number: 0,
            bytes: Vec::new(),
        }
    }
}

impl Landing for EmulatedLanding {
    fn reserve(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn fetch(&mut self, from: Address, bytes: usize) -> Result<(), DeviceError> {
        let to = Arc::clone(&self.landed);
        self.number = self.operations.enqueue(Operation::Fetch { from, bytes, to })?;
        Ok(())
    }

    fn has_landed(&mut self) -> Result<bool, DeviceError> {
        self.operations.is_done(self.number)
    }

    fn bytes(&mut self) -> Result<&[u8], DeviceError> {
        self.operations.wait_for(self.number)?;
        self.bytes.clone_from(&self.landed.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(&self.bytes)
    }
}
