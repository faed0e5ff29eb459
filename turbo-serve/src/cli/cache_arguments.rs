//! Arguments about answers that are kept.

use std::{num::IntErrorKind, str::FromStr};

use anyhow::Result;
use clap::Args;
use turbo_serve::cache::ResponseCache;

#[derive(Args, Clone)]
#[command(next_help_heading = "Response cache")]
pub(super) struct CacheArguments {
    /// Memory for answers, so that an input that comes again is not computed again: bytes, or such as 512MiB or 2GB; 0 keeps
    /// none
    #[arg(long, env, value_name = "BYTES", default_value = "256MiB")]
    cache_bytes: Budget,
}

impl CacheArguments {
    /// The cache; `None` where answers are not kept.
    pub(super) fn open(&self) -> Result<Option<ResponseCache>> {
        match self.cache_bytes.0 {
            0 => Ok(None),
            bytes => Ok(Some(ResponseCache::in_memory(bytes)?)),
        }
    }
}

/// Bytes that a cache may take; 0 for no cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget(usize);

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = bytes(text)?;
        let least = ResponseCache::LEAST_BYTES;
        if bytes > 0 && bytes < least {
            return Err(format!("{bytes} bytes are too few, expected {least} or more, or 0 to keep nothing"));
        }
        Ok(Self(bytes))
    }
}

/// What may stand behind a number of bytes.
const UNITS: [(&str, usize); 7] = [
    ("", 1),
    ("KB", 1000),
    ("MB", 1000 * 1000),
    ("GB", 1000 * 1000 * 1000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim_start()));
    let too_many = || "more bytes than there can be".to_owned();
    match (number.parse::<usize>(), factor) {
        (Ok(number), Some((_, factor))) => number.checked_mul(*factor).ok_or_else(too_many),
        (Err(error), Some(_)) if *error.kind() == IntErrorKind::PosOverflow => Err(too_many()),
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
            match (text.parse::<Budget>(), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.0, expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                (got, expected) => panic!("{text}: got {got:?}, expected {expected:?}"),
            }
        }
    }
}
