//! Files as memory.

use std::{
    fs::{self, File, Metadata},
    io,
    ops::{Deref, Range},
    path::Path,
};

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
    /// Maps the file at `path` for reading.
    ///
    /// # Errors
    /// The error of the system; [`io::ErrorKind::InvalidData`] for an empty file, which has no bytes to map, and
    /// [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        // before the file is opened: opening a pipe blocks until a process writes into it
        check_regular(&fs::metadata(path)?)?;
        let file = File::open(path)?;
        // and again for the opened file, which need not be the one that was there before
        let metadata = file.metadata()?;
        check_regular(&metadata)?;
        if metadata.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
        }
        // SAFETY: the mapping is private to this value and read-only here. That nothing else changes the file while it
        // is mapped cannot be checked; the hazard is documented above and accepted for the reason given there.
        let bytes = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { bytes })
    }

    /// Gives up the memory behind `bytes`, in whole pages: they no longer count as resident, and are read again when
    /// they are touched. It is only a hint, and does nothing where the system knows no such call.
    ///
    /// # Panics
    /// When `bytes` reach beyond the file.
    pub fn release(&self, bytes: Range<usize>) {
        assert!(bytes.end <= self.bytes.len(), "{bytes:?} of {} bytes", self.bytes.len());
        #[cfg(unix)]
        if !bytes.is_empty() {
            let dont_need = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the advice may drop pages that hold the only copy of data; this mapping is only ever read, so its
            // pages hold what the file has, and a later access through any slice of it reads the same bytes again.
            let advised = unsafe { self.bytes.unchecked_advise_range(dont_need, bytes.start, bytes.len()) };
            // pages that the system refused to drop stay resident, as they were before
            drop(advised);
        }
    }
}

fn check_regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
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
    fn released_bytes_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        for range in [0..100_000, 5000..70_001, 99_999..100_000, 0..0, 100_000..100_000] {
            assert_eq!(&*mapped, &bytes[..]);
            mapped.release(range);
            assert_eq!(&*mapped, &bytes[..]);
        }
    }

    #[test]
    #[should_panic(expected = "10..10001 of 10000 bytes")]
    fn bytes_beyond_the_file_are_not_released() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, [0; 10_000]).unwrap();
        MappedFile::open(&path).unwrap().release(10..10_001);
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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_refused_before_anybody_writes_into_it() {
        use std::{sync::mpsc, thread, time::Duration};

        use rustix::fs::{CWD, Mode, mkfifoat};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let (sender, answer) = mpsc::channel();
        thread::spawn(move || sender.send(MappedFile::open(&path).unwrap_err().to_string()));
        let answer = answer.recv_timeout(Duration::from_secs(10));
        assert_eq!(answer.as_deref(), Ok("not a regular file"));
    }
}
