//! The tensors of a model folder under one set of names, whatever the files call them.
//!
//! Three things differ between files of one architecture: whether names carry the prefix of a model with a head
//! (`bert.`), whether layer norms are called `gamma` and `beta`, and how many files there are. All three are settled
//! once, when the folder is opened.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    path::{Component, Path, PathBuf},
};

use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, is_there},
    packed::KeyMaker,
    position_table::PositionTable,
    safetensors_file::{SafetensorsFile, StoredTensor},
};

const SINGLE_FILE: &str = "model.safetensors";
const SHARD_INDEX: &str = "model.safetensors.index.json";
/// Files that could run arbitrary code when they are read: in one piece, or in shards.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Old names of layer norm tensors, and their current names.
const LEGACY_ENDINGS: [(&str, &str); 2] =
    [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")];

/// All tensors of a folder, mapped.
pub(crate) struct Weights {
    /// The file that lists the tensors, named in errors about a missing one.
    list: PathBuf,
    files: Vec<SafetensorsFile>,
    /// By current name, without prefix.
    tensors: HashMap<String, (FileId, StoredTensor)>,
    /// Tensors of other folders, each folder with a prefix before its names.
    parts: Vec<(String, Weights)>,
}

#[derive(Clone, Copy)]
struct FileId(usize);

impl Weights {
    /// Opens `model.safetensors` of the folder `dir`, or the shards that its index lists. `prefixes` are what a model
    /// with a head puts before the names of its encoder's tensors; they are stripped in this order.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Weights`], [`ModelError::MissingTensor`] for a shard that lacks what the
    /// index promises; [`ModelError::Unsupported`] for a folder with pickled weights only.
    pub(crate) fn open(dir: &Path, prefixes: &[&str]) -> Result<Self, ModelError> {
        let single = dir.join(SINGLE_FILE);
        // If the single file exists, files beside it are ignored.
        let index = if is_there(&single) { None } else { JsonObject::open(dir.join(SHARD_INDEX))? };
        let pickle = PICKLES.into_iter().find(|name| dir.join(name).exists());
        let (list, files, stored) = match (index, pickle) {
            (Some(index), _) => open_shards(dir, &index)?,
            (None, Some(pickle)) if !is_there(&single) => {
                return Err(ModelError::Unsupported {
                    file: dir.to_owned(),
                    field: "the file of weights",
                    value: pickle.to_owned(),
                    supported: SINGLE_FILE.to_owned(),
                });
            }
            _ => {
                let (file, tensors) = SafetensorsFile::open(single.clone())?;
                (single, vec![file], tensors.into_iter().map(|tensor| (FileId(0), tensor)).collect())
            }
        };
        Ok(Self { list, files, tensors: by_canonical_name(stored, prefixes), parts: Vec::new() })
    }

    /// Adds the tensors of another folder, with `prefix` before their names.
    pub(crate) fn add(&mut self, prefix: String, part: Weights) {
        self.parts.push((prefix, part));
    }

    /// Whether the files have a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensor(name).is_ok()
    }

    /// Checks that the files have `name` with `shape`, in a type that can be read.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::Shape`], [`ModelError::Dtype`].
    pub(crate) fn check(&self, name: &str, shape: &[usize]) -> Result<(), ModelError> {
        let (file, tensor) = self.find(name, shape)?;
        file.float_type(tensor).map(drop)
    }

    /// The values of the tensor `name`, or of the one that a [`Derived`] name stands for, as f32.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, ModelError> {
        let Some((whole, derived)) = Derived::parse(name) else {
            let (file, tensor) = self.find(name, shape)?;
            return file.values(tensor);
        };
        match derived {
            Derived::Rows(rows) => self.rows(whole, rows, shape),
            Derived::RowLess(row, less) => {
                let less = self.rows(whole, less..less + 1, shape)?;
                let mut row = self.rows(whole, row..row + 1, shape)?.into_owned();
                row.iter_mut().zip(&*less).for_each(|(value, less)| *value -= less);
                Ok(Cow::Owned(row))
            }
            Derived::Plus(addend) => Ok(changed(self.values(whole, shape)?, |value| value + addend)),
            Derived::Times(factor) => Ok(changed(self.values(whole, shape)?, |value| value * factor)),
            Derived::Positions(table) => self.positions(whole, &table, shape),
            Derived::Transposed => {
                let (file, tensor) = self.tensor(whole)?;
                match (shape, &tensor.shape[..]) {
                    ([rows, columns], [height, width]) if (rows, columns) == (width, height) => {
                        Ok(Cow::Owned(transposed(&file.values(tensor)?, *rows)))
                    }
                    _ => Err(wrong_shape(file, tensor, shape)),
                }
            }
        }
    }

    fn positions(
        &self,
        matrix: &str,
        table: &PositionTable,
        shape: &[usize],
    ) -> Result<Cow<'_, [f32]>, ModelError> {
        let (file, tensor) = self.tensor(matrix)?;
        match (&tensor.shape[..], shape, matrix.strip_suffix(".weight")) {
            (&[outputs, inputs], &[positions, columns], Some(name)) if outputs == columns => {
                table.values(self, name, (positions, inputs, outputs)).map(Cow::Owned)
            }
            _ => Err(wrong_shape(file, tensor, shape)),
        }
    }

    fn rows(&self, whole: &str, rows: Range<usize>, shape: &[usize]) -> Result<Cow<'_, [f32]>, ModelError> {
        let (file, tensor) = self.tensor(whole)?;
        match tensor.shape[..] {
            [height, columns] if rows.end <= height && [rows.len(), columns] == shape => {
                file.values_of_part(tensor, rows.start * columns..rows.end * columns)
            }
            _ => Err(wrong_shape(file, tensor, shape)),
        }
    }

    /// Releases the memory behind the tensor `name`, or behind the tensor that a [`Derived`] name is made from.
    pub(crate) fn release(&self, name: &str) {
        let whole = Derived::parse(name).map_or(name, |(whole, _)| whole);
        if let Ok((file, tensor)) = self.tensor(whole) {
            file.release(tensor.bytes.clone());
        }
    }

    /// Releases the memory behind all files.
    pub(crate) fn release_all(&self) {
        self.files.iter().for_each(|file| file.release(file.bytes()));
        self.parts.iter().for_each(|(_, part)| part.release_all());
    }

    /// Adds to `key` what tells these weights from others.
    pub(crate) fn identify(&self, key: &mut KeyMaker) {
        self.files.iter().for_each(|file| file.identify(key));
        let mut tensors: Vec<_> = self.tensors.values().map(|(file, tensor)| (file.0, tensor)).collect();
        // an empty tensor begins where the next one begins
        tensors.sort_by_key(|(file, tensor)| (*file, tensor.bytes.start, tensor.bytes.end));
        tensors.into_iter().for_each(|(file, tensor)| self.files[file].identify_tensor(tensor, key));
        for (prefix, part) in &self.parts {
            key.bytes(prefix.as_bytes());
            part.identify(key);
        }
    }

    /// Adds to `key` every value of these weights and its place, whatever files they lie in.
    pub(crate) fn digest(&self, key: &mut KeyMaker) {
        let sorted: BTreeMap<_, _> = self.tensors.iter().collect();
        for (name, (file, tensor)) in sorted {
            key.bytes(name.as_bytes());
            self.files[file.0].digest_tensor(tensor, key);
        }
        for (prefix, part) in &self.parts {
            key.bytes(prefix.as_bytes());
            part.digest(key);
        }
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<(&SafetensorsFile, &StoredTensor), ModelError> {
        match self.tensor(name)? {
            (file, tensor) if tensor.shape != shape => Err(wrong_shape(file, tensor, shape)),
            found => Ok(found),
        }
    }

    fn tensor(&self, name: &str) -> Result<(&SafetensorsFile, &StoredTensor), ModelError> {
        let part = self.parts.iter().find_map(|(prefix, part)| Some((part, name.strip_prefix(prefix)?)));
        if let Some((part, name)) = part {
            return part.tensor(name);
        }
        let missing = || ModelError::MissingTensor { file: self.list.clone(), tensor: name.to_owned() };
        let (file, tensor) = self.tensors.get(name).ok_or_else(missing)?;
        Ok((&self.files[file.0], tensor))
    }
}

/// What a graph reads instead of a published tensor.
///
/// The change is made while the tensor is loaded, so that no operator makes it for every batch. It is part of the name,
/// so that whatever keeps loaded weights can tell the result from the published tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Derived {
    /// These rows of a matrix.
    Rows(Range<usize>),
    /// The first of these rows of a matrix minus the second.
    RowLess(usize, usize),
    /// Every value plus this.
    Plus(f32),
    /// Every value times this.
    Times(f32),
    /// The rows of this table times a matrix.
    Positions(PositionTable),
    /// The matrix, transposed.
    Transposed,
}

impl Derived {
    /// Its name in a graph, where `name` is that of the tensor.
    pub(crate) fn name(&self, name: &str) -> String {
        match self {
            Self::Rows(rows) => format!("{name}[{}..{}]", rows.start, rows.end),
            Self::RowLess(row, less) => format!("{name}[{row}-{less}]"),
            Self::Plus(addend) => format!("{name}[+{addend}]"),
            Self::Times(factor) => format!("{name}[*{factor}]"),
            Self::Positions(table) => format!("{name}[of {}]", table.name()),
            Self::Transposed => format!("{name}[transposed]"),
        }
    }

    /// The tensor and the change that a result of [`Self::name`] stands for.
    fn parse(name: &str) -> Option<(&str, Self)> {
        let (whole, what) = name.strip_suffix(']')?.rsplit_once('[')?;
        let derived = if what == "transposed" {
            Self::Transposed
        } else if let Some(addend) = what.strip_prefix('+') {
            Self::Plus(addend.parse().ok()?)
        } else if let Some(factor) = what.strip_prefix('*') {
            Self::Times(factor.parse().ok()?)
        } else if let Some(table) = what.strip_prefix("of ") {
            Self::Positions(PositionTable::parse(table)?)
        } else if let Some((start, end)) = what.split_once("..") {
            Self::Rows(start.parse().ok()?..end.parse().ok()?)
        } else {
            let (row, less) = what.split_once('-')?;
            Self::RowLess(row.parse().ok()?, less.parse().ok()?)
        };
        Some((whole, derived))
    }
}

fn changed(values: Cow<'_, [f32]>, change: impl Fn(f32) -> f32) -> Cow<'_, [f32]> {
    let mut values = values.into_owned();
    values.iter_mut().for_each(|value| *value = change(*value));
    Cow::Owned(values)
}

/// The transpose of this matrix, which has `rows` rows. Works in squares that fit into a first-level cache: the values
/// of a column of a large matrix all lie in different pages.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    const SIDE: usize = 32;
    let columns = values.len() / rows.max(1);
    let mut out = vec![0.0; values.len()];
    for first in (0..rows).step_by(SIDE) {
        for column in (0..columns).step_by(SIDE) {
            for row in first..rows.min(first + SIDE) {
                for column in column..columns.min(column + SIDE) {
                    out[row * columns + column] = values[column * rows + row];
                }
            }
        }
    }
    out
}

fn wrong_shape(file: &SafetensorsFile, tensor: &StoredTensor, expected: &[usize]) -> ModelError {
    ModelError::Shape {
        file: file.path().clone(),
        tensor: one_line(&tensor.name),
        expected: expected.to_vec(),
        got: tensor.shape.clone(),
    }
}

type Opened = (PathBuf, Vec<SafetensorsFile>, Vec<(FileId, StoredTensor)>);

/// Opens each shard that the index names, once, and keeps the tensors that the index assigns to it.
fn open_shards(dir: &Path, index: &JsonObject) -> Result<Opened, ModelError> {
    const FIELD: &str = "weight_map";
    let map: BTreeMap<String, String> = index.get(FIELD)?.ok_or_else(|| index.wrong(FIELD, "is missing"))?;
    let mut of_shard: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        of_shard.entry(shard).or_default().insert(tensor);
    }
    let (mut files, mut stored) = (Vec::new(), Vec::new());
    for (shard, mut expected) in of_shard {
        if !is_file_name(&shard) {
            let why = format!("{:?} is not the name of a file in this folder", one_line(shard));
            return Err(index.wrong(FIELD, why));
        }
        let (file, tensors) = SafetensorsFile::open(dir.join(shard))?;
        let id = FileId(files.len());
        stored.extend(tensors.into_iter().filter(|tensor| expected.remove(&tensor.name)).map(|t| (id, t)));
        if let Some(tensor) = expected.pop_first() {
            return Err(ModelError::MissingTensor { file: file.path().clone(), tensor: one_line(tensor) });
        }
        files.push(file);
    }
    Ok((index.file().to_owned(), files, stored))
}

/// Whether `name` is a plain file name, which stays inside the folder it is joined to.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(only)) if only == name) && components.next().is_none()
}

/// Strips the prefixes and replaces the old endings. If two tensors of a folder then have the same name, the one with a
/// current ending wins over one with an old ending, then a prefixed one over one without a prefix, and then the first
/// by name.
fn by_canonical_name(
    mut stored: Vec<(FileId, StoredTensor)>,
    prefixes: &[&str],
) -> HashMap<String, (FileId, StoredTensor)> {
    let canonical = |name: &str| {
        let short = prefixes.iter().fold(name, |name, prefix| name.strip_prefix(*prefix).unwrap_or(name));
        let renamed = LEGACY_ENDINGS
            .iter()
            .find_map(|(old, new)| short.strip_suffix(old).map(|layer| format!("{layer}{new}")));
        let rank = (renamed.is_some(), short.len() == name.len());
        (rank, renamed.unwrap_or_else(|| short.to_owned()))
    };
    stored.sort_by_cached_key(|(_, tensor)| (canonical(&tensor.name).0, tensor.name.clone()));
    let mut tensors = HashMap::new();
    for (file, tensor) in stored {
        tensors.entry(canonical(&tensor.name).1).or_insert((file, tensor));
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored tensor that each name finds.
    fn found(stored: &[&str]) -> BTreeMap<String, String> {
        found_behind(&["bert."], stored)
    }

    fn found_behind(prefixes: &[&str], stored: &[&str]) -> BTreeMap<String, String> {
        let tensor = |name: &&str| StoredTensor {
            name: (*name).to_owned(),
            dtype: safetensors::Dtype::F32,
            shape: vec![],
            bytes: 0..4,
        };
        let stored = stored.iter().map(|name| (FileId(0), tensor(name))).collect();
        by_canonical_name(stored, prefixes)
            .into_iter()
            .map(|(name, (_, tensor))| (name, tensor.name))
            .collect()
    }

    #[test]
    fn names_lose_prefix_and_age() {
        let stored =
            ["bert.a.LayerNorm.gamma", "bert.a.LayerNorm.beta", "bert.b.weight", "cls.weight", "c.gamma"];
        let expected = ["a.LayerNorm.weight", "a.LayerNorm.bias", "b.weight", "cls.weight", "c.gamma"];
        let expected = expected.iter().map(|n| (*n).to_owned()).zip(stored.iter().map(|n| (*n).to_owned()));
        assert_eq!(found(&stored), expected.collect());
    }

    #[test]
    fn of_two_with_one_name_the_modern_and_the_prefixed_one_wins() {
        let winner = |stored: &[&str]| found(stored).remove("x.LayerNorm.bias").unwrap();
        let (modern, old) = ("bert.x.LayerNorm.bias", "bert.x.LayerNorm.beta");
        let bare = "x.LayerNorm.bias";
        for stored in [[modern, old, bare], [bare, old, modern], [old, bare, modern]] {
            assert_eq!(winner(&stored), modern);
        }
        assert_eq!(winner(&[old, bare]), bare);
    }

    #[test]
    fn names_may_have_several_prefixes() {
        let stored = ["new.gte.a.weight", "new.classifier.weight", "gte.b.weight", "new.c.weight", "d.bias"];
        let expected = ["a.weight", "classifier.weight", "b.weight", "c.weight", "d.bias"];
        let expected = expected.iter().map(|n| (*n).to_owned()).zip(stored.iter().map(|n| (*n).to_owned()));
        assert_eq!(found_behind(&["new.", "gte."], &stored), expected.collect());
        for stored in [["new.a", "gte.a", "a"], ["a", "gte.a", "new.a"]] {
            assert_eq!(found_behind(&["new.", "gte."], &stored)["a"], "gte.a");
        }
    }

    #[test]
    fn the_key_of_a_file_with_empty_tensors_is_one() {
        let header = br#"{"empty":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
            "x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let dir = tempfile::tempdir().unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &1_f32.to_le_bytes()].concat();
        std::fs::write(dir.path().join(SINGLE_FILE), file).unwrap();
        let keys: BTreeSet<String> = (0..20)
            .map(|_| {
                let mut key = KeyMaker::new();
                Weights::open(dir.path(), &[]).unwrap().identify(&mut key);
                key.finish().to_string()
            })
            .collect();
        assert_eq!(keys.len(), 1, "{keys:?}");
    }

    #[test]
    fn what_is_made_of_a_tensor_has_a_name() {
        for (derived, name) in [
            (Derived::Rows(3..7), "a.weight[3..7]"),
            (Derived::RowLess(9, 4), "a.weight[9-4]"),
            (Derived::Plus(1.0), "a.weight[+1]"),
            (Derived::Plus(-0.5), "a.weight[+-0.5]"),
            (Derived::Times(768_f32.sqrt()), "a.weight[*27.712812]"),
            (Derived::Transposed, "a.weight[transposed]"),
        ] {
            assert_eq!(derived.name("a.weight"), name);
            assert_eq!(Derived::parse(name), Some(("a.weight", derived)));
        }
        for other in ["a.weight", "a[3]", "a[x..y]", "a[1..2]b", "a[+]", "a[*x]", "a[1-x]", "a[-1]"] {
            assert_eq!(Derived::parse(other), None, "{other}");
        }
    }

    /// Whatever type the file has; the tensor itself stays as it is.
    #[test]
    fn values_are_changed_as_they_are_loaded() {
        let header = br#"{"wide":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "narrow":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}"#;
        let (wide, narrow) =
            ([0.5_f32, -3.0].map(f32::to_le_bytes), [0x3f00_u16, 0xc040].map(u16::to_le_bytes));
        let dir = tempfile::tempdir().unwrap();
        let bytes =
            [&(header.len() as u64).to_le_bytes()[..], header, wide.as_flattened(), narrow.as_flattened()];
        std::fs::write(dir.path().join(SINGLE_FILE), bytes.concat()).unwrap();
        let weights = Weights::open(dir.path(), &[]).unwrap();
        for tensor in ["wide", "narrow"] {
            let values = |name: &str| weights.values(name, &[2]).unwrap().into_owned();
            assert_eq!(values(&Derived::Plus(1.0).name(tensor)), [1.5, -2.0], "{tensor}");
            assert_eq!(values(&Derived::Times(3.0).name(tensor)), [1.5, -9.0], "{tensor}");
            assert_eq!(values(tensor), [0.5, -3.0], "{tensor}");
            assert!(weights.values(&Derived::Plus(1.0).name(tensor), &[3]).is_err(), "{tensor}");
        }
    }

    #[test]
    fn columns_become_rows() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let (rows, columns) = (70, 33);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let other = transposed(&values, rows);
        assert!((0..rows * columns).all(|i| other[i] == values[i % columns * rows + i / columns]));
        assert_eq!(transposed(&other, columns), values);
    }

    #[test]
    fn file_names_stay_in_their_folder() {
        assert!(is_file_name("model-00001-of-00002.safetensors"));
        for name in ["", ".", "..", "a/b", "a/", "./a", "/a", "a/../b"] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
