//! Where weights come from: read as published, or kept packed from an earlier start.

use std::{borrow::Cow, error::Error};

/// Where named weights come from. Several threads call it at once.
pub trait WeightSource: Sync {
    /// The values of a tensor in row-major order as f32, whatever the file stores.
    ///
    /// # Errors
    /// When there is no such tensor, or it has another shape.
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>>;

    /// The executor no longer needs this tensor: whatever was mapped or cached for it may be released. Called once for
    /// each tensor of a program, right after the last constant that is made of it is loaded, even if that constant came
    /// from a [`PackedStore`] and the tensor was never read.
    fn done(&self, name: &str) {
        let _ = name;
    }
}

/// Where packed weights are kept from one start to the next. Several threads call it at once.
///
/// `name` has the names of the checkpoint's tensors, joined by `+` if they are merged, and the shape of the matrix:
/// `query+key+value[1152,384]`. For experts that are packed one by one it also says which:
/// `up[24576,768] rows, part 1 of 8`. `packing` says how the bytes are laid out: their order, dtype and panel width
/// ([`Gemm::packing`](turbo_kernels::Gemm::packing)). The two together are unique in a model.
pub trait PackedStore: Sync {
    /// The bytes that were stored under these names, if available; bytes of another length count as none.
    fn load(&self, name: &str, packing: &str) -> Option<Cow<'_, [u8]>>;

    /// Keeps the bytes of a weight that was just packed. Failures are for the store to handle: the executor carries on.
    fn store(&self, name: &str, packing: &str, image: &[u8]);
}
