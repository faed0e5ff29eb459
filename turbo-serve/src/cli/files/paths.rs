//! What the files of a command are on the disk: whether they are the same, and whether one has changed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Result, bail};

/// Refuses an output that would take the place of its own input.
///
/// # Errors
/// When they are the same file, or the input is a part of the output's folder.
pub(super) fn check_apart(input: &str, output: &str) -> Result<()> {
    let (Ok(from), Ok(to)) = (fs::canonicalize(input), fs::canonicalize(output)) else { return Ok(()) };
    // What is no file, such as /dev/null, can be both.
    if from.is_file() && (is_same(&from, &to) || from.parent() == Some(&to)) {
        bail!("{output}: it is the input {input}, too: choose another file");
    }
    Ok(())
}

/// Whether two existing paths lead to one file, by another name even.
fn is_same(one: &PathBuf, other: &PathBuf) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if let (Ok(one), Ok(other)) = (fs::metadata(one), fs::metadata(other)) {
            return (one.dev(), one.ino()) == (other.dev(), other.ino());
        }
    }
    one == other
}

/// Refuses to leave a complete `output` as it is where the input has changed since it was written.
///
/// # Errors
/// When the input's time of change is the later one.
pub(super) fn check_complete(input: &str, output: &str) -> Result<()> {
    // A pipe changes whenever somebody writes into it.
    if !Path::new(input).is_file() {
        return Ok(());
    }
    let changed = |path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let (Ok(input_at), Ok(output_at)) = (changed(input), changed(output)) else { return Ok(()) };
    if input_at > output_at {
        bail!("{output} is complete, and {input} has changed since: pass --overwrite to begin anew");
    }
    Ok(())
}

/// What changes where the content of `input` does; nothing of what is no file.
pub(super) fn state(input: &str) -> Vec<(String, String)> {
    let Some(metadata) = fs::metadata(Path::new(input)).ok().filter(fs::Metadata::is_file) else {
        return Vec::new();
    };
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let size = ("size of the input".to_owned(), format!("{} bytes", metadata.len()));
    let changed = changed.map(|since| {
        ("input's time of change".to_owned(), format!("{}.{:09}", since.as_secs(), since.subsec_nanos()))
    });
    [size].into_iter().chain(changed).collect()
}
