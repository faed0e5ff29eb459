//! Numbers as flags take them, and what is said of those that they do not take.

use std::{
    num::{IntErrorKind, NonZeroUsize, ParseIntError},
    str::FromStr,
};

/// Parses a number above 0: a [`NonZeroUsize`], or another of its kind.
///
/// # Errors
/// What is expected, for all else; a number that the type has no room for.
pub(super) fn above_0<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, &'static str> {
    parse(text, "expected a whole number above 0")
}

/// The same as a plain number.
///
/// # Errors
/// As [`above_0`].
pub(super) fn count(text: &str) -> Result<usize, &'static str> {
    above_0(text).map(NonZeroUsize::get)
}

/// Parses a number that may be 0.
///
/// # Errors
/// What is expected, for all else; a number that the type has no room for.
pub(super) fn whole<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, &'static str> {
    parse(text, "expected a whole number")
}

/// The lengths of sequences that were asked for; where none was, 128 tokens, or all that a model has `positions` for.
pub(super) fn seq_lens(asked: &[NonZeroUsize], positions: usize) -> Vec<NonZeroUsize> {
    const USUAL: usize = 128;
    match asked {
        [] => NonZeroUsize::new(USUAL.min(positions)).into_iter().collect(),
        asked => asked.to_vec(),
    }
}

/// Parses a port.
///
/// # Errors
/// What is expected, for all else.
pub(super) fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "expected a whole number up to 65535")
}

fn parse<T: FromStr<Err = ParseIntError>>(text: &str, expected: &'static str) -> Result<T, &'static str> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large",
        _ => expected,
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn numbers_above_0_are_read() {
        assert_eq!(above_0("17"), Ok(NonZeroUsize::new(17).unwrap()));
        assert_eq!(above_0::<NonZeroU32>("4294967296"), Err("the number is too large"));
        for text in ["0", "-1", "", "1.5", "many"] {
            assert_eq!(above_0::<NonZeroUsize>(text), Err("expected a whole number above 0"), "{text:?}");
        }
    }

    #[test]
    fn numbers_that_may_be_0_are_read() {
        assert_eq!((whole("0"), whole("17")), (Ok(0_u64), Ok(17_u64)));
        assert_eq!(whole::<u64>("18446744073709551616"), Err("the number is too large"));
        for text in ["-1", "", "1.5", "5s"] {
            assert_eq!(whole::<u64>(text), Err("expected a whole number"), "{text:?}");
        }
        assert_eq!((port("0"), port("65535")), (Ok(0), Ok(65535)));
        for text in ["-1", "", "http", "65536"] {
            assert_eq!(port(text), Err("expected a whole number up to 65535"), "{text:?}");
        }
    }
}
