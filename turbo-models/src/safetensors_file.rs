//! One mapped safetensors file: its header, checked, and the bytes of its tensors.

use std::{borrow::Cow, fs, ops::Range, path::PathBuf, time::SystemTime};

use half::{bf16, f16};
use safetensors::{
    SafeTensorError, SafeTensors,
    tensor::{Dtype, TensorInfo},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use turbo_graph::kernels::MappedFile;
use zerocopy::FromBytes;

use crate::{ModelError, error::one_line, packed::KeyMaker};

/// A file of named tensors, mapped.
pub(crate) struct SafetensorsFile {
    path: PathBuf,
    map: MappedFile,
    /// Where the data begins, behind the header.
    data: usize,
    /// When it was last changed, where the system knows.
    modified: Option<SystemTime>,
}

/// Bytes of a tensor that tell it from others: more than its share of a page is not read faster.
const SAMPLE: usize = 256;

/// Where one tensor lies in its file.
#[derive(Debug)]
pub(crate) struct StoredTensor {
    /// Its name in the file.
    pub(crate) name: String,
    /// Type of its values.
    pub(crate) dtype: Dtype,
    /// Its shape; the number of values times the size of a value is the length of `bytes`.
    pub(crate) shape: Vec<usize>,
    /// Its bytes, inside the file.
    pub(crate) bytes: Range<usize>,
}

/// The types of value that can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatType {
    F32,
    F16,
    Bf16,
}

impl SafetensorsFile {
    /// Maps `path` and lists its tensors.
    ///
    /// # Errors
    /// [`ModelError::Read`]; [`ModelError::Weights`] unless every tensor is inside the file, no two overlap, and each
    /// holds as many bytes as its shape and type call for.
    pub(crate) fn open(path: PathBuf) -> Result<(Self, Vec<StoredTensor>), ModelError> {
        let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        let map = match MappedFile::open(&path) {
            Ok(map) => map,
            Err(why) => return Err(ModelError::Read { file: path, why }),
        };
        let (header_len, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| ModelError::Weights { file: path.clone(), why: explain(&map, error) })?;
        let data = size_of::<u64>() + header_len;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let (dtype, shape) = (info.dtype, info.shape.clone());
            StoredTensor { name, dtype, shape, bytes: data + start..data + end }
        });
        let tensors = tensors.collect();
        Ok((Self { path, map, data, modified }, tensors))
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Adds to `key` what tells this file from others, apart from its tensors.
    pub(crate) fn identify(&self, key: &mut KeyMaker) {
        key.bytes(&self.map.len().to_le_bytes());
        key.time(self.modified);
        key.bytes(&self.map[..self.data]);
    }

    /// Adds to `key` some bytes from the middle of a tensor.
    pub(crate) fn identify_tensor(&self, tensor: &StoredTensor, key: &mut KeyMaker) {
        let bytes = &self.map[tensor.bytes.clone()];
        let first = bytes.len().saturating_sub(SAMPLE) / 2;
        key.bytes(&bytes[first..bytes.len().min(first + SAMPLE)]);
    }

    /// Adds to `key` the type, shape and all bytes of a tensor.
    pub(crate) fn digest_tensor(&self, tensor: &StoredTensor, key: &mut KeyMaker) {
        key.bytes(format!("{} {:?}", tensor.dtype, tensor.shape).as_bytes());
        key.bytes(&self.map[tensor.bytes.clone()]);
    }

    /// Releases the memory behind `bytes`, which are read again when they are accessed.
    pub(crate) fn release(&self, bytes: Range<usize>) {
        self.map.release(bytes);
    }

    /// The range of all its bytes.
    pub(crate) fn bytes(&self) -> Range<usize> {
        0..self.map.len()
    }

    /// How the values of one of its tensors are stored.
    ///
    /// # Errors
    /// [`ModelError::Dtype`].
    pub(crate) fn float_type(&self, tensor: &StoredTensor) -> Result<FloatType, ModelError> {
        match tensor.dtype {
            Dtype::F32 => Ok(FloatType::F32),
            Dtype::F16 => Ok(FloatType::F16),
            Dtype::BF16 => Ok(FloatType::Bf16),
            other => Err(ModelError::Dtype {
                file: self.path.clone(),
                tensor: one_line(&tensor.name),
                got: other.to_string(),
            }),
        }
    }

    /// The values of one of its tensors: the mapped bytes themselves, if they are f32 already.
    ///
    /// # Errors
    /// [`ModelError::Dtype`].
    pub(crate) fn values(&self, tensor: &StoredTensor) -> Result<Cow<'_, [f32]>, ModelError> {
        self.values_of_bytes(tensor, tensor.bytes.clone())
    }

    /// A range of the values of one of its tensors.
    ///
    /// # Errors
    /// [`ModelError::Dtype`].
    pub(crate) fn values_of_part(
        &self,
        tensor: &StoredTensor,
        values: Range<usize>,
    ) -> Result<Cow<'_, [f32]>, ModelError> {
        let width = match self.float_type(tensor)? {
            FloatType::F32 => size_of::<f32>(),
            FloatType::F16 | FloatType::Bf16 => size_of::<u16>(),
        };
        let start = tensor.bytes.start;
        self.values_of_bytes(tensor, start + values.start * width..start + values.end * width)
    }

    fn values_of_bytes(
        &self,
        tensor: &StoredTensor,
        bytes: Range<usize>,
    ) -> Result<Cow<'_, [f32]>, ModelError> {
        let bytes = &self.map[bytes];
        Ok(match self.float_type(tensor)? {
            FloatType::F32 => match <[f32]>::ref_from_bytes(bytes) {
                Ok(values) if cfg!(target_endian = "little") => Cow::Borrowed(values),
                _ => Cow::Owned(values_of(bytes, f32::from_le_bytes)),
            },
            FloatType::F16 => Cow::Owned(values_of(bytes, |value| f16::from_le_bytes(value).to_f32())),
            FloatType::Bf16 => Cow::Owned(values_of(bytes, |value| bf16::from_le_bytes(value).to_f32())),
        })
    }
}

fn values_of<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| value(*chunk)).collect()
}

/// Explains a file that Git LFS put in place of a large one: a clone without LFS has only such pointers.
pub(crate) fn lfs_pointer(file: &[u8]) -> Option<String> {
    let pointer = b"version https://git-lfs.github.com/spec/";
    file.starts_with(pointer).then(|| {
        "it is a pointer of Git LFS and not the file itself: run `git lfs pull` in the folder".to_owned()
    })
}

/// Why the parser refused a file, with numbers and the tensor's name.
fn explain(file: &[u8], error: SafeTensorError) -> String {
    if let Some(why) = lfs_pointer(file) {
        return why;
    }
    let Some((length, rest)) = file.split_first_chunk() else {
        return format!("{} bytes are too few for a safetensors header", file.len());
    };
    let length = u64::from_le_bytes(*length);
    let Some(header) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
        return format!("the header claims {length} bytes, the file has {}", rest.len());
    };
    let available = rest.len() - header.len();
    wrong_tensor(header, available).unwrap_or_else(|| match error {
        SafeTensorError::InvalidOffset(name) => {
            let name = one_line(name);
            format!("tensor {name}: its bytes overlap another tensor's, or leave a hole before it")
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("the header describes less than the file's {available} bytes of data")
        }
        other => one_line(other),
    })
}

/// The first tensor of a header whose entry contradicts itself or the `available` bytes.
fn wrong_tensor(header: &[u8], available: usize) -> Option<String> {
    let entries: Map<String, Value> = serde_json::from_slice(header).ok()?;
    entries.into_iter().filter(|(name, _)| name != "__metadata__").find_map(|(name, entry)| {
        let why = wrong_entry(&entry, available)?;
        Some(format!("tensor {}: {why}", one_line(name)))
    })
}

fn wrong_entry(entry: &Value, available: usize) -> Option<String> {
    let TensorInfo { dtype, shape, data_offsets: (start, end) } = match TensorInfo::deserialize(entry) {
        Ok(info) => info,
        Err(error) => return Some(one_line(error)),
    };
    let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &dim| bits.checked_mul(dim));
    let held = end.checked_sub(start).and_then(|bytes| bytes.checked_mul(8));
    if bits.is_none() || bits != held {
        return Some(one_line(format!("bytes {start}..{end} do not hold {shape:?} values of {dtype}")));
    }
    (end > available)
        .then(|| format!("bytes {start}..{end} lie outside the file's {available} bytes of data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a file of one tensor with `bytes`; `spaces` after its header move the data.
    fn open(dtype: &str, len: usize, bytes: &[u8], spaces: usize) -> (SafetensorsFile, StoredTensor) {
        let end = bytes.len();
        let header = format!(r#"{{"x":{{"dtype":"{dtype}","shape":[{len}],"data_offsets":[0,{end}]}}}}"#);
        let header = header + &" ".repeat(spaces);
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), bytes].concat();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        std::fs::write(&path, file).unwrap();
        let (file, mut tensors) = SafetensorsFile::open(path).unwrap();
        (file, tensors.remove(0))
    }

    #[test]
    fn a_pointer_of_git_lfs_is_told_as_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:53aa51\nsize 90868376\n";
        std::fs::write(&path, pointer).unwrap();
        let Err(error) = SafetensorsFile::open(path) else { panic!("it holds no tensors") };
        assert!(error.to_string().ends_with("run `git lfs pull` in the folder"), "{error}");
    }

    #[test]
    fn f32_is_borrowed_where_it_is_aligned() {
        let bytes = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
        let borrowed: Vec<bool> = (0..4)
            .map(|spaces| {
                let (file, tensor) = open("F32", 2, &bytes, spaces);
                let values = file.values(&tensor).unwrap();
                assert_eq!(*values, [1.5, -2.0]);
                matches!(values, Cow::Borrowed(_))
            })
            .collect();
        assert_eq!(borrowed.iter().filter(|borrowed| **borrowed).count(), 1, "{borrowed:?}");
    }

    #[test]
    fn half_types_become_f32_at_any_offset() {
        let values = [1.5, -2.0, 65504.0, 6.1e-5];
        for spaces in 0..2 {
            let bytes = values.map(|value| f16::from_f32(value).to_le_bytes()).concat();
            let (file, tensor) = open("F16", 4, &bytes, spaces);
            assert_eq!(*file.values(&tensor).unwrap(), values.map(|value| f16::from_f32(value).to_f32()));
            let bytes = values.map(|value| bf16::from_f32(value).to_le_bytes()).concat();
            let (file, tensor) = open("BF16", 4, &bytes, spaces);
            assert_eq!(*file.values(&tensor).unwrap(), values.map(|value| bf16::from_f32(value).to_f32()));
        }
    }
}
