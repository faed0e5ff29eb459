//! Files as memory.

use std::{fs::File, io, ops::Deref, path::Path};

use memmap2::Mmap;

/// The bytes of a file, read by the system as they are touched.
///
/// The file must not be changed while it is mapped. Another process that truncates it makes the next access fail
/// with a signal (`SIGBUS`), and one that writes into it changes the bytes seen here. That is the price of reading
/// weights of gigabytes without copying them: files of models are written once, and every tool that maps them, the
/// reference implementations included, accepts it. Replace such a file by renaming a new one over it, which leaves
/// the mapped one alone.
#[derive(Debug)]
pub struct MappedFile {
    bytes: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`, to be read.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::InvalidData`] for an empty file, which has no bytes to map, and
    /// [`io::ErrorKind::InvalidInput`] for what is not a regular file.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if metadata.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
        }
        // SAFETY: the mapping is private to this value and read-only here. That nobody else changes the file while it
        // is mapped cannot be checked; the hazard is documented above and accepted for the reason given there.
        let bytes = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { bytes })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&*mapped, &bytes[..]);
    }

    #[test]
    fn what_has_no_bytes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(MappedFile::open(folder.path()).unwrap_err().to_string(), "not a regular file");
        std::fs::write(&path, "").unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().to_string(), "the file is empty");
    }
}
