//! Constants on the device, in the form that their operators need: plain, or packed for products.

use turbo_kernels::{FloatsOn, Gemm};

use super::{
    load::{Loaded, Loader},
    sources::{PackedStore, WeightSource},
};
use crate::{GraphError, Program, ValueId};

/// Bytes that constants take on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Matrices of products, packed.
    pub packed: usize,
    /// Tables and vectors, which are read as they are.
    pub tables: usize,
}

/// The constants of a program, by value.
pub(crate) struct Weights<D: Gemm> {
    loaded: Vec<Option<Loaded<D>>>,
}

impl<D: Gemm> Weights<D> {
    pub(crate) fn load(
        device: &D,
        queue: &mut D::Queue,
        program: &Program,
        source: &dyn WeightSource,
        store: Option<&dyn PackedStore>,
    ) -> Result<Self, GraphError> {
        let mut loaded = Vec::new();
        for (value, constant) in Loader::new(device, queue, program, source, store).load_all()? {
            loaded.resize_with(loaded.len().max(value.index() + 1), || None);
            loaded[value.index()] = Some(constant);
        }
        Ok(Weights { loaded })
    }

    /// A table or vector.
    pub(crate) fn plain(&self, device: &D, value: ValueId) -> Result<FloatsOn<'_, D>, GraphError> {
        let plain = self.constant(value).and_then(|constant| constant.plain.as_ref());
        let (block, len) = plain.expect("the program reads this weight as it is");
        Ok(device.view(block, 0, *len)?)
    }

    /// A factor of a product.
    pub(crate) fn packed(&self, value: ValueId) -> &D::Weight {
        &self.packed_parts(value)[0]
    }

    /// The parts in which a factor is packed.
    pub(crate) fn packed_parts(&self, value: ValueId) -> &[D::Weight] {
        let packed = self.constant(value).and_then(|constant| constant.packed.as_ref());
        &packed.expect("the program multiplies by this weight").0
    }

    /// The bytes that all of them take.
    pub(crate) fn bytes(&self) -> WeightBytes {
        let constants = self.loaded.iter().flatten();
        constants.fold(WeightBytes::default(), |bytes, Loaded { plain, packed }| WeightBytes {
            packed: bytes.packed + packed.as_ref().map_or(0, |(_, bytes)| *bytes),
            tables: bytes.tables + plain.as_ref().map_or(0, |(_, values)| values * size_of::<D::Float>()),
        })
    }

    fn constant(&self, value: ValueId) -> Option<&Loaded<D>> {
        self.loaded.get(value.index())?.as_ref()
    }
}
