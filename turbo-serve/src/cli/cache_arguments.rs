//! Arguments about answers that are kept.

use std::{num::IntErrorKind, path::PathBuf, str::FromStr};

use anyhow::{Result, ensure};
use clap::Args;
use turbo_serve::cache::{CacheOptions, FolderOptions, ResponseCache};

#[derive(Args, Clone)]
#[command(next_help_heading = "Response cache")]
pub(super) struct CacheArguments {
    /// Memory for answers, so that an input that comes again is not computed again: bytes, or such as 512MiB or 2GB; 0 keeps
    /// none
    #[arg(long, env, value_name = "BYTES", default_value = "256MiB")]
    cache_bytes: Memory,
    /// Folder in which answers are kept from one start to the next, too. One server at a time uses it; a second one says so
    /// and keeps answers in memory only
    #[arg(long, env, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Most bytes that the files in this folder take
    #[arg(long, env, value_name = "BYTES", default_value = "1GiB")]
    cache_dir_bytes: Disk,
}

impl CacheArguments {
    /// The cache; `None` where answers are not kept.
    ///
    /// # Errors
    /// Arguments that contradict each other.
    pub(super) fn open(&self) -> Result<Option<ResponseCache>> {
        if self.cache_bytes.0 == 0 {
            let dir = self.cache_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
            ensure!(
                self.cache_dir.is_none(),
                "--cache-bytes 0 keeps no answers, and --cache-dir {dir} keeps them: expected one of the two"
            );
            return Ok(None);
        }
        let folder = |dir: &PathBuf| FolderOptions { dir: dir.clone(), bytes: self.cache_dir_bytes.0 };
        let options = CacheOptions { bytes: self.cache_bytes.0, folder: self.cache_dir.as_ref().map(folder) };
        Ok(Some(ResponseCache::open(&options)?))
    }
}

/// Bytes of memory; 0 for no cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory(usize);

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = bytes(text)?;
        let least = ResponseCache::LEAST_BYTES as u64;
        if bytes > 0 && bytes < least {
            return Err(format!("{bytes} bytes are too few, expected {least} or more, or 0 to keep nothing"));
        }
        usize::try_from(bytes).map(Self).map_err(|_| TOO_MANY.to_owned())
    }
}

/// Bytes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disk(u64);

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bytes, least) = (bytes(text)?, ResponseCache::LEAST_FOLDER_BYTES);
        if bytes < least {
            return Err(format!("{bytes} bytes are too few, expected {least} or more"));
        }
        Ok(Self(bytes))
    }
}

const TOO_MANY: &str = "more bytes than there can be";

/// What may stand behind a number of bytes.
const UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("KB", 1000),
    ("MB", 1000 * 1000),
    ("GB", 1000 * 1000 * 1000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim_start()));
    match (number.parse::<u64>(), factor) {
        (Ok(number), Some((_, factor))) => number.checked_mul(*factor).ok_or_else(|| TOO_MANY.to_owned()),
        (Err(error), Some(_)) if *error.kind() == IntErrorKind::PosOverflow => Err(TOO_MANY.to_owned()),
        _ => Err("expected a number of bytes, such as 268435456, 256MiB or 1GB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_numbers_with_or_without_a_unit() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("65536", Ok(65536)),
            ("256MiB", Ok(256 << 20)),
            ("256 mib", Ok(256 << 20)),
            ("1GB", Ok(1_000_000_000)),
            ("64KiB", Ok(65536)),
            ("1000", Err("1000 bytes are too few, expected 65536 or more, or 0 to keep nothing")),
            ("", Err("expected a number of bytes")),
            ("MiB", Err("expected a number of bytes")),
            ("-1", Err("expected a number of bytes")),
            ("1.5GB", Err("expected a number of bytes")),
            ("256 megs", Err("such as 268435456, 256MiB or 1GB")),
            ("99999999999999999999", Err("more bytes than there can be")),
            ("99999999999999GiB", Err("more bytes than there can be")),
        ] {
            match (text.parse::<Memory>(), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.0, expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                (got, expected) => panic!("{text}: got {got:?}, expected {expected:?}"),
            }
        }
        assert_eq!("1GiB".parse::<Disk>(), Ok(Disk(1 << 30)));
        assert!("0".parse::<Disk>().unwrap_err().contains("expected 1048576 or more"));
    }

    #[test]
    fn no_memory_and_a_folder_contradict_each_other() {
        let (cache_bytes, cache_dir) = (Memory(0), Some("answers".into()));
        let arguments = CacheArguments { cache_bytes, cache_dir, cache_dir_bytes: Disk(1 << 30) };
        let error = arguments.open().unwrap_err().to_string();
        assert!(error.contains("--cache-bytes 0") && error.contains("--cache-dir answers"), "{error}");
    }
}
