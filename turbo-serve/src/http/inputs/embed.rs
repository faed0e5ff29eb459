//! `inputs` of `/embed` and similar routes: one text, one list of token ids, or a list that mixes both.

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

/// `inputs` for a model that gives vectors.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Inputs(pub(in crate::http) Counted);

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor).map(Self)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Counted;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of texts and lists of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Counted, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Counted, E> {
        Ok(Counted::single(Input::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counted, A::Error> {
        let first = list.next_element_seed(At::outer(0, &[Kind::Text, Kind::Ids, Kind::Id]))?;
        let Some(first) = first else { return Ok(Counted::batch(Vec::new())) };
        if let Element::Id(first) = first {
            let at = |index| At::outer(index, &[Kind::Id]);
            return Ok(Counted::single(Input::Ids(read_rest(list, vec![first], at, Element::id)?)));
        }
        let input = |element| match element {
            Element::Text(text) => Input::Text(text),
            element => Input::Ids(element.ids()),
        };
        let at = |index| At::outer(index, &[Kind::Text, Kind::Ids]);
        Ok(Counted::batch(read_rest(list, vec![input(first)], at, input)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Input {
        Input::Text(text.to_owned())
    }

    #[test]
    fn every_form_is_read() {
        let single = Counted::single;
        let batch = Counted::batch;
        for (json, expected) in [
            (r#""a""#, single(text("a"))),
            (r#""""#, single(text(""))),
            ("[7, 0, 4294967295]", single(Input::Ids(vec![7, 0, u32::MAX]))),
            ("[]", batch(vec![])),
            ("[[]]", batch(vec![Input::Ids(vec![])])),
            (r#"["a"]"#, batch(vec![text("a")])),
            (r#"[[1, 2], "b", [3]]"#, batch(vec![Input::Ids(vec![1, 2]), text("b"), Input::Ids(vec![3])])),
            (r#"["a", []]"#, batch(vec![text("a"), Input::Ids(vec![])])),
        ] {
            assert_eq!(serde_json::from_str::<Inputs>(json).unwrap(), Inputs(expected), "{json}");
        }
    }

    #[test]
    fn errors_name_the_value_the_place_and_the_expectation() {
        for (json, said) in [
            ("null", "invalid type: null, expected a text, a list of token ids, or a list of"),
            ("{}", "invalid type: map, expected a text"),
            ("[null]", "invalid type: null, expected a text, a list of token ids or a token id"),
            ("[-1]", "invalid value: integer `-1`"),
            (
                "[1, -1]",
                "invalid value: integer `-1`, expected a token id (an integer from 0 to 4294967295) at [1]",
            ),
            (
                "[[1], [2, 1.5]]",
                "invalid value: floating point `1.5`, expected a token id (an integer from 0 to 4294967295) at [1][1]",
            ),
            ("[[4294967296]]", "invalid value: integer `4294967296`"),
            ("[[18446744073709551616]]", "invalid value: floating point"),
            (r#"[1, "a"]"#, r#"invalid type: string "a", expected a token id"#),
            (r#"["a", 1]"#, "invalid type: integer `1`, expected a text or a list of token ids at [1]"),
            (
                "[[[1]]]",
                "invalid type: sequence, expected a token id (an integer from 0 to 4294967295) at [0][0]",
            ),
            (r#"["a", true]"#, "invalid type: boolean `true`, expected a text or a list of token ids at [1]"),
        ] {
            let error = serde_json::from_str::<Inputs>(json).unwrap_err();
            assert!(error.to_string().contains(said), "{json}: {error}");
            assert!(error.is_data(), "{json}");
        }
    }
}
