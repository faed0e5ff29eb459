//! Runs one kernel on host values, between guards, and compares the results.

use std::{cell::Cell, fmt::Debug, marker::PhantomData};

use super::ROUNDING;
use crate::{
    KernelError,
    device::{Device, Element, Float},
};

thread_local! {
    /// The number of values before and after every buffer. Odd, so that no buffer is aligned to a vector, except in
    /// [`aligned`].
    static GUARD: Cell<usize> = const { Cell::new(33) };
}

/// Runs checks with buffers that begin at multiples of 128 bytes, for kernels that take other paths there.
pub fn aligned(checks: impl FnOnce()) {
    /// Other checks continue after one that panics, so the guard is restored on drop.
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            GUARD.set(self.0);
        }
    }
    let _restore = Restore(GUARD.replace(64));
    checks();
}

/// The value around an output, which must still be there afterwards; it has few enough bits for every [`Float`].
const AROUND: f32 = -12_352.0;

/// A device with a queue.
pub(super) struct Rig<'d, D: Device> {
    device: &'d D,
    queue: D::Queue,
    guard: usize,
}

/// Values on the device, to be read.
pub(super) struct Placed<D: Device, T> {
    block: D::Block,
    guard: usize,
    len: usize,
    device: D,
    element: PhantomData<T>,
}

/// Activations or constants on the device, to be read.
pub(super) type Floats<D> = Placed<D, <D as Device>::Float>;

/// A kernel that writes an output.
type AnyKernel<'a, D> = dyn FnMut(
        &D,
        &mut <D as Device>::Queue,
        <D as Device>::ViewMut<'_, <D as Device>::Float>,
    ) -> Result<(), KernelError>
    + 'a;

impl<D: Device, T: Element> Placed<D, T> {
    /// All values.
    pub(super) fn view(&self) -> D::View<'_, T> {
        self.part(0, self.len)
    }

    /// Values `first..first + len`.
    pub(super) fn part(&self, first: usize, len: usize) -> D::View<'_, T> {
        assert!(first + len <= self.len);
        let offset = (self.guard + first) * size_of::<T>();
        self.device.view(&self.block, offset, len).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl<'d, D: Device> Rig<'d, D> {
    /// A fresh queue on `device`.
    pub(super) fn new(device: &'d D) -> Self {
        let queue = device.queue().unwrap_or_else(|e| panic!("no queue: {e}"));
        Self { device, queue, guard: GUARD.get() }
    }

    /// The device of the rig.
    pub(super) fn device(&self) -> &'d D {
        self.device
    }

    /// Uploads values between NaNs.
    ///
    /// Panics when the device rounds one of them: a twin must see the values that a kernel sees.
    pub(super) fn put(&mut self, values: &[f32]) -> Floats<D> {
        let is_exact = |v: &f32| *v == rounded::<D::Float>(*v) || v.is_nan();
        assert!(values.iter().all(is_exact), "{} does not hold a value of the case", D::Float::NAME);
        let values: Vec<D::Float> = values.iter().map(|v| D::Float::from_f32(*v)).collect();
        self.place(&values, D::Float::from_f32(f32::NAN))
    }

    /// Uploads indices or lengths between numbers that are beyond any table or sequence.
    pub(super) fn put_u32(&mut self, values: &[u32]) -> Placed<D, u32> {
        self.place(values, u32::MAX)
    }

    fn place<T: Element>(&mut self, values: &[T], around: T) -> Placed<D, T> {
        let guard = self.guard;
        let mut all = vec![around; values.len() + 2 * guard];
        all[guard..guard + values.len()].copy_from_slice(values);
        let block = self.upload(&all);
        Placed { block, guard, len: values.len(), device: self.device.clone(), element: PhantomData }
    }

    fn upload<T: Element>(&mut self, values: &[T]) -> D::Block {
        let mut run = || -> Result<D::Block, KernelError> {
            let mut block = self.device.allocate(size_of_val(values))?;
            let view = self.device.view_mut(&mut block, 0, values.len())?;
            self.device.upload(&mut self.queue, values, view)?;
            Ok(block)
        };
        run().unwrap_or_else(|e| panic!("upload: {e}"))
    }

    /// The values that `kernel` writes into an output of `len` values, which holds NaN before.
    ///
    /// Panics when the kernel wrote beside its output, or wrote and then refused its arguments.
    pub(super) fn answer(
        &mut self,
        len: usize,
        kernel: impl FnOnce(&D, &mut D::Queue, D::ViewMut<'_, D::Float>) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        let mut kernel = Some(kernel);
        self.answer_of_one(len, &mut |device, queue, out| {
            let kernel = kernel.take().expect("called once");
            kernel(device, queue, out)
        })
    }

    /// [`Rig::answer`], compiled once for each device rather than for each kernel: that was a tenth of the code of
    /// these tests.
    fn answer_of_one(&mut self, len: usize, kernel: &mut AnyKernel<'_, D>) -> Result<Vec<f32>, KernelError> {
        let guard = self.guard;
        let mut all = vec![D::Float::from_f32(AROUND); len + 2 * guard];
        all[guard..guard + len].fill(D::Float::from_f32(f32::NAN));
        let mut block = self.upload(&all);
        let out = self.device.view_mut(&mut block, guard * size_of::<D::Float>(), len)?;
        let result = kernel(self.device, &mut self.queue, out);
        let view = self.device.view(&block, 0, all.len())?;
        self.device.download(&mut self.queue, view, &mut all)?;
        let all: Vec<f32> = all.into_iter().map(Float::to_f32).collect();
        let (before, rest) = all.split_at(guard);
        let (out, after) = rest.split_at(len);
        assert!(before.iter().chain(after).all(|&v| v == AROUND), "wrote beside its output of {len} values");
        if result.is_err() {
            assert!(out.iter().all(|v| v.is_nan()), "wrote before it refused its arguments");
        }
        result.map(|()| out.to_vec())
    }
}

/// The nearest value that is an `F`.
pub(super) fn rounded<F: Float>(value: f32) -> f32 {
    F::from_f32(value).to_f32()
}

/// How far a value of this magnitude moves when it is stored as `F`, beyond the tolerance for f32, which already counts
/// the roundings to f32: storing an f32 adds nothing.
pub(super) fn of_storing<F: Float>(magnitude: f64) -> f64 {
    if F::ROUNDING > ROUNDING { F::ROUNDING * magnitude.abs() + F::SMALLEST } else { 0.0 }
}

/// [`of_storing`] a product before its bias is added, as cuBLASLt does where rows of `columns` values are not multiples
/// of sixteen bytes.
pub(super) fn of_biasing<F: Float>(product: f64, columns: usize) -> f64 {
    if (columns * size_of::<F>()).is_multiple_of(16) { 0.0 } else { of_storing::<F>(product) }
}

/// Compares values that were stored as `F`: NaN with NaN, infinities with themselves, the rest within
/// `tolerance(index)` and one rounding to `F`. A tolerance of 0 is for values that are exact in every `F`: it stays 0.
pub(super) fn compare<F: Float>(
    case: impl Debug,
    got: &[f32],
    want: &[f64],
    tolerance: impl Fn(usize) -> f64,
) {
    compare_one::<F>(&case, got, want, &tolerance);
}

/// [`compare`], compiled once for each dtype.
fn compare_one<F: Float>(case: &dyn Debug, got: &[f32], want: &[f64], tolerance: &dyn Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{case:?}: length");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let own = tolerance(i);
        let allowed = if own == 0.0 { 0.0 } else { own + of_storing::<F>(want.abs() + own) };
        let fits = !want.is_finite() || want.abs() <= F::GREATEST.into();
        assert!(fits, "{case:?}: value {i} should be {want:e}, which no {} is", F::NAME);
        let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
        let off = (f64::from(got) - want).abs();
        assert!(same || off <= allowed, "{case:?}: value {i} is {got:e}, expected {want:e} ± {allowed:e}");
    }
}

/// Checks that the kernel refused because one buffer has the wrong length.
pub(super) fn refuses_length(case: &str, answer: Result<Vec<f32>, KernelError>) {
    assert!(
        matches!(answer, Err(KernelError::Length { .. })),
        "{case}: expected a wrong length, got {answer:?}"
    );
}

/// Checks that the kernel refused a size that contradicts the others.
pub(super) fn refuses_size(case: &str, answer: Result<Vec<f32>, KernelError>) {
    assert!(matches!(answer, Err(KernelError::Size { .. })), "{case}: expected a wrong size, got {answer:?}");
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{super::rounded::Rounded, Rig, compare};

    #[test]
    #[should_panic(expected = "value 1 is")]
    fn a_value_off_by_more_than_allowed_is_found() {
        compare::<f32>("case", &[1.0, 2.1], &[1.0, 2.0], |_| 0.05);
    }

    #[test]
    fn one_rounding_is_allowed() {
        compare::<bf16>("case", &[1.0 + 1.0 / 128.0], &[1.0 + 1.01 / 256.0], |_| 1e-6);
        compare::<f16>("case", &[1.0 + 1.0 / 1024.0], &[1.0 + 1.01 / 2048.0], |_| 1e-6);
    }

    #[test]
    #[should_panic(expected = "value 0 is")]
    fn two_roundings_are_found() {
        compare::<bf16>("case", &[1.0 + 1.0 / 128.0], &[1.0], |_| 1e-6);
    }

    #[test]
    #[should_panic(expected = "value 0 is")]
    fn what_is_exact_stays_exact() {
        compare::<bf16>("case", &[1.0 + 1.0 / 128.0], &[1.0 + 1.01 / 256.0], |_| 0.0);
    }

    #[test]
    #[should_panic(expected = "bf16 does not hold")]
    fn a_value_that_is_stored_otherwise_is_found() {
        Rig::new(&Rounded::<bf16>::new()).put(&[0.5, 0.1]);
    }

    #[test]
    #[should_panic(expected = "value 0 is NaN")]
    fn a_lone_nan_is_found() {
        compare::<f32>("case", &[f32::NAN], &[1.0], |_| f64::MAX);
    }
}
