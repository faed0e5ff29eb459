//! The constants that one node reads, as its kernel takes them.

use turbo_kernels::{EncoderKernels, FloatsOn, RelativeBias, norm::NormWeights};

use super::weights::Weights;
use crate::{
    GraphError,
    graph::Node,
    op::{DistanceBias, RelativeBuckets},
};

/// The constants of `node`, by the positions of its inputs.
pub(super) struct Constants<'a, 'n, D: EncoderKernels> {
    pub(super) device: &'a D,
    pub(super) weights: &'a Weights<D>,
    pub(super) node: &'n Node,
}

impl<'a, D: EncoderKernels> Constants<'a, '_, D> {
    /// A table or vector.
    pub(super) fn plain(&self, input: usize) -> Result<FloatsOn<'a, D>, GraphError> {
        self.weights.plain(self.device, self.node.inputs[input])
    }

    /// A vector that may be left out.
    pub(super) fn optional(&self, input: usize) -> Result<Option<FloatsOn<'a, D>>, GraphError> {
        (input < self.node.inputs.len()).then(|| self.plain(input)).transpose()
    }

    /// The vector at `input`, if there is one.
    pub(super) fn given(&self, input: Option<usize>) -> Result<Option<FloatsOn<'a, D>>, GraphError> {
        input.map(|input| self.plain(input)).transpose()
    }

    /// The matrix of a product.
    pub(super) fn matrix(&self, input: usize) -> &'a D::Weight {
        self.weights.packed(self.node.inputs[input])
    }

    /// The matrices of the experts, or one matrix of all experts.
    pub(super) fn experts(&self, input: usize) -> &'a [D::Weight] {
        self.weights.packed_parts(self.node.inputs[input])
    }

    /// Gain and, if there is one, offset, from input `first` on.
    pub(super) fn norm(
        &self,
        first: usize,
        epsilon: f32,
    ) -> Result<NormWeights<FloatsOn<'a, D>>, GraphError> {
        Ok(NormWeights { gain: self.plain(first)?, offset: self.optional(first + 1)?, epsilon })
    }

    /// The biases by distance: from the table at `input`, if they have one, or from scores with positions, which are
    /// computed.
    pub(super) fn relative_bias(
        &self,
        input: usize,
        bias: Option<DistanceBias>,
        [of_queries, of_keys]: [FloatsOn<'a, D>; 2],
    ) -> Result<Option<RelativeBias<FloatsOn<'a, D>>>, GraphError> {
        Ok(match bias {
            None => None,
            Some(DistanceBias::Buckets(RelativeBuckets { num_buckets, max_distance })) => {
                Some(RelativeBias::Buckets { table: self.plain(input)?, num_buckets, max_distance })
            }
            Some(DistanceBias::Alibi) => Some(RelativeBias::Alibi),
            Some(DistanceBias::Disentangled(positions)) => {
                Some(RelativeBias::Disentangled { of_queries, of_keys, positions })
            }
        })
    }
}
