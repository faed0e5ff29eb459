//! The device code of a family of kernels.

use super::{FloatType, Module};
use crate::device::Element;

/// A family's kernels for each type of floats. A device stores a single type, so each is compiled separately: NVRTC's
/// time delays a server's first start.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) f32: Module,
    pub(crate) f16: Module,
    pub(crate) bf16: Module,
}

impl Family {
    /// The module for activations of type `F`.
    pub(crate) fn of<F: Element>(&'static self) -> &'static Module {
        match FloatType::of::<F>() {
            FloatType::F32 => &self.f32,
            FloatType::F16 => &self.f16,
            FloatType::Bf16 => &self.bf16,
        }
    }
}

/// The family of the given name, from files beside the invoking one. At the foot of the last file stands a macro
/// `INSTANCES(T, DTYPE)`, which lists the kernels of a type.
macro_rules! family {
    ($name:literal, $($file:literal),+) => {
        $crate::cuda::Family {
            f32: $crate::cuda::Module {
                name: concat!($name, "_f32"),
                source: concat!($(include_str!($file),)+ "INSTANCES(float, f32)\n"),
            },
            f16: $crate::cuda::Module {
                name: concat!($name, "_f16"),
                source: concat!($(include_str!($file),)+ "INSTANCES(half_t, f16)\n"),
            },
            bf16: $crate::cuda::Module {
                name: concat!($name, "_bf16"),
                source: concat!($(include_str!($file),)+ "INSTANCES(bf16_t, bf16)\n"),
            },
        }
    };
}
pub(crate) use family;
