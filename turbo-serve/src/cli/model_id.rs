//! From what the user called a model to its folder.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Models that `cargo xtask model` fetches, by the folder it puts them in.
const SHORT_NAMES: [&str; 1] = ["minilm"];

/// The folder of `model_id`: a path, or a short name that stands for a folder in `models`.
///
/// # Errors
/// When there is no such folder.
pub(super) fn folder(model_id: &str, models: &Path) -> Result<PathBuf> {
    let path = PathBuf::from(model_id);
    if path.is_dir() {
        return Ok(path);
    }
    if path.exists() {
        bail!("--model-id {model_id}: it is a file, expected a model folder");
    }
    if !SHORT_NAMES.contains(&model_id) {
        bail!(
            "--model-id {model_id}: no such folder, and no short name (there is: {})",
            SHORT_NAMES.join(", ")
        );
    }
    let folder = models.join(model_id);
    if !folder.is_dir() {
        bail!("--model-id {model_id}: {} is not there, fetch it with `cargo xtask model`", folder.display());
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_a_folder_among_the_models() {
        let models = tempfile::tempdir().unwrap();
        let error = folder("minilm", models.path()).unwrap_err().to_string();
        assert!(error.contains("cargo xtask model"), "{error}");
        std::fs::create_dir(models.path().join("minilm")).unwrap();
        assert_eq!(folder("minilm", models.path()).unwrap(), models.path().join("minilm"));
    }

    #[test]
    fn a_path_that_is_no_folder_is_named() {
        let models = tempfile::tempdir().unwrap();
        let file = models.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (model_id, said) in
            [("does/not/exist", "no such folder"), (file.to_str().unwrap(), "it is a file")]
        {
            let error = folder(model_id, models.path()).unwrap_err().to_string();
            assert!(error.contains(model_id) && error.contains(said), "{error}");
        }
    }
}
