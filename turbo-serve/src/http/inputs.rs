//! `inputs` of a request: one text, one list of token ids, or a list that mixes both.
//!
//! Read in one pass, without trying one form after another: the first element of a list tells whether it is a list of
//! ids. So an error names the value, its position and what was expected there, which an untagged enum cannot.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, SeqAccess, Unexpected, Visitor},
};

use crate::engine::Input;

/// The inputs of a request, and in which form they came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inputs {
    /// A text or a list of ids.
    Single(Input),
    /// A list of them; `[]` is an empty one.
    Batch(Vec<Input>),
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of texts and lists of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Inputs, E> {
        Ok(Inputs::Single(Input::Text(text.to_owned())))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Inputs, E> {
        Ok(Inputs::Single(Input::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Inputs, A::Error> {
        match list.next_element_seed(At { position: Position(0, None), wanted: Wanted::Either })? {
            None => Ok(Inputs::Batch(Vec::new())),
            Some(Element::Id(first)) => {
                let ids = rest_of_ids(vec![first], None, list)?;
                Ok(Inputs::Single(Input::Ids(ids)))
            }
            Some(Element::Input(first)) => {
                let mut inputs = vec![first];
                let at = |index| At { position: Position(index, None), wanted: Wanted::Input };
                while let Some(element) = list.next_element_seed(at(inputs.len()))? {
                    if let Element::Input(input) = element {
                        inputs.push(input);
                    }
                }
                Ok(Inputs::Batch(inputs))
            }
        }
    }
}

/// Reads ids to the end of the list at `outer`, or of the outermost list.
fn rest_of_ids<'de, A: SeqAccess<'de>>(
    mut ids: Vec<u32>,
    outer: Option<usize>,
    mut list: A,
) -> Result<Vec<u32>, A::Error> {
    let at = |index| At {
        position: outer.map_or(Position(index, None), |outer| Position(outer, Some(index))),
        wanted: Wanted::Id,
    };
    while let Some(element) = list.next_element_seed(at(ids.len()))? {
        if let Element::Id(id) = element {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// An element of the outermost list, or an id of an inner one.
enum Element {
    Id(u32),
    Input(Input),
}

#[derive(Clone, Copy)]
enum Wanted {
    Id,
    Input,
    Either,
}

/// Where an element is: `[0]`, or `[0][2]` inside an inner list.
#[derive(Clone, Copy)]
struct Position(usize, Option<usize>);

/// Reads the element at a position, and takes only what is wanted there.
#[derive(Clone, Copy)]
struct At {
    position: Position,
    wanted: Wanted,
}

impl At {
    fn id<E: Error>(self, id: Option<u32>, got: Unexpected) -> Result<Element, E> {
        match (self.wanted, id) {
            (Wanted::Input, _) => Err(E::invalid_type(got, &self)),
            (_, None) => Err(E::invalid_value(got, &self)),
            (_, Some(id)) => Ok(Element::Id(id)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for At {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.wanted {
            Wanted::Id => "a token id (an integer from 0 to 4294967295)",
            Wanted::Input => "a text or a list of token ids",
            Wanted::Either => "a text, a list of token ids or a token id (an integer from 0 to 4294967295)",
        })?;
        match self.position {
            Position(index, None) => write!(f, " at [{index}]"),
            Position(outer, Some(inner)) => write!(f, " at [{outer}][{inner}]"),
        }
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        self.id(id.try_into().ok(), Unexpected::Unsigned(id))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<Element, E> {
        self.id(id.try_into().ok(), Unexpected::Signed(id))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<Element, E> {
        self.id(None, Unexpected::Float(id))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
        match self.wanted {
            Wanted::Id => Err(E::invalid_type(Unexpected::Str(&text), &self)),
            Wanted::Input | Wanted::Either => Ok(Element::Input(Input::Text(text))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Element, A::Error> {
        match self.wanted {
            Wanted::Id => Err(A::Error::invalid_type(Unexpected::Seq, &self)),
            Wanted::Input | Wanted::Either => {
                let ids = rest_of_ids(Vec::new(), Some(self.position.0), list)?;
                Ok(Element::Input(Input::Ids(ids)))
            }
        }
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
        use Inputs::{Batch, Single};
        for (json, expected) in [
            (r#""a""#, Single(text("a"))),
            (r#""""#, Single(text(""))),
            ("[7, 0, 4294967295]", Single(Input::Ids(vec![7, 0, u32::MAX]))),
            ("[]", Batch(vec![])),
            ("[[]]", Batch(vec![Input::Ids(vec![])])),
            (r#"["a"]"#, Batch(vec![text("a")])),
            (r#"[[1, 2], "b", [3]]"#, Batch(vec![Input::Ids(vec![1, 2]), text("b"), Input::Ids(vec![3])])),
            (r#"["a", []]"#, Batch(vec![text("a"), Input::Ids(vec![])])),
        ] {
            assert_eq!(serde_json::from_str::<Inputs>(json).unwrap(), expected, "{json}");
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
