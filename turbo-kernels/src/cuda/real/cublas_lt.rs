//! cuBLASLt's handles and its multiplication, for the row-major matrices of this crate.
//!
//! cuBLASLt's matrices are column-major. It sees a row-major matrix as its transpose, so it computes `y = x · w` as
//! `yᵀ = wᵀ · xᵀ`: the first factor is `w`, and a bias along the rows of `yᵀ` is the bias of a linear layer.

use std::{ffi::c_void, mem, ptr, sync::Arc};

use super::{
    context::{Context, RawStream, Scratch},
    error::check_lt,
    lt,
};
use crate::{
    cuda::{Address, FloatType},
    device::DeviceError,
    matmul::Rhs,
};

/// A way to compute a product.
pub(super) type Algorithm = lt::cublasLtMatmulAlgo_t;
use lt::cublasLtMatmulDescAttributes_t as DescriptionOf;
use lt::cublasLtMatmulPreferenceAttributes_t as PreferenceOf;
use lt::cublasLtMatrixLayoutAttribute_t as LayoutOf;

/// The library, opened for one GPU.
#[derive(Debug)]
pub(super) struct CublasLt {
    context: Arc<Context>,
    handle: lt::cublasLtHandle_t,
}

// SAFETY: cuBLASLt's handle may be used by several threads at once ("cuBLAS", Using the cuBLASLt API, Thread Safety).
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a context is current; one handle is written.
        check_lt("open cuBLASLt", unsafe { lt::cublasLtCreate(&mut handle) })?;
        Ok(Arc::new(Self { context: context.clone(), handle }))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once and destroyed once, in its context.
            unsafe { lt::cublasLtDestroy(self.handle) };
        }
    }
}

/// The function applied to a sum before it is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Epilogue {
    None,
    Bias,
    Relu,
    ReluBias,
    GeluTanh,
    GeluTanhBias,
}

impl Epilogue {
    fn number(self) -> lt::cublasLtEpilogue_t {
        use lt::cublasLtEpilogue_t as E;
        match self {
            Epilogue::None => E::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => E::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::Relu => E::CUBLASLT_EPILOGUE_RELU,
            Epilogue::ReluBias => E::CUBLASLT_EPILOGUE_RELU_BIAS,
            Epilogue::GeluTanh => E::CUBLASLT_EPILOGUE_GELU,
            Epilogue::GeluTanhBias => E::CUBLASLT_EPILOGUE_GELU_BIAS,
        }
    }
}

/// The layout of a matrix of a product, or of several at a constant distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Elements from one row to the next; at least as many as columns.
    pub(super) row_stride: usize,
    /// Elements from one matrix to the next; 0 when there is only one.
    pub(super) batch_stride: usize,
    /// The number of bytes that the first value's address is a multiple of, a power of two.
    pub(super) alignment: u32,
}

/// Everything besides `m` that determines the choice of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) input: FloatType,
    pub(super) output: FloatType,
    pub(super) tf32: bool,
    pub(super) epilogue: Epilogue,
    pub(super) batch: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) x: Place,
    pub(super) w: Place,
    pub(super) w_order: Rhs,
    pub(super) add: Option<Place>,
    /// Its alignment is at most that of the bias.
    pub(super) y: Place,
}

/// The addresses of a product's values. `add` and `bias` are null when there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub(super) x: Address,
    pub(super) w: Address,
    pub(super) bias: Address,
    pub(super) add: Address,
    pub(super) y: Address,
}

/// The description of products of one form for cuBLASLt.
pub(super) struct Description {
    form: Form,
    /// Rows of `x`, `add` and `y`; may be changed.
    m: usize,
    operation: Owned<lt::cublasLtMatmulDesc_t>,
    x: Owned<lt::cublasLtMatrixLayout_t>,
    w: Owned<lt::cublasLtMatrixLayout_t>,
    add: Owned<lt::cublasLtMatrixLayout_t>,
    y: Owned<lt::cublasLtMatrixLayout_t>,
}

/// A handle, and the function that destroys it.
struct Owned<H: Copy> {
    handle: H,
    destroy: unsafe fn(H) -> lt::cublasStatus_t,
}

// SAFETY: the handles point to plain host memory, which is not tied to a thread.
unsafe impl<H: Copy> Send for Owned<H> {}

impl<H: Copy> Drop for Owned<H> {
    fn drop(&mut self) {
        // SAFETY: the handle came from the function that belongs to `destroy`, and is destroyed once.
        unsafe { (self.destroy)(self.handle) };
    }
}

impl Description {
    pub(super) fn new(form: Form, m: usize) -> Result<Self, DeviceError> {
        let add = form.add.unwrap_or(form.y);
        let (w_rows, w_columns) = match form.w_order {
            Rhs::Normal => (form.k, form.n),
            Rhs::Transposed => (form.n, form.k),
        };
        Ok(Self {
            form,
            m,
            operation: operation(&form)?,
            x: layout(form.input, m, form.k, form.x, form.batch)?,
            w: layout(form.input, w_rows, w_columns, form.w, form.batch)?,
            add: layout(form.output, m, form.n, add, form.batch)?,
            y: layout(form.output, m, form.n, form.y, form.batch)?,
        })
    }

    /// Describes products of `m` rows from now on.
    pub(super) fn set_rows(&mut self, m: usize) -> Result<(), DeviceError> {
        if m == self.m {
            return Ok(());
        }
        for layout in [&self.x, &self.add, &self.y] {
            set_layout(layout, LayoutOf::CUBLASLT_MATRIX_LAYOUT_COLS, m as u64)?;
        }
        self.m = m;
        Ok(())
    }

    /// The algorithms that cuBLASLt considers best, at most `COUNT`, none of which needs more than `scratch`.
    pub(super) fn algorithms<const COUNT: usize>(
        &mut self,
        lt: &CublasLt,
        operands: &Operands,
        scratch: &Scratch,
    ) -> Result<Vec<Algorithm>, DeviceError> {
        // cuBLASLt checks whether there is a bias
        self.set_bias(operands.bias)?;
        let preference = preference(&self.form, scratch.bytes as u64)?;
        // SAFETY: the fields are numbers, and an enum that has a variant 0.
        let mut found: [lt::cublasLtMatmulHeuristicResult_t; COUNT] = unsafe { mem::zeroed() };
        let mut count = 0;
        // SAFETY: all handles are alive; at most COUNT results are written, and there is room for them.
        let status = unsafe {
            lt::cublasLtMatmulAlgoGetHeuristic(
                lt.handle,
                self.operation.handle,
                self.w.handle,
                self.x.handle,
                self.add.handle,
                self.y.handle,
                preference.handle,
                COUNT as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if !accepted("choose an algorithm", status)? {
            return Ok(Vec::new());
        }
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        let usable = found.filter(|it| it.state.result().is_ok() && it.workspaceSize <= scratch.bytes);
        Ok(usable.map(|it| it.algo).collect())
    }

    /// Enqueues the product. Returns `false`, with nothing enqueued, when `algorithm` does not support it.
    ///
    /// # Safety
    /// The operands hold the values that the form describes, for the number of rows that was set, and `y` shares
    /// nothing with the others. All operands and `scratch` live until the product is done, and nothing on another
    /// stream uses `scratch` meanwhile.
    pub(super) unsafe fn multiply(
        &mut self,
        lt: &CublasLt,
        stream: &RawStream,
        algorithm: &Algorithm,
        operands: &Operands,
        scratch: &Scratch,
    ) -> Result<bool, DeviceError> {
        self.set_bias(operands.bias)?;
        let pointer = |address: Address| address.0 as *mut c_void;
        let (alpha, beta, add) = match self.form.add {
            Some(_) => (1.0f32, 1.0f32, operands.add),
            None => (1.0, 0.0, operands.y),
        };
        // SAFETY: the caller's promise for memory on the GPU; alpha and beta are read before this returns, as the
        // description says that they are on the host; all handles are alive.
        let status = unsafe {
            lt::cublasLtMatmul(
                lt.handle,
                self.operation.handle,
                ptr::from_ref(&alpha).cast(),
                pointer(operands.w),
                self.w.handle,
                pointer(operands.x),
                self.x.handle,
                ptr::from_ref(&beta).cast(),
                pointer(add),
                self.add.handle,
                pointer(operands.y),
                self.y.handle,
                algorithm,
                pointer(scratch.address),
                scratch.bytes,
                stream.handle.cast(),
            )
        };
        accepted("multiply", status)
    }

    fn set_bias(&mut self, bias: Address) -> Result<(), DeviceError> {
        match self.form.epilogue {
            Epilogue::None | Epilogue::Relu | Epilogue::GeluTanh => Ok(()),
            _ => set_operation(&self.operation, DescriptionOf::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.0),
        }
    }
}

/// Whether cuBLASLt did it, as opposed to not supporting such products.
fn accepted(what: &'static str, status: lt::cublasStatus_t) -> Result<bool, DeviceError> {
    use lt::cublasStatus_t as S;
    match status {
        S::CUBLAS_STATUS_NOT_SUPPORTED | S::CUBLAS_STATUS_INVALID_VALUE | S::CUBLAS_STATUS_ARCH_MISMATCH => {
            Ok(false)
        }
        status => check_lt(what, status).map(|()| true),
    }
}

fn operation(form: &Form) -> Result<Owned<lt::cublasLtMatmulDesc_t>, DeviceError> {
    use lt::cublasComputeType_t as Compute;
    let compute = if form.tf32 { Compute::CUBLAS_COMPUTE_32F_FAST_TF32 } else { Compute::CUBLAS_COMPUTE_32F };
    let mut handle = ptr::null_mut();
    // SAFETY: one handle is written.
    let status =
        unsafe { lt::cublasLtMatmulDescCreate(&mut handle, compute, lt::cudaDataType_t::CUDA_R_32F) };
    check_lt("describe a product", status)?;
    let operation = Owned { handle, destroy: lt::cublasLtMatmulDescDestroy };
    // numbered as in cublasOperation_t, which the bindings leave out: 0 for no transposition, 1 for transposed
    let transpose = i32::from(form.w_order == Rhs::Transposed);
    set_operation(&operation, DescriptionOf::CUBLASLT_MATMUL_DESC_TRANSA, transpose)?;
    set_operation(&operation, DescriptionOf::CUBLASLT_MATMUL_DESC_EPILOGUE, form.epilogue.number())?;
    Ok(operation)
}

fn layout(
    float: FloatType,
    rows: usize,
    columns: usize,
    place: Place,
    batch: usize,
) -> Result<Owned<lt::cublasLtMatrixLayout_t>, DeviceError> {
    let float = match float {
        FloatType::F32 => lt::cudaDataType_t::CUDA_R_32F,
        FloatType::F16 => lt::cudaDataType_t::CUDA_R_16F,
        FloatType::Bf16 => lt::cudaDataType_t::CUDA_R_16BF,
    };
    let mut handle = ptr::null_mut();
    // SAFETY: one handle is written. Our columns are cuBLASLt's rows.
    let status = unsafe {
        lt::cublasLtMatrixLayoutCreate(
            &mut handle,
            float,
            columns as u64,
            rows as u64,
            place.row_stride as i64,
        )
    };
    check_lt("describe a matrix", status)?;
    let layout = Owned { handle, destroy: lt::cublasLtMatrixLayoutDestroy };
    if batch > 1 {
        set_layout(&layout, LayoutOf::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch as i32)?;
        let stride = place.batch_stride as i64;
        set_layout(&layout, LayoutOf::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride)?;
    }
    Ok(layout)
}

fn preference(form: &Form, scratch_bytes: u64) -> Result<Owned<lt::cublasLtMatmulPreference_t>, DeviceError> {
    let mut handle = ptr::null_mut();
    // SAFETY: one handle is written.
    let status = unsafe { lt::cublasLtMatmulPreferenceCreate(&mut handle) };
    check_lt("describe what is preferred", status)?;
    let preference = Owned { handle, destroy: lt::cublasLtMatmulPreferenceDestroy };
    set_preference(&preference, PreferenceOf::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch_bytes)?;
    // parts of a split sum are added in f32: in the type of `y`, each of them would be rounded
    let in_f32 = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set_preference(&preference, PreferenceOf::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, in_f32)?;
    for (attribute, place) in [
        (PreferenceOf::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, form.w),
        (PreferenceOf::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, form.x),
        (PreferenceOf::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, form.add.unwrap_or(form.y)),
        (PreferenceOf::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, form.y),
    ] {
        set_preference(&preference, attribute, place.alignment)?;
    }
    Ok(preference)
}

fn set_operation<T: Copy>(
    operation: &Owned<lt::cublasLtMatmulDesc_t>,
    attribute: DescriptionOf,
    value: T,
) -> Result<(), DeviceError> {
    let (from, bytes) = (ptr::from_ref(&value).cast(), size_of::<T>());
    // SAFETY: the handle is alive; `bytes` bytes are read before this returns.
    let status = unsafe { lt::cublasLtMatmulDescSetAttribute(operation.handle, attribute, from, bytes) };
    check_lt("describe a product", status)
}

fn set_layout<T: Copy>(
    layout: &Owned<lt::cublasLtMatrixLayout_t>,
    attribute: LayoutOf,
    value: T,
) -> Result<(), DeviceError> {
    let (from, bytes) = (ptr::from_ref(&value).cast(), size_of::<T>());
    // SAFETY: the handle is alive; `bytes` bytes are read before this returns.
    let status = unsafe { lt::cublasLtMatrixLayoutSetAttribute(layout.handle, attribute, from, bytes) };
    check_lt("describe a matrix", status)
}

fn set_preference<T: Copy>(
    preference: &Owned<lt::cublasLtMatmulPreference_t>,
    attribute: PreferenceOf,
    value: T,
) -> Result<(), DeviceError> {
    let (from, bytes) = (ptr::from_ref(&value).cast(), size_of::<T>());
    // SAFETY: the handle is alive; `bytes` bytes are read before this returns.
    let status =
        unsafe { lt::cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, from, bytes) };
    check_lt("describe what is preferred", status)
}
