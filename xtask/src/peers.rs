//! The Python with the engines that turbo is compared with: given by the user, or made once in an ignored folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::digest::sha256_of;
use crate::process;
use crate::workspace::Workspace;

/// The variable that names a Python to use instead of making one; turbo-bench reads it too.
pub(crate) const VARIABLE: &str = "TURBO_PEERS_PYTHON";

/// The Python of `TURBO_PEERS_PYTHON`, or the one below `turbo-bench/peers`, made first if its requirements changed.
///
/// # Errors
/// When the given one does not start, or making one fails.
pub(crate) fn python(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        let given = PathBuf::from(given);
        let version = Command::new(&given).arg("--version").output();
        let version =
            version.with_context(|| format!("{VARIABLE}={}: it does not start", given.display()))?;
        if !version.status.success() {
            bail!("{VARIABLE}={}: it is no Python", given.display());
        }
        return Ok(given);
    }
    let peers = workspace.root.join("turbo-bench/peers");
    let (home, setup) = (peers.join(".peers"), peers.join("setup.sh"));
    // These two files determine what is installed.
    let wanted = format!("{} {}\n", sha256_of(&peers.join("requirements.txt"))?, sha256_of(&setup)?);
    let (stamp, python) = (home.join("installed"), home.join("venv/bin/python"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && python.exists() {
        return Ok(python);
    }
    eprintln!("installing the other engines into {} (once, some minutes)", workspace.display(&home));
    let mut install = Command::new("bash");
    process::run(install.arg(&setup).env("PEERS_HOME", &home)).with_context(|| {
        format!("cannot install the other engines; {VARIABLE} can name a Python that has what requirements.txt lists")
    })?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
