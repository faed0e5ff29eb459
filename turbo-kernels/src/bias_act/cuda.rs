//! Element-wise steps on a GPU: all blocks have the same number of values, whatever the rows.

use super::{Activation, BiasAct, Routing};
use crate::{
    KernelError,
    cuda::{
        Arguments, Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, LaunchShape, blocks, count,
        family, named,
    },
    device::Float,
};

pub(crate) static FAMILY: Family = family!("bias_act", "activation.cuh", "bias_act.cu");

/// Threads of a block and values of each, as in `bias_act.cu`.
const THREADS: u32 = 256;
const BLOCK_VALUES: usize = THREADS as usize * 16;

impl<F: Float> BiasAct for Cuda<F> {
    fn add_bias(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        bias: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "add_bias";
        KernelError::check_rows(NAME, "x", bias.len(), x.len())?;
        KernelError::check_length(NAME, "out", x.len(), out.len())?;
        let (values, columns) = (out.len(), count(NAME, "columns", bias.len())?);
        // SAFETY: x and out hold `values` values, whole rows of `columns`, as many as bias has.
        unsafe {
            each::<F, _>(queue, named!(F, "add_bias"), values, |in_last| (x, bias, out, in_last, columns))
        }
    }

    fn activate(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        activation: Activation,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        KernelError::check_length("activate", "out", x.len(), out.len())?;
        let values = out.len();
        // SAFETY: both hold `values` values.
        unsafe {
            each::<F, _>(queue, named!(F, "activate"), values, |in_last| (x, activation as u32, out, in_last))
        }
    }

    fn bias_activate(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        bias: CudaView<'_, F>,
        activation: Activation,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "bias_activate";
        KernelError::check_rows(NAME, "x", bias.len(), x.len())?;
        KernelError::check_length(NAME, "out", x.len(), out.len())?;
        let (values, columns) = (out.len(), count(NAME, "columns", bias.len())?);
        let args = |in_last| (x, bias, activation as u32, out, in_last, columns);
        // SAFETY: x and out hold `values` values, whole rows of `columns`, as many as bias has.
        unsafe { each::<F, _>(queue, named!(F, "bias_activate"), values, args) }
    }

    fn add(
        &self,
        queue: &mut CudaQueue,
        a: CudaView<'_, F>,
        b: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        // SAFETY: the kernel takes two inputs and an output of as many values.
        unsafe { pairwise(queue, ("add", named!(F, "add")), a, b, out) }
    }

    fn mul(
        &self,
        queue: &mut CudaQueue,
        a: CudaView<'_, F>,
        b: CudaView<'_, F>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        // SAFETY: as above.
        unsafe { pairwise(queue, ("mul", named!(F, "mul")), a, b, out) }
    }

    fn gate(
        &self,
        queue: &mut CudaQueue,
        activation: Activation,
        x: CudaView<'_, F>,
        n: usize,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let rows = KernelError::check_rows("gate", "out", n, out.len())?;
        KernelError::check_length("gate", "x", rows.saturating_mul(n).saturating_mul(2), x.len())?;
        let (values, columns) = (out.len(), count("gate", "n", n)?);
        let args = |in_last| (x, activation as u32, out, in_last, columns);
        // SAFETY: out holds `values` values, whole rows of `columns`, and x twice as many.
        unsafe { each::<F, _>(queue, named!(F, "gate"), values, args) }
    }

    fn scale(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        factor: f32,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        KernelError::check_length("scale", "out", x.len(), out.len())?;
        let values = out.len();
        // SAFETY: both hold `values` values.
        unsafe { each::<F, _>(queue, named!(F, "scale"), values, |in_last| (x, factor, out, in_last)) }
    }

    fn weigh_experts(
        &self,
        queue: &mut CudaQueue,
        x: CudaView<'_, F>,
        logits: CudaView<'_, F>,
        routing: Routing,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "weigh_experts";
        let (rows, values) = routing.check(logits.len(), x.len(), out.len())?;
        if rows == 0 || values == 0 {
            return Ok(());
        }
        let shape = blocks(count(NAME, "rows", rows)?, THREADS);
        let values = count(NAME, "values of an expert", values)?;
        let args = (x, logits, out, values, routing.num_experts as u32, routing.top_k as u32);
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "weigh_experts") };
        // SAFETY: logits, x and out have the same number of rows; x and out have `values` values in each row for every
        // expert.
        Ok(unsafe { queue.launch(kernel, shape, args) }?)
    }
}

/// Enqueues the kernel of an operation on two inputs, value by value.
///
/// # Safety
/// The kernel takes the two inputs and `out`, with equally many values of each.
unsafe fn pairwise<F: Float>(
    queue: &mut CudaQueue,
    (operation, kernel): (&'static str, &'static str),
    a: CudaView<'_, F>,
    b: CudaView<'_, F>,
    out: CudaViewMut<'_, F>,
) -> Result<(), KernelError> {
    KernelError::check_length(operation, "b", a.len(), b.len())?;
    KernelError::check_length(operation, "out", a.len(), out.len())?;
    let values = out.len();
    // SAFETY: all hold `values` values; the rest is the caller's promise.
    unsafe { each::<F, _>(queue, kernel, values, |in_last| (a, b, out, in_last)) }
}

/// Enqueues kernel `name` of this module for `values` values.
///
/// # Safety
/// `args`, given the number of values of the last block, returns the kernel's arguments, which hold `values` values.
unsafe fn each<F: Float, A: Arguments>(
    queue: &mut CudaQueue,
    name: &'static str,
    values: usize,
    args: impl FnOnce(u32) -> A,
) -> Result<(), KernelError> {
    if values == 0 {
        return Ok(());
    }
    let (shape, in_last) = shape(name, values)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { queue.launch(Kernel { module: FAMILY.of::<F>(), name }, shape, args(in_last)) }?)
}

/// The blocks for `values` values, of which there is at least one, and the number of values of the last block.
fn shape(name: &'static str, values: usize) -> Result<(LaunchShape, u32), KernelError> {
    let grid = count(name, "blocks of 4096 values", values.div_ceil(BLOCK_VALUES))?;
    Ok((blocks(grid, THREADS), ((values - 1) % BLOCK_VALUES) as u32 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cuda::on_every_emulator, suite};

    #[test]
    fn blocks_are_full_but_the_last() {
        for (values, grid, in_last) in [(1, 1, 1), (4096, 1, 4096), (4097, 2, 1), (12_287, 3, 4095)] {
            let (shape, last) = shape("k", values).unwrap();
            assert_eq!((shape.grid, last), ([grid, 1, 1], in_last), "{values}");
        }
        assert!(shape("k", 1 << 43).is_err());
    }

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(suite::bias_act);
    }
}
