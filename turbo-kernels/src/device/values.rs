//! Lengths of views, whatever device they are of.

/// A view, of whatever device, as a check of sizes sees it.
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
