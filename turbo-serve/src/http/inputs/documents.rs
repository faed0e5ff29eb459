//! `documents` of Cohere's and Jina's rerankers: a list of texts, or of objects with a text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// The texts of the documents.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Documents(pub(in crate::http) Vec<String>);

/// A document that is an object. Its other fields are ignored, and `rank_fields` that name them are refused.
#[derive(Deserialize)]
struct Document {
    text: String,
}

impl<'de> Deserialize<'de> for Documents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DocumentsVisitor)
    }
}

struct DocumentsVisitor;

impl<'de> Visitor<'de> for DocumentsVisitor {
    type Value = Documents;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of texts, or of objects with a field `text`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Documents, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element_seed(At(texts.len()))? {
            texts.push(text);
        }
        Ok(Documents(texts))
    }
}

/// Reads the document at this index.
struct At(usize);

impl<'de> DeserializeSeed<'de> for At {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a text, or an object with a field `text`, at [{}]", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<String, A::Error> {
        Document::deserialize(MapAccessDeserializer::new(fields)).map(|document| document.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let read = |json| serde_json::from_str::<Documents>(json).unwrap().0;
        assert!(read("[]").is_empty());
        assert_eq!(read(r#"["a", {"title": [1], "text": "b"}, ""]"#), ["a", "b", ""]);
    }

    #[test]
    fn errors_name_the_value_the_place_and_the_expectation() {
        for (json, said) in [
            ("7", "invalid type: integer `7`, expected a list of texts, or of objects with a field `text`"),
            (r#""a""#, r#"invalid type: string "a", expected a list of texts"#),
            (r#"["a", 7]"#, "integer `7`, expected a text, or an object with a field `text`, at [1]"),
            (r#"[["a"]]"#, "sequence, expected a text, or an object with a field `text`, at [0]"),
            (r#"[{"image": "a"}]"#, "missing field `text`"),
            (r#"[{"text": 7}]"#, "integer `7`, expected a string"),
        ] {
            let error = serde_json::from_str::<Documents>(json).unwrap_err();
            assert!(error.to_string().contains(said), "{json}: {error}");
            assert!(error.is_data(), "{json}");
        }
    }
}
