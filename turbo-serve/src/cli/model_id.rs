//! From the argument `--model-id` to a folder, or to a name on the Hub.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use turbo_serve::hub;

/// Models that `cargo xtask model` fetches, by the folder it puts them in, and their names on the Hub.
const SHORT_NAMES: [(&str, &str); 1] = [("minilm", "sentence-transformers/all-MiniLM-L6-v2")];

/// Where a model is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// On the Hub, by this name.
    Hub(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Hub(name) => write!(f, "the Hub: {name}"),
        }
    }
}

/// The place of `model_id`: a path from the folder `base`, a short name that stands for a folder in `models`, or a name
/// on the Hub. A folder comes first.
///
/// # Errors
/// When it can be none of these.
pub(super) fn place(model_id: &str, base: &Path, models: &Path) -> Result<Place> {
    let path = base.join(model_id);
    if path.is_dir() {
        return Ok(Place::Folder(path));
    }
    if path.exists() {
        bail!("--model-id {model_id}: it is a file, expected a model folder");
    }
    if let Some((_, on_the_hub)) = SHORT_NAMES.iter().find(|(name, _)| *name == model_id) {
        let folder = models.join(model_id);
        if folder.is_dir() {
            return Ok(Place::Folder(folder));
        }
        bail!(
            "--model-id {model_id}: {} is not there: fetch it with `cargo xtask model`, or pass {on_the_hub}, its name on \
             the Hub",
            folder.display()
        );
    }
    if hub::is_model_name(model_id) {
        return Ok(Place::Hub(model_id.to_owned()));
    }
    let short_names: Vec<&str> = SHORT_NAMES.iter().map(|(name, _)| *name).collect();
    bail!(
        "--model-id {model_id}: no such folder, and neither a short name ({}) nor a name on the Hub (OWNER/NAME)",
        short_names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_a_folder_among_the_models() {
        let models = tempfile::tempdir().unwrap();
        let error = place("minilm", Path::new(""), models.path()).unwrap_err().to_string();
        assert!(error.contains("cargo xtask model"), "{error}");
        let folder = models.path().join("minilm");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(place("minilm", Path::new(""), models.path()).unwrap(), Place::Folder(folder));
    }

    #[test]
    fn a_path_that_is_no_folder_is_named() {
        let models = tempfile::tempdir().unwrap();
        let file = models.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (model_id, said) in
            [("does/not/exist", "no such folder"), (file.to_str().unwrap(), "it is a file")]
        {
            let error = place(model_id, Path::new(""), models.path()).unwrap_err().to_string();
            assert!(error.contains(model_id) && error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_is_no_folder_may_be_on_the_hub() {
        let models = tempfile::tempdir().unwrap();
        assert_eq!(
            place("owner/name", Path::new(""), models.path()).unwrap(),
            Place::Hub("owner/name".into())
        );
        let folder = models.path().to_str().unwrap();
        assert_eq!(place(folder, Path::new(""), Path::new("nowhere")).unwrap(), Place::Folder(folder.into()));
    }
}
