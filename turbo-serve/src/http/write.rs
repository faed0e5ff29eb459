//! Answers as JSON bytes: the last step of the hot path, where a vector of 384 numbers becomes 4.7 KB of text.
//!
//! Every number is written with the fewest digits that read back as the same `f32`, straight into one buffer of
//! estimated size. JSON cannot express a number that is not finite, so such an answer is an error, not `null`.

use std::io::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD, write::EncoderWriter};
use serde_json::to_writer;

use crate::engine::Row;

/// Bytes to expect of one value and its comma, so that the buffer rarely grows: a sign, `0.`, two zeros and nine
/// digits are 14.
pub(super) const BYTES_PER_VALUE: usize = 14;

/// An answer holds NaN or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("inference failed: the answer to input {input} has the value {value}, which is not a finite number")]
pub(crate) struct NotFinite {
    /// Which input, counted from 0.
    pub(super) input: usize,
    /// NaN or infinity, as text, so that two errors compare equal.
    pub(super) value: &'static str,
}

/// How a row of numbers is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A JSON list.
    Float,
    /// A JSON string: base64 of the little-endian `f32`s.
    Base64,
    /// A JSON list with one byte per eight values, the first value in the highest bit; a bit is 1 if its value is not
    /// below 0. Each byte is written minus 128.
    Binary,
    /// Like `Binary`, but each byte is written as it is.
    Ubinary,
}

impl Encoding {
    /// Bytes to expect per value, separators included.
    pub(super) fn bytes_per_value(self) -> usize {
        match self {
            Self::Float => BYTES_PER_VALUE,
            Self::Base64 => 6,
            Self::Binary | Self::Ubinary => 1,
        }
    }

    /// Its name among Cohere's embedding types.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Base64 => "base64",
            Self::Binary => "binary",
            Self::Ubinary => "ubinary",
        }
    }
}

/// `[[f32]]`: the values of each input as one list.
pub(super) fn embeddings(inputs: &[Row]) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let mut out = buffer(inputs);
    list(&mut out, inputs, |out, row| numbers(out, &row.values));
    Ok(out)
}

/// `[[[f32]]]`: per input one list for each of its tokens.
pub(super) fn token_embeddings(inputs: &[Row]) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let mut out = buffer(inputs);
    list(&mut out, inputs, |out, row| {
        list(out, row.rows(), numbers);
    });
    Ok(out)
}

/// `[[{"index": …, "value": …}]]`: per input the values that are not 0, each with its index.
pub(super) fn sparse_embeddings(inputs: &[Row]) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let mut out = Vec::new();
    list(&mut out, inputs, |out, row| {
        let weights = row.values.iter().enumerate().filter(|&(_, &value)| value != 0.0);
        list(out, weights, |out, (index, value)| {
            out.extend_from_slice(br#"{"index":"#);
            json(out, &index);
            out.extend_from_slice(br#","value":"#);
            json(out, value);
            out.push(b'}');
        });
    });
    Ok(out)
}

/// `[f32]`: the cosine between the first row and each of the others; all rows have norm 1 or 0.
pub(super) fn cosines(inputs: &[Row]) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let Some((first, others)) = inputs.split_first() else { return Ok(b"[]".to_vec()) };
    let mut out = Vec::with_capacity(inputs.len() * BYTES_PER_VALUE + 2);
    list(&mut out, others, |out, row| json(out, &cosine(first, row)));
    Ok(out)
}

/// The cosine between two rows of norm 1 or 0.
pub(super) fn cosine(a: &Row, b: &Row) -> f32 {
    // Each product of two f32 is exact in f64.
    let sum: f64 = a.values.iter().zip(&b.values).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
    sum.clamp(-1.0, 1.0) as f32
}

/// OpenAI's list of embeddings; `tokens` is the usage that it reports.
pub(super) fn openai_list(
    inputs: &[Row],
    encoding: Encoding,
    model: &str,
    tokens: usize,
) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let mut out = buffer(inputs);
    out.extend_from_slice(br#"{"object":"list","data":"#);
    list(&mut out, inputs.iter().enumerate(), |out, (index, row)| {
        out.extend_from_slice(br#"{"object":"embedding","embedding":"#);
        encoded(out, &row.values, encoding);
        out.extend_from_slice(br#","index":"#);
        json(out, &index);
        out.push(b'}');
    });
    out.extend_from_slice(br#","model":"#);
    json(&mut out, model);
    end_of_list(&mut out, tokens);
    Ok(out)
}

/// Cohere's vectors, grouped by type; `types` has each type once, and `tokens` is the usage that is reported.
pub(super) fn embeddings_by_type(
    inputs: &[Row],
    types: &[Encoding],
    id: &str,
    texts: &[String],
    tokens: usize,
) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let bytes: usize = types.iter().map(|it| it.bytes_per_value()).sum();
    let echoed: usize = texts.iter().map(|text| text.len() + 8).sum();
    let mut out = Vec::with_capacity(values_in(inputs) * bytes + echoed + 256);
    out.extend_from_slice(br#"{"id":"#);
    json(&mut out, id);
    out.extend_from_slice(br#","embeddings":{"#);
    for (index, &encoding) in types.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json(&mut out, encoding.name());
        out.push(b':');
        list(&mut out, inputs, |out, row| encoded(out, &row.values, encoding));
    }
    out.extend_from_slice(br#"},"texts":"#);
    json(&mut out, texts);
    out.extend_from_slice(br#","meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":"#);
    json(&mut out, &tokens);
    out.extend_from_slice(br#"},"tokens":{"input_tokens":"#);
    json(&mut out, &tokens);
    out.extend_from_slice(br#"}},"response_type":"embeddings_by_type"}"#);
    Ok(out)
}

/// The fields around the rows of vLLM's list.
pub(super) struct PoolingHead<'a> {
    pub(super) id: &'a str,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: &'a str,
    /// The tokens that the answer took.
    pub(super) tokens: usize,
}

/// vLLM's list of rows, all of them activated: one row per input, or one per token of each input. Rows are lists of
/// numbers; as base64, all rows of an input are one string.
pub(super) fn pooling_list(
    inputs: &[Row],
    encoding: Encoding,
    of_tokens: bool,
    activate: impl Fn(&mut [f32]),
    head: PoolingHead<'_>,
) -> Result<Vec<u8>, NotFinite> {
    check_finite(inputs)?;
    let PoolingHead { id, created, model, tokens } = head;
    let bytes = values_in(inputs) * encoding.bytes_per_value() + (inputs.len() + 1) * 128;
    let mut out = Vec::with_capacity(bytes + id.len() + model.len());
    out.extend_from_slice(br#"{"id":"#);
    json(&mut out, id);
    out.extend_from_slice(br#","object":"list","created":"#);
    json(&mut out, &created);
    out.extend_from_slice(br#","model":"#);
    json(&mut out, model);
    out.extend_from_slice(br#","data":"#);
    let mut active = Vec::new();
    list(&mut out, inputs.iter().enumerate(), |out, (index, input)| {
        out.extend_from_slice(br#"{"index":"#);
        json(out, &index);
        out.extend_from_slice(br#","object":"pooling","data":"#);
        let mut activated = |row: &[f32], write: &mut dyn FnMut(&[f32])| {
            active.clear();
            active.extend_from_slice(row);
            activate(&mut active);
            write(&active);
        };
        match (encoding, of_tokens) {
            (Encoding::Base64, true) => {
                base64_rows(out, |write| input.rows().for_each(|row| activated(row, write)))
            }
            (_, true) => {
                list(out, input.rows(), |out, row| activated(row, &mut |row| encoded(out, row, encoding)))
            }
            (_, false) => activated(&input.values, &mut |row| encoded(out, row, encoding)),
        }
        out.push(b'}');
    });
    end_of_list(&mut out, tokens);
    Ok(out)
}

/// Writes the usage of a list, and ends its object.
fn end_of_list(out: &mut Vec<u8>, tokens: usize) {
    out.extend_from_slice(br#","usage":{"prompt_tokens":"#);
    json(out, &tokens);
    out.extend_from_slice(br#","total_tokens":"#);
    json(out, &tokens);
    out.extend_from_slice(b"}}");
}

/// How many values an answer has; the cost of writing it follows from that.
pub(super) fn values_in(inputs: &[Row]) -> usize {
    inputs.iter().map(|row| row.values.len()).sum()
}

/// Refuses values that JSON cannot express: NaN and infinity.
pub(crate) fn check_finite(inputs: &[Row]) -> Result<(), NotFinite> {
    for (input, row) in inputs.iter().enumerate() {
        if let Some(value) = row.values.iter().find(|value| !value.is_finite()) {
            return Err(NotFinite { input, value: if value.is_nan() { "NaN" } else { "infinity" } });
        }
    }
    Ok(())
}

fn buffer(inputs: &[Row]) -> Vec<u8> {
    // 128 bytes hold the JSON around an input; another 128 hold the usage
    Vec::with_capacity(values_in(inputs) * BYTES_PER_VALUE + (inputs.len() + 1) * 128)
}

fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn numbers(out: &mut Vec<u8>, values: &[f32]) {
    json(out, values);
}

fn encoded(out: &mut Vec<u8>, values: &[f32], encoding: Encoding) {
    match encoding {
        Encoding::Float => numbers(out, values),
        Encoding::Base64 => base64_string(out, values),
        Encoding::Binary => list(out, bits(values), |out, byte| json(out, &(i16::from(byte) - 128))),
        Encoding::Ubinary => list(out, bits(values), |out, byte| json(out, &byte)),
    }
}

/// Packs a bit for each value; the last byte may have fewer than eight.
fn bits(values: &[f32]) -> impl Iterator<Item = u8> {
    let bit = |(place, &value): (usize, &f32)| u8::from(value >= 0.0) << (7 - place);
    values.chunks(8).map(move |eight| eight.iter().enumerate().map(bit).sum())
}

fn base64_string(out: &mut Vec<u8>, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    STANDARD.encode_slice(&bytes, &mut out[start..]).expect("four characters hold three bytes");
    out.push(b'"');
}

/// One base64 string of all rows, encoded as one stream: a row may end inside a group of three bytes.
fn base64_rows(out: &mut Vec<u8>, rows: impl FnOnce(&mut dyn FnMut(&[f32]))) {
    const TAKES_ALL: &str = "a Vec takes all bytes";
    out.push(b'"');
    let (mut encoder, mut bytes) = (EncoderWriter::new(&mut *out, &STANDARD), Vec::new());
    rows(&mut |row| {
        bytes.clear();
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        encoder.write_all(&bytes).expect(TAKES_ALL);
    });
    encoder.finish().expect(TAKES_ALL);
    drop(encoder);
    out.push(b'"');
}

fn json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    to_writer(out, value).expect("numbers and strings are always JSON, and a Vec takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f32], row_len: usize) -> Row {
        Row { values: values.to_vec(), row_len, tokens: values.len() / row_len }
    }

    #[test]
    fn shapes_are_nested_as_promised() {
        let inputs = [row(&[1.0, -0.5], 2), row(&[0.25, 3.0], 2)];
        assert_eq!(embeddings(&inputs).unwrap(), b"[[1.0,-0.5],[0.25,3.0]]");
        assert_eq!(token_embeddings(&inputs).unwrap(), b"[[[1.0,-0.5]],[[0.25,3.0]]]");
        assert_eq!(token_embeddings(&[row(&[1.0, 2.0, 3.0, 4.0], 2)]).unwrap(), b"[[[1.0,2.0],[3.0,4.0]]]");
        assert_eq!(
            openai_list(&inputs[..1], Encoding::Float, "a \"b\"", 7).unwrap(),
            br#"{"object":"list","data":[{"object":"embedding","embedding":[1.0,-0.5],"index":0}],"model":"a \"b\"","usage":{"prompt_tokens":7,"total_tokens":7}}"#
        );
        assert_eq!(
            openai_list(&[row(&[1.0], 1)], Encoding::Base64, "m", 1).unwrap(),
            br#"{"object":"list","data":[{"object":"embedding","embedding":"AACAPw==","index":0}],"model":"m","usage":{"prompt_tokens":1,"total_tokens":1}}"#
        );
    }

    #[test]
    fn cohere_s_types_are_there_in_their_order() {
        let values = [1.0, -0.5, 0.0, -0.0, -1.0, 2.0, -3.0, 4.0];
        let types = [Encoding::Ubinary, Encoding::Float, Encoding::Binary, Encoding::Base64];
        let text = "a \"b\"".to_owned();
        let out = embeddings_by_type(&[row(&values, 8)], &types, "embd-1", &[text], 3).unwrap();
        let expected = format!(
            r#"{{"id":"embd-1","embeddings":{{"ubinary":[[181]],"float":[[1.0,-0.5,0.0,-0.0,-1.0,2.0,-3.0,4.0]],"binary":[[53]],"base64":["{}"]}},"texts":["a \"b\""],"meta":{{"api_version":{{"version":"2"}},"billed_units":{{"input_tokens":3}},"tokens":{{"input_tokens":3}}}},"response_type":"embeddings_by_type"}}"#,
            STANDARD.encode(values.map(f32::to_le_bytes).as_flattened())
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(bits(&[-1.0; 8]).collect::<Vec<_>>(), [0]);
        assert_eq!(bits(&[1.0; 16]).collect::<Vec<_>>(), [255, 255]);
    }

    #[test]
    fn pooled_rows_are_activated_one_by_one() {
        let wholes = [row(&[1.0, 2.0, 3.0], 3), row(&[4.0, 5.0, 6.0], 3)];
        let tokens = [row(&[1.0, 2.0, 3.0, 4.0], 2), row(&[5.0, 6.0], 2)];
        let data = |inputs: &[Row], encoding, of_tokens| {
            let head = PoolingHead { id: "pooling-\"1\"", created: 7, model: "m", tokens: 3 };
            let out = pooling_list(inputs, encoding, of_tokens, <[f32]>::reverse, head).unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&out).unwrap();
            let usage = serde_json::json!({ "prompt_tokens": 3, "total_tokens": 3 });
            let said =
                (&answer["id"], &answer["object"], &answer["created"], &answer["model"], &answer["usage"]);
            assert_eq!(said, (&"pooling-\"1\"".into(), &"list".into(), &7.into(), &"m".into(), &usage));
            let data = answer["data"].as_array().unwrap().iter().enumerate();
            let row = |(index, row): (usize, &serde_json::Value)| {
                assert_eq!((&row["index"], &row["object"]), (&index.into(), &"pooling".into()));
                row["data"].clone()
            };
            data.map(row).collect::<serde_json::Value>()
        };
        let numbers = serde_json::json!([[3.0, 2.0, 1.0], [6.0, 5.0, 4.0]]);
        assert_eq!(data(&wholes, Encoding::Float, false), numbers);
        let numbers = serde_json::json!([[[2.0, 1.0], [4.0, 3.0]], [[6.0, 5.0]]]);
        assert_eq!(data(&tokens, Encoding::Float, true), numbers);
        let base64 = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            STANDARD.encode(bytes)
        };
        let strings = serde_json::json!([base64(&[3.0, 2.0, 1.0]), base64(&[6.0, 5.0, 4.0])]);
        assert_eq!(data(&wholes, Encoding::Base64, false), strings);
        let strings = serde_json::json!([base64(&[2.0, 1.0, 4.0, 3.0]), base64(&[6.0, 5.0])]);
        assert_eq!(data(&tokens, Encoding::Base64, true), strings);
        let broken = [row(&[f32::NAN], 1)];
        let head = PoolingHead { id: "", created: 0, model: "", tokens: 0 };
        assert!(pooling_list(&broken, Encoding::Float, false, |_| {}, head).is_err());
    }

    #[test]
    fn a_sparse_vector_has_no_zeros() {
        let inputs = [row(&[0.0, 1.5, -0.0, -2.0], 4), row(&[0.0], 1)];
        assert_eq!(
            sparse_embeddings(&inputs).unwrap(),
            br#"[[{"index":1,"value":1.5},{"index":3,"value":-2.0}],[]]"#
        );
    }

    #[test]
    fn numbers_read_back_as_the_same_bits() {
        // every exponent, both signs, and the neighbours of each power of two
        let mut values = vec![0.0, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::MIN, 1.0e-45, 0.1, 16_777_216.0];
        for exponent in 0..255u32 {
            for mantissa in [0, 1, 0x2aaaaa, 0x7fffff] {
                values.push(f32::from_bits(exponent << 23 | mantissa));
                values.push(-f32::from_bits(exponent << 23 | mantissa));
            }
        }
        let text = embeddings(&[row(&values, values.len())]).unwrap();
        let read: Vec<Vec<f32>> = serde_json::from_slice(&text).unwrap();
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read[0]), bits(&values));
    }

    #[test]
    fn the_buffer_is_sized_for_usual_embeddings() {
        let values: Vec<f32> = (0..384).map(|i| (i as f32 * 0.37).sin() * 0.05).collect();
        let inputs = vec![row(&values, 384); 8];
        for out in [embeddings(&inputs), openai_list(&inputs, Encoding::Base64, "minilm", 9)] {
            assert!(out.unwrap().capacity() <= buffer(&inputs).capacity(), "the buffer grew");
        }
    }

    #[test]
    fn what_is_not_finite_is_an_error_that_names_the_input() {
        for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity"), (f32::NEG_INFINITY, "infinity")]
        {
            let inputs = [row(&[1.0], 1), row(&[value], 1)];
            let expected = Err(NotFinite { input: 1, value: name });
            assert_eq!(embeddings(&inputs), expected);
            assert_eq!(token_embeddings(&inputs), expected);
            assert_eq!(sparse_embeddings(&inputs), expected);
            assert_eq!(openai_list(&inputs, Encoding::Base64, "m", 2), expected);
        }
    }
}
