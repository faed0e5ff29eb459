//! A JSON file of named fields, read field by field, so that an error names the field.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{ModelError, error::one_line};

/// The object in one JSON file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonObject {
    file: PathBuf,
    fields: Map<String, Value>,
}

impl JsonObject {
    /// Reads `file`; `None` when there is none.
    pub(crate) fn open(file: PathBuf) -> Result<Option<Self>, ModelError> {
        let fields = read_json(&file)?;
        Ok(fields.map(|fields| Self { file, fields }))
    }

    /// Reads `file`, which must exist.
    pub(crate) fn open_existing(file: PathBuf) -> Result<Self, ModelError> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such file");
        Self::open(file.clone())?.ok_or_else(|| ModelError::Read { file, why: missing() })
    }

    /// The file it was read from.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The value of `field`; `None` if it is absent or null, which mean the same in published files.
    pub(crate) fn get<T: DeserializeOwned>(&self, field: &'static str) -> Result<Option<T>, ModelError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                T::deserialize(value).map(Some).map_err(|error| self.wrong(field, one_line(error)))
            }
        }
    }

    /// Whether the file says null.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(Value::is_null)
    }

    /// Copies the value of `alias` to `field`, which means the same.
    ///
    /// # Errors
    /// [`ModelError::Field`] if both are given and differ.
    pub(crate) fn resolve(&mut self, alias: &'static str, field: &'static str) -> Result<(), ModelError> {
        let Some(value) = self.get::<Value>(alias)? else { return Ok(()) };
        match self.get::<Value>(field)? {
            Some(other) if other != value => {
                let why = format!("is {value}, and {field}, which means the same, is {other}");
                Err(self.wrong(alias, one_line(why)))
            }
            _ => {
                self.fields.insert(field.to_owned(), value);
                Ok(())
            }
        }
    }

    /// An error about `field`.
    pub(crate) fn wrong(&self, field: &'static str, why: impl Into<String>) -> ModelError {
        ModelError::Field { file: self.file.clone(), field, why: why.into() }
    }

    /// An error about a value of `field` that is not implemented here.
    pub(crate) fn unsupported(
        &self,
        field: &'static str,
        value: impl Into<String>,
        supported: impl Into<String>,
    ) -> ModelError {
        ModelError::Unsupported {
            file: self.file.clone(),
            field,
            value: one_line(value.into()),
            supported: supported.into(),
        }
    }

    /// The whole object as JSON text.
    pub(crate) fn text(&self) -> String {
        Value::Object(self.fields.clone()).to_string()
    }

    /// Names and values of the fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.fields.iter()
    }
}

/// Whether something of this name exists. A dangling link is not an absent file but one whose content was lost:
/// downloads are links into a store from which things are deleted.
pub(crate) fn is_there(file: &Path) -> bool {
    fs::symlink_metadata(file).is_ok()
}

/// Reads and parses `file`; `None` when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, ModelError> {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_there(file) => return Ok(None),
        Err(why) => return Err(ModelError::Read { file: file.to_owned(), why }),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| ModelError::Json { file: file.to_owned(), why: one_line(error) })
}
