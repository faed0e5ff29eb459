//! Where weights come from: read as published, or as they were packed another time.

use std::{borrow::Cow, error::Error};

/// Where named weights come from. Several threads call it at once.
pub trait WeightSource: Sync {
    /// The values of a tensor in row-major order as f32, whatever the file stores.
    ///
    /// # Errors
    /// When there is no such tensor, or it has another shape.
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>>;

    /// An executor needs this tensor no more: what was mapped or cached for it may be released. Called once for each
    /// tensor of a program, right after the last constant that is made of it, and also when that came from a
    /// [`PackedStore`] and the tensor was never read.
    fn done(&self, name: &str) {
        let _ = name;
    }
}

/// Where packed weights are kept from one start to the next. Several threads call it at once.
///
/// `name` is that of the tensors of the checkpoint, those that are merged joined by `+`, and the shape of the matrix:
/// `query+key+value[1152,384]`. Of experts that are packed one by one it says which: `up[24576,768] rows, part 1
/// of 8`. `packing` says in which order, of which dtype and width of panels, the bytes lie
/// ([`Gemm::packing`](turbo_kernels::Gemm::packing)). Both together are unique in a model.
pub trait PackedStore: Sync {
    /// The bytes that were stored under these names, if they are at hand; an answer of another length is as good as none.
    fn load(&self, name: &str, packing: &str) -> Option<Cow<'_, [u8]>>;

    /// Keeps the bytes of a weight that was just packed. What goes wrong is the store's own affair: the executor goes on.
    fn store(&self, name: &str, packing: &str, image: &[u8]);
}
