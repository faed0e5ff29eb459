//! The batched products on a GPU: as many in one call as a single stride can reach.

use super::{BatchedMatMul, HeadStrides, MatMulShape, Rhs};
use crate::{
    KernelError,
    cuda::{Address, Cuda, CudaQueue, CudaView, CudaViewMut, FloatType, Matrices, Product},
    device::Float,
};

impl<F: Float> BatchedMatMul for Cuda<F> {
    fn batched_matmul(
        &self,
        queue: &mut CudaQueue,
        shape: MatMulShape,
        (a, a_at): (CudaView<'_, F>, HeadStrides),
        (b, b_at, rhs): (CudaView<'_, F>, HeadStrides, Rhs),
        (out, out_at): (CudaViewMut<'_, F>, HeadStrides),
    ) -> Result<(), KernelError> {
        let at = [a_at, b_at, out_at];
        shape.check(at, rhs, [a.len(), b.len(), out.len()])?;
        let MatMulShape { m, n, k, .. } = shape;
        let float = FloatType::of::<F>();
        for Run { batch, first, batch_strides } in runs(shape, at) {
            let matrices = |i: usize, address: Address| Matrices {
                first: address.offset(first[i] * size_of::<F>()),
                row_stride: at[i].row_stride,
                batch_stride: batch_strides[i],
            };
            let product = Product {
                input: float,
                output: float,
                batch,
                m,
                n,
                k,
                x: matrices(0, a.address()),
                w: matrices(1, b.address()),
                w_order: rhs,
                y: matrices(2, out.address()),
                bias: Address::NULL,
                activation: None,
                add: None,
                tf32: self.tf32(),
            };
            // SAFETY: `check` proved that all values lie inside, and that no two values of the result share an element;
            // `out` is borrowed exclusively.
            unsafe { queue.product(&product) }?;
        }
        Ok(())
    }
}

/// The products of one call: for `a`, `b` and the result, the first value and the distance from one matrix to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    batch: usize,
    first: [usize; 3],
    batch_strides: [usize; 3],
}

/// All products of `shape`, in few runs: a single one if nothing lies between the sequences, one for each sequence, or
/// one for each head of `b` that several of `a` share.
fn runs(shape: MatMulShape, at: [HeadStrides; 3]) -> impl Iterator<Item = Run> {
    let MatMulShape { batch_size, num_heads, num_kv_heads, m, n, .. } = shape;
    let batch_size = if num_heads * m * n == 0 { 0 } else { batch_size };
    let grouped = num_heads != num_kv_heads;
    let joined = !grouped && at.iter().all(|at| at.batch_stride == num_heads * at.head_stride);
    let [sequences, of_sequence, batch] = match (joined, grouped) {
        (true, _) => [batch_size.min(1), 1, batch_size * num_heads],
        (_, false) => [batch_size, 1, num_heads],
        (_, true) => [batch_size, num_kv_heads, num_heads / num_kv_heads],
    };
    let [a_stride, b_stride, out_stride] = at.map(|at| at.head_stride);
    let batch_strides = [a_stride, if grouped { 0 } else { b_stride }, out_stride];
    (0..sequences * of_sequence).map(move |run| {
        let (sequence, group) = (run / of_sequence, run % of_sequence);
        let heads = [group * batch, group, group * batch];
        Run { batch, first: std::array::from_fn(|i| at[i].row(sequence, heads[i], 0)), batch_strides }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{cuda::on_every_emulator, suite};

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(suite::matmul);
    }

    proptest! {
        /// Every product, at the places where the strides put its matrices.
        #[test]
        fn runs_visit_every_product_once(
            batch_size in 0..4usize, kv in 1..4usize, group in 1..4usize, strides in prop::array::uniform3(
                (0..9usize, 0..9usize, 0..9usize)), joined: bool,
        ) {
            let num_heads = kv * group;
            let shape = MatMulShape { batch_size, num_heads, num_kv_heads: kv, m: 2, n: 3, k: 5 };
            let at = strides.map(|(first, batch_stride, head_stride)| {
                let batch_stride = if joined { num_heads * head_stride } else { batch_stride };
                HeadStrides { first, batch_stride, head_stride, row_stride: 1 }
            });
            let mut got: Vec<[usize; 3]> = runs(shape, at)
                .flat_map(|run| (0..run.batch).map(move |b| [0, 1, 2].map(|i| run.first[i] + b * run.batch_strides[i])))
                .collect();
            let mut want: Vec<[usize; 3]> = (0..batch_size)
                .flat_map(|s| (0..num_heads).map(move |h| {
                    [at[0].row(s, h, 0), at[1].row(s, h / group, 0), at[2].row(s, h, 0)]
                }))
                .collect();
            got.sort_unstable();
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn few_runs_suffice() {
        let shape =
            |num_kv_heads| MatMulShape { batch_size: 3, num_heads: 4, num_kv_heads, m: 2, n: 2, k: 2 };
        let separate = HeadStrides { first: 0, batch_stride: 16, head_stride: 4, row_stride: 2 };
        let interleaved = HeadStrides { first: 0, batch_stride: 16, head_stride: 2, row_stride: 8 };
        let count = |kv, at| runs(shape(kv), [separate, at, separate]).count();
        assert_eq!([count(4, separate), count(4, interleaved), count(2, separate)], [1, 3, 6]);
        let nothing = MatMulShape { m: 0, ..shape(2) };
        assert_eq!(runs(nothing, [separate; 3]).count(), 0);
    }
}
