//! Makes the packages as `cargo publish` would, and checks that the contents of the archives build.
//!
//! `cargo package` can build the archives itself, but it uses a registry of its own whose unpacked sources stay in
//! `CARGO_HOME`, under the path of the checkout and the version. Another checkout at the same path and version would
//! get the older sources. So the archives are unpacked into a workspace like ours and checked there, which also reuses
//! the dependencies that are built already.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::{Crate, Workspace};

/// Makes every package's archive. With `build`, checks that each package compiles from the contents of its archive.
///
/// # Errors
/// When an archive cannot be made, or lacks a file that its crate needs.
pub(crate) fn run(workspace: &Workspace, build: bool) -> Result<()> {
    let package = ["package", "--quiet", "--workspace", "--allow-dirty", "--no-verify"];
    process::run(workspace.cargo().args(package))?;
    if build {
        let beside = workspace.target.join("packages");
        unpack(workspace, &beside)?;
        process::run(&mut check(workspace, &beside))?;
    }
    Ok(())
}

/// Makes a workspace at `beside` whose members are the unpacked archives.
fn unpack(workspace: &Workspace, beside: &Path) -> Result<()> {
    if beside.exists() {
        fs::remove_dir_all(beside).with_context(|| format!("cannot empty {}", beside.display()))?;
    }
    fs::create_dir_all(beside)?;
    for name in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(workspace.root.join(name), beside.join(name))
            .with_context(|| format!("cannot copy {name}"))?;
    }
    for Crate { name, version, .. } in &workspace.crates {
        let folder = beside.join(name);
        fs::create_dir(&folder)?;
        let archive = workspace.target.join("package").join(format!("{name}-{version}.crate"));
        let mut tar = Command::new("tar");
        // `m` sets no times from the archive: there all files have one age, and cargo would take yesterday's build for
        // today's.
        tar.args(["--strip-components=1", "-xmzf"]).arg(archive).arg("-C").arg(folder);
        process::run(&mut tar)?;
    }
    Ok(())
}

/// A command that checks all members of `beside`. A package in an archive names the others by version; the patches make
/// these names mean the folders beside it.
fn check(workspace: &Workspace, beside: &Path) -> Command {
    let mut check = workspace.cargo();
    check
        .current_dir(beside)
        .args(["check", "--quiet", "--workspace"])
        .env("CARGO_TARGET_DIR", &workspace.target);
    for Crate { name, .. } in &workspace.crates {
        check.args(["--config", &format!("patch.crates-io.{name}.path='{name}'")]);
    }
    check
}
