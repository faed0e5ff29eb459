//! What a machine needs before its GPU is used, and the messages for what it lacks.

use std::{fmt, path::PathBuf};

/// The oldest CUDA version whose driver and libraries have all functions that are called here.
pub(super) const OLDEST: Version = Version { major: 12, minor: 0 };
/// The lowest compute capability that the kernels are written for: bf16, `mma` and `cp.async` came with it.
pub(super) const OLDEST_GPU: (u32, u32) = (8, 0);

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The 13 in 13.0.
    pub major: u32,
    /// The 0 in 13.0.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why there is no GPU to compute on: what is missing, and what to do about it, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The loader does not find the driver's library.
    #[error("no NVIDIA driver found (libcuda.so.1); install one for CUDA {OLDEST} or newer, from 525 on")]
    NoDriver,
    /// The driver lacks functions that are called here.
    #[error(
        "the NVIDIA driver is for CUDA {found}, needed is {OLDEST} or newer: install driver 525 or newer"
    )]
    OldDriver {
        /// The driver's version.
        found: Version,
    },
    /// There is a driver, but no GPU that this process may use.
    #[error("the NVIDIA driver gives no GPU ({why}); see what nvidia-smi says, and CUDA_VISIBLE_DEVICES")]
    NoGpu {
        /// What the driver says.
        why: String,
    },
    /// NVRTC or cuBLASLt is found nowhere.
    #[error(
        "{library} not found; pip install '{package}' into the active environment, or name its folder in {}",
        super::libraries::FOLDER
    )]
    NoLibrary {
        /// The name of the library.
        library: &'static str,
        /// The Python package that has it, for this driver.
        package: String,
    },
    /// NVRTC or cuBLASLt is neither in the folder that the user names nor anywhere else.
    #[error(
        "no {library} of CUDA {most} or older can be opened in {}, which {} names, and none is found elsewhere; \
         pip install '{package}' into the active environment, or name its folder",
        .folder.display(), super::libraries::FOLDER
    )]
    NotInFolder {
        /// The name of the library.
        library: &'static str,
        /// The newest major version that the driver supports.
        most: u32,
        /// The folder that the user names.
        folder: PathBuf,
        /// The Python package that has it, for this driver.
        package: String,
    },
    /// A library is newer than the driver, or too old for the functions that are called here. The loader tries a name
    /// without a version before the versioned one, so a link of that name is found before any other file.
    #[error(
        "{library} is of CUDA {found}, needed is one of {OLDEST} to {}: pip install '{package}', or link one as {file} in a \
         folder of LD_LIBRARY_PATH",
        .driver.major
    )]
    LibraryVersion {
        /// The name of the library.
        library: &'static str,
        /// The library's version.
        found: Version,
        /// The driver's version: it supports libraries of its own major version, and older ones.
        driver: Version,
        /// The Python package that fits.
        package: String,
        /// The name that the loader tries first.
        file: &'static str,
    },
    /// A library is not what its name says, or is damaged.
    #[error("{library} has no function {symbol}: install it anew")]
    NoSymbol {
        /// The name of the library.
        library: &'static str,
        /// The first function that it lacks.
        symbol: &'static str,
    },
    /// The ordinal is beyond the last GPU.
    #[error("no GPU {ordinal}, there are {count} from 0 on")]
    NoSuchGpu {
        /// The requested number.
        ordinal: u32,
        /// How many GPUs there are.
        count: u32,
    },
    /// The GPU lacks instructions that the kernels use.
    #[error(
        "{name} has compute capability {}.{}, needed is {}.{} or more",
        .found.0, .found.1, OLDEST_GPU.0, OLDEST_GPU.1
    )]
    OldGpu {
        /// The name that its maker gives it.
        name: String,
        /// Its compute capability.
        found: (u32, u32),
    },
    /// The GPU is newer than NVRTC.
    #[error("NVRTC {nvrtc} cannot compile for {name}: install a newer one")]
    NewGpu {
        /// The name that its maker gives it.
        name: String,
        /// NVRTC's version.
        nvrtc: Version,
    },
    /// A call to CUDA failed unexpectedly.
    #[error("{what}: {why}")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// What the driver said.
        why: String,
    },
}
