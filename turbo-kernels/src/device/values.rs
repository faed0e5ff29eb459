//! Lengths of views of any device.

/// A view of any device, as size checks see it.
pub(crate) trait Values {
    /// How many values it holds.
    fn len(&self) -> usize;
}

impl<T> Values for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}

impl<T> Values for &mut [T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}
