//! Attention on a GPU: the choice of the kernel, and of the number and size of its blocks.
//!
//! ```text
//! 16 bits, heads of 32, 64 or 128 columns, aligned ──▶ tensor cores: attention_wgmma.cu on compute capability 9.0,
//!                                                      attention_mma.cu elsewhere
//! everything else                                  ──▶ attention.cu, multiply-adds of f32
//! ```
//!
//! The two products multiply values of the type in which activations are stored, whatever [`AttentionShape::dtype`]
//! says; on the tensor cores weights are rounded to that type, too. A row has the same bits whatever the size of the
//! tile that it is computed in, but kernels of different files may give different bits.
//!
//! Lengths are on the device, so a layout that contradicts itself is not refused: its rows mean nothing, and no other
//! memory is touched.

mod variant;

#[cfg(test)]
mod tests;

use std::f64::consts::LOG2_E;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use variant::{MODULES, WGMMA_MODULES};
use variant::{Variant, Work};

use super::{Attention, AttentionShape, Queries, RelativeBias, relative::BiasArguments};
use crate::{
    Columns, KernelError, Layout,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, FloatType, LaunchShape, count, is_wide,
        sequences::{self, SequencesOnDevice},
        size,
    },
    device::Float,
};

const NAME: &str = "attention";

impl<F: Float> Attention for Cuda<F> {
    fn attention(
        &self,
        queue: &mut CudaQueue,
        shape: AttentionShape,
        layout: Layout<CudaView<'_, u32>>,
        q: Columns<CudaView<'_, F>>,
        k: Columns<CudaView<'_, F>>,
        v: Columns<CudaView<'_, F>>,
        bias: Option<RelativeBias<CudaView<'_, F>>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        let batch = Batch::checked(shape, layout, [q, k, v], bias, out)?;
        let variant = Variant::of(&batch.work(), self.driver().info());
        batch.launch(queue, variant)
    }
}

/// The arguments of an attention, checked as far as the host can.
struct Batch<'a, F: Float> {
    shape: AttentionShape,
    sequences: SequencesOnDevice<'a>,
    /// Rows of each sequence, unless the layout is packed.
    padded_len: Option<usize>,
    /// The rows of keys and values.
    rows: u32,
    q: Columns<CudaView<'a, F>>,
    k: Columns<CudaView<'a, F>>,
    v: Columns<CudaView<'a, F>>,
    bias: Option<RelativeBias<CudaView<'a, F>>>,
    out: CudaViewMut<'a, F>,
}

impl<'a, F: Float> Batch<'a, F> {
    /// # Errors
    /// Those of [`Attention::attention`].
    fn checked(
        shape: AttentionShape,
        layout: Layout<CudaView<'a, u32>>,
        [q, k, v]: [Columns<CudaView<'a, F>>; 3],
        bias: Option<RelativeBias<CudaView<'a, F>>>,
        out: CudaViewMut<'a, F>,
    ) -> Result<Self, KernelError> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, queries, .. } = shape;
        KernelError::check_grouping(NAME, num_heads, num_kv_heads)?;
        let padded_len = match layout {
            Layout::Padded { padded_len, .. } => Some(padded_len),
            Layout::Packed { .. } => None,
        };
        let sequences = sequences::of_layout(NAME, layout)?;
        let rows = sequences.check_rows(NAME, "k", k.row_stride, k.rows.len())?;
        let query_rows = if queries == Queries::All { rows } else { sequences.batch_size } as usize;
        let width = num_heads.saturating_mul(head_dim);
        KernelError::check_length(NAME, "out", query_rows.saturating_mul(width), out.len())?;
        q.check_values(NAME, "q", query_rows, width, q.rows.len())?;
        for (argument, columns) in [("k", &k), ("v", &v)] {
            let width = num_kv_heads.saturating_mul(head_dim);
            columns.check_values(NAME, argument, rows as usize, width, columns.rows.len())?;
        }
        if let Some(bias) = bias {
            bias.check(NAME, num_heads, [query_rows, rows as usize])?;
        }
        Ok(Self { shape, sequences, padded_len, rows, q, k, v, bias, out })
    }

    fn work(&self) -> Work {
        let AttentionShape { num_heads, head_dim, queries, .. } = self.shape;
        let sequences = self.sequences.batch_size as usize;
        Work {
            float: FloatType::of::<F>(),
            head_dim,
            num_heads,
            sequences,
            queries: match queries {
                Queries::All => (self.rows as usize).div_ceil(sequences.max(1)),
                Queries::First | Queries::Last => 1,
            },
            biased: self.bias.is_some(),
            by_distance: !matches!(self.bias, Some(RelativeBias::Disentangled { .. })),
            wide: is_wide::<F>(num_heads * head_dim, [self.out.address()])
                && [self.q, self.k, self.v].iter().all(columns_are_wide),
        }
    }

    /// The most tiles of queries that there can be.
    fn tiles(&self, tile_rows: usize) -> usize {
        let (rows, batch_size) = (self.rows as usize, self.sequences.batch_size as usize);
        match (self.shape.queries, self.padded_len) {
            (Queries::First | Queries::Last, _) => batch_size,
            (Queries::All, Some(padded_len)) => batch_size.saturating_mul(padded_len.div_ceil(tile_rows)),
            // one more for each sequence than its rows fill: see `first_tile` in tile.cuh
            (Queries::All, None) => rows / tile_rows + batch_size,
        }
    }

    /// Launches `variant`, which can do this work.
    fn launch(self, queue: &mut CudaQueue, variant: Variant) -> Result<(), KernelError> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, scale, mask, queries, .. } = self.shape;
        // rows of no sequence mean nothing, and there are no prefix sums behind the first one
        if self.out.len() == 0 || self.sequences.batch_size == 0 {
            return Ok(());
        }
        let tiles = self.tiles(variant.tile_rows());
        let Self { sequences, rows, q, k, v, bias, out, .. } = self;
        let shape = LaunchShape {
            grid: [
                count(NAME, "tiles", tiles.saturating_mul(num_heads))?,
                size(NAME, "head_dim", variant.parts(head_dim))?,
                1,
            ],
            block: variant.threads(),
            shared_bytes: variant.shared_bytes(bias.is_some()),
        };
        let attending: u32 = match queries {
            Queries::All => 0,
            Queries::First => 1,
            Queries::Last => 2,
        };
        let [before, after] = mask.reaches();
        let BiasArguments { kind, table, of_keys, num_buckets, max_distance } = BiasArguments::of(bias);
        let arguments = (
            q.rows,
            k.rows,
            v.rows,
            out,
            sequences.lengths,
            sequences.batch_size,
            sequences.padded_len,
            rows,
            size(NAME, "q", q.first)?,
            size(NAME, "k", k.first)?,
            size(NAME, "v", v.first)?,
            size(NAME, "q", q.row_stride)?,
            size(NAME, "k", k.row_stride)?,
            size(NAME, "v", v.row_stride)?,
            size(NAME, "num_heads", num_heads)?,
            size(NAME, "num_heads", num_heads / num_kv_heads)?,
            size(NAME, "head_dim", head_dim)?,
            attending,
            before,
            after,
            (f64::from(scale) * LOG2_E) as f32,
            kind,
            table,
            of_keys,
            num_buckets,
            max_distance,
        );
        // SAFETY: the arguments are PARAMETERS of tile.cuh. Tiles lie in sequences, and sequences among `rows` rows
        // whatever the lengths say; all columns were checked to lie in their rows. A variant that reads 16 bytes at
        // once is chosen only where all columns begin at multiples of 16 bytes.
        Ok(unsafe { queue.launch(variant.kernel::<F>(), shape, arguments) }?)
    }
}

/// Whether the columns begin at multiples of 16 bytes in each row.
fn columns_are_wide<F: Float>(columns: &Columns<CudaView<'_, F>>) -> bool {
    let first = columns.rows.address().offset(columns.first * size_of::<F>());
    is_wide::<F>(columns.row_stride, [first])
}
