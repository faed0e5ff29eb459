//! Where CUDA's libraries are found: in a folder that the user names, in the active Python environment, or where the
//! loader looks.
//!
//! The bindings open a library by its bare name, first without a version, then with one. A library in a folder is
//! therefore opened here beforehand, by its path and with global visibility: the loader then knows it by its versioned
//! name and does not search for another. Only a library that the loader finds by the unversioned name still takes
//! precedence. Besides the driver, only cuBLASLt and NVRTC are needed.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::{lt, nvrtc};

/// The variable that names a folder with cuBLASLt and NVRTC.
pub(super) const FOLDER: &str = "TURBO_CUDA_LIB_DIR";

/// A library besides the driver's.
pub(super) struct Library {
    /// Its name for people.
    pub(super) name: &'static str,
    /// The Python package that contains it, without the version.
    pub(super) package: &'static str,
    /// The beginnings of its files' names, in the order in which they are opened: a later file needs an earlier one.
    files: &'static [&'static str],
    /// Whether the loader finds it.
    is_found: fn() -> bool,
}

/// Matrix products.
pub(super) const CUBLAS_LT: Library = Library {
    name: "cuBLASLt",
    package: "nvidia-cublas",
    files: &["libcublasLt.so"],
    // SAFETY: opens the library and closes it, which runs its initialisers and finalisers; NVIDIA's libraries may be
    // opened at any time.
    is_found: || unsafe { lt::is_culib_present() },
};

/// The compiler.
pub(super) const NVRTC: Library = Library {
    name: "NVRTC",
    package: "nvidia-cuda-nvrtc",
    files: &["libnvrtc-builtins.so", "libnvrtc.so"],
    // SAFETY: as above.
    is_found: || unsafe { nvrtc::is_culib_present() },
};

impl Library {
    /// The name that the loader tries first.
    pub(super) fn file(&self) -> &'static str {
        self.files[self.files.len() - 1]
    }

    /// Makes the loader find the library; returns whether it does. Major versions above `most`, which the driver does
    /// not support, are passed over where there is a choice: in folders, but not where the loader looks by itself.
    pub(super) fn find(&self, most: u32) -> bool {
        let named = named_folder();
        let is_open = named.as_ref().is_some_and(|folder| self.open_in(folder, most));
        if let Some(folder) = named.filter(|_| !is_open) {
            let (library, folder) = (self.name, folder.display());
            tracing::warn!(
                library,
                %folder,
                "none of CUDA {most} or older can be opened in the folder that {FOLDER} names: looked for elsewhere"
            );
        }
        if !is_open {
            // before the loader's folders, whose library may be older: messages tell the user to install one in the
            // environment
            _ = python_folders(variable).iter().any(|folder| self.open_in(folder, most));
        }
        (self.is_found)()
    }

    /// Opens the newest version up to `most` that lies in `folder`, for the rest of the process; returns whether all
    /// its files exist and could be opened.
    fn open_in(&self, folder: &Path, most: u32) -> bool {
        let newest = |begin: &&str| newest(folder, begin, most);
        let Some(files) = self.files.iter().map(newest).collect::<Option<Vec<_>>>() else { return false };
        files.iter().all(|file| open(file))
    }
}

/// The value of an environment variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The folder that the user names.
pub(super) fn named_folder() -> Option<PathBuf> {
    variable(FOLDER).map(PathBuf::from)
}

/// The file in `folder` whose name is `begin`, a dot and the greatest version whose first number is at most `most`.
fn newest(folder: &Path, begin: &str, most: u32) -> Option<PathBuf> {
    let version = |path: &PathBuf| -> Option<Vec<u32>> {
        let version = path.file_name()?.to_str()?.strip_prefix(begin)?.strip_prefix('.')?;
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    let files = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| version(path).is_some_and(|version| version[0] <= most)).max_by_key(version)
}

/// Opens a library by its path, for everyone who later asks for its name, and for the rest of the process.
#[cfg(unix)]
fn open(path: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the code that the library runs when it is opened is NVIDIA's, or that of anyone with write access to a
    // folder that the user names; the library is never closed, so none of its code is called after that.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map(std::mem::forget).is_ok()
}

/// Elsewhere there is only the loader's search.
#[cfg(not(unix))]
fn open(_: &Path) -> bool {
    false
}

/// The folders in which the active Python environments keep NVIDIA's libraries:
/// `lib/python3*/site-packages/nvidia/*/lib`, and conda's `lib`.
fn python_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    let mut folders = Vec::new();
    for lib in environments.map(|environment| Path::new(&environment).join("lib")) {
        let is_python = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        };
        for python in entries(&lib).iter().filter(is_python) {
            let packages = entries(&python.join("site-packages/nvidia"));
            folders.extend(packages.iter().map(|package| package.join("lib")));
        }
        folders.push(lib);
    }
    folders
}

/// The entries of `folder`, sorted by name; none where there is no folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn the_newest_version_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "libnvrtc.so.9",
            "libnvrtc.so.13",
            "libnvrtc.so.12.4",
            "libnvrtc.so",
            "libnvrtc.so.x",
            "libnvrtc.alt.so.14",
        ] {
            touch(&folder.path().join(name));
        }
        let of_most = |most| newest(folder.path(), "libnvrtc.so", most);
        assert_eq!(of_most(u32::MAX), Some(folder.path().join("libnvrtc.so.13")));
        assert_eq!(of_most(12), Some(folder.path().join("libnvrtc.so.12.4")));
        assert_eq!(of_most(8), None);
        assert_eq!(newest(folder.path(), "libcublasLt.so", 13), None);
        assert_eq!(newest(&folder.path().join("none"), "libnvrtc.so", 13), None);
    }

    #[test]
    fn what_is_no_library_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        touch(&folder.path().join("libcublasLt.so.13"));
        assert!(!CUBLAS_LT.open_in(folder.path(), 13));
    }

    #[test]
    fn python_environments_keep_libraries_by_package() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        touch(&at("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"));
        touch(&at("venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12"));
        let folders = python_folders(|name| (name == "VIRTUAL_ENV").then(|| at("venv").into()));
        let expected = [
            "lib/python3.12/site-packages/nvidia/cu13/lib",
            "lib/python3.12/site-packages/nvidia/cublas/lib",
            "lib",
        ];
        assert_eq!(folders, expected.map(|path| at("venv").join(path)));
        assert_eq!(python_folders(|_| None), Vec::<PathBuf>::new());
    }
}
