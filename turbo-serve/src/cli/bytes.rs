//! Numbers of bytes as flags and files say them: `268435456`, `256MiB`, `1GB`.

use std::{fmt, num::IntErrorKind, str::FromStr};

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) usize);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        usize::try_from(bytes(text)?).map(Self).map_err(|_| TOO_MANY.to_owned())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(super) const TOO_MANY: &str = "the number of bytes is too large";

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

/// Parses a whole number, with a unit or without.
///
/// # Errors
/// What is expected, for all else; more than 64 bits.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
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
            ("", Err("expected a number of bytes")),
            ("MiB", Err("expected a number of bytes")),
            ("-1", Err("expected a number of bytes")),
            ("1.5GB", Err("expected a number of bytes")),
            ("256 megs", Err("such as 268435456, 256MiB or 1GB")),
            ("99999999999999999999", Err("the number of bytes is too large")),
            ("99999999999999GiB", Err("the number of bytes is too large")),
        ] {
            match (text.parse::<Bytes>(), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.0, expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                (got, expected) => panic!("{text}: got {got:?}, expected {expected:?}"),
            }
        }
    }
}
