//! Attention on a GPU: which kernel, and how many blocks of which size.
//!
//! ```text
//! 16 bits, heads of 32, 64 or 128 columns, aligned ──▶ attention_mma.cu, tensor cores
//! everything else                                  ──▶ attention.cu, multiply-adds of f32
//! ```
//!
//! The two products multiply what activations are stored as, whatever [`AttentionShape::dtype`] says; on the tensor cores weights
//! are rounded to that, too. A row has the same bits whatever the size of the tile that it is computed in, but not in both
//! kernels.
//!
//! Lengths are on the device, so a layout that contradicts itself is not refused: its rows mean nothing, and no other
//! memory is touched.

mod variant;

#[cfg(test)]
mod tests;

use std::f64::consts::LOG2_E;

use variant::{Variant, Work};

use super::{Attention, AttentionMask, AttentionShape, Queries, RelativeBias};
use crate::{
    Columns, KernelError, Layout,
    cuda::{Address, Cuda, CudaQueue, CudaView, CudaViewMut, FloatType, LaunchShape, size},
    device::Float,
};

const NAME: &str = "attention";

/// What stands for the padded length of a packed layout, see tile.cuh.
const PACKED: u32 = u32::MAX;
/// What the tensor cores' kernel reads and writes at once.
const VECTOR_BYTES: usize = 16;

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
        let variant = Variant::of(&batch.work(), self.driver().info().multiprocessors as usize);
        batch.launch(queue, variant)
    }
}

/// What attends to what, checked as far as the host can.
struct Batch<'a, F: Float> {
    shape: AttentionShape,
    /// Prefix sums, or lengths if there is a padded one.
    lengths: CudaView<'a, u32>,
    padded_len: Option<usize>,
    sequences: usize,
    /// Of keys and values.
    rows: usize,
    q: Columns<CudaView<'a, F>>,
    k: Columns<CudaView<'a, F>>,
    v: Columns<CudaView<'a, F>>,
    bias: Option<RelativeBias<CudaView<'a, F>>>,
    out: CudaViewMut<'a, F>,
}

impl<'a, F: Float> Batch<'a, F> {
    /// # Errors
    /// As of [`Attention::attention`].
    fn checked(
        shape: AttentionShape,
        layout: Layout<CudaView<'a, u32>>,
        [q, k, v]: [Columns<CudaView<'a, F>>; 3],
        bias: Option<RelativeBias<CudaView<'a, F>>>,
        out: CudaViewMut<'a, F>,
    ) -> Result<Self, KernelError> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, queries, .. } = shape;
        KernelError::check_grouping(NAME, num_heads, num_kv_heads)?;
        let (lengths, padded_len, sequences, rows) = match layout {
            Layout::Padded { seq_lens, padded_len } => {
                (seq_lens, Some(padded_len), seq_lens.len(), seq_lens.len().saturating_mul(padded_len))
            }
            Layout::Packed { cu_seqlens } => {
                let Some(sequences) = cu_seqlens.len().checked_sub(1) else {
                    return Err(KernelError::Length {
                        kernel: NAME,
                        argument: "cu_seqlens",
                        expected: 1,
                        got: 0,
                    });
                };
                (cu_seqlens, None, sequences, KernelError::check_rows(NAME, "k", k.row_stride, k.rows.len())?)
            }
        };
        let query_rows = if queries == Queries::All { rows } else { sequences };
        let width = num_heads.saturating_mul(head_dim);
        KernelError::check_length(NAME, "out", query_rows.saturating_mul(width), out.len())?;
        q.check_values(NAME, "q", query_rows, width, q.rows.len())?;
        let width = num_kv_heads.saturating_mul(head_dim);
        k.check_values(NAME, "k", rows, width, k.rows.len())?;
        v.check_values(NAME, "v", rows, width, v.rows.len())?;
        if let Some(bias) = bias {
            bias.check_table(NAME, num_heads, bias.table.len())?;
        }
        Ok(Self { shape, lengths, padded_len, sequences, rows, q, k, v, bias, out })
    }

    fn work(&self) -> Work {
        let AttentionShape { num_heads, head_dim, queries, .. } = self.shape;
        let vectors = |columns: &Columns<CudaView<'_, F>>| {
            let bytes = columns.row_stride * size_of::<F>();
            is_vector(first(columns)) && bytes.is_multiple_of(VECTOR_BYTES)
        };
        Work {
            float: FloatType::of::<F>(),
            head_dim,
            num_heads,
            sequences: self.sequences,
            queries: match queries {
                Queries::All => self.rows.div_ceil(self.sequences.max(1)),
                Queries::First | Queries::Last => 1,
            },
            vectors: [self.q, self.k, self.v].iter().all(vectors) && is_vector(self.out.address()),
        }
    }

    /// `variant` is one that can do this work.
    fn launch(self, queue: &mut CudaQueue, variant: Variant) -> Result<(), KernelError> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, scale, mask, queries, .. } = self.shape;
        if self.out.len() == 0 {
            return Ok(());
        }
        let tile_rows = variant.tile_rows();
        // of a packed sequence there may be a tile more than its rows fill: see `first_tile` in tile.cuh
        let tiles = match (queries, self.padded_len) {
            (Queries::First | Queries::Last, _) => self.sequences,
            (Queries::All, Some(padded_len)) => self.sequences.saturating_mul(padded_len.div_ceil(tile_rows)),
            (Queries::All, None) => self.rows / tile_rows + self.sequences,
        };
        let shape = LaunchShape {
            grid: [
                below_2_31("tiles", tiles.saturating_mul(num_heads))?,
                size(NAME, "head_dim", variant.parts(head_dim))?,
                1,
            ],
            block: variant.threads(),
            shared_bytes: variant.shared_bytes(self.bias.is_some()),
        };
        let attending: u32 = match queries {
            Queries::All => 0,
            Queries::First => 1,
            Queries::Last => 2,
        };
        // no sequence is so long that the greatest u32 would be a limit
        let reach = |reach| u32::try_from(reach).unwrap_or(u32::MAX);
        let (before, after) = match mask {
            AttentionMask::Full => (u32::MAX, u32::MAX),
            AttentionMask::Causal => (u32::MAX, 0),
            AttentionMask::Window { reach: distance } => (reach(distance), reach(distance)),
        };
        let padded_len = self.padded_len.map_or(Ok(PACKED), |len| below_2_31("padded_len", len))?;
        let (num_buckets, max_distance) =
            self.bias.map_or((0, 0), |bias| (bias.num_buckets, bias.max_distance));
        let arguments = (
            first(&self.q),
            first(&self.k),
            first(&self.v),
            self.out,
            self.lengths,
            size(NAME, "batch_size", self.sequences)?,
            padded_len,
            below_2_31("rows", self.rows)?,
            size(NAME, "q", self.q.row_stride)?,
            size(NAME, "k", self.k.row_stride)?,
            size(NAME, "v", self.v.row_stride)?,
            size(NAME, "num_heads", num_heads)?,
            size(NAME, "num_heads", num_heads / num_kv_heads)?,
            size(NAME, "head_dim", head_dim)?,
            attending,
            before,
            after,
            (f64::from(scale) * LOG2_E) as f32,
            self.bias.map(|bias| bias.table),
            size(NAME, "num_buckets", num_buckets)?,
            size(NAME, "max_distance", max_distance)?,
        );
        // SAFETY: these are PARAMETERS of tile.cuh. Rows of q and out are those of the tiles, which lie in the sequences,
        // and sequences lie in `rows` rows whatever the lengths say; every part of a row was checked to lie in its row. A variant
        // with vectors is chosen where addresses and strides allow them.
        Ok(unsafe { queue.launch(variant.kernel::<F>(), shape, arguments) }?)
    }
}

/// Where the columns of the first row begin.
fn first<F: Float>(columns: &Columns<CudaView<'_, F>>) -> Address {
    columns.rows.address().offset(columns.first * size_of::<F>())
}

fn is_vector(address: Address) -> bool {
    address.0.is_multiple_of(VECTOR_BYTES as u64)
}

/// A number that is one of int, too.
fn below_2_31(argument: &'static str, got: usize) -> Result<u32, KernelError> {
    let expected = "less than 2^31";
    let number = u32::try_from(got).ok().filter(|number| *number < 1 << 31);
    number.ok_or(KernelError::Size { kernel: NAME, argument, expected, got })
}
