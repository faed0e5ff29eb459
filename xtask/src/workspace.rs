//! The workspace as `cargo metadata` describes it: where it is, its crates, who uses whom.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{MetadataCommand, Package};

/// A checkout of this repository.
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where cargo builds; honours `CARGO_TARGET_DIR`.
    pub(crate) target: PathBuf,
    /// Members in alphabetical order.
    pub(crate) crates: Vec<Crate>,
}

/// A member of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Features other than `default`, in alphabetical order.
    pub(crate) features: Vec<String>,
    /// Packages it depends on, of every kind (normal, dev, build), whether ours or not.
    pub(crate) dependencies: Vec<String>,
}

impl Workspace {
    /// Reads the workspace that the current folder belongs to.
    ///
    /// # Errors
    /// When `cargo metadata` fails, for example outside a checkout.
    pub(crate) fn load() -> Result<Self> {
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("cannot read the workspace with cargo metadata")?;
        let mut crates: Vec<Crate> = metadata.workspace_packages().into_iter().map(Crate::of).collect();
        crates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            root: metadata.workspace_root.clone().into(),
            target: metadata.target_directory.clone().into(),
            crates,
        })
    }

    /// Where fetched models are kept: `TURBO_MODELS_DIR`, or the ignored folder `models`.
    pub(crate) fn models_dir(&self) -> PathBuf {
        match std::env::var_os("TURBO_MODELS_DIR") {
            Some(dir) if !dir.is_empty() => self.root.join(dir),
            _ => self.root.join("models"),
        }
    }

    /// The cargo that runs us, to be started in the root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }

    /// `path` as one would type it in the root.
    pub(crate) fn display(&self, path: &std::path::Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

impl Crate {
    fn of(package: &Package) -> Self {
        Self {
            name: package.name.to_string(),
            version: package.version.to_string(),
            features: package.features.keys().filter(|name| *name != "default").cloned().collect(),
            dependencies: package.dependencies.iter().map(|d| d.name.clone()).collect(),
        }
    }

    /// The sets of features that must build alone, as arguments of cargo: the default, none, each by itself.
    pub(crate) fn feature_sets(&self) -> Vec<Vec<String>> {
        let mut sets = vec![vec![]];
        if !self.features.is_empty() {
            sets.push(vec!["--no-default-features".into()]);
        }
        for feature in &self.features {
            sets.push(vec!["--no-default-features".into(), "--features".into(), feature.clone()]);
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_features(features: &[&str]) -> Crate {
        Crate {
            name: "a".into(),
            version: "0.1.0".into(),
            features: features.iter().map(|f| f.to_string()).collect(),
            dependencies: vec![],
        }
    }

    #[test]
    fn each_feature_is_built_alone() {
        let joined = |krate: Crate| -> Vec<String> {
            krate.feature_sets().iter().map(|arguments| arguments.join(" ")).collect()
        };
        assert_eq!(joined(with_features(&[])), [""]);
        assert_eq!(
            joined(with_features(&["cuda", "testing"])),
            [
                "",
                "--no-default-features",
                "--no-default-features --features cuda",
                "--no-default-features --features testing"
            ]
        );
    }

    #[test]
    fn this_workspace_is_found() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.root.join("xtask").is_dir());
        assert!(workspace.crates.iter().any(|c| c.name == "xtask"));
    }
}
