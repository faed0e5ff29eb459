//! Whole numbers in bodies.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

use crate::http::error::ApiError;

/// A count, whose errors say "a whole number, 0 or above" where serde's say `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Count(pub(in crate::http) usize);

/// Refuses a count of 0.
pub(in crate::http) fn at_least_one(name: &str, count: Option<Count>) -> Result<Option<usize>, ApiError> {
    match count {
        Some(Count(0)) => Err(ApiError::validation(format!("`{name}` is 0, expected at least 1"))),
        count => Ok(count.map(|Count(count)| count)),
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(CountVisitor)
    }
}

/// A whole number, whose errors say so where serde's say `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Whole(pub(in crate::http) i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        i64::try_from(number).map(Whole).map_err(too_large)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
        Ok(Whole(number))
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a whole number, 0 or above")
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Count, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(count), &self);
        usize::try_from(count).map(Count).map_err(too_large)
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<Count, E> {
        Err(E::invalid_value(Unexpected::Signed(count), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_may_be_below_zero() {
        let read = serde_json::from_str::<Whole>;
        assert_eq!([read("-1").unwrap(), read("7").unwrap()], [Whole(-1), Whole(7)]);
        for json in ["1.5", "9223372036854775808", r#""7""#, "null", "[]"] {
            let said = read(json).unwrap_err().to_string();
            assert!(said.contains("expected a whole number"), "{json}: {said}");
        }
    }

    #[test]
    fn only_whole_numbers_count() {
        let read = serde_json::from_str::<Count>;
        assert_eq!(read("0").unwrap(), Count(0));
        assert_eq!(read("7").unwrap(), Count(7));
        for (json, got) in [
            ("-1", "invalid value: integer `-1`"),
            ("1.5", "invalid type: floating point `1.5`"),
            ("18446744073709551616", "invalid type: floating point"),
            (r#""7""#, r#"invalid type: string "7""#),
            ("null", "invalid type: null"),
        ] {
            let error = read(json).unwrap_err();
            let said = error.to_string();
            assert!(
                said.starts_with(got) && said.contains("expected a whole number, 0 or above"),
                "{json}: {said}"
            );
            assert!(error.is_data(), "{json}");
        }
    }
}
