//! A safetensors file of random values, written as a stream: names and shapes first, then the values, block by block.
//!
//! The format is eight bytes with the length of the header, a JSON header padded with spaces, and the values of every
//! tensor in the order of their offsets. The values of a tensor depend only on its name and the seed.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use serde_json::{Map, Value, json};

use crate::workload::SplitMix;

/// Values that are made and written at a time.
const BLOCK: u64 = 1 << 16;
/// Half the width of the interval of values around their centre. Its standard deviation is the 0.02 that BERT is
/// initialised with.
const SPREAD: f32 = 0.02 * 1.732_050_8;

/// Type of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// The upper half of single precision.
    Bf16,
}

/// What the values of a tensor scatter around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Matrices, tables and biases.
    AroundZero,
    /// Gains of norms.
    AroundOne,
}

/// A tensor before it has values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// As published.
    pub name: String,
    /// Sizes, the last one that of neighbouring values.
    pub shape: Vec<usize>,
    /// The values that it will hold.
    pub values: Values,
}

impl Tensor {
    /// Number of values.
    #[expect(clippy::len_without_is_empty, reason = "no tensor of a model is empty")]
    pub fn len(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

impl Dtype {
    /// Bytes of a value.
    pub fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
        }
    }

    fn push(self, value: f32, block: &mut Vec<u8>) {
        let bytes = value.to_le_bytes();
        match self {
            Self::F32 => block.extend(bytes),
            Self::Bf16 => block.extend(&bytes[2..]),
        }
    }
}

/// Writes `path`, and calls `progress` with the bytes of each block.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write(
    path: &Path,
    dtype: Dtype,
    tensors: &[Tensor],
    seed: u64,
    mut progress: impl FnMut(u64),
) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header(dtype, tensors, seed)?)?;
    let mut block = Vec::with_capacity((BLOCK * dtype.size()) as usize);
    for tensor in tensors {
        let mut random = Random::of(seed, &tensor.name);
        let mut left = tensor.len();
        while left > 0 {
            let count = left.min(BLOCK);
            block.clear();
            (0..count).for_each(|_| dtype.push(random.value(tensor.values), &mut block));
            file.write_all(&block)?;
            progress(block.len() as u64);
            left -= count;
        }
    }
    file.into_inner()?.sync_all()
}

/// Writes the same file with holes in place of the values, which read as zeros and take no space.
///
/// # Errors
/// When the file cannot be written.
#[cfg(test)]
pub(super) fn write_holes(path: &Path, dtype: Dtype, tensors: &[Tensor]) -> io::Result<()> {
    let mut file = File::create(path)?;
    let header = header(dtype, tensors, 0)?;
    file.write_all(&header)?;
    let values: u64 = tensors.iter().map(Tensor::len).sum();
    file.set_len(header.len() as u64 + values * dtype.size())
}

/// Whether `path` is what [`write`] would write, judged by its header and its length.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn is_written(path: &Path, dtype: Dtype, tensors: &[Tensor], seed: u64) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let expected = header(dtype, tensors, seed)?;
    let values: u64 = tensors.iter().map(Tensor::len).sum();
    if file.metadata()?.len() != expected.len() as u64 + values * dtype.size() {
        return Ok(false);
    }
    let mut found = vec![0; expected.len()];
    file.read_exact(&mut found)?;
    Ok(found == expected)
}

/// The length of the header, and the header: names, shapes and offsets, padded so that values are aligned to eight
/// bytes.
fn header(dtype: Dtype, tensors: &[Tensor], seed: u64) -> io::Result<Vec<u8>> {
    let (mut entries, mut offset) = (Map::new(), 0);
    let about = json!({ "format": "pt", "seed": seed.to_string() }); // transformers insists on a format
    entries.insert("__metadata__".to_owned(), about);
    for tensor in tensors {
        let end = offset + tensor.len() * dtype.size();
        let entry = json!({ "dtype": dtype.name(), "shape": tensor.shape, "data_offsets": [offset, end] });
        entries.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut json = serde_json::to_vec(&Value::Object(entries))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Pseudorandom values, the same on every machine.
struct Random(SplitMix);

impl Random {
    /// The stream of values of the tensor `name`, by the hash of that name (FNV-1a).
    fn of(seed: u64, name: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(SplitMix(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, hash)))
    }

    fn value(&mut self, values: Values) -> f32 {
        let z = self.0.next().expect("the numbers do not end");
        let unit = (z >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let centre = match values {
            Values::AroundZero => 0.0,
            Values::AroundOne => 1.0,
        };
        centre + unit * SPREAD
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn tensors() -> Vec<Tensor> {
        let tensor =
            |name: &str, shape: &[usize], values| Tensor { name: name.into(), shape: shape.into(), values };
        vec![
            tensor("z.weight", &[300, 257], Values::AroundZero),
            tensor("a.gain", &[129], Values::AroundOne),
            tensor("b.weight", &[300, 257], Values::AroundZero),
        ]
    }

    fn written(dtype: Dtype, seed: u64) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), dtype, &tensors(), seed, drop).unwrap();
        std::fs::read(file.path()).unwrap()
    }

    #[test]
    fn the_format_is_what_others_read() {
        let bytes = written(Dtype::F32, 0);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for tensor in tensors() {
            let read = file.tensor(&tensor.name).unwrap();
            assert_eq!((read.shape(), read.dtype()), (&tensor.shape[..], safetensors::Dtype::F32));
            let values = read.data().chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
            let values: Vec<f64> = values.map(f64::from).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance =
                values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
            let centre = if tensor.values == Values::AroundOne { 1.0 } else { 0.0 };
            assert!((mean - centre).abs() < 0.006, "{}: mean {mean}", tensor.name);
            assert!((variance.sqrt() - 0.02).abs() < 0.002, "{}: {}", tensor.name, variance.sqrt());
        }
    }

    #[test]
    fn values_depend_on_seed_and_name() {
        assert_eq!(written(Dtype::F32, 1), written(Dtype::F32, 1));
        assert_ne!(written(Dtype::F32, 1), written(Dtype::F32, 2));
        let bytes = written(Dtype::Bf16, 1);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let data = |name| file.tensor(name).unwrap().data();
        assert_ne!(data("z.weight"), data("b.weight"));
        assert_eq!(data("a.gain").len(), 2 * 129);
    }
}
