//! Runs one kernel on values of the host, between guards, and compares what comes back.

use std::{fmt::Debug, marker::PhantomData};

use crate::{
    KernelError,
    device::{Device, Element},
};

/// Values before and after every buffer. Odd, so no buffer is aligned to a vector.
const GUARD: usize = 33;
/// What stands around an output, and must stand there afterwards.
const AROUND: f32 = -12_345.678;

/// A device with a queue.
pub(super) struct Rig<'d, D: Device<Float = f32>> {
    device: &'d D,
    queue: D::Queue,
}

/// Values on the device, to be read.
pub(super) struct Placed<D: Device<Float = f32>, T> {
    block: D::Block,
    len: usize,
    device: D,
    element: PhantomData<T>,
}

impl<D: Device<Float = f32>, T: Element> Placed<D, T> {
    /// All of them.
    pub(super) fn view(&self) -> D::View<'_, T> {
        self.part(0, self.len)
    }

    /// Values `first..first + len`.
    pub(super) fn part(&self, first: usize, len: usize) -> D::View<'_, T> {
        assert!(first + len <= self.len);
        self.device.view(&self.block, (GUARD + first) * size_of::<T>(), len).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl<'d, D: Device<Float = f32>> Rig<'d, D> {
    /// A fresh queue on `device`.
    pub(super) fn new(device: &'d D) -> Self {
        let queue = device.queue().unwrap_or_else(|e| panic!("no queue: {e}"));
        Self { device, queue }
    }

    /// Where it runs.
    pub(super) fn device(&self) -> &'d D {
        self.device
    }

    /// Uploads f32 values between NaNs.
    pub(super) fn put(&mut self, values: &[f32]) -> Placed<D, f32> {
        self.place(values, f32::NAN)
    }

    /// Uploads indices or lengths between numbers that no table and no sequence has.
    pub(super) fn put_u32(&mut self, values: &[u32]) -> Placed<D, u32> {
        self.place(values, u32::MAX)
    }

    fn place<T: Element>(&mut self, values: &[T], around: T) -> Placed<D, T> {
        let mut all = vec![around; values.len() + 2 * GUARD];
        all[GUARD..GUARD + values.len()].copy_from_slice(values);
        let block = self.upload(&all);
        Placed { block, len: values.len(), device: self.device.clone(), element: PhantomData }
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

    /// What `kernel` writes into an output of `len` values, which holds NaN before.
    ///
    /// Panics when the kernel wrote beside its output, or wrote and then refused its arguments.
    pub(super) fn answer(
        &mut self,
        len: usize,
        kernel: impl FnOnce(&D, &mut D::Queue, D::ViewMut<'_, f32>) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        let mut all = vec![AROUND; len + 2 * GUARD];
        all[GUARD..GUARD + len].fill(f32::NAN);
        let mut block = self.upload(&all);
        let out = self.device.view_mut(&mut block, GUARD * size_of::<f32>(), len)?;
        let result = kernel(self.device, &mut self.queue, out);
        let view = self.device.view(&block, 0, all.len())?;
        self.device.download(&mut self.queue, view, &mut all)?;
        let (before, rest) = all.split_at(GUARD);
        let (out, after) = rest.split_at(len);
        assert!(before.iter().chain(after).all(|&v| v == AROUND), "wrote beside its output of {len} values");
        if result.is_err() {
            assert!(out.iter().all(|v| v.is_nan()), "wrote before it refused its arguments");
        }
        result.map(|()| out.to_vec())
    }
}

/// Compares value by value: NaN with NaN, infinities with themselves, the rest within `tolerance(index)`.
pub(super) fn compare(case: impl Debug, got: &[f32], want: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{case:?}: length");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let allowed = tolerance(i);
        let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
        let off = (f64::from(got) - want).abs();
        assert!(same || off <= allowed, "{case:?}: value {i} is {got:e}, expected {want:e} ± {allowed:e}");
    }
}

/// The kernel refused because one buffer has the wrong length.
pub(super) fn refuses_length(case: &str, answer: Result<Vec<f32>, KernelError>) {
    assert!(
        matches!(answer, Err(KernelError::Length { .. })),
        "{case}: expected a wrong length, got {answer:?}"
    );
}

/// The kernel refused a size that contradicts the others.
pub(super) fn refuses_size(case: &str, answer: Result<Vec<f32>, KernelError>) {
    assert!(matches!(answer, Err(KernelError::Size { .. })), "{case}: expected a wrong size, got {answer:?}");
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    #[should_panic(expected = "value 1 is")]
    fn a_value_off_by_more_than_allowed_is_found() {
        compare("case", &[1.0, 2.1], &[1.0, 2.0], |_| 0.05);
    }

    #[test]
    #[should_panic(expected = "value 0 is NaN")]
    fn a_lone_nan_is_found() {
        compare("case", &[f32::NAN], &[1.0], |_| f64::MAX);
    }
}
