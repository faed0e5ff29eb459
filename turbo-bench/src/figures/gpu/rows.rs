//! Operations on rows: large ones to compare with the memory bandwidth, and the grid on which the paper compares
//! reductions.

use super::{Dtype, Operation};

/// Name of the contestant that runs PyTorch as written.
pub const EAGER: &str = "eager";
/// Name of the one compiled by `torch.compile`, for any number of rows.
pub const COMPILED: &str = "compiled";
/// Name of the one compiled by `torch.compile(mode="max-autotune-no-cudagraphs")`, for one number of rows.
pub const AUTOTUNED: &str = "autotuned";

/// Name of the classical reduction: one row to a block, one thread to a value, one reduction after the other.
pub const CLASSICAL: &str = "classical";
/// Names of the reductions of so many rows to a warp together. By default turbo chooses among these itself.
pub const BATCHED: [(&str, u32); 3] = [("1 row", 1), ("2 rows", 2), ("4 rows", 4)];

/// Bytes that are far more than the caches of known GPUs hold.
pub const WIDE_BYTES: u64 = 150_000_000;

/// The row kernels of BERT-base on 32 sequences of 512 tokens, with as many rows as are needed to move more than
/// [`WIDE_BYTES`].
#[must_use]
pub fn wide() -> Vec<(Operation, Dtype)> {
    let operations = [
        Operation::Softmax { rows: 32 * 12 * 512, columns: 512 },
        Operation::ResidualLayerNorm { rows: 65_536, columns: 768 },
        Operation::BiasGelu { rows: 16_384, columns: 3072 },
        Operation::Embedding { rows: 131_072, columns: 768 },
    ];
    let of = |operation: &Operation| Dtype::ALL.map(|dtype| (operation.clone(), dtype));
    operations.iter().flat_map(of).collect()
}

/// The grid of Figure 5 (TurboTransformers, PPoPP'21): softmax of the scores of 12 heads, and layer norm of 768 values.
/// The text names no sizes; these are those of the authors' benchmark programs, the same as in their Figure 14.
#[must_use]
pub fn reductions() -> Vec<(Operation, Dtype)> {
    const BATCH_SIZES: [u64; 2] = [1, 20];
    const LENS: [u64; 10] = [10, 20, 40, 60, 80, 100, 200, 300, 400, 500];
    let of = |dtype: Dtype| {
        let points = LENS.into_iter().flat_map(|len| BATCH_SIZES.map(|batch_size| (batch_size, len)));
        points.flat_map(move |(batch_size, len)| {
            let softmax = Operation::Softmax { rows: batch_size * 12 * len, columns: len };
            [softmax, Operation::LayerNorm { rows: batch_size * len, columns: 768 }].map(|it| (it, dtype))
        })
    };
    let mut all: Vec<(Operation, Dtype)> = [Dtype::F32, Dtype::Bf16].into_iter().flat_map(of).collect();
    all.sort_by_key(|(operation, dtype)| match *operation {
        // rows of one width, and so of one compiled function, follow each other
        Operation::Softmax { rows, columns } => (dtype.name(), 0, columns, rows),
        _ => (dtype.name(), 1, 0, operation.results()),
    });
    all.dedup(); // 200 rows are one sequence or twenty
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cache_holds_the_wide_ones() {
        let wide = wide();
        assert_eq!(wide.len(), 4 * 3);
        for (operation, dtype) in wide {
            let bytes = operation.bytes(dtype);
            assert!(bytes > WIDE_BYTES, "{} {}: {bytes}", operation.name(), dtype.name());
        }
    }

    #[test]
    fn the_grid_is_the_papers() {
        let grid = reductions();
        assert_eq!(grid.len(), 2 * (20 + 18), "200 and 400 rows of layer norm come twice");
        assert!(grid.contains(&(Operation::Softmax { rows: 20 * 12 * 500, columns: 500 }, Dtype::F32)));
        assert!(grid.contains(&(Operation::LayerNorm { rows: 10, columns: 768 }, Dtype::Bf16)));
        let kinds = |(operation, dtype): &(Operation, Dtype)| (operation.name(), *dtype);
        let changes = grid.windows(2).filter(|pair| kinds(&pair[0]) != kinds(&pair[1])).count();
        assert_eq!(changes, 3, "each kind is together");
    }
}
