//! The names of instruction sets, and the sets that this machine has.

use std::{fmt, str::FromStr};

use super::{Kernel, portable::Portable};
use crate::device::DeviceError;

/// A set of vector instructions that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// [`Isa::Avx512`] with its dot products of bf16 and bytes, and tile registers (AMX) for products of both; on Linux.
    Amx,
    /// 512-bit vectors: AVX-512 F, BW, DQ and VL.
    Avx512,
    /// 256-bit vectors: AVX2 and FMA.
    Avx2,
    /// The instructions of the build's target; on x86-64 without FMA, unless the build enables it.
    Portable,
}

impl Isa {
    /// The environment variable that forces an instruction set: `amx`, `avx512`, `avx2` or `portable`.
    pub const VARIABLE: &str = "TURBO_CPU";

    /// The best instruction set of this machine. On Linux this requests AMX's tile registers for the whole process.
    /// From then on threads that have their own signal stacks need larger ones.
    #[must_use]
    pub fn detect() -> Isa {
        Isa::available().find(|isa| isa.is_native()).unwrap_or(Isa::Portable)
    }

    /// Whether the processor itself has it: tests may emulate it.
    fn is_native(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => super::amx::is_native(),
            _ => true,
        }
    }

    /// The instruction sets of this machine, best first. Requests AMX from Linux, as [`Isa::detect`] does.
    pub fn available() -> impl Iterator<Item = Isa> {
        [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Portable].into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine can run it. For [`Isa::Amx`], this requests AMX from Linux, as [`Isa::detect`] does.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => super::amx::is_there(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::Avx512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::Avx2::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Amx | Isa::Avx512 | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }

    /// The instruction set that `TURBO_CPU` names, or else the best of this machine. An empty name counts as unset.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] for a name that no instruction set has, or one that this machine lacks.
    pub fn from_env() -> Result<Isa, DeviceError> {
        Isa::from_setting(std::env::var_os(Isa::VARIABLE).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_setting(value: Option<String>) -> Result<Isa, DeviceError> {
        let Some(name) = value.filter(|name| !name.is_empty()) else { return Ok(Isa::detect()) };
        let supported = name.parse::<Isa>().and_then(SupportedIsa::check);
        let refused = |why| DeviceError::Setting { variable: Isa::VARIABLE, why: Box::new(why) };
        supported.map(|supported| supported.0).map_err(refused)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Amx => "amx",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        })
    }
}

impl FromStr for Isa {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Isa, DeviceError> {
        match name {
            "amx" => Ok(Isa::Amx),
            "avx512" => Ok(Isa::Avx512),
            "avx2" => Ok(Isa::Avx2),
            "portable" => Ok(Isa::Portable),
            _ => Err(DeviceError::UnknownIsa { name: name.to_owned() }),
        }
    }
}

/// An instruction set that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupportedIsa(Isa);

impl SupportedIsa {
    /// # Errors
    /// [`DeviceError::UnsupportedIsa`].
    pub(crate) fn check(isa: Isa) -> Result<SupportedIsa, DeviceError> {
        if isa.is_available() { Ok(SupportedIsa(isa)) } else { Err(DeviceError::UnsupportedIsa { isa }) }
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// Runs `kernel` with the vectors of this instruction set. Nothing else chooses between instruction sets.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 => {
                // SAFETY: `check`, the only constructor, found that this machine has the instructions.
                unsafe { super::avx512::run(kernel) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                // SAFETY: `check`, the only constructor, found that this machine has the instructions.
                unsafe { super::avx2::run(kernel) }
            }
            _ => kernel.run(Portable),
        }
    }

    /// [`SupportedIsa::run`] for a kernel that multiplies bf16: with [`super::Simd::dot_bf16`] where the machine has it
    /// and is faster with it.
    #[inline]
    pub(crate) fn run_bf16_vectors<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 if super::avx512::has_bf16() => {
                // SAFETY: `check` found that this machine has the vectors, and the guard their dot product.
                unsafe { super::avx512::run_bf16_vectors(kernel) }
            }
            _ => self.run(kernel),
        }
    }

    /// Whether the machine has bf16 dot products that [`SupportedIsa::run_bf16_vectors`] avoids because they are
    /// slower.
    pub(crate) fn has_slow_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Isa::Amx | Isa::Avx512) && super::avx512::has_slow_bf16();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// [`SupportedIsa::run`] for a kernel that multiplies bytes: with [`super::Simd::dot_int8`] where the machine has it.
    #[inline]
    pub(crate) fn run_int8_vectors<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 if super::avx512::has_vnni() => {
                // SAFETY: `check` found that this machine has the vectors, and the guard their dot product.
                unsafe { super::avx512::run_int8_vectors(kernel) }
            }
            _ => self.run(kernel),
        }
    }

    /// [`SupportedIsa::run_bf16_vectors`] for a kernel that can multiply by tile registers, if there are any.
    #[inline]
    pub(crate) fn run_bf16<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => {
                // SAFETY: `check` found that this machine has tiles and the dot products that belong to them.
                unsafe { super::avx512::run_bf16(kernel) }
            }
            _ => self.run_bf16_vectors(kernel),
        }
    }

    /// [`SupportedIsa::run_int8_vectors`] for a kernel that can multiply by tile registers, if there are any.
    #[inline]
    pub(crate) fn run_int8<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => {
                // SAFETY: as for `run_bf16`.
                unsafe { super::avx512::run_int8(kernel) }
            }
            _ => self.run_int8_vectors(kernel),
        }
    }
}

/// Every instruction set of this machine, for tests that visit them all.
#[cfg(test)]
pub(crate) fn supported() -> impl Iterator<Item = SupportedIsa> {
    Isa::available().map(SupportedIsa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Portable] {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        let error = Isa::from_setting(Some("sse9".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "TURBO_CPU: unknown instruction set \"sse9\", expected amx, avx512, avx2 or portable"
        );
        for isa in [Isa::Amx, Isa::Avx512, Isa::Avx2].into_iter().filter(|isa| !isa.is_available()) {
            let error = Isa::from_setting(Some(isa.to_string())).unwrap_err().to_string();
            assert!(error.starts_with("TURBO_CPU: this machine does not have"), "{error}");
        }
    }

    /// Guards detection, since tests silently skip an instruction set that is not found.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn sets_that_the_system_tells_of_are_found() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            println!("skipped: the system does not tell");
            return;
        };
        let flags = text.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
        let has = |name: &&str| flags.split_whitespace().any(|flag| flag == *name);
        let names = ["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"];
        for (isa, names) in [(Isa::Avx2, &names[..2]), (Isa::Avx512, &names[..])] {
            assert!(isa.is_available() || !names.iter().all(has), "{isa}");
        }
    }

    #[test]
    fn the_setting_wins_over_detection() {
        assert_eq!(Isa::from_setting(Some("portable".to_owned())).unwrap(), Isa::Portable);
        assert_eq!(Isa::from_setting(None).unwrap(), Isa::detect());
        assert_eq!(Isa::from_setting(Some(String::new())).unwrap(), Isa::detect(), "set to nothing");
        assert_eq!(Isa::available().last(), Some(Isa::Portable));
    }
}
