//! `inputs` of `/predict`: one text, one pair of texts, or a list of lists of one or two.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

use super::{
    Counted,
    element::{At, Element, Kind, read_rest},
};
use crate::engine::Input;

/// `inputs` for a model that scores labels.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct PredictInputs(pub(in crate::http) Counted);

impl<'de> Deserialize<'de> for PredictInputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor).map(Self)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Counted;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(
            "a text, a pair `[text, text]`, or a batch `[[text], [text, text], …]` of lists of one or two texts",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Counted, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Counted, E> {
        Ok(Counted::single(Input::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counted, A::Error> {
        let first = list.next_element_seed(At::outer(0, &[Kind::Text, Kind::Texts]))?;
        let Some(first) = first else { return Ok(Counted::batch(Vec::new())) };
        if let Element::Text(first) = first {
            let at = |index| At::outer(index, &[Kind::Text]);
            let texts = read_rest(list, vec![first], at, Element::text)?;
            let count = texts.len();
            return one_or_two(texts)
                .map(Counted::single)
                .ok_or_else(|| A::Error::invalid_length(count, &self));
        }
        let at = |index| At::outer(index, &[Kind::Texts]);
        let lists = read_rest(list, vec![first.texts()], at, Element::texts)?;
        let input = |(index, texts): (usize, Vec<String>)| {
            let count = texts.len();
            one_or_two(texts)
                .ok_or_else(|| A::Error::custom(format!("{count} texts, expected one or two at [{index}]")))
        };
        lists.into_iter().enumerate().map(input).collect::<Result<_, _>>().map(Counted::batch)
    }
}

fn one_or_two(texts: Vec<String>) -> Option<Input> {
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next(), texts.next()) {
        (Some(text), None, None) => Some(Input::Text(text)),
        (Some(first), Some(second), None) => Some(Input::Pair(first, second)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Input {
        Input::Text(text.into())
    }

    fn pair(first: &str, second: &str) -> Input {
        Input::Pair(first.into(), second.into())
    }

    #[test]
    fn every_form_is_read() {
        for (json, expected) in [
            (r#""a""#, Counted::single(text("a"))),
            (r#"["a"]"#, Counted::single(text("a"))),
            (r#"["a", "b"]"#, Counted::single(pair("a", "b"))),
            ("[]", Counted::batch(vec![])),
            (r#"[["a"]]"#, Counted::batch(vec![text("a")])),
            (r#"[["a", "b"], ["c"]]"#, Counted::batch(vec![pair("a", "b"), text("c")])),
        ] {
            assert_eq!(
                serde_json::from_str::<PredictInputs>(json).unwrap(),
                PredictInputs(expected),
                "{json}"
            );
        }
    }

    #[test]
    fn errors_name_the_value_the_place_and_the_expectation() {
        for (json, said) in [
            ("7", "invalid type: integer `7`, expected a text, a pair `[text, text]`, or a batch"),
            ("[7]", "invalid type: integer `7`, expected a text or a list of texts at [0]"),
            (r#"["a", "b", "c"]"#, "invalid length 3, expected a text, a pair `[text, text]`, or a batch"),
            (r#"["a", ["b"]]"#, "invalid type: sequence, expected a text at [1]"),
            (r#"[["a"], "b"]"#, r#"invalid type: string "b", expected a list of texts at [1]"#),
            (r#"[["a"], ["b", 7]]"#, "invalid type: integer `7`, expected a text at [1][1]"),
            (r#"[["a"], []]"#, "0 texts, expected one or two at [1]"),
            (r#"[["a", "b", "c"]]"#, "3 texts, expected one or two at [0]"),
            ("[[[]]]", "invalid type: sequence, expected a text at [0][0]"),
        ] {
            let error = serde_json::from_str::<PredictInputs>(json).unwrap_err();
            assert!(error.to_string().contains(said), "{json}: {error}");
            assert!(error.is_data(), "{json}");
        }
    }
}
