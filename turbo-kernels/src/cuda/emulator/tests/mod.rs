//! Tests of the emulator itself: each construct of CUDA does the right thing, and wrong kernels are found.

mod collectives;
mod errors;
mod mutations;
mod processes;
mod tensor_cores;
mod wgmma;

use std::{ops::Range, sync::Arc};

use super::{Emulator, Order};
use crate::{
    Device,
    cuda::{Cuda, CudaQueue, Kernel, LaunchShape, Module},
};

const ORDERS: [Order; 4] = [Order::Forward, Order::Reverse, Order::Seeded(1), Order::Seeded(2)];

/// A kernel `(const unsigned* in, unsigned* out)`.
struct Program {
    module: &'static Module,
    name: &'static str,
    shape: LaunchShape,
}

impl Program {
    /// One block of `threads` threads.
    fn new(module: &'static Module, name: &'static str, threads: u32) -> Program {
        let shape = LaunchShape { grid: [1, 1, 1], block: threads, shared_bytes: 0 };
        Program { module, name, shape }
    }

    fn grid(mut self, grid: [u32; 3]) -> Program {
        self.shape.grid = grid;
        self
    }

    fn shared_bytes(mut self, bytes: u32) -> Program {
        self.shape.shared_bytes = bytes;
        self
    }
}

/// An emulated GPU with a queue.
struct Rig {
    cuda: Cuda<f32>,
    queue: CudaQueue,
}

impl Rig {
    /// `None` without a compiler.
    fn new(order: Order) -> Option<Rig> {
        let cuda = Cuda::new(Arc::new(Emulator::or_skip(order)?), Default::default());
        let queue = cuda.queue().unwrap();
        Some(Rig { cuda, queue })
    }

    /// The values that `program` writes over zeros, or its error.
    fn run(&mut self, program: Program, input: &[u32], out_len: usize) -> Result<Vec<u32>, String> {
        self.run_in(program, input, 0..input.len(), 0..out_len)
    }

    /// [`Rig::run`] with only `part` of the input, and of an equally long result.
    fn run_on_part(
        &mut self,
        program: Program,
        input: &[u32],
        part: Range<usize>,
    ) -> Result<Vec<u32>, String> {
        self.run_in(program, input, part.clone(), part)
    }

    fn run_in(
        &mut self,
        program: Program,
        input: &[u32],
        read: Range<usize>,
        written: Range<usize>,
    ) -> Result<Vec<u32>, String> {
        let Rig { cuda, queue } = self;
        let word = size_of::<u32>();
        let out_len = written.end;
        let mut source = cuda.allocate(size_of_val(input)).unwrap();
        let mut target = cuda.allocate(out_len * word).unwrap();
        cuda.upload(queue, input, cuda.view_mut(&mut source, 0, input.len()).unwrap()).unwrap();
        let from = cuda.view::<u32>(&source, read.start * word, read.len()).unwrap();
        let to = cuda.view_mut::<u32>(&mut target, written.start * word, written.len()).unwrap();
        let Program { module, name, shape } = program;
        // SAFETY: the kernels of these tests take these two arguments, and the tests give them as many values as they
        // use.
        unsafe { queue.launch(Kernel { module, name }, shape, (from, to)) }
            .map_err(|error| error.to_string())?;
        let mut out = vec![0; out_len];
        cuda.download(queue, cuda.view(&target, 0, out_len).unwrap(), &mut out).unwrap();
        Ok(out)
    }
}

/// Calls `check` with an emulated GPU of each order; does nothing without a compiler.
fn in_every_order(check: impl Fn(&mut Rig, Order)) {
    for order in ORDERS {
        let Some(mut rig) = Rig::new(order) else { return };
        check(&mut rig, order);
    }
}
