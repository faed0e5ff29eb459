//! SHA-256 of files and of folders.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// SHA-256 of a file, as lower-case hexadecimal digits.
///
/// # Errors
/// When the file cannot be read; the message names it.
pub(crate) fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..read]);
    }
}

/// The digest of every file below `folder`, by its path relative to `folder`; empty if there is no such folder.
///
/// # Errors
/// When a file or folder cannot be read.
pub(crate) fn files_below(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(dir) = waiting.pop().filter(|dir| dir.is_dir()) {
        for entry in dir.read_dir().with_context(|| format!("cannot list {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let digest = sha256_of(&path)?;
                let name = path.strip_prefix(folder).expect("found below it").to_path_buf();
                found.insert(name, digest);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_digest_of_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        std::fs::write(&file, "abc").unwrap();
        // the first example of FIPS 180-2
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of(&file).unwrap(), expected);
        let error = sha256_of(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn folders_are_visited_to_the_bottom() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/b/c"), "1").unwrap();
        std::fs::write(folder.path().join("d"), "1").unwrap();
        let found = files_below(folder.path()).unwrap();
        let names: Vec<_> = found.keys().map(|p| p.display().to_string()).collect();
        assert_eq!(names, ["a/b/c", "d"]);
        assert_eq!(found[Path::new("a/b/c")], found[Path::new("d")]);
        assert!(files_below(&folder.path().join("none")).unwrap().is_empty());
    }
}
