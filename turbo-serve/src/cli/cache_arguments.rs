//! Arguments about answers that are kept.

use std::{num::NonZeroU32, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;
use turbo_serve::cache::{CacheOptions, FolderOptions, RedisOptions, ResponseCache};

use super::{
    bytes::{TOO_MANY, bytes},
    number::above_0,
};

#[derive(Args, Clone)]
#[command(next_help_heading = "Response cache")]
pub(super) struct CacheArguments {
    /// Memory for kept answers; 0 keeps none
    ///
    /// An input that is sent again is not computed again. A number of bytes, or a size such as 512MiB or 2GB.
    #[arg(long, env, value_name = "BYTES", default_value = "256MiB")]
    cache_bytes: Memory,
    /// Folder in which answers are kept from one start to the next
    ///
    /// Only one server at a time can use it; a second one logs a warning and keeps answers only in memory.
    #[arg(long, env, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Maximum bytes of the files in `--cache-dir`
    #[arg(long, env, value_name = "BYTES", default_value = "1GiB")]
    cache_dir_bytes: Disk,
    /// Redis or Valkey server that shares answers between servers
    ///
    /// redis://USER:PASSWORD@HOST:PORT/DB, rediss:// with TLS, or unix:///PATH. While it cannot be reached, answers are
    /// served without it.
    // A text until it is opened, for the message of a value that does not parse shows it, and its password.
    #[arg(long, env, value_name = "URL", hide_env_values = true)]
    cache_url: Option<String>,
    /// Seconds that an answer stays in Redis after it was written
    #[arg(long, env, value_name = "SECONDS", value_parser = above_0::<NonZeroU32>, default_value = "604800")]
    cache_url_ttl_s: NonZeroU32,
}

impl CacheArguments {
    /// Looks at what can be told before anything is opened.
    ///
    /// # Errors
    /// Arguments that contradict each other, a URL that is none.
    pub(super) fn check(&self) -> Result<()> {
        let behind = [("--cache-dir", self.cache_dir.is_some()), ("--cache-url", self.cache_url.is_some())];
        if let Some((flag, _)) = behind.into_iter().find(|(_, given)| *given && self.cache_bytes.0 == 0) {
            bail!("--cache-bytes 0 keeps no answers, but {flag} asks to keep them: leave out one of the two");
        }
        self.redis().map(drop)
    }

    /// The cache; `None` where answers are not kept.
    ///
    /// # Errors
    /// As [`Self::check`]; more memory than there is room for.
    pub(super) fn open(&self) -> Result<Option<ResponseCache>> {
        self.check()?;
        if self.cache_bytes.0 == 0 {
            return Ok(None);
        }
        let folder = |dir: &PathBuf| FolderOptions { dir: dir.clone(), bytes: self.cache_dir_bytes.0 };
        let options = CacheOptions {
            bytes: self.cache_bytes.0,
            folder: self.cache_dir.as_ref().map(folder),
            redis: self.redis()?,
        };
        Ok(Some(ResponseCache::open(&options).context("--cache-bytes")?))
    }

    fn redis(&self) -> Result<Option<RedisOptions>> {
        let Some(url) = &self.cache_url else { return Ok(None) };
        let ttl = Duration::from_secs(self.cache_url_ttl_s.get().into());
        Ok(Some(RedisOptions { url: url.parse().context("--cache-url")?, ttl }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_a_least_size() {
        assert_eq!("64KiB".parse(), Ok(Memory(65536)));
        assert_eq!("0".parse(), Ok(Memory(0)));
        let error = "1000".parse::<Memory>().unwrap_err();
        assert_eq!(error, "1000 bytes are too few, expected 65536 or more, or 0 to keep nothing");
        assert_eq!("1GiB".parse::<Disk>(), Ok(Disk(1 << 30)));
        assert!("0".parse::<Disk>().unwrap_err().contains("expected 1048576 or more"));
    }

    fn arguments(more: &[&str]) -> CacheArguments {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            cache: CacheArguments,
        }
        <Line as clap::Parser>::parse_from([&["turbo"], more].concat()).cache
    }

    #[test]
    fn no_memory_and_a_place_behind_it_contradict_each_other() {
        for [flag, value] in [["--cache-dir", "answers"], ["--cache-url", "redis://localhost"]] {
            let error = arguments(&["--cache-bytes=0", flag, value]).open().unwrap_err().to_string();
            assert!(error.contains("--cache-bytes 0") && error.contains(flag), "{error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let error = arguments(&["--cache-url", "http://:secret@localhost"]).open().unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("--cache-url") && !error.contains("secret"), "{error}");
    }
}
