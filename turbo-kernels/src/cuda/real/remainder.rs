//! The part of products that cuBLASLt does not do, by the kernels of `product.cu`.

use std::{ffi::c_void, sync::Once};

use crate::{
    cuda::{Address, Family, FloatType, Kernel, LaunchShape, Matrices, Product, Stream, family},
    device::DeviceError,
    matmul::Rhs,
};

/// Sums of any strides, and bias and activation of sums in f32.
pub(super) static FAMILY: Family = family!("product", "../../bias_act/activation.cuh", "product.cu");

/// Side of a tile, as in `product.cu`.
const SIDE: usize = 16;
/// Enough to fill any GPU; blocks take more than one tile when there are more.
const MOST_BLOCKS: usize = 1 << 16;

/// Says, for the first product that cuBLASLt does not do, that it is done here: without tensor cores.
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
    // SAFETY: these are the kernel's parameters; the caller says that the addresses hold what they should.
    unsafe { arguments.launch(stream, kernel, tiles) }
}

/// Enqueues `y = activation(y + bias)` for a `y` of f32.
///
/// # Safety
/// `y` and the bias hold what `product` says.
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
    // SAFETY: these are the kernel's parameters; the caller says that the addresses hold what they should.
    unsafe { arguments.launch(stream, kernel, blocks) }
}

/// Arguments of a kernel, each in eight bytes: a kernel reads as many from the first as it needs, lowest first.
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

    /// Where matrices begin, and the way from one to the next.
    fn first_of(&mut self, matrices: Matrices) -> &mut Self {
        self.address(matrices.first).push(matrices.batch_stride)
    }

    /// Its number, and whether there is any.
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
        // SAFETY: the caller's promise; GPUs and their hosts keep the lowest byte first, so a number of four bytes is the
        // lower half of one of eight.
        unsafe { stream.launch(kernel, shape, &mut pointers) }
    }
}
