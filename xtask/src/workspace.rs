//! The workspace as `cargo metadata` describes it: its place, its crates, and their dependencies.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, MetadataCommand, Package};

use crate::process;

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
    /// Packages that it depends on, of every kind (normal, dev, build), whether in this workspace or not.
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

    /// The cargo that runs this program, to be started in the root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }

    /// Builds a program by `cargo build` with these arguments, and lets the user see cargo's output. Returns where the
    /// program is, which depends on cargo's settings (`CARGO_BUILD_TARGET`).
    ///
    /// # Errors
    /// When it does not build.
    pub(crate) fn build(&self, arguments: &[&str]) -> Result<PathBuf> {
        let mut cargo = self.cargo();
        cargo.arg("build").args(arguments).args(["--message-format", "json-render-diagnostics"]);
        let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
        let program = built(BufReader::new(child.stdout.take().expect("piped above")))?;
        if !child.wait()?.success() {
            bail!("`{}` failed", process::line(&cargo));
        }
        program.with_context(|| format!("`{}` built no program", process::line(&cargo)))
    }

    /// `path` as a user would type it in the root.
    pub(crate) fn display(&self, path: &std::path::Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// The program among the artifacts that cargo reports, if there is one.
fn built(messages: impl BufRead) -> Result<Option<PathBuf>> {
    let mut program = None;
    for message in Message::parse_stream(messages) {
        if let Message::CompilerArtifact(artifact) = message? {
            program = artifact.executable.or(program);
        }
    }
    Ok(program.map(Into::into))
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

    /// The sets of features with which the crate must build alone, as arguments of cargo: the default, none, and each
    /// by itself.
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
    fn a_program_is_where_cargo_says() {
        let artifact = |name: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/{name}#0.1.0","target":{{"kind":["{kind}"],
                "crate_types":["{kind}"],"name":"{name}","src_path":"/w/{name}.rs","edition":"2024"}},"profile":{{
                "opt_level":"3","debuginfo":0,"debug_assertions":false,"overflow_checks":false,"test":false}},
                "features":[],"filenames":[],"executable":{executable},"fresh":true}}"#
            )
            .replace('\n', "")
        };
        let place = "/w/target/x86_64-unknown-linux-musl/release/turbo";
        let lines = [
            artifact("turbo", "bin", &format!("\"{place}\"")),
            artifact("other", "lib", "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        assert_eq!(built(lines.join("\n").as_bytes()).unwrap(), Some(place.into()));
        assert_eq!(built(lines[1..].join("\n").as_bytes()).unwrap(), None);
    }

    #[test]
    fn this_workspace_is_found() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.root.join("xtask").is_dir());
        assert!(workspace.crates.iter().any(|c| c.name == "xtask"));
    }
}
