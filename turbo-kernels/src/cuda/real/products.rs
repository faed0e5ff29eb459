//! Products by cuBLASLt, with a plan kept for each form, or by our own kernel where cuBLASLt supports none.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    context::{Context, RawStream, Scratch},
    cublas_lt::{Algorithm, CublasLt, Description, Epilogue, Form, Operands, Place},
};
use crate::{
    Activation,
    cuda::{FloatType, Matrices, Product},
    device::DeviceError,
    matmul::Rhs,
};

/// How many of cuBLASLt's proposed algorithms are timed.
const CANDIDATES: usize = 8;
/// How often each is run for one measurement: the runs share the time that the host adds.
const RUNS: u32 = 5;
/// An algorithm proposed later must take less than this share of the best time, so that noise does not decide.
const MARGIN: f64 = 0.97;
/// The most plans that are kept. If there are more, the forms do not repeat, and all plans are forgotten.
const MOST_PLANS: usize = 4096;
/// Alignment beyond this makes no difference.
const MOST_ALIGNMENT: u64 = 256;

/// The algorithms that were chosen on one GPU, for all its streams.
#[derive(Debug)]
pub(super) struct Chosen {
    lt: Arc<CublasLt>,
    algorithms: Mutex<HashMap<Key, Algorithm>>,
    /// The bytes of scratch of each stream.
    scratch_bytes: usize,
}

/// Determines the algorithm. Nearly equal values of `m` share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    form: Form,
    m: usize,
}

impl Chosen {
    /// No algorithms yet, on a GPU of this compute capability.
    pub(super) fn new(context: &Arc<Context>, capability: (u32, u32)) -> Result<Self, DeviceError> {
        // as NVIDIA recommends: more on Hopper and later
        let scratch_bytes = if capability >= (9, 0) { 32 << 20 } else { 4 << 20 };
        Ok(Self { lt: CublasLt::new(context)?, algorithms: Mutex::default(), scratch_bytes })
    }

    fn get(&self, key: &Key) -> Option<Algorithm> {
        self.algorithms.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    fn keep(&self, key: Key, algorithm: Algorithm) {
        let mut algorithms = self.algorithms.lock().unwrap_or_else(PoisonError::into_inner);
        if algorithms.len() >= MOST_PLANS {
            algorithms.clear();
        }
        algorithms.insert(key, algorithm);
    }
}

/// Products of one stream.
pub(super) struct Products {
    plans: HashMap<Key, Plan>,
    scratch: Option<Arc<Scratch>>,
}

struct Plan {
    description: Description,
    /// The fastest algorithm; `None` as long as a recording has prevented the timing.
    algorithm: Option<Algorithm>,
}

impl Products {
    pub(super) fn new() -> Self {
        Self { plans: HashMap::new(), scratch: None }
    }

    /// The memory that enqueued products use besides their operands.
    pub(super) fn scratch(&self) -> Option<Arc<Scratch>> {
        self.scratch.clone()
    }

    /// Enqueues the part of `product` that [`Share::of`] leaves to cuBLASLt. Returns `false`, with nothing enqueued,
    /// when cuBLASLt does not support it. With `may_wait`, the algorithm for a new form is found by timing, which waits
    /// for the stream and is impossible in a recording.
    ///
    /// # Safety
    /// As for [`crate::cuda::Stream::product`]; `stream` is the same in every call, and its context is this thread's.
    pub(super) unsafe fn multiply(
        &mut self,
        stream: &Arc<RawStream>,
        chosen: &Chosen,
        product: &Product,
        epilogue: Epilogue,
        may_wait: bool,
    ) -> Result<bool, DeviceError> {
        let Some(form) = form(product, epilogue) else { return Ok(false) };
        let key = Key { form, m: bucket(product.m) };
        let scratch = match &self.scratch {
            Some(scratch) => scratch,
            None => self.scratch.insert(Arc::new(Scratch::new(stream, chosen.scratch_bytes)?)),
        };
        let call = Call { lt: &chosen.lt, stream, operands: operands(product), scratch };
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        let plan = match self.plans.entry(key) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => {
                let description = Description::new(form, product.m)?;
                place.insert(Plan { description, algorithm: chosen.get(&key) })
            }
        };
        plan.description.set_rows(product.m)?;
        if plan.algorithm.is_none() && may_wait {
            // SAFETY: the caller's promise; the description is of this product.
            plan.algorithm = unsafe { call.fastest(&mut plan.description) }?;
            if let Some(algorithm) = plan.algorithm {
                chosen.keep(key, algorithm);
            }
        }
        if let Some(algorithm) = plan.algorithm
            // SAFETY: as above.
            && unsafe { call.run(&mut plan.description, &algorithm) }?
        {
            return Ok(true);
        }
        // None was timed, or it does not support this number of rows, only a similar one: this once, take cuBLASLt's
        // first proposal.
        match plan.description.algorithms::<1>(&chosen.lt, &call.operands, scratch)?.first() {
            // SAFETY: as above.
            Some(algorithm) => unsafe { call.run(&mut plan.description, algorithm) },
            None => Ok(false),
        }
    }
}

/// One product, and everything needed to compute it.
struct Call<'a> {
    lt: &'a CublasLt,
    stream: &'a RawStream,
    operands: Operands,
    scratch: &'a Scratch,
}

impl Call<'_> {
    /// # Safety
    /// As for [`Description::multiply`].
    unsafe fn run(&self, description: &mut Description, algorithm: &Algorithm) -> Result<bool, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { description.multiply(self.lt, self.stream, algorithm, &self.operands, self.scratch) }
    }

    /// The fastest of cuBLASLt's proposed algorithms, if there is any.
    ///
    /// # Safety
    /// As for [`Description::multiply`]: timing does the product again and again, which writes nothing that it reads.
    unsafe fn fastest(&self, description: &mut Description) -> Result<Option<Algorithm>, DeviceError> {
        let mut best: Option<(Algorithm, Duration)> = None;
        for algorithm in description.algorithms::<CANDIDATES>(self.lt, &self.operands, self.scratch)? {
            // SAFETY: the caller's promise.
            let Some(time) = (unsafe { self.time(description, &algorithm) })? else { continue };
            if best.is_none_or(|(_, least)| time < least.mul_f64(MARGIN)) {
                best = Some((algorithm, time));
            }
        }
        Ok(best.map(|(algorithm, _)| algorithm))
    }

    /// The time of [`RUNS`] runs of `algorithm`; `None` when it does not support this product.
    ///
    /// # Safety
    /// As for [`Description::multiply`].
    unsafe fn time(
        &self,
        description: &mut Description,
        algorithm: &Algorithm,
    ) -> Result<Option<Duration>, DeviceError> {
        // SAFETY: the caller's promise. The first run loads the kernel.
        if !unsafe { self.run(description, algorithm) }? {
            return Ok(None);
        }
        self.stream.synchronize()?;
        let begun = Instant::now();
        for _ in 0..RUNS {
            // SAFETY: as above.
            unsafe { self.run(description, algorithm) }?;
        }
        self.stream.synchronize()?;
        Ok(Some(begun.elapsed()))
    }
}

/// The part of a product that cuBLASLt does, and the part that another pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// What cuBLASLt does after the sum.
    pub(super) epilogue: Epilogue,
    /// Whether bias and activation are left to another pass over `y`.
    pub(super) is_finished_apart: bool,
}

impl Share {
    /// When `y` is f32, another pass rounds nothing, so cuBLASLt gets only the steps that it computes exactly: not its
    /// GELU, whose tanh is an approximation, and no bias of another type than `y`. A 16-bit `y` would be rounded once
    /// more, so cuBLASLt computes its GELU in tanh form. In cuBLASLt 13.0 on an H100 that GELU is off by up to 6e-6 in
    /// addition to the rounding. Where rows are not multiples of sixteen bytes, the product is rounded before its bias
    /// is added; some algorithms also round it before a residual is added.
    ///
    /// # Errors
    /// For a 16-bit `y` with an activation that cuBLASLt lacks.
    pub(super) fn of(product: &Product) -> Result<Self, DeviceError> {
        let apart = Ok(Share { epilogue: Epilogue::None, is_finished_apart: true });
        let has_bias = product.bias.0 != 0;
        let is_wide = product.output == FloatType::F32;
        let epilogue = match product.activation {
            _ if is_wide && has_bias && product.input != product.output => return apart,
            None if has_bias => Epilogue::Bias,
            None => Epilogue::None,
            Some(Activation::Relu) if has_bias => Epilogue::ReluBias,
            Some(Activation::Relu) => Epilogue::Relu,
            Some(_) if is_wide => return apart,
            Some(Activation::GeluTanh) if has_bias => Epilogue::GeluTanhBias,
            Some(Activation::GeluTanh) => Epilogue::GeluTanh,
            Some(other) => {
                let why = format!("{other:?} is not done with a product of {:?}", product.output);
                return Err(DeviceError::Failed { what: "multiply", why });
            }
        };
        Ok(Share { epilogue, is_finished_apart: false })
    }
}

/// The form of a product; `None` when cuBLASLt does not accept its strides.
fn form(product: &Product, epilogue: Epilogue) -> Option<Form> {
    let &Product { batch, m, n, k, w_order, .. } = product;
    let (w_rows, w_columns) = match w_order {
        Rhs::Normal => (k, n),
        Rhs::Transposed => (n, k),
    };
    let place = |matrices: &Matrices, rows, columns| {
        let row_stride = if rows == 1 { matrices.row_stride.max(columns) } else { matrices.row_stride };
        let batch_stride = if batch == 1 { 0 } else { matrices.batch_stride };
        let alignment = alignment(matrices.first.0);
        (row_stride >= columns && columns > 0).then_some(Place { row_stride, batch_stride, alignment })
    };
    let mut y = place(&product.y, m, n)?;
    if product.bias.0 != 0 {
        y.alignment = y.alignment.min(alignment(product.bias.0));
    }
    let add = match &product.add {
        Some(add) => Some(place(add, m, n)?),
        None => None,
    };
    Some(Form {
        input: product.input,
        output: product.output,
        tf32: product.tf32 && product.input == FloatType::F32,
        epilogue,
        batch,
        n,
        k,
        x: place(&product.x, m, k)?,
        w: place(&product.w, w_rows, w_columns)?,
        w_order,
        add,
        y,
    })
}

fn operands(product: &Product) -> Operands {
    Operands {
        x: product.x.first,
        w: product.w.first,
        bias: product.bias,
        add: product.add.map(|add| add.first).unwrap_or_default(),
        y: product.y.first,
    }
}

/// The greatest power of two that `address` is a multiple of, up to a limit.
fn alignment(address: u64) -> u32 {
    1 << (address | MOST_ALIGNMENT).trailing_zeros()
}

/// `m` rounded up to one of four steps between powers of two: an algorithm for one value suits its neighbours.
fn bucket(m: usize) -> usize {
    let step = 1 << m.max(1).ilog2().saturating_sub(2);
    m.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Address;

    fn matrices(row_stride: usize) -> Matrices {
        Matrices { first: Address(0x1000), row_stride, batch_stride: 1 << 20 }
    }

    fn product(input: FloatType, output: FloatType) -> Product {
        let (x, w, y) = (matrices(64), matrices(64), matrices(32));
        Product {
            input,
            output,
            batch: 1,
            m: 5,
            n: 32,
            k: 64,
            x,
            w,
            w_order: Rhs::Transposed,
            y,
            bias: Address::NULL,
            activation: None,
            add: None,
            tf32: false,
        }
    }

    #[test]
    fn buckets_are_near_and_ordered() {
        let mut distinct = std::collections::BTreeSet::new();
        for m in 1..=16384 {
            let bucket = bucket(m);
            assert!(bucket >= m && bucket - m <= m / 4, "{m}: {bucket}");
            distinct.insert(bucket);
        }
        assert_eq!(distinct.len(), 8 + 4 * 11, "1..=8, and four in each of eleven octaves");
        assert_eq!(super::bucket(1), 1);
    }

    #[test]
    fn alignment_is_that_of_the_address() {
        for (address, expected) in [(0x1000, 256), (0x1010, 16), (0x1006, 2), (0x1001, 1), (0, 256)] {
            assert_eq!(alignment(address), expected, "{address:#x}");
        }
    }

    #[test]
    fn cublas_lt_gets_what_it_does_exactly() {
        use Activation::{GeluErf, GeluTanh, Relu};
        use FloatType::{Bf16, F16, F32};
        let fused = |epilogue| Some(Share { epilogue, is_finished_apart: false });
        let apart = Some(Share { epilogue: Epilogue::None, is_finished_apart: true });
        for (types, bias, activation, expected) in [
            ((F32, F32), false, None, fused(Epilogue::None)),
            ((F32, F32), true, None, fused(Epilogue::Bias)),
            ((F32, F32), true, Some(Relu), fused(Epilogue::ReluBias)),
            ((F32, F32), false, Some(GeluTanh), apart),
            ((F32, F32), true, Some(GeluErf), apart),
            ((F16, F32), false, None, fused(Epilogue::None)),
            ((F16, F32), true, None, apart),
            ((F16, F32), false, Some(Relu), fused(Epilogue::Relu)),
            ((Bf16, Bf16), true, Some(GeluTanh), fused(Epilogue::GeluTanhBias)),
            ((F16, F16), false, Some(GeluTanh), fused(Epilogue::GeluTanh)),
            ((Bf16, Bf16), true, Some(GeluErf), None),
        ] {
            let mut product = product(types.0, types.1);
            product.bias = Address(if bias { 0x2000 } else { 0 });
            product.activation = activation;
            assert_eq!(Share::of(&product).ok(), expected, "{types:?}, {bias}, {activation:?}");
        }
    }

    #[test]
    fn rows_that_overlap_are_no_matrix_of_cublas_lt() {
        let fits = |change: fn(&mut Product)| {
            let mut product = product(FloatType::F16, FloatType::F16);
            change(&mut product);
            form(&product, Epilogue::None).is_some()
        };
        assert!(fits(|_| ()));
        assert!(!fits(|product| product.x.row_stride = 63));
        assert!(!fits(|product| product.y.row_stride = 31));
        assert!(!fits(|product| product.add = Some(matrices(31))));
        assert!(!fits(|product| product.k = 0));
        // the stride of a single row does not matter
        assert!(fits(|product| (product.m, product.x.row_stride, product.y.row_stride) = (1, 0, 0)));
    }

    #[test]
    fn a_bias_that_is_aligned_less_counts_for_its_result() {
        let mut product = product(FloatType::F16, FloatType::F16);
        product.bias = Address(0x2002);
        assert_eq!(form(&product, Epilogue::Bias).unwrap().y.alignment, 2);
    }
}
