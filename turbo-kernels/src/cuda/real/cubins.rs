//! Compiled kernels, kept on disk so that a second start need not compile.
//!
//! ```text
//! 0   [`MAGIC`]
//! 8   length of the cubin
//! 16  its digest
//! 32  the cubin
//! ```
//! A file's name contains a digest of everything that its content depends on, so an entry is never stale. It is written
//! to a temporary file and then renamed, so that two processes may write it at once. A damaged entry is made again.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use twox_hash::XxHash3_128;

/// The format and its version.
const MAGIC: [u8; 8] = *b"turbocu1";
const HEADER_BYTES: usize = 8 + 8 + 16;

/// A folder of cubins.
#[derive(Clone, Debug)]
pub(super) struct Cubins {
    /// With `None` nothing is kept.
    folder: Option<PathBuf>,
}

impl Cubins {
    /// The cubins in the folder `TURBO_CUDA_CACHE`, where `off` keeps none; by default in `turbo/cubin` in the user's
    /// cache folder.
    pub(super) fn of_this_user() -> Self {
        Self { folder: folder(|name| env::var_os(name)) }
    }

    /// The cubin that depends on `identity`, a text of any length: from its file, or else from `make`. `name` is the
    /// readable part of the file's name.
    ///
    /// # Errors
    /// The error of `make`. A folder that cannot be written only causes a warning.
    pub(super) fn get_or_make<E>(
        &self,
        name: &str,
        identity: &str,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let Some(folder) = &self.folder else { return make() };
        let path = folder.join(format!("{name}-{:032x}.cubin", XxHash3_128::oneshot(identity.as_bytes())));
        if let Some(cubin) = fs::read(&path).ok().and_then(|file| unwrap(&file).map(<[u8]>::to_vec)) {
            return Ok(cubin);
        }
        let cubin = make()?;
        if let Err(error) = write(&path, &cubin) {
            warn(folder, &error);
        }
        Ok(cubin)
    }
}

/// Warns once that every start will have to compile.
fn warn(folder: &Path, error: &io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(folder = %folder.display(), %error, "compiled kernels cannot be kept, each start compiles them");
    });
}

fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = variable("TURBO_CUDA_CACHE").filter(|value| !value.is_empty());
    match given {
        Some(off) if off == "off" => None,
        Some(folder) => Some(folder.into()),
        None => Some(user_caches(variable)?.join("turbo/cubin")),
    }
}

/// The user's cache folder, on systems with NVIDIA GPUs: on Linux by the XDG specification, which ignores relative
/// paths, and on Windows.
fn user_caches(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let usual = || folder("LOCALAPPDATA").or_else(|| Some(folder("HOME")?.join(".cache")));
    folder("XDG_CACHE_HOME").or_else(usual)
}

/// The content of a whole file.
fn wrap(cubin: &[u8]) -> Vec<u8> {
    let length = (cubin.len() as u64).to_le_bytes();
    [&MAGIC[..], &length, &XxHash3_128::oneshot(cubin).to_le_bytes(), cubin].concat()
}

/// The cubin in a file; `None` when the file is damaged, or not one of ours.
fn unwrap(file: &[u8]) -> Option<&[u8]> {
    let (header, cubin) = file.split_at_checked(HEADER_BYTES)?;
    (header == &wrap(cubin)[..HEADER_BYTES]).then_some(cubin)
}

/// Writes the file at `path`, whole or not at all. The file is not synced to the disk: one that a power failure tears
/// has a wrong digest.
fn write(path: &Path, cubin: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("the file lies in the folder of the cache");
    fs::create_dir_all(folder)?;
    let (aside, mut file) = create_aside(folder)?;
    let written = file.write_all(&wrap(cubin));
    drop(file);
    let written = written.and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // the rest of it may stay if it cannot be removed
        drop(fs::remove_file(&aside));
    }
    written
}

/// A new file in `folder`. Processes of different containers may share the folder and a process id, so a name may be
/// taken.
fn create_aside(folder: &Path) -> io::Result<(PathBuf, File)> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = TRIED.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".cubin-{}-{number}", process::id()));
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((path, file?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUBIN: &[u8] = b"\x7fELF, machine code";

    /// The result of `get_or_make`, and whether it had to make it.
    fn get(cubins: &Cubins, identity: &str) -> (Vec<u8>, bool) {
        let mut made = false;
        let cubin = cubins.get_or_make("softmax-sm_90", identity, || {
            made = true;
            Ok::<_, ()>(CUBIN.to_vec())
        });
        (cubin.unwrap(), made)
    }

    fn cubins_in(folder: &Path) -> Cubins {
        Cubins { folder: Some(folder.join("turbo/cubin")) }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder.join("turbo/cubin")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn what_was_made_is_kept_by_what_it_depends_on() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = cubins_in(folder.path());
        assert_eq!(get(&cubins, "a"), (CUBIN.to_vec(), true));
        assert_eq!(get(&cubins, "a"), (CUBIN.to_vec(), false));
        assert_eq!(get(&cubins, "b"), (CUBIN.to_vec(), true));
        assert_eq!(files(folder.path()).len(), 2, "nothing is left beside the entries");
    }

    #[test]
    fn an_error_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = cubins_in(folder.path());
        assert_eq!(cubins.get_or_make("softmax", "a", || Err("line 3")), Err("line 3"));
        assert_eq!(get(&cubins, "a"), (CUBIN.to_vec(), true));
    }

    #[test]
    fn a_damaged_entry_is_made_anew() {
        let whole = wrap(CUBIN);
        let changed = |byte: usize| {
            let mut file = whole.clone();
            file[byte] ^= 1;
            file
        };
        let damages = [
            Vec::new(),
            whole[..HEADER_BYTES - 1].to_vec(),
            whole[..whole.len() - 1].to_vec(),
            [&whole[..], b"x"].concat(),
            changed(7), // another version
            changed(8),
            changed(16),
            changed(HEADER_BYTES),
        ];
        for damaged in damages {
            let folder = tempfile::tempdir().unwrap();
            let cubins = cubins_in(folder.path());
            get(&cubins, "a");
            let file = files(folder.path()).remove(0);
            fs::write(&file, &damaged).unwrap();
            assert_eq!(get(&cubins, "a"), (CUBIN.to_vec(), true), "{damaged:?}");
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
    }

    /// Files of another process with the same id, in another container for example, that is still writing them.
    #[test]
    fn files_of_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = cubins_in(folder.path());
        get(&cubins, "a");
        let name = |number: u32| format!("turbo/cubin/.cubin-{}-{number}", process::id());
        let others: Vec<PathBuf> = (0..1000).map(|number| folder.path().join(name(number))).collect();
        others.iter().for_each(|file| fs::write(file, "half of one").unwrap());
        assert_eq!(get(&cubins, "b"), (CUBIN.to_vec(), true));
        assert_eq!(get(&cubins, "b"), (CUBIN.to_vec(), false));
        assert!(others.iter().all(|file| fs::read(file).unwrap() == b"half of one"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_only_time() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("turbo"), "a file where a folder should be").unwrap();
        let cubins = cubins_in(folder.path());
        for _ in 0..2 {
            assert_eq!(get(&cubins, "a"), (CUBIN.to_vec(), true));
        }
        assert_eq!(get(&Cubins { folder: None }, "a"), (CUBIN.to_vec(), true));
    }

    #[test]
    fn the_folder_is_the_users() {
        let folder = |variables: &[(&str, &str)]| {
            folder(|name| variables.iter().find(|it| it.0 == name).map(|it| it.1.into()))
        };
        for (variables, expected) in [
            (&[("TURBO_CUDA_CACHE", "/a"), ("XDG_CACHE_HOME", "/x")][..], Some("/a")),
            (&[("TURBO_CUDA_CACHE", "off"), ("HOME", "/h")], None),
            (&[("TURBO_CUDA_CACHE", ""), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/turbo/cubin")),
            (&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], Some("/h/.cache/turbo/cubin")),
            (&[], None),
        ] {
            assert_eq!(folder(variables), expected.map(PathBuf::from), "{variables:?}");
        }
    }
}
