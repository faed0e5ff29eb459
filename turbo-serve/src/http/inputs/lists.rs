//! Inputs of the tokenizer's routes: texts, or lists of ids.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

use super::element::{At, Element, Kind, read_rest};
use crate::http::metrics::Arity;

/// A text, or a list of texts.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct TextList {
    pub(in crate::http) texts: Vec<String>,
    pub(in crate::http) arity: Arity,
}

/// A list of ids, or a list of such lists.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct IdLists(pub(in crate::http) Vec<Vec<u32>>);

impl<'de> Deserialize<'de> for TextList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for IdLists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = TextList;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TextList, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<TextList, E> {
        Ok(TextList { texts: vec![text], arity: Arity::Single })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextList, A::Error> {
        let at = |index| At::outer(index, &[Kind::Text]);
        Ok(TextList { texts: read_rest(list, Vec::new(), at, Element::text)?, arity: Arity::Batch })
    }
}

struct IdVisitor;

impl<'de> Visitor<'de> for IdVisitor {
    type Value = IdLists;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of token ids, or a list of such lists")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<IdLists, A::Error> {
        let lists = match list.next_element_seed(At::outer(0, &[Kind::Ids, Kind::Id]))? {
            None => Vec::new(),
            Some(Element::Id(first)) => {
                let at = |index| At::outer(index, &[Kind::Id]);
                vec![read_rest(list, vec![first], at, Element::id)?]
            }
            Some(first) => {
                let at = |index| At::outer(index, &[Kind::Ids]);
                read_rest(list, vec![first.ids()], at, Element::ids)?
            }
        };
        Ok(IdLists(lists))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let texts = |json| serde_json::from_str::<TextList>(json).unwrap().texts;
        assert_eq!(texts(r#""a""#), ["a"]);
        assert_eq!(texts(r#"["a", "b"]"#), ["a", "b"]);
        assert!(texts("[]").is_empty());
        let ids = |json| serde_json::from_str::<IdLists>(json).unwrap().0;
        assert_eq!(ids("[1, 2]"), [[1, 2]]);
        assert_eq!(ids("[[1, 2], []]"), [vec![1, 2], vec![]]);
        assert!(ids("[]").is_empty());
    }

    #[test]
    fn errors_name_the_value_the_place_and_the_expectation() {
        for (json, said) in [
            ("7", "invalid type: integer `7`, expected a text or a list of texts"),
            (r#"["a", 7]"#, "invalid type: integer `7`, expected a text at [1]"),
            ("[[\"a\"]]", "invalid type: sequence, expected a text at [0]"),
        ] {
            let error = serde_json::from_str::<TextList>(json).unwrap_err().to_string();
            assert!(error.contains(said), "{json}: {error}");
        }
        for (json, said) in [
            ("7", "invalid type: integer `7`, expected a list of token ids, or a list of such lists"),
            (r#""a""#, r#"invalid type: string "a", expected a list of token ids"#),
            (
                "[1, -1]",
                "invalid value: integer `-1`, expected a token id (an integer from 0 to 4294967295) at [1]",
            ),
            ("[[1], 2]", "invalid type: integer `2`, expected a list of token ids at [1]"),
            (r#"[["a"]]"#, r#"invalid type: string "a", expected a token id"#),
        ] {
            let error = serde_json::from_str::<IdLists>(json).unwrap_err().to_string();
            assert!(error.contains(said), "{json}: {error}");
        }
    }
}
