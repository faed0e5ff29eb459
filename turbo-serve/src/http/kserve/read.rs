//! Reading a request's body: its JSON, and the binary tensors that may follow.
//!
//! Numbers and strings are parsed straight into the tensors, without a JSON tree in between: a body of zeros takes only
//! a small multiple of its bytes.

use std::{collections::BTreeMap, fmt, time::Instant};

use axum::http::HeaderMap;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{infer::JSON_LENGTH, write::Binary};
use crate::{
    http::{ApiError, body},
    kserve::{self, Announced, Asked, Elements, InputTensor, Parameter, Wanted},
};

/// A request, and which of its outputs are sent as bytes.
pub(super) struct Read {
    pub(super) id: Option<String>,
    pub(super) asked: Asked,
    pub(super) binary: Binary,
}

/// Fields that are not named here are ignored.
#[derive(Deserialize)]
struct InferBody {
    id: Option<String>,
    parameters: Option<Parameters>,
    inputs: Vec<Input>,
    outputs: Option<Vec<Output>>,
}

/// A `null` parameter counts as left out.
type Parameters = BTreeMap<String, Option<Parameter>>;

#[derive(Deserialize)]
struct Input {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    parameters: Option<Parameters>,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    parameters: Option<Parameters>,
}

/// Parameter of a request: whether its outputs are sent as bytes, unless an output says otherwise.
const BINARY_OUTPUTS: &str = "binary_data_output";
/// Parameter of an output: whether it is sent as bytes.
const BINARY: &str = "binary_data";

/// Reads the body of a request that arrived at `received`; `headers` say where its binary tensors begin.
pub(super) fn read(headers: &HeaderMap, bytes: &[u8], received: Instant) -> Result<Read, ApiError> {
    let (json, mut rest) = match headers.get(JSON_LENGTH) {
        None => (bytes, [].as_slice()),
        Some(length) => {
            let split = length.to_str().ok().and_then(|length| bytes.split_at_checked(length.parse().ok()?));
            split.ok_or_else(|| {
                let (got, most) = (String::from_utf8_lossy(length.as_bytes()), bytes.len());
                ApiError::validation(format!(
                    "`{JSON_LENGTH}` is `{got}`, expected a number up to the body's length, {most}"
                ))
            })?
        }
    };
    let InferBody { id, parameters, inputs, outputs } = body::parse(json)?;
    let inputs = inputs.into_iter().map(|input| input.read(&mut rest)).collect::<Result<_, _>>()?;
    if !rest.is_empty() {
        let left = rest.len();
        return Err(ApiError::validation(format!("{left} bytes after those of the tensors belong to none")));
    }
    let said =
        |parameters: Parameters| parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let parameters: BTreeMap<_, _> = said(parameters.unwrap_or_default()).collect();
    let others = kserve::flag(BINARY_OUTPUTS, parameters.get(BINARY_OUTPUTS))?.unwrap_or(false);
    let mut binary = Binary { others, said: BTreeMap::new() };
    let mut wanted = Vec::new();
    for Output { name, parameters } in outputs.unwrap_or_default() {
        let parameters: BTreeMap<_, _> = said(parameters.unwrap_or_default()).collect();
        kserve::check_memory("output", &name, parameters.keys())?;
        if let Some(is_binary) = kserve::flag(BINARY, parameters.get(BINARY))? {
            binary.said.insert(name.clone(), is_binary);
        }
        wanted.push(Wanted::new(name, parameters.get(kserve::CLASSIFICATION))?);
    }
    let parameters = parameters.into_iter().collect();
    Ok(Read { id, asked: Asked { parameters, inputs, outputs: wanted, received }, binary })
}

impl Input {
    /// The tensor, from the JSON or from the beginning of `rest`.
    fn read(self, rest: &mut &[u8]) -> Result<InputTensor, ApiError> {
        let Self { name, shape, datatype, parameters, data } = self;
        let mut parameters = parameters.unwrap_or_default();
        let said = parameters.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name);
        kserve::check_memory("input", &name, said)?;
        let announced = Announced::new(name, datatype, &shape)?;
        let size = parameters.remove("binary_data_size").flatten();
        match (size, data) {
            (Some(size), None) => {
                let taken = size.count().and_then(|size| rest.split_at_checked(size));
                let Some((raw, left)) = taken else {
                    let most = rest.len();
                    return Err(announced.wrong(format!(
                        "`binary_data_size` is {size}, expected a number up to the {most} bytes that are left; \
                         `{JSON_LENGTH}` says where they begin"
                    )));
                };
                *rest = left;
                announced.of_raw(raw)
            }
            (None, Some(Data(Some(elements)))) => announced.of(elements),
            (None, Some(Data(None))) => announced.of_raw(&[]),
            (Some(_), Some(_)) => Err(announced.wrong("has both `data` and `binary_data_size`".to_owned())),
            (None, None) => Err(announced.wrong("has neither `data` nor `binary_data_size`".to_owned())),
        }
    }
}

/// Elements of a list, or of nested lists; `None` if there are none.
#[derive(Default)]
struct Data(Option<Elements>);

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut data = Self::default();
        deserializer.deserialize_seq(List(&mut data))?;
        Ok(data)
    }
}

impl Data {
    fn integer<E: Error>(&mut self, value: i64) -> Result<(), E> {
        match self.0.get_or_insert_with(|| Elements::Integers(Vec::new())) {
            Elements::Integers(values) => values.push(value),
            Elements::Bytes(_) => return Err(E::custom("`data` has both numbers and strings")),
        }
        Ok(())
    }

    fn string<E: Error>(&mut self, value: &str) -> Result<(), E> {
        match self.0.get_or_insert_with(|| Elements::Bytes(Vec::new())) {
            Elements::Bytes(values) => values.push(value.as_bytes().to_vec()),
            Elements::Integers(_) => return Err(E::custom("`data` has both numbers and strings")),
        }
        Ok(())
    }
}

/// A list whose elements go into the data.
struct List<'a>(&'a mut Data);

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings or integers in `data`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Item(self.0))?.is_some() {}
        Ok(())
    }
}

/// An element of such a list, or a list of them.
struct Item<'a>(&'a mut Data);

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, an integer or a list of these in `data`")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.integer(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.integer(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let wrong = |_| E::custom(format!("`data` has {value}, which is larger than any id"));
        self.0.integer(i64::try_from(value).map_err(wrong)?)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.0.string(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        List(self.0).visit_seq(list)
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Parameter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a parameter")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Parameter, E> {
                Ok(Parameter::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Parameter, E> {
                Ok(Parameter::Integer(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Parameter, E> {
                Ok(i64::try_from(value).map_or(Parameter::Other, Parameter::Integer))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Parameter, E> {
                Ok(Parameter::Other)
            }

            fn visit_str<E>(self, value: &str) -> Result<Parameter, E> {
                Ok(Parameter::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Parameter, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Parameter::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameter, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Parameter::Other)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
