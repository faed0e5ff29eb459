//! An object inside a body.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// The fields of a JSON object. serde alone would also read a struct from a list, in an order that no client knows, and
/// its error for anything else would name the struct.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Object<T>(pub(in crate::http) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Eq)]
    struct Fields {
        text: String,
        count: Option<usize>,
    }

    #[test]
    fn only_an_object_has_fields() {
        let read = serde_json::from_str::<Object<Fields>>;
        let fields = Fields { text: "a".into(), count: Some(7) };
        assert_eq!(read(r#"{"count": 7, "text": "a", "other": null}"#).unwrap(), Object(fields));
        for (json, said) in [
            (r#"["a", 7]"#, "invalid type: sequence, expected a JSON object"),
            (r#""a""#, r#"invalid type: string "a", expected a JSON object"#),
            ("null", "invalid type: null, expected a JSON object"),
            ("{}", "missing field `text`"),
            (r#"{"text": 7}"#, "invalid type: integer `7`, expected a string"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.to_string().contains(said), "{json}: {error}");
            assert!(error.is_data(), "{json}");
        }
    }
}
