//! Fake versions of CUDA's libraries: compiled from C when a test needs them, and loaded in a separate process.

use std::{
    any::type_name,
    env,
    ffi::{CStr, c_char, c_int},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;
use twox_hash::XxHash3_128;

use super::{cu, nvrtc};

const MACHINE: &str = include_str!("machine.h");
/// Libraries and their sources: the name of the file, its source, more arguments for the compiler. A library stands
/// behind those that it needs.
const LIBRARIES: [(&str, &str, &[&str]); 4] = [
    ("cuda", include_str!("cuda.c"), &["-Wl,-soname,libcuda.so"]),
    ("cuda-without-graphs", include_str!("cuda.c"), &["-Wl,-soname,libcuda.so", "-DFAKE_WITHOUT_GRAPHS"]),
    ("nvrtc", include_str!("nvrtc.c"), &["-Wl,-soname,libnvrtc.so.13"]),
    ("cublasLt", include_str!("cublas_lt.c"), &["-Wl,-soname,libcublasLt.so.13", "-L.", "-lcuda", "-lm"]),
];

/// Tells a process that [`apart`] has started it.
const IS_APART: &str = "TURBO_TEST_IS_APART";
/// The text before the answer of such a process.
const ANSWER: &str = "the answer is: ";

/// A folder of fake libraries.
pub(super) struct Fakes(TempDir);

impl Fakes {
    /// All libraries that are needed, under the names that the bindings try first; `None`, and a line that says so,
    /// without a compiler.
    pub(super) fn all() -> Option<Self> {
        Self::named(&[("libcuda.so", "cuda"), ("libnvrtc.so", "nvrtc"), ("libcublasLt.so", "cublasLt")])
    }

    /// Libraries by the names of their files, with the library that each contains.
    pub(super) fn named(names: &[(&str, &str)]) -> Option<Self> {
        let built = built()?;
        let folder = tempfile::tempdir().unwrap();
        for (name, library) in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(built.join(format!("lib{library}.so")), path).unwrap();
        }
        Some(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The answer of `body` in a separate process, which runs the test `test` again, where the loader looks into `folder`
/// and only `variables` say where CUDA is. In that process itself there is no answer.
///
/// # Panics
/// When the process fails.
pub(super) fn apart<F: Fn()>(
    test: F,
    folder: &Path,
    variables: &[(&str, &str)],
    body: impl FnOnce() -> String,
) -> Option<String> {
    if env::var_os(IS_APART).is_some() {
        println!("{ANSWER}{}", body());
        process::exit(0);
    }
    let output = command(&test, folder, variables).output().unwrap();
    Some(answer(&output))
}

/// [`apart`], twice at the same time.
pub(super) fn twice_apart<F: Fn()>(
    test: F,
    folder: &Path,
    variables: &[(&str, &str)],
    body: impl FnOnce() -> String,
) -> Option<[String; 2]> {
    if env::var_os(IS_APART).is_some() {
        println!("{ANSWER}{}", body());
        process::exit(0);
    }
    let start = || command(&test, folder, variables).spawn().unwrap();
    Some([start(), start()].map(|child| answer(&child.wait_with_output().unwrap())))
}

fn command<F: Fn()>(_: &F, folder: &Path, variables: &[(&str, &str)]) -> Command {
    let name = type_name::<F>();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", name.split_once("::").unwrap().1]);
    for elsewhere in ["TURBO_CUDA_LIB_DIR", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(elsewhere);
    }
    command.env(IS_APART, "1").env("LD_LIBRARY_PATH", folder).env("TURBO_CUDA_CACHE", "off");
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn answer(output: &process::Output) -> String {
    let [out, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{out}\n{errors}");
    let (_, answer) = out.split_once(ANSWER).unwrap_or_else(|| panic!("no answer: {out}\n{errors}"));
    answer.trim_end().to_owned()
}

/// The folder of the libraries, beside this program; they are built once for each state of their sources.
///
/// # Panics
/// When they do not compile, and when there is no compiler although `TURBO_REQUIRE_EMULATOR=1`.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    if let Err(error) = Command::new("cc").arg("--version").output() {
        let required = env::var_os("TURBO_REQUIRE_EMULATOR").is_some_and(|value| value == "1");
        assert!(!required, "TURBO_REQUIRE_EMULATOR=1: no C compiler: {error}");
        println!("skipped: no C compiler: {error}");
        return None;
    }
    let sources =
        LIBRARIES.map(|(name, source, arguments)| [name, source, &arguments.concat()].concat()).concat();
    let digest = XxHash3_128::oneshot([MACHINE, &sources].concat().as_bytes());
    let folder = env::current_exe().unwrap().with_file_name(format!("fake-cuda-{digest:032x}"));
    if !folder.exists() {
        let aside = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
        fs::write(aside.path().join("machine.h"), MACHINE).unwrap();
        LIBRARIES.iter().for_each(|(name, source, arguments)| compile(aside.path(), name, source, arguments));
        // another process may have been faster
        drop(fs::rename(aside.keep(), &folder));
    }
    Some(folder)
}

fn compile(folder: &Path, name: &str, source: &str, arguments: &[&str]) {
    fs::write(folder.join("library.c"), source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.current_dir(folder).args([
        "-O1",
        "-shared",
        "-fPIC",
        "library.c",
        "-o",
        &format!("lib{name}.so"),
    ]);
    let output = compiler.args(arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The operations of the fake GPU, one on each line.
pub(super) fn said() -> String {
    // SAFETY: the fake library has this function with this type, and its string lives as long as the library.
    unsafe {
        let said = cu::culib().get::<unsafe extern "C" fn() -> *const c_char>(b"fake_said").unwrap();
        CStr::from_ptr(said()).to_str().unwrap().to_owned()
    }
}

/// The number of handles and allocations that were made and not released.
pub(super) fn live() -> c_int {
    // SAFETY: the fake library has this function with this type.
    unsafe { cu::culib().get::<unsafe extern "C" fn() -> c_int>(b"fake_live").unwrap()() }
}

/// How often the whole fake GPU was waited for.
pub(super) fn waits() -> c_int {
    // SAFETY: the fake library has this function with this type.
    unsafe { cu::culib().get::<unsafe extern "C" fn() -> c_int>(b"fake_waits").unwrap()() }
}

/// How often the fake compiler was called.
pub(super) fn compiled() -> c_int {
    // SAFETY: the fake library has this function with this type.
    unsafe { nvrtc::culib().get::<unsafe extern "C" fn() -> c_int>(b"fake_compiled").unwrap()() }
}
