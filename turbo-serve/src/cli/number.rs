//! Numbers as flags take them, and what is said of those that they do not take.

use std::{
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
};

/// Parses a number above 0: a [`NonZeroUsize`](std::num::NonZeroUsize), or another of its kind.
///
/// # Errors
/// What is expected, for all else; a number that the type has no room for.
pub(super) fn above_0<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large",
        _ => "expected a whole number above 0",
    })
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroUsize};

    use super::*;

    #[test]
    fn numbers_above_0_are_read() {
        assert_eq!(above_0("17"), Ok(NonZeroUsize::new(17).unwrap()));
        assert_eq!(above_0::<NonZeroU32>("4294967296"), Err("the number is too large"));
        for text in ["0", "-1", "", "1.5", "many"] {
            assert_eq!(above_0::<NonZeroUsize>(text), Err("expected a whole number above 0"), "{text:?}");
        }
    }
}
