//! Operations that are timed by themselves, on values that both sides make by the same rule.

use serde::{Deserialize, Serialize};

/// The type in which a GPU stores values; sums are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// The range of f32, with 16 fewer bits of fraction.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Single precision; its products are not rounded to TF32.
    F32,
}

impl Dtype {
    /// All types; the one used for serving comes first.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Half a unit in the last place of a value near 1.
    fn rounding(self) -> f64 {
        match self {
            Self::Bf16 => 1.0 / 256.0,
            Self::F16 => 1.0 / 2048.0,
            Self::F32 => 1.0 / 16_777_216.0,
        }
    }

    /// The most that two results of the same operation may differ, relative to their length. Some values are rounded on
    /// the way, on one side or on both, each by a fraction of this; `exp` and `erf` of both sides are good to a few
    /// units in the last place of f32.
    #[must_use]
    pub fn allowed_error(self) -> f64 {
        (4.0 * self.rounding()).max(1e-5)
    }

    /// The smallest cosine with turbo in f32 that the vectors of an encoder may have. Twelve layers in bf16 leave
    /// 0.99987 (as PyTorch with weights in bf16 in the CPU's record). The error of f16 is an eighth of that of bf16, so
    /// its cosine is 64 times closer to 1. f32 arithmetic in another order stays within 1e-9.
    #[must_use]
    pub fn least_cosine(self) -> f64 {
        match self {
            Self::Bf16 => 0.9995,
            Self::F16 => 0.99999,
            Self::F32 => 1.0 - 1e-6,
        }
    }
}

/// An operation of a GPU on its own memory. Rows are those of a matrix `[rows, columns]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// The operation on each row.
    Softmax {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// The operation on each row.
    LayerNorm {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// Layer norm of the sum of a row, a bias and another row.
    ResidualLayerNorm {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// GELU with the error function, of the sum of a row and a bias.
    BiasGelu {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// Looks up every row of a table once, in an order that defeats caches.
    Embedding {
        /// Rows of the table, and ids.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// Attention of merged queries, keys and values, `[tokens, 3, num_heads, head_dim]`; no masks except the ends of
    /// sequences.
    Attention {
        /// Tokens of each sequence.
        lens: Vec<u32>,
        /// Heads.
        num_heads: u64,
        /// Values of each head.
        head_dim: u64,
    },
    /// A copy from one place of the GPU's memory to another.
    Copy {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
    /// The product of a matrix and a square one.
    Product {
        /// Rows.
        rows: u64,
        /// Values of each row.
        columns: u64,
    },
}

impl Operation {
    /// The fewest bytes that it moves: everything read once, everything written once.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> u64 {
        const ID: u64 = 4;
        let of = |values: u64| values * dtype.bytes();
        match *self {
            Self::Softmax { rows, columns } | Self::Copy { rows, columns } => of(2 * rows * columns),
            Self::BiasGelu { rows, columns } => of(2 * rows * columns + columns),
            Self::LayerNorm { rows, columns } => of(2 * rows * columns + 2 * columns),
            Self::ResidualLayerNorm { rows, columns } => of(3 * rows * columns + 3 * columns),
            Self::Embedding { rows, columns } => of(2 * rows * columns) + ID * rows,
            Self::Attention { ref lens, num_heads, head_dim } => {
                of(4 * tokens(lens) * num_heads * head_dim) + ID * (lens.len() as u64 + 1)
            }
            Self::Product { rows, columns } => of(2 * rows * columns + columns * columns),
        }
    }

    /// Operations of its products; a multiply-add counts as two. Other operations are not counted.
    #[must_use]
    pub fn flops(&self) -> u64 {
        match *self {
            Self::Attention { ref lens, num_heads, head_dim } => {
                4 * lens.iter().map(|&len| u64::from(len).pow(2)).sum::<u64>() * num_heads * head_dim
            }
            Self::Product { rows, columns } => 2 * rows * columns * columns,
            _ => 0,
        }
    }

    /// Number of values of the result.
    #[must_use]
    pub fn results(&self) -> u64 {
        match *self {
            Self::Attention { ref lens, num_heads, head_dim } => tokens(lens) * num_heads * head_dim,
            Self::Softmax { rows, columns }
            | Self::LayerNorm { rows, columns }
            | Self::ResidualLayerNorm { rows, columns }
            | Self::BiasGelu { rows, columns }
            | Self::Embedding { rows, columns }
            | Self::Copy { rows, columns }
            | Self::Product { rows, columns } => rows * columns,
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Softmax { .. } => "softmax",
            Self::LayerNorm { .. } => "layer norm",
            Self::ResidualLayerNorm { .. } => "residual + bias + layer norm",
            Self::BiasGelu { .. } => "bias + GELU",
            Self::Embedding { .. } => "embedding",
            Self::Attention { .. } => "attention",
            Self::Copy { .. } => "copy",
            Self::Product { .. } => "product",
        }
    }

    /// `196608 × 512`; for sequences their number and lengths.
    #[must_use]
    pub fn sizes(&self) -> String {
        match self {
            Self::Attention { lens, .. } => {
                let (least, most) = (lens.iter().min().unwrap_or(&0), lens.iter().max().unwrap_or(&0));
                if least == most {
                    format!("{} × {most}", lens.len())
                } else {
                    format!("{} × {least} to {most}", lens.len())
                }
            }
            Self::Softmax { rows, columns }
            | Self::LayerNorm { rows, columns }
            | Self::ResidualLayerNorm { rows, columns }
            | Self::BiasGelu { rows, columns }
            | Self::Embedding { rows, columns }
            | Self::Copy { rows, columns }
            | Self::Product { rows, columns } => format!("{rows} × {columns}"),
        }
    }
}

fn tokens(lens: &[u32]) -> u64 {
    lens.iter().map(|&len| u64::from(len)).sum()
}

/// `count` values in [-1, 1), by a hash of place and seed; the same as `values` in `peers/gpu_peer.py`.
pub fn values(count: usize, seed: u32) -> impl Iterator<Item = f32> {
    let offset = seed.wrapping_mul(0x85eb_ca77);
    (0..count as u32).map(move |place| {
        let mut h = place.wrapping_mul(0x9e37_79b1).wrapping_add(offset);
        h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
        h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
        h ^= h >> 15;
        (f64::from(h) / f64::from(1_u32 << 31) - 1.0) as f32
    })
}

/// The row of the table that id number `place` of `rows` names. Each row comes once if 7919 is coprime to `rows`.
#[must_use]
pub fn id(place: u64, rows: u64) -> u32 {
    ((place * 7919 + 13) % rows) as u32
}

/// Indices of `count` of `len` values, evenly spread: the first, the last and some between.
pub fn sampled(len: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| index * (len - 1) / (count - 1).max(1))
}

/// The distance of `got` from `expected`, relative to the length of `expected`; infinite if they cannot be compared.
#[must_use]
pub fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    if got.len() != expected.len() || got.is_empty() {
        return f64::INFINITY;
    }
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let mut apart = got.iter().zip(expected).map(|(&got, &want)| f64::from(got) - f64::from(want));
    let error = (squares(&mut apart) / squares(&mut expected.iter().map(|&it| f64::from(it)))).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_once_each() {
        let softmax = Operation::Softmax { rows: 32 * 12 * 512, columns: 512 };
        assert_eq!(softmax.bytes(Dtype::Bf16), 2 * 2 * 100_663_296);
        let norm = Operation::ResidualLayerNorm { rows: 16384, columns: 768 };
        assert_eq!(norm.bytes(Dtype::Bf16), 3 * 2 * (12_582_912 + 768));
        let embedding = Operation::Embedding { rows: 10, columns: 8 };
        assert_eq!(embedding.bytes(Dtype::F32), 2 * 4 * 80 + 40);
        let attention = Operation::Attention { lens: vec![512; 32], num_heads: 12, head_dim: 64 };
        assert_eq!((attention.flops(), attention.results()), (25_769_803_776, 12_582_912));
        assert_eq!(attention.bytes(Dtype::Bf16), 4 * 2 * 12_582_912 + 4 * 33);
        assert_eq!(Operation::Product { rows: 2, columns: 3 }.flops(), 36);
    }

    #[test]
    fn sizes_are_said_shortly() {
        let attention =
            |lens: &[u32]| Operation::Attention { lens: lens.to_vec(), num_heads: 1, head_dim: 1 };
        assert_eq!([attention(&[7, 7]).sizes(), attention(&[7, 3, 5]).sizes()], ["2 × 7", "3 × 3 to 7"]);
        assert_eq!(Operation::BiasGelu { rows: 5, columns: 6 }.sizes(), "5 × 6");
    }

    /// The results of `values(5, 0)` and `values(3, 7)` in `peers/gpu_peer.py`.
    #[test]
    fn values_are_those_of_the_other_side() {
        let first: Vec<f32> = values(5, 0).collect();
        assert_eq!(first, [-1.0, -0.747_100_35, -0.500_910_6, 0.866_739_15, -0.371_936_92]);
        assert_eq!(values(3, 7).collect::<Vec<_>>(), [0.999_487_94, -0.978_713, 0.732_274_7]);
    }

    #[test]
    fn every_row_of_a_table_is_read_once() {
        let mut ids: Vec<u32> = (0..128).map(|place| id(place, 128)).collect();
        assert!(ids.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1), "{ids:?}");
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..128));
    }

    #[test]
    fn a_sample_has_both_ends() {
        assert_eq!(sampled(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
        assert_eq!(sampled(10, 1).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn an_error_is_a_part_of_the_length() {
        assert_eq!(relative_error(&[3.0, 4.5], &[3.0, 4.0]), 0.1);
        assert_eq!(relative_error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(relative_error(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(relative_error(&[], &[]), f64::INFINITY);
        let allowed = Dtype::ALL.map(Dtype::allowed_error);
        assert!(allowed[0] > allowed[1] && allowed[1] > allowed[2], "{allowed:?}");
    }

    #[test]
    fn the_other_side_reads_what_is_written() {
        let softmax = serde_json::to_string(&Operation::Softmax { rows: 8, columns: 16 }).unwrap();
        assert_eq!(softmax, r#"{"op":"softmax","rows":8,"columns":16}"#);
        let attention = Operation::Attention { lens: vec![5, 3], num_heads: 2, head_dim: 4 };
        let text = r#"{"op":"attention","lens":[5,3],"num_heads":2,"head_dim":4}"#;
        assert_eq!(serde_json::to_string(&attention).unwrap(), text);
        assert_eq!(serde_json::to_string(&Dtype::ALL).unwrap(), r#"["bf16","f16","f32"]"#);
    }
}
