//! Checks once, and in one place, whether CUDA can be used here. Nothing of CUDA is called before, since the bindings
//! panic where a library or a function is missing.

use std::sync::OnceLock;

use cudarc::driver::DriverError;

use super::{
    cu,
    error::driver_says,
    libraries::{CUBLAS_LT, Library, NVRTC, named_folder},
    lt, nvrtc,
    symbols::{OF_CUBLAS_LT, OF_DRIVER, OF_NVRTC},
    unavailable::{OLDEST, Unavailable, Version},
};

/// The result of [`ready`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuda {
    /// The number of GPUs that this process may use, at least one.
    pub(super) gpus: u32,
    /// The version of the compiler.
    pub(super) nvrtc: Version,
}

/// Checks that driver, GPU, NVRTC and cuBLASLt are present and fit each other. They may be called from then on.
///
/// # Errors
/// The first of them that is missing or does not fit, in this order. The answer stays the same for the rest of the
/// process.
pub(super) fn ready() -> Result<Cuda, Unavailable> {
    static ANSWER: OnceLock<Result<Cuda, Unavailable>> = OnceLock::new();
    ANSWER.get_or_init(look).clone()
}

fn look() -> Result<Cuda, Unavailable> {
    let driver = driver()?;
    let gpus = gpus()?;
    let nvrtc = nvrtc_version(driver)?;
    check_cublas_lt(driver)?;
    Ok(Cuda { gpus, nvrtc })
}

/// The newest CUDA version that the driver supports.
fn driver() -> Result<Version, Unavailable> {
    // SAFETY: opens the driver's library and closes it; NVIDIA's may be opened at any time.
    if !unsafe { cu::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    // SAFETY: the library is present, so this does not panic; it stays open.
    let library = unsafe { cu::culib() };
    // The version is read first, since it explains what else may be missing.
    check_symbols("libcuda.so.1", library, &["cuDriverGetVersion"])?;
    let mut number = 0;
    // SAFETY: the function exists, and may be called before `cuInit`.
    unsafe { cu::cuDriverGetVersion(&mut number) }
        .result()
        .map_err(failed("ask for the driver's version"))?;
    let version = of_thousands(number);
    if version < OLDEST {
        return Err(Unavailable::OldDriver { found: version });
    }
    check_symbols("libcuda.so.1", library, OF_DRIVER).map(|()| version)
}

/// Starts the driver and counts GPUs.
fn gpus() -> Result<u32, Unavailable> {
    let no_gpu = |error: DriverError| Unavailable::NoGpu { why: driver_says(error) };
    // SAFETY: `driver` checked that the function exists.
    unsafe { cu::cuInit(0) }.result().map_err(no_gpu)?;
    let mut count = 0;
    // SAFETY: as above, and `cuInit` came before.
    unsafe { cu::cuDeviceGetCount(&mut count) }.result().map_err(no_gpu)?;
    match u32::try_from(count) {
        Ok(count @ 1..) => Ok(count),
        _ => Err(Unavailable::NoGpu { why: "it counts none".to_owned() }),
    }
}

fn nvrtc_version(driver: Version) -> Result<Version, Unavailable> {
    find(&NVRTC, driver)?;
    // SAFETY: the library was found, so this is no panic; it stays open.
    check_symbols(NVRTC.name, unsafe { nvrtc::culib() }, OF_NVRTC)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function exists, and writes two numbers.
    let answer = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
    answer
        .result()
        .map_err(|error| Unavailable::Failed { what: "ask for NVRTC's version", why: error.to_string() })?;
    let found = Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
    check_version(&NVRTC, found, driver).map(|()| found)
}

fn check_cublas_lt(driver: Version) -> Result<(), Unavailable> {
    find(&CUBLAS_LT, driver)?;
    // SAFETY: the library was found, so this is no panic; it stays open.
    check_symbols(CUBLAS_LT.name, unsafe { lt::culib() }, OF_CUBLAS_LT)?;
    // SAFETY: the function exists.
    let number = unsafe { lt::cublasLtGetVersion() };
    check_version(&CUBLAS_LT, of_ten_thousands(number), driver)
}

fn find(library: &Library, driver: Version) -> Result<(), Unavailable> {
    let most = driver.major;
    let (library, package) = match library.find(most) {
        true => return Ok(()),
        false => (library.name, package(library, driver)),
    };
    Err(match named_folder() {
        Some(folder) => Unavailable::NotInFolder { library, most, folder, package },
        None => Unavailable::NoLibrary { library, package },
    })
}

fn check_version(library: &Library, found: Version, driver: Version) -> Result<(), Unavailable> {
    if found >= OLDEST && found.major <= driver.major {
        return Ok(());
    }
    let package = package(library, driver);
    Err(Unavailable::LibraryVersion { library: library.name, found, driver, package, file: library.file() })
}

/// pip's name for the newest version of `library` that `driver` supports.
fn package(library: &Library, driver: Version) -> String {
    match driver.major {
        ..=12 => format!("{}-cu12", library.package),
        major => format!("{}=={major}.*", library.package),
    }
}

fn check_symbols(
    name: &'static str,
    library: &libloading::Library,
    symbols: &[&'static str],
) -> Result<(), Unavailable> {
    // SAFETY: the address is not used, only its presence is checked; this type fits any function as well as another.
    let is_missing =
        |symbol: &&&str| unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err();
    match symbols.iter().find(is_missing) {
        None => Ok(()),
        Some(symbol) => Err(Unavailable::NoSymbol { library: name, symbol }),
    }
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> Unavailable {
    move |error| Unavailable::Failed { what, why: format!("{:?}", error.0) }
}

/// 13000 is 13.0.
fn of_thousands(number: i32) -> Version {
    let number = number.unsigned_abs();
    Version { major: number / 1000, minor: number % 1000 / 10 }
}

/// 130200 is 13.2.
fn of_ten_thousands(number: usize) -> Version {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Version { major: number / 10_000, minor: number % 10_000 / 100 }
}
