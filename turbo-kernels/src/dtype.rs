//! The types in which the products of a model are computed.

use std::{fmt, str::FromStr};

use crate::{
    Cpu,
    simd::{Kernel, Simd},
};

/// The numbers that a packed weight holds and that a product multiplies. Between operations every value has the type
/// that the device stores, its [`Float`](crate::Float): f32 on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats: exact up to the rounding of each multiply-add. A device whose [`Float`](crate::Float) is narrower
    /// multiplies weights and activations as it stores them.
    #[default]
    F32,
    /// bfloat16, 8 bits of precision: weights and activations are rounded to nearest even, sums are f32.
    Bf16,
    /// 8-bit integers: weights symmetric with a scale per output feature, activations with a scale and zero point per
    /// row, sums exact.
    Int8,
}

impl DType {
    /// All of them, the widest first.
    pub const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::Int8];

    /// Bytes that a weight of this type takes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::Bf16 => 2,
            DType::Int8 => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::Int8 => "int8",
        })
    }
}

impl Cpu {
    /// How products of `dtype` are computed here, in a few words.
    #[must_use]
    pub fn computes(&self, dtype: DType) -> &'static str {
        let isa = self.supported_isa();
        let (bf16, int8) = (isa.run_bf16(Means), isa.run_int8(Means));
        match dtype {
            DType::F32 => "multiply-adds of f32",
            DType::Bf16 if bf16.tile_registers => "tile registers of AMX-BF16",
            DType::Bf16 if bf16.dot_bf16 => "dot products of AVX512-BF16",
            DType::Bf16 if isa.has_slow_bf16() => "widened to f32: AVX512-BF16 is slower here",
            DType::Bf16 => "widened to f32: no AVX512-BF16 in use",
            DType::Int8 if int8.tile_registers => "tile registers of AMX-INT8",
            DType::Int8 if int8.dot_int8 => "dot products of AVX512-VNNI",
            DType::Int8 => "widened to 16 bits: no AVX512-VNNI in use",
        }
    }
}

/// Finds out with which instructions an instruction set multiplies narrow values.
struct Means;

/// The instructions that there are.
struct Has {
    tile_registers: bool,
    dot_bf16: bool,
    dot_int8: bool,
}

impl Kernel for Means {
    type Output = Has;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Has {
        Has { tile_registers: S::HAS_TILE_REGISTERS, dot_bf16: S::DOT_BF16, dot_int8: S::DOT_INT8 }
    }
}

/// A name that is no [`DType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {name:?}, expected f32, bf16 or int8")]
pub struct UnknownDType {
    /// What was given.
    pub name: String,
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<DType, UnknownDType> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.to_string() == name)
            .ok_or_else(|| UnknownDType { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuOptions, Isa};

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse::<DType>().unwrap(), dtype);
        }
    }

    #[test]
    fn only_the_widest_vectors_have_dot_products_and_tiles() {
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: None, isa: Some(isa) }).unwrap();
            assert_eq!(cpu.computes(DType::F32), "multiply-adds of f32");
            for dtype in [DType::Bf16, DType::Int8] {
                let how = cpu.computes(dtype);
                match isa {
                    Isa::Amx => assert!(how.starts_with("tile registers of AMX"), "{how}"),
                    Isa::Avx512 => assert!(how.contains("AVX512"), "{how}"),
                    _ => assert!(how.starts_with("widened") && how.contains("AVX512"), "{isa}: {how}"),
                }
            }
        }
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        let error = "fp16".parse::<DType>().unwrap_err();
        assert_eq!(error.to_string(), "unknown dtype \"fp16\", expected f32, bf16 or int8");
    }
}
