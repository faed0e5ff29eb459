//! Packed weights kept on disk: a second start copies what the first one has read, converted and reordered.
//!
//! In: a folder, the identity of a model's files ([`ModelKey`]), and the name of the order in which its weights are
//! packed. Out: one file for each pair of identity and order, written aside and renamed. A reader sees a whole file or
//! none, and processes that start together never wait for each other: the last one wins, and includes what others have
//! added meanwhile. If two processes add something at the same moment, one of them packs it again at its next start.
//! Nothing here stops a start: what cannot be used is packed anew, what cannot be written is packed again the next
//! time, and [`CacheUse`] says so.
//!
//! A model that changes has another key, and its old file stays behind. So each start that uses a file updates the
//! file's modification time, and each start that writes a file removes those that were not used for 30 days.
//!
//! The folder is trusted as much as the model's own: checksums detect damage, not attacks.

mod file;
mod images;
mod model_key;

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::ModelError;

pub(crate) use self::{
    images::PackedImages,
    model_key::{KeyMaker, ModelKey},
};

/// A folder for the packed weights of any number of models. Processes may share it, and it may be emptied at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedCache {
    dir: PathBuf,
}

impl PackedCache {
    /// Uses the folder `dir`, which is created if it is missing.
    ///
    /// # Errors
    /// [`ModelError::Read`] if it cannot be created.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        fs::create_dir_all(dir).map_err(|why| ModelError::Read { file: dir.to_owned(), why })?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The images of the model `key` in one packing. The model's `name` is written into the file for inspection by
    /// hand. It is not part of the file's name, so that a model is found wherever its folder lies.
    pub(crate) fn images(&self, name: &str, key: ModelKey, packing: &str) -> PackedImages {
        PackedImages::open(self.dir.join(format!("{key}-{packing}{}", file::FINISHED)), name, key)
    }
}

/// What an encoder found in a [`PackedCache`], and what it left there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// The file of this model in this packing.
    pub file: PathBuf,
    /// Weights that were copied from it.
    pub restored: usize,
    /// Weights that were packed, because the file lacked them.
    pub packed: usize,
    /// Why the file could not be used or written, in one line. A file that does not exist yet is not a reason.
    pub warning: Option<String>,
}
