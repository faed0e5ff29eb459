//! What a machine has to have before its GPU is used, and what is said where it lacks something.

use std::{fmt, path::PathBuf};

/// The oldest CUDA whose driver and libraries have all that is called here.
pub(super) const OLDEST: Version = Version { major: 12, minor: 0 };
/// The least compute capability that the kernels are written for: bf16, `mma` and `cp.async` came with it.
pub(super) const OLDEST_GPU: (u32, u32) = (8, 0);

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why there is no GPU to compute on: what was not found, and what to do about it, in one line.
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
        /// Of the driver.
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
        /// What it is called.
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
        /// What it is called.
        library: &'static str,
        /// The newest major version that the driver takes.
        most: u32,
        /// What the user names.
        folder: PathBuf,
        /// The Python package that has it, for this driver.
        package: String,
    },
    /// A library that is newer than the driver, or too old for what is called here. A name without a version is looked for
    /// before one with it, so a link of that name is found before any other.
    #[error(
        "{library} is of CUDA {found}, needed is one of {OLDEST} to {}: pip install '{package}', or link one as {file} in a \
         folder of LD_LIBRARY_PATH",
        .driver.major
    )]
    LibraryVersion {
        /// What it is called.
        library: &'static str,
        /// Of the library.
        found: Version,
        /// Of the driver: it takes libraries of its own major version, and older ones.
        driver: Version,
        /// The Python package that fits.
        package: String,
        /// The name that the loader tries first.
        file: &'static str,
    },
    /// Not what its name says, or damaged.
    #[error("{library} has no function {symbol}: install it anew")]
    NoSymbol {
        /// What it is called.
        library: &'static str,
        /// The first function that it lacks.
        symbol: &'static str,
    },
    /// An ordinal beyond the last GPU.
    #[error("no GPU {ordinal}, there are {count} from 0 on")]
    NoSuchGpu {
        /// The requested number.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A GPU that lacks instructions which the kernels use.
    #[error(
        "{name} has compute capability {}.{}, needed is {}.{} or more",
        .found.0, .found.1, OLDEST_GPU.0, OLDEST_GPU.1
    )]
    OldGpu {
        /// What its maker calls it.
        name: String,
        /// Its compute capability.
        found: (u32, u32),
    },
    /// A GPU that is newer than NVRTC.
    #[error("NVRTC {nvrtc} cannot compile for {name}: install a newer one")]
    NewGpu {
        /// What its maker calls it.
        name: String,
        /// Of NVRTC.
        nvrtc: Version,
    },
    /// The driver answers, and not as it should.
    #[error("{what}: {why}")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// What the driver said.
        why: String,
    },
}
