//! Copies of fixtures, and changes to what is in them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    time::SystemTime,
};

use safetensors::{
    SafeTensors,
    tensor::{TensorView, serialize},
};
use serde_json::Value;
use tempfile::TempDir;
use turbo_models::Checkpoint;

use crate::common::data;

/// A copy of a fixture, to be changed.
pub(crate) fn copy(fixture: &str) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    copy_to(&data(fixture), to.path());
    to
}

/// Copies the folder `from` to the folder `to`, with the times of its files.
pub(crate) fn copy_to(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (to, metadata) = (to.join(entry.file_name()), entry.metadata().unwrap());
        match metadata.is_dir() {
            true => copy_to(&entry.path(), &to),
            false => {
                fs::copy(entry.path(), &to).unwrap();
                set_modified(&to, metadata.modified().unwrap());
            }
        }
    }
}

/// Makes it seem that `file` was last changed at this time.
pub(crate) fn set_modified(file: &Path, time: SystemTime) {
    File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

/// Gives a field of the JSON in `file` another value.
pub(crate) fn set(file: &Path, field: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    json[field] = value;
    fs::write(file, json.to_string()).unwrap();
}

/// The error that opening a folder gives, without the folder's own path.
pub(crate) fn error(folder: &Path) -> String {
    let error = Checkpoint::open(folder).err().unwrap().to_string();
    error.replace(&format!("{}/", fs::canonicalize(folder).unwrap().display()), "")
}

/// Changes the tensors of the file `weights`.
pub(crate) fn change(weights: &Path, change: impl FnOnce(&mut BTreeMap<String, TensorView<'_>>)) {
    let bytes = fs::read(weights).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter().collect();
    change(&mut tensors);
    fs::write(weights, serialize(tensors, None).unwrap()).unwrap();
}

/// Flips the signs of an f32 tensor in the file `weights`.
pub(crate) fn negate(weights: &Path, tensor: &str) {
    let mut bytes = fs::read(weights).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let [start, end] = [0_usize, 1].map(|at| header[tensor]["data_offsets"][at].as_u64().unwrap() as usize);
    for value in bytes[data + start..data + end].as_chunks_mut::<4>().0 {
        *value = (-f32::from_le_bytes(*value)).to_le_bytes();
    }
    fs::write(weights, bytes).unwrap();
}
