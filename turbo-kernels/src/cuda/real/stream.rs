//! Implements [`Stream`] for a stream of a GPU.

use std::{collections::HashMap, ffi::c_void, ptr, sync::Arc};

use super::{
    context::RawStream,
    cu,
    error::check,
    gpu::Shared,
    landing::PinnedLanding,
    modules::Function,
    products::{Products, Share},
    recording::{self, Captured, Replay},
    remainder,
    staging::Staging,
};
use crate::{
    cuda::{Address, Kernel, Landing, LaunchShape, Product, Recording, Stream},
    device::DeviceError,
};

/// A stream, and everything that its operations need. Fields are dropped from top to bottom; before that the stream
/// waits for its operations.
pub(super) struct GpuStream {
    raw: Arc<RawStream>,
    /// Kernels by the address of the module and the name.
    functions: HashMap<(usize, &'static str), Arc<Function>>,
    staging: Option<Staging>,
    products: Products,
    shared: Arc<Shared>,
}

impl GpuStream {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, DeviceError> {
        Ok(Self {
            raw: Arc::new(RawStream::new(&shared.context)?),
            functions: HashMap::new(),
            staging: None,
            products: Products::new(),
            shared,
        })
    }

    fn function(&mut self, kernel: Kernel) -> Result<Arc<Function>, DeviceError> {
        let key = (ptr::from_ref(kernel.module) as usize, kernel.name);
        if let Some(function) = self.functions.get(&key) {
            return Ok(function.clone());
        }
        let function = self.shared.modules.function(kernel)?;
        self.functions.insert(key, function.clone());
        Ok(function)
    }
}

impl Stream for GpuStream {
    unsafe fn launch(
        &mut self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        self.shared.context.enter()?;
        let function = self.function(kernel)?;
        function.allow_shared(shape.shared_bytes)?;
        let [x, y, z] = shape.grid;
        // SAFETY: the function stays loaded as long as `shared` lives, which waits for its streams; the caller promises
        // that `args` match the kernel's parameters; the values that they point to are read before this returns.
        let launched = unsafe {
            cu::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                shape.block,
                1,
                1,
                shape.shared_bytes,
                self.raw.handle,
                args.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(kernel.name, launched)
    }

    unsafe fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        if product.m == 0 || product.n == 0 || product.batch == 0 {
            return Ok(());
        }
        let share = Share::of(product)?;
        self.shared.context.enter()?;
        let may_wait = !self.raw.is_recording();
        // SAFETY: the caller's promise; the stream is this one's.
        let is_done = unsafe {
            self.products.multiply(&self.raw, &self.shared.products, product, share.epilogue, may_wait)
        }?;
        match (is_done, share.is_finished_apart) {
            (true, false) => Ok(()),
            // SAFETY: the caller's promise: `y` and the bias are as the kernel takes them.
            (true, true) => unsafe { remainder::finish(self, product) },
            (false, _) => {
                remainder::tell(product);
                // SAFETY: the caller's promise: all operands are as the kernel takes them.
                unsafe { remainder::multiply(self, product) }
            }
        }
    }

    unsafe fn upload(&mut self, from: &[u8], to: Address) -> Result<(), DeviceError> {
        drop(self.raw.outside_recordings("copy to the GPU")?);
        self.shared.context.enter()?;
        let staging = match &mut self.staging {
            Some(staging) => staging,
            None => self.staging.insert(Staging::new(&self.shared.context)?),
        };
        // SAFETY: the caller's promise; `staging` lives until the stream has been waited for.
        unsafe { staging.upload(&self.raw, from, to) }
    }

    unsafe fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        drop(self.raw.outside_recordings("copy from the GPU")?);
        self.shared.context.enter()?;
        if !to.is_empty() {
            // SAFETY: the caller promises what `from` holds; `to` is borrowed exclusively until the copy is done,
            // below.
            check("copy from the GPU", unsafe {
                cu::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.0, to.len(), self.raw.handle)
            })?;
        }
        self.raw.synchronize()
    }

    fn landing(&mut self) -> Result<Box<dyn Landing>, DeviceError> {
        Ok(Box::new(PinnedLanding::new(&self.shared.context, &self.raw)?))
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        drop(self.raw.outside_recordings("wait for the GPU")?);
        self.raw.synchronize()
    }

    fn begin_recording(&mut self) -> Result<bool, DeviceError> {
        self.shared.recording_begins();
        self.raw.begin_recording().inspect_err(|_| self.shared.recording_ends()).map(|()| true)
    }

    fn end_recording(&mut self) -> Result<Box<dyn Recording>, DeviceError> {
        if !self.raw.is_recording() {
            let why = "no recording is under way".to_owned();
            return Err(DeviceError::Failed { what: "end a recording", why });
        }
        let captured = self.shared.context.enter().and_then(|()| Captured::of(&self.raw));
        self.raw.recording_ended();
        self.shared.recording_ends();
        let replay = captured
            .and_then(|captured| Replay::new(&captured, &self.raw, self.products.scratch(), &self.shared));
        Ok(Box::new(replay.inspect_err(recording::tell)?))
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        if self.raw.is_recording() {
            // nobody wants the recording any more
            drop(self.end_recording());
        }
        // A recording may keep the stream alive, but not the staging, so this waits. On a lost GPU, nothing is under
        // way.
        drop(self.raw.synchronize());
    }
}
