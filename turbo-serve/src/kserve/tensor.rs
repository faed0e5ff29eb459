//! Tensors of requests and answers: a name, a datatype, a shape, and as many elements as the shape has.
//!
//! A client's claims about a tensor are trusted only as far as its bytes go: elements are counted against the shape
//! before memory is allocated for them.

use crate::http::ApiError;

/// A request's description of a tensor, whose elements come separately.
pub(crate) struct Announced {
    name: String,
    datatype: String,
    layout: Layout,
    shape: Vec<usize>,
    /// How many elements the shape has.
    count: usize,
}

/// A tensor of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Elements,
}

/// Elements of the types that a model can read, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    /// All types of integers, and `BOOL` as 0 and 1.
    Integers(Vec<i64>),
    Bytes(Vec<Vec<u8>>),
}

/// How elements of a datatype are laid out in the binary form that both transports have.
#[derive(Clone, Copy)]
enum Layout {
    /// Little-endian, of this many bytes.
    Integer { bytes: usize, signed: bool },
    /// Each after its length, a little-endian `u32`.
    Bytes,
}

impl Layout {
    fn of(datatype: &str) -> Option<Self> {
        let integer = |bytes, signed| Some(Self::Integer { bytes, signed });
        match datatype {
            "BOOL" | "UINT8" => integer(1, false),
            "UINT16" => integer(2, false),
            "UINT32" => integer(4, false),
            "UINT64" => integer(8, false),
            "INT8" => integer(1, true),
            "INT16" => integer(2, true),
            "INT32" => integer(4, true),
            "INT64" => integer(8, true),
            "BYTES" => Some(Self::Bytes),
            _ => None,
        }
    }
}

impl Announced {
    pub(crate) fn new(name: String, datatype: String, shape: &[i64]) -> Result<Self, ApiError> {
        let wrong = |said: String| Err(ApiError::validation(format!("input `{name}`: {said}")));
        let Some(layout) = Layout::of(&datatype) else {
            let expected = "expected `BYTES` for texts, or a type of integers for ids";
            return wrong(format!("datatype is `{datatype}`, {expected}"));
        };
        let Ok(sizes) = shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>() else {
            return wrong(format!("shape {shape:?} has a negative dimension"));
        };
        let Some(count) = sizes.iter().try_fold(1_usize, |count, &size| count.checked_mul(size)) else {
            return wrong(format!("shape {shape:?} has more elements than can be counted"));
        };
        Ok(Self { name, datatype, layout, shape: sizes, count })
    }

    /// The tensor with elements that have been read already.
    pub(crate) fn of(self, elements: Elements) -> Result<InputTensor, ApiError> {
        let (got, data) = match (&elements, self.layout) {
            (Elements::Integers(values), Layout::Integer { .. }) => (values.len(), None),
            (Elements::Bytes(values), Layout::Bytes) => (values.len(), None),
            (Elements::Integers(values), Layout::Bytes) => (values.len(), Some("numbers")),
            (Elements::Bytes(values), Layout::Integer { .. }) => (values.len(), Some("strings")),
        };
        if let Some(data) = data {
            return Err(self.wrong(format!("datatype is `{}`, and its data are {data}", self.datatype)));
        }
        if got != self.count {
            return Err(self.wrong(format!("its data has {got} elements, {}", self.expected())));
        }
        if let Elements::Integers(values) = &elements {
            self.check_range(values)?;
        }
        Ok(InputTensor { name: self.name, shape: self.shape, elements })
    }

    /// Refuses integers outside the datatype's range.
    fn check_range(&self, values: &[i64]) -> Result<(), ApiError> {
        let Layout::Integer { bytes, signed } = self.layout else { return Ok(()) };
        let bits = if self.datatype == "BOOL" { 1 } else { 8 * bytes - usize::from(signed) };
        let most = u64::MAX >> (64 - bits);
        let least = if signed { -1 - most as i64 } else { 0 };
        let has = |value: i64| value >= least && (value < 0 || value as u64 <= most);
        match values.iter().find(|&&value| !has(value)) {
            None => Ok(()),
            Some(value) => Err(self.wrong(format!(
                "its data has {value}, which is no `{}`: expected {least} to {most}",
                self.datatype
            ))),
        }
    }

    /// The tensor whose elements are exactly these bytes.
    pub(crate) fn of_raw(self, raw: &[u8]) -> Result<InputTensor, ApiError> {
        let elements = match self.layout {
            Layout::Integer { bytes, signed } => self.integers(raw, bytes, signed)?,
            Layout::Bytes => self.strings(raw)?,
        };
        Ok(InputTensor { name: self.name, shape: self.shape, elements })
    }

    fn integers(&self, raw: &[u8], bytes: usize, signed: bool) -> Result<Elements, ApiError> {
        if self.count.checked_mul(bytes) != Some(raw.len()) {
            let (got, datatype, expected) = (raw.len(), &self.datatype, self.expected());
            return Err(self.wrong(format!("its data has {got} bytes of `{datatype}`, {expected}")));
        }
        let value = |chunk: &[u8]| {
            let is_negative = signed && chunk.last().is_some_and(|&last| last >= 0x80);
            let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
            wide[..bytes].copy_from_slice(chunk);
            // The upper half of `UINT64` becomes negative: too large for an id, and refused as one.
            i64::from_le_bytes(wide)
        };
        Ok(Elements::Integers(raw.chunks_exact(bytes).map(value).collect()))
    }

    fn strings(&self, mut raw: &[u8]) -> Result<Elements, ApiError> {
        let mut strings = Vec::new();
        while !raw.is_empty() {
            if strings.len() == self.count {
                let left = raw.len();
                return Err(self.wrong(format!("{left} bytes are left over, {}", self.expected())));
            }
            let string = raw.split_first_chunk().and_then(|(len, rest)| {
                rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
            });
            let Some((string, rest)) = string else {
                let which = strings.len();
                return Err(self.wrong(format!("element {which} is longer than what is left of its data")));
            };
            strings.push(string.to_vec());
            raw = rest;
        }
        if strings.len() < self.count {
            let got = strings.len();
            return Err(self.wrong(format!("its data has {got} elements, {}", self.expected())));
        }
        Ok(Elements::Bytes(strings))
    }

    fn expected(&self) -> String {
        let Self { shape, count, .. } = self;
        format!("expected {count} elements for its shape {shape:?}")
    }

    pub(crate) fn wrong(&self, said: String) -> ApiError {
        ApiError::validation(format!("input `{}`: {said}", self.name))
    }
}

/// A tensor of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutputTensor {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values,
}

/// Elements of an answer, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    F32(Vec<f32>),
    I64(Vec<i64>),
    Text(Vec<String>),
}

impl OutputTensor {
    pub(crate) fn datatype(&self) -> &'static str {
        match self.values {
            Values::F32(_) => "FP32",
            Values::I64(_) => "INT64",
            Values::Text(_) => "BYTES",
        }
    }

    /// Appends the elements in the binary form that both transports have.
    pub(crate) fn write_raw(&self, to: &mut Vec<u8>) {
        match &self.values {
            Values::F32(values) => write_numbers(to, values, |value| value.to_le_bytes()),
            Values::I64(values) => write_numbers(to, values, |value| value.to_le_bytes()),
            Values::Text(texts) => {
                for text in texts {
                    let len = u32::try_from(text.len()).expect("labels are short");
                    to.extend(len.to_le_bytes());
                    to.extend(text.as_bytes());
                }
            }
        }
    }
}

/// Appends numbers of `BYTES` bytes, one after the other; the buffer grows once.
fn write_numbers<T: Copy, const BYTES: usize>(
    to: &mut Vec<u8>,
    values: &[T],
    bytes: impl Fn(T) -> [u8; BYTES],
) {
    let start = to.len();
    to.resize(start + values.len() * BYTES, 0);
    for (place, &value) in to[start..].chunks_exact_mut(BYTES).zip(values) {
        place.copy_from_slice(&bytes(value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn announced(datatype: &str, shape: &[i64]) -> Result<Announced, ApiError> {
        Announced::new("x".to_owned(), datatype.to_owned(), shape)
    }

    fn raw(datatype: &str, shape: &[i64], raw: &[u8]) -> Result<Elements, String> {
        let tensor = announced(datatype, shape).and_then(|announced| announced.of_raw(raw));
        tensor.map(|tensor| tensor.elements).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn integers_of_every_width_are_read() {
        let minus_one = [0xff; 8];
        for (datatype, bytes, expected) in [
            ("BOOL", 1, 255),
            ("UINT8", 1, 255),
            ("INT8", 1, -1),
            ("UINT16", 2, 65_535),
            ("INT16", 2, -1),
            ("UINT32", 4, 4_294_967_295),
            ("INT32", 4, -1),
            ("UINT64", 8, -1), // too large for an id, and so is this
            ("INT64", 8, -1),
        ] {
            let got = raw(datatype, &[1], &minus_one[..bytes]);
            assert_eq!(got, Ok(Elements::Integers(vec![expected])), "{datatype}");
            let twelve = [12_u64.to_le_bytes(), [0; 8]].concat();
            assert_eq!(raw(datatype, &[1], &twelve[..bytes]), Ok(Elements::Integers(vec![12])), "{datatype}");
        }
        assert_eq!(raw("INT32", &[1, 2], &[1, 0, 0, 0, 2, 1, 0, 0]), Ok(Elements::Integers(vec![1, 258])));
        assert_eq!(raw("INT64", &[0], &[]), Ok(Elements::Integers(Vec::new())));
    }

    #[test]
    fn strings_stand_behind_their_lengths() {
        let bytes = b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        let expected = [b"ab".as_slice(), b"", b"c"].map(<[u8]>::to_vec).to_vec();
        assert_eq!(raw("BYTES", &[3], bytes), Ok(Elements::Bytes(expected)));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let huge = i64::MAX;
        for (datatype, shape, bytes, said) in [
            ("FP32", &[1_i64][..], &[0; 4][..], "input `x`: datatype is `FP32`, expected `BYTES` for texts"),
            ("int64", &[1], &[0; 8], "datatype is `int64`"),
            (
                "INT64",
                &[1],
                &[0; 7],
                "its data has 7 bytes of `INT64`, expected 1 elements for its shape [1]",
            ),
            (
                "INT64",
                &[2],
                &[0; 8],
                "its data has 8 bytes of `INT64`, expected 2 elements for its shape [2]",
            ),
            ("INT64", &[-1], &[0; 8], "shape [-1] has a negative dimension"),
            ("INT64", &[huge, huge, 4], &[0; 8], "has more elements than can be counted"),
            ("INT64", &[huge, huge, 0], &[], "has more elements than can be counted"),
            ("INT64", &[huge], &[0; 8], "expected 9223372036854775807 elements"),
            ("BYTES", &[huge], &[0; 8], "its data has 2 elements, expected 9223372036854775807 elements"),
            ("BYTES", &[1], &[0; 8], "4 bytes are left over, expected 1 elements for its shape [1]"),
            ("BYTES", &[1], b"\x02\0\0\0a", "element 0 is longer than what is left"),
            ("BYTES", &[1], b"\xff\xff\xff\xff", "element 0 is longer than what is left"),
            ("BYTES", &[1], b"\0\0\0", "element 0 is longer than what is left"),
        ] {
            let error = raw(datatype, shape, bytes).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let error = announced("INT8", &[2]).unwrap().of(Elements::Integers(vec![1])).unwrap_err();
        assert_eq!(
            error.message(),
            "input `x`: its data has 1 elements, expected 2 elements for its shape [2]"
        );
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut bytes = Vec::new();
        let labels = Values::Text(vec!["1.0:0:a".to_owned(), String::new()]);
        OutputTensor { name: "y", shape: vec![2], values: labels }.write_raw(&mut bytes);
        assert_eq!(raw("BYTES", &[2], &bytes), Ok(Elements::Bytes(vec![b"1.0:0:a".to_vec(), Vec::new()])));
        bytes.clear();
        OutputTensor { name: "y", shape: vec![2], values: Values::I64(vec![1, -2]) }.write_raw(&mut bytes);
        assert_eq!(raw("INT64", &[2], &bytes), Ok(Elements::Integers(vec![1, -2])));
        bytes.clear();
        OutputTensor { name: "y", shape: vec![1], values: Values::F32(vec![1.5]) }.write_raw(&mut bytes);
        assert_eq!(bytes, 1.5_f32.to_le_bytes());
    }

    /// Bytes that are often strings after their lengths, and lengths that often lie.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let length = prop_oneof![4 => 0..6_u32, 1 => any::<u32>()];
        let element = (length, proptest::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(length, bytes)| [&length.to_le_bytes()[..], &bytes].concat());
        proptest::collection::vec(element, 0..8).prop_map(|elements| elements.concat())
    }

    fn size() -> impl Strategy<Value = i64> {
        prop_oneof![8 => 0..5_i64, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(1 << 32)]
    }

    proptest! {
        #[test]
        fn whatever_comes_a_tensor_has_what_its_shape_says_or_there_is_none(
            datatype in prop::sample::select(vec!["BYTES", "BYTES", "BOOL", "UINT16", "INT32", "INT64", "FP16", ""]),
            shape in prop::collection::vec(size(), 0..4),
            bytes in hostile(),
        ) {
            let Ok(tensor) = announced(datatype, &shape).and_then(|announced| announced.of_raw(&bytes)) else {
                return Ok(());
            };
            let expected: i128 = shape.iter().map(|&size| i128::from(size)).product();
            match tensor.elements {
                Elements::Integers(values) => prop_assert_eq!(values.len() as i128, expected),
                Elements::Bytes(strings) => {
                    prop_assert_eq!(strings.len() as i128, expected);
                    let written: usize = strings.iter().map(|string| 4 + string.len()).sum();
                    prop_assert_eq!(written, bytes.len(), "every byte is of one element");
                }
            }
        }
    }
}
