//! The parts of products that cuBLASLt does not do, computed by the kernels of `product.cu`.

use std::{ffi::c_void, sync::Once};

use crate::{
    cuda::{Address, Family, FloatType, Kernel, LaunchShape, Matrices, Product, Stream, family},
    device::DeviceError,
    matmul::Rhs,
};

/// Products with any strides, and bias and activation for f32 sums.
pub(super) static FAMILY: Family = family!("product", "../../bias_act/activation.cuh", "product.cu");

/// Side of a tile, as in `product.cu`.
const SIDE: usize = 16;
/// Enough blocks to fill any GPU; if there are more tiles, a block takes more than one.
const MOST_BLOCKS: usize = 1 << 16;

/// Warns at the first product that cuBLASLt does not do: it is computed here, without tensor cores.
pub(super) fn tell(product: &Product) {
    static TOLD: Once = Once::new();
    let &Product { input, output, batch, m, n, k, .. } = product;
    TOLD.call_once(|| {
        tracing::warn!(?input, ?output, batch, m, n, k, "a product that cuBLASLt does not do takes longer");
    });
}

/// Enqueues the whole of `product`.
///
/// # Safety
/// As for [`Stream::product`].
pub(super) unsafe fn multiply(stream: &mut dyn Stream, product: &Product) -> Result<(), DeviceError> {
    let &Product { batch, m, n, k, x, w, y, bias, .. } = product;
    let add = product.add.unwrap_or(Matrices { first: Address::NULL, row_stride: 0, batch_stride: 0 });
    let (w_row, w_column) = match product.w_order {
        Rhs::Normal => (w.row_stride, 1),
        Rhs::Transposed => (1, w.row_stride),
    };
    let kernel = match (product.input, product.output) {
        (FloatType::F32, _) => Kernel { module: &FAMILY.f32, name: "product_f32" },
        (FloatType::F16, FloatType::F32) => Kernel { module: &FAMILY.f16, name: "product_f16_to_f32" },
        (FloatType::F16, _) => Kernel { module: &FAMILY.f16, name: "product_f16" },
        (FloatType::Bf16, FloatType::F32) => Kernel { module: &FAMILY.bf16, name: "product_bf16_to_f32" },
        (FloatType::Bf16, _) => Kernel { module: &FAMILY.bf16, name: "product_bf16" },
    };
    let tiles = batch.saturating_mul(m.div_ceil(SIDE)).saturating_mul(n.div_ceil(SIDE));
    let mut arguments = Arguments::default();
    arguments.first_of(x).push(x.row_stride).first_of(w).push(w_row).push(w_column);
    arguments.first_of(y).push(y.row_stride).address(bias).first_of(add).push(add.row_stride);
    arguments.push(batch).push(m).push(n).push(k).activation(product);
    // SAFETY: the arguments match the kernel's parameters; the caller promises that the addresses hold their values.
    unsafe { arguments.launch(stream, kernel, tiles) }
}

/// Enqueues `y = activation(y + bias)` for a `y` of f32.
///
/// # Safety
/// `y` and the bias hold the values that `product` describes.
pub(super) unsafe fn finish(stream: &mut dyn Stream, product: &Product) -> Result<(), DeviceError> {
    let &Product { batch, m, n, y, bias, .. } = product;
    let kernel = match product.input {
        FloatType::F32 => Kernel { module: &FAMILY.f32, name: "finish_f32" },
        FloatType::F16 => Kernel { module: &FAMILY.f16, name: "finish_f16" },
        FloatType::Bf16 => Kernel { module: &FAMILY.bf16, name: "finish_bf16" },
    };
    let mut arguments = Arguments::default();
    arguments.first_of(y).push(y.row_stride).address(bias).push(batch).push(m).push(n).activation(product);
    let blocks = batch.saturating_mul(m).saturating_mul(n).div_ceil(SIDE * SIDE);
    // SAFETY: the arguments match the kernel's parameters; the caller promises that the addresses hold their values.
    unsafe { arguments.launch(stream, kernel, blocks) }
}

/// Arguments of a kernel, each in eight bytes: a kernel reads as many of their low bytes as it needs.
#[derive(Default)]
struct Arguments(Vec<u64>);

impl Arguments {
    fn push(&mut self, size: usize) -> &mut Self {
        self.0.push(size as u64);
        self
    }

    fn address(&mut self, address: Address) -> &mut Self {
        self.0.push(address.0);
        self
    }

    /// The address of the first matrix, and the distance from one to the next.
    fn first_of(&mut self, matrices: Matrices) -> &mut Self {
        self.address(matrices.first).push(matrices.batch_stride)
    }

    /// The number of the activation, and whether there is one.
    fn activation(&mut self, product: &Product) -> &mut Self {
        self.push(product.activation.map_or(0, |activation| activation as usize));
        self.push(usize::from(product.activation.is_some()))
    }

    /// # Safety
    /// As for [`Stream::launch`].
    unsafe fn launch(
        mut self,
        stream: &mut dyn Stream,
        kernel: Kernel,
        blocks: usize,
    ) -> Result<(), DeviceError> {
        let mut pointers: Vec<*mut c_void> =
            self.0.iter_mut().map(|it| std::ptr::from_mut(it).cast()).collect();
        let blocks = blocks.min(MOST_BLOCKS) as u32;
        let shape = LaunchShape { grid: [blocks, 1, 1], block: (SIDE * SIDE) as u32, shared_bytes: 0 };
        // SAFETY: the caller's promise; GPUs and their hosts are little-endian, so a number of four bytes is the first
        // half of one of eight.
        unsafe { stream.launch(kernel, shape, &mut pointers) }
    }
}
