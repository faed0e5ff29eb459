//! The bundle that is carried to the machine with the GPU: a folder with a list of its contents.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::digest::files_below;

/// Name of the folder, and of the file without its ending.
pub(super) const NAME: &str = "turbo-gpu";
/// Name of the list of the folder's contents, one line of JSON.
pub(super) const MANIFEST: &str = "manifest.json";
/// The most bytes that can be carried.
const MOST_BYTES: u64 = 64 << 20;

/// A file or a folder, and its name in the bundle.
pub(super) struct Item {
    pub(super) from: PathBuf,
    pub(super) name: PathBuf,
}

/// A collected bundle.
#[derive(Debug)]
pub(super) struct Bundle {
    folder: PathBuf,
    /// Names and sizes, the largest first.
    files: Vec<(String, u64)>,
}

impl Bundle {
    /// Copies everything into `folder`, which is emptied first, and writes the list.
    ///
    /// # Errors
    /// When something is missing, or the total is too large.
    pub(super) fn collect(items: &[Item], folder: &Path, commit: &[String; 2]) -> Result<Bundle> {
        Self::collect_up_to(MOST_BYTES, items, folder, commit)
    }

    fn collect_up_to(
        most: u64,
        items: &[Item],
        folder: &Path,
        [commit, date]: &[String; 2],
    ) -> Result<Bundle> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for item in items {
            copy(&item.from, &folder.join(&item.name))?;
        }
        let (mut files, mut listed) = (Vec::new(), Vec::new());
        for (name, sha256) in files_below(folder)? {
            let bytes = folder.join(&name).metadata()?.len();
            let name = name.to_string_lossy().into_owned();
            listed.push(json!({"name": name, "bytes": bytes, "sha256": sha256}));
            files.push((name, bytes));
        }
        files.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let bundle = Bundle { folder: folder.to_path_buf(), files };
        if bundle.bytes() > most {
            bail!("more than {:.0} MiB cannot be carried:\n{bundle}", mebibytes(most));
        }
        let manifest = json!({"commit": commit, "date": date, "files": listed});
        fs::write(folder.join(MANIFEST), format!("{manifest}\n")).context("cannot write the list")?;
        Ok(bundle)
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        let (count, size) = (self.files.len(), mebibytes(self.bytes()));
        write!(f, "{}: {count} files, {size:.1} MiB, the largest", self.folder.display())?;
        let largest = self.files.iter().take(SHOWN);
        let largest = largest.map(|(name, bytes)| format!("{name} ({:.1} MiB)", mebibytes(*bytes)));
        write!(f, " {}", largest.collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Copies a file with its permissions, or a folder with all its contents.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot copy {} to {}", from.display(), to.display());
    if from.is_dir() {
        fs::create_dir_all(to).with_context(cannot)?;
        for entry in from.read_dir().with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let parent = to.parent().expect("it is inside the bundle");
    fs::create_dir_all(parent).and_then(|()| fs::copy(from, to)).with_context(cannot)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit() -> [String; 2] {
        ["0123456789ab".into(), "2000-01-01T00:00:00+00:00".into()]
    }

    /// A program, and a folder with a model.
    fn items(from: &Path) -> Vec<Item> {
        fs::create_dir_all(from.join("data/deep")).unwrap();
        for (name, text) in [("program", "abc"), ("data/config.json", "{}"), ("data/deep/weights", "12345")] {
            fs::write(from.join(name), text).unwrap();
        }
        let item = |from: PathBuf, name: &str| Item { from, name: name.into() };
        vec![item(from.join("program"), "turbo-bench"), item(from.join("data"), "models/one")]
    }

    #[test]
    fn everything_is_copied_and_listed() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join(NAME));
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("left over"), "").unwrap();
        let bundle = Bundle::collect(&items(&from), &to, &commit()).unwrap();
        assert_eq!(fs::read_to_string(to.join("models/one/deep/weights")).unwrap(), "12345");
        assert!(!to.join("left over").exists());
        let manifest = fs::read_to_string(to.join(MANIFEST)).unwrap();
        assert_eq!(manifest.lines().count(), 1, "the script puts it into a file of lines");
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(manifest["commit"], "0123456789ab");
        let program =
            manifest["files"].as_array().unwrap().iter().find(|file| file["name"] == "turbo-bench").unwrap();
        // the first example of FIPS 180-2
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((&program["bytes"], &program["sha256"]), (&json!(3), &json!(expected)));
        assert!(
            bundle.to_string().contains("3 files, 0.0 MiB, the largest models/one/deep/weights"),
            "{bundle}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_can_be_run_can_be_run_there() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let items = items(root.path());
        fs::set_permissions(&items[0].from, fs::Permissions::from_mode(0o755)).unwrap();
        let to = root.path().join(NAME);
        Bundle::collect(&items, &to, &commit()).unwrap();
        assert_eq!(to.join("turbo-bench").metadata().unwrap().permissions().mode() & 0o111, 0o111);
    }

    #[test]
    fn what_is_too_large_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (items, to) = (items(root.path()), root.path().join(NAME));
        assert!(Bundle::collect_up_to(10, &items, &to, &commit()).is_ok());
        let error = Bundle::collect_up_to(9, &items, &to, &commit()).unwrap_err().to_string();
        assert!(
            error.starts_with("more than 0 MiB cannot be carried:") && error.contains("weights"),
            "{error}"
        );
        assert!(!to.join(MANIFEST).exists(), "without a list the script does not begin");
    }

    #[test]
    fn what_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let item = Item { from: root.path().join("none"), name: "none".into() };
        let error = Bundle::collect(&[item], &root.path().join(NAME), &commit()).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }
}
