//! The choice of the attention kernel and of the size of its blocks: pure functions of what the host knows.

use crate::{
    cuda::{DeviceInfo, FloatType, Kernel, Module, named},
    device::Float,
};

/// The kernels of some files for one type, behind the common files.
macro_rules! module {
    ($name:literal, [$($file:literal),*], $instances:literal) => {
        Module {
            name: $name,
            source: concat!(
                include_str!("../../sequences.cuh"),
                include_str!("../tile.cuh"),
                $(include_str!($file),)*
                $instances
            ),
        }
    };
}

/// The kernels of `attention.cu`.
macro_rules! general {
    ($name:literal, $instances:literal) => {
        module!($name, ["../attention.cu"], $instances)
    };
}

/// The kernels of `attention_mma.cu`.
macro_rules! mma {
    ($name:literal, $instances:literal) => {
        module!($name, ["../rows.cuh", "../attention_mma.cu"], $instances)
    };
}

/// The kernels of `attention_wgmma.cu`.
macro_rules! wgmma {
    ($name:literal, $instances:literal) => {
        module!($name, ["../../cuda/wgmma.cuh", "../rows.cuh", "../attention_wgmma.cu"], $instances)
    };
}

static F32: Module = general!("attention_f32", "INSTANCES(f32, float)\n");
static F16: Module = general!("attention_f16", "INSTANCES(f16, half_t)\n");
static BF16: Module = general!("attention_bf16", "INSTANCES(bf16, bf16_t)\n");
static MMA_F16: Module = mma!("attention_mma_f16", "INSTANCES(f16, half_t)\n");
static MMA_BF16: Module = mma!("attention_mma_bf16", "INSTANCES(bf16, bf16_t)\n");
static WGMMA_F16: Module = wgmma!("attention_wgmma_f16", "INSTANCES(f16, half_t)\n");
static WGMMA_BF16: Module = wgmma!("attention_wgmma_bf16", "INSTANCES(bf16, bf16_t)\n");

/// The modules that every GPU runs, and those that only [`WGMMA`] runs.
#[cfg(all(test, feature = "cuda"))]
pub(crate) static MODULES: [&Module; 5] = [&F32, &F16, &BF16, &MMA_F16, &MMA_BF16];
#[cfg(all(test, feature = "cuda"))]
pub(crate) static WGMMA_MODULES: [&Module; 2] = [&WGMMA_F16, &WGMMA_BF16];

/// The compute capability that has products of four warps. No later one has them.
const WGMMA: (u32, u32) = (9, 0);

/// Threads of a warp.
const WARP: u32 = 32;

/// The properties that decide which kernel runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) float: FloatType,
    pub(super) num_heads: usize,
    pub(super) head_dim: usize,
    pub(super) sequences: usize,
    /// The average number of rows of a sequence that attend.
    pub(super) queries: usize,
    /// Whether scores have biases.
    pub(super) biased: bool,
    /// Whether a bias, if any, depends only on the distance: `attention.cu` alone adds one of a query and a key.
    pub(super) by_distance: bool,
    /// Whether all rows, and the columns in them, begin at multiples of 16 bytes.
    pub(super) wide: bool,
}

/// A kernel, and the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Multiply-adds of f32; a head is read in parts of `part` columns.
    General { part: usize },
    /// Tensor cores: `warps` warps with `fragments` times 16 queries each.
    Mma { head_dim: usize, fragments: usize, warps: usize },
    /// Tensor cores of compute capability 9.0: four warps, which multiply together.
    Wgmma { head_dim: usize, biased: bool },
}

impl Variant {
    /// The best variant for `work` on a GPU.
    pub(super) fn of(work: &Work, gpu: &DeviceInfo) -> Variant {
        let &Work { head_dim, biased, .. } = work;
        let [.., smallest] = Variant::mma(head_dim);
        if !smallest.takes(work) {
            return Variant::general(head_dim);
        }
        match gpu.compute_capability {
            WGMMA => Variant::Wgmma { head_dim, biased },
            _ => Variant::mma_of(work, gpu.multiprocessors as usize),
        }
    }

    /// The variant of [`Variant::mma`] with the largest tiles that sequences fill by more than half and that give every
    /// multiprocessor at least one; the smallest if there is none.
    fn mma_of(work: &Work, multiprocessors: usize) -> Variant {
        let tiles = |rows| work.sequences * work.queries.div_ceil(rows) * work.num_heads;
        let suits = |variant: &Variant| {
            let rows = variant.tile_rows();
            2 * work.queries > rows && tiles(rows) >= multiprocessors
        };
        let [.., smallest] = Variant::mma(work.head_dim);
        Variant::mma(work.head_dim).into_iter().find(suits).unwrap_or(smallest)
    }

    pub(super) fn general(head_dim: usize) -> Variant {
        Variant::General {
            part: if head_dim <= 32 {
                32
            } else if head_dim <= 64 {
                64
            } else {
                128
            },
        }
    }

    /// The variants with tensor cores, largest tile first. Heads of 128 columns leave no registers for a second
    /// fragment.
    pub(super) fn mma(head_dim: usize) -> [Variant; 3] {
        let largest = if head_dim > 64 { (1, 8) } else { (2, 4) };
        [largest, (1, 4), (1, 2)].map(|(fragments, warps)| Variant::Mma { head_dim, fragments, warps })
    }

    /// Whether this variant can do `work`.
    pub(super) fn takes(self, work: &Work) -> bool {
        match self {
            Variant::General { .. } => true,
            Variant::Mma { head_dim, .. } | Variant::Wgmma { head_dim, .. } => {
                let has_type = matches!(work.float, FloatType::F16 | FloatType::Bf16);
                has_type
                    && work.wide
                    && work.by_distance
                    && work.head_dim == head_dim
                    && [32, 64, 128].contains(&head_dim)
            }
        }
    }

    /// Queries of a block.
    pub(super) fn tile_rows(self) -> usize {
        match self {
            Variant::General { .. } => 32,
            Variant::Mma { fragments, warps, .. } => 16 * fragments * warps,
            Variant::Wgmma { .. } => 64,
        }
    }

    /// Blocks that share the columns of a head.
    pub(super) fn parts(self, head_dim: usize) -> usize {
        match self {
            Variant::General { part } => head_dim.div_ceil(part),
            Variant::Mma { .. } | Variant::Wgmma { .. } => 1,
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self {
            Variant::General { .. } | Variant::Wgmma { .. } => 4 * WARP,
            Variant::Mma { warps, .. } => warps as u32 * WARP,
        }
    }

    /// The size of `Shared` in attention.cu, of two `Stage`s in attention_mma.cu, or of `Tiles` in attention_wgmma.cu,
    /// the latter two followed by the biases of two tiles.
    pub(super) fn shared_bytes(self, biased: bool) -> u32 {
        let rows = self.tile_rows();
        let bytes = match self {
            Variant::General { part } => {
                let (keys, weights, biases) = (32 * (2 * part + 1), 32 * rows, rows + 32);
                (keys + rows * part + weights + biases) * size_of::<f32>()
            }
            Variant::Mma { head_dim, .. } | Variant::Wgmma { head_dim, .. } => {
                let (keys, biases) = (2 * 64 * head_dim, if biased { rows + 64 - 1 } else { 0 });
                2 * (keys * size_of::<u16>() + biases * size_of::<f32>())
            }
        };
        bytes as u32
    }

    pub(super) fn kernel<F: Float>(self) -> Kernel {
        let float = FloatType::of::<F>();
        let (module, name) = match self {
            Variant::General { part } => {
                let module = match float {
                    FloatType::F32 => &F32,
                    FloatType::F16 => &F16,
                    FloatType::Bf16 => &BF16,
                };
                let name = match part {
                    32 => named!(F, "attention", "_32"),
                    64 => named!(F, "attention", "_64"),
                    _ => named!(F, "attention", "_128"),
                };
                (module, name)
            }
            Variant::Mma { head_dim, fragments, .. } => {
                let module = if float == FloatType::F16 { &MMA_F16 } else { &MMA_BF16 };
                let name = match (head_dim, fragments) {
                    (32, 1) => named!(F, "attention", "_mma_32_x1"),
                    (32, _) => named!(F, "attention", "_mma_32_x2"),
                    (64, 1) => named!(F, "attention", "_mma_64_x1"),
                    (64, _) => named!(F, "attention", "_mma_64_x2"),
                    _ => named!(F, "attention", "_mma_128_x1"),
                };
                (module, name)
            }
            Variant::Wgmma { head_dim, biased } => {
                let module = if float == FloatType::F16 { &WGMMA_F16 } else { &WGMMA_BF16 };
                let name = match (head_dim, biased) {
                    (32, false) => named!(F, "attention", "_wgmma_32"),
                    (64, false) => named!(F, "attention", "_wgmma_64"),
                    (_, false) => named!(F, "attention", "_wgmma_128"),
                    (32, true) => named!(F, "attention", "_wgmma_32_biased"),
                    (64, true) => named!(F, "attention", "_wgmma_64_biased"),
                    (_, true) => named!(F, "attention", "_wgmma_128_biased"),
                };
                (module, name)
            }
        };
        Kernel { module, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        float: FloatType::F16,
        num_heads: 12,
        head_dim: 64,
        sequences: 32,
        queries: 512,
        biased: false,
        by_distance: true,
        wide: true,
    };

    const WGMMA_64: Variant = Variant::Wgmma { head_dim: 64, biased: false };

    /// A GPU with as many multiprocessors as an H200.
    fn gpu(compute_capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo { name: String::new(), compute_capability, multiprocessors: 132, memory_bytes: 80 << 30 }
    }

    #[test]
    fn tensor_cores_take_what_they_can() {
        let kernel = |work: Work| match Variant::of(&work, &gpu((8, 0))) {
            Variant::General { part } => (part, false),
            Variant::Mma { head_dim, .. } => (head_dim, true),
            Variant::Wgmma { .. } => panic!("not on this GPU"),
        };
        for head_dim in [32, 64, 128] {
            assert_eq!(kernel(Work { head_dim, ..WORK }), (head_dim, true));
            assert_eq!(kernel(Work { head_dim, float: FloatType::Bf16, ..WORK }), (head_dim, true));
            assert_eq!(kernel(Work { head_dim, float: FloatType::F32, ..WORK }), (head_dim, false));
            assert_eq!(kernel(Work { head_dim, wide: false, ..WORK }), (head_dim, false));
            let of_pairs = Work { head_dim, biased: true, by_distance: false, ..WORK };
            assert_eq!(kernel(of_pairs), (head_dim, false));
            assert_eq!(Variant::of(&of_pairs, &gpu((9, 0))), Variant::General { part: head_dim });
        }
        for (head_dim, part) in [(1, 32), (33, 64), (80, 128), (96, 128), (256, 128)] {
            assert_eq!(kernel(Work { head_dim, ..WORK }), (part, false));
        }
    }

    /// A row's bits must not depend on the other rows of the batch.
    #[test]
    fn four_warps_multiply_where_they_can_whatever_the_batch() {
        for (sequences, queries) in [(0, 0), (1, 1), (1, 512), (32, 512)] {
            let work = Work { sequences, queries, ..WORK };
            assert_eq!(Variant::of(&work, &gpu((9, 0))), WGMMA_64);
            for other in [(8, 9), (10, 0), (12, 0)] {
                assert!(matches!(Variant::of(&work, &gpu(other)), Variant::Mma { .. }), "{other:?}");
            }
            let wide_heads = Work { head_dim: 96, ..work };
            assert_eq!(Variant::of(&wide_heads, &gpu((9, 0))), Variant::General { part: 128 });
        }
    }

    #[test]
    fn tiles_are_filled_and_go_round() {
        for (sequences, queries, head_dim, rows) in [
            (32, 512, 64, 128),
            (32, 65, 64, 128),
            (32, 64, 64, 64),
            (32, 33, 64, 64),
            (32, 32, 64, 32),
            (32, 1, 64, 32),
            // 12 heads of one sequence: 48 blocks of 128 rows would leave most of 132 multiprocessors alone
            (1, 512, 64, 32),
            (1, 1024, 64, 64),
            (2, 1024, 64, 128),
            (0, 0, 64, 32),
            (32, 512, 32, 128),
            (32, 512, 128, 128),
        ] {
            let work = Work { sequences, queries, head_dim, ..WORK };
            assert_eq!(Variant::of(&work, &gpu((8, 0))).tile_rows(), rows, "{work:?}");
        }
    }

    #[test]
    fn blocks_have_the_threads_and_memory_of_their_tiles() {
        let [wide, middle, narrow] = Variant::mma(64);
        assert_eq!([wide, middle, narrow].map(Variant::threads), [128, 128, 64]);
        assert_eq!(Variant::mma(128).map(Variant::threads), [256, 128, 64]);
        // two tiles of 64 keys and values, and biases of 191 distances
        assert_eq!(wide.shared_bytes(false), 2 * 2 * 64 * 128);
        assert_eq!(wide.shared_bytes(true), 2 * (2 * 64 * 128 + 4 * 191));
        // biases of 127 distances
        assert_eq!((WGMMA_64.threads(), WGMMA_64.shared_bytes(false)), (128, 2 * 2 * 64 * 128));
        assert_eq!(WGMMA_64.shared_bytes(true), WGMMA_64.shared_bytes(false) + 2 * 4 * 127);
        // the most that a multiprocessor of compute capability 8.6 gives to one block
        assert!(Variant::mma(128)[0].shared_bytes(true) <= 99 << 10);
        assert!(Variant::general(128).shared_bytes(true) <= 99 << 10);
        assert_eq!((Variant::general(128).parts(300), Variant::general(64).parts(64)), (3, 1));
    }

    #[test]
    fn kernels_are_named_by_what_they_do() {
        let names = |variant: Variant| {
            let [half, bf16] = [variant.kernel::<half::f16>(), variant.kernel::<half::bf16>()];
            assert_ne!(half.module.name, bf16.module.name);
            (half.name, bf16.name)
        };
        let [wide, middle, narrow] = Variant::mma(64);
        assert_eq!(names(wide), ("attention_f16_mma_64_x2", "attention_bf16_mma_64_x2"));
        assert_eq!(names(middle), names(narrow));
        assert_eq!(names(Variant::mma(128)[0]), ("attention_f16_mma_128_x1", "attention_bf16_mma_128_x1"));
        let wgmma = names(Variant::Wgmma { head_dim: 32, biased: true });
        assert_eq!(wgmma, ("attention_f16_wgmma_32_biased", "attention_bf16_wgmma_32_biased"));
        assert_eq!(names(Variant::general(20)), ("attention_f16_32", "attention_bf16_32"));
        assert_eq!(Variant::general(64).kernel::<f32>().name, "attention_f32_64");
    }
}
