//! What the files of a command are on the disk: whether they are the same, and whether one has changed.

use std::{
    fs::{self, Metadata},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use turbo_serve::files::write::MadeFrom;

/// Refuses an output that would take the place of its own input.
///
/// # Errors
/// When they are the same file, or the input is a part of the output's folder.
pub(super) fn check_apart(input: &str, output: &str) -> Result<()> {
    let (Ok(from), Ok(to)) = (fs::canonicalize(input), fs::canonicalize(output)) else { return Ok(()) };
    // What is no file, such as /dev/null, can be both.
    if from.is_file() && (is_same(&from, &to) || from.parent() == Some(&to)) {
        bail!("{output}: it is the input {input} as well: choose another file");
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

/// Refuses to leave a complete `output` as it is where the input, or the model in `folder`, has changed since it was
/// written.
///
/// # Errors
/// When the time of change of the input, or of a file that the model is read from, is the later one.
pub(super) fn check_complete(input: &str, folder: Option<&Path>, output: &str) -> Result<()> {
    let changed = |metadata: Metadata| metadata.modified().ok();
    let Some(output_at) = fs::metadata(output).ok().and_then(changed) else { return Ok(()) };
    // A pipe changes with every write into it.
    let input =
        fs::metadata(input).ok().filter(Metadata::is_file).map(|of_input| (PathBuf::from(input), of_input));
    let of_model = folder.into_iter().flat_map(|folder| {
        model_files(folder).into_iter().map(move |(name, metadata)| (folder.join(name), metadata))
    });
    let later = |(_, metadata): &(PathBuf, Metadata)| changed(metadata.clone()) > Some(output_at);
    if let Some((file, _)) = input.into_iter().chain(of_model).find(later) {
        let file = file.display();
        bail!("{output} is complete, but {file} has changed since: pass --overwrite to start over");
    }
    Ok(())
}

/// What changes where the content of the input does; `opened` is what the system said of it when it was opened.
pub(super) fn input_state(opened: &Metadata) -> MadeFrom {
    let size = ("size of the input".to_owned(), format!("{} bytes", opened.len()));
    let changed = changed(opened).map(|at| ("input's time of change".to_owned(), at));
    [size].into_iter().chain(changed).collect()
}

/// Ends of the names of files that models are read from.
const MODEL_ENDS: [&str; 4] = ["jinja", "json", "safetensors", "txt"];

/// What changes where a file of the model in `folder` does, or one of its modules'. Sizes and times: a digest of the
/// weights would tell more, and has to read them all.
pub(super) fn model_state(folder: &Path) -> MadeFrom {
    let state = |(name, metadata): (PathBuf, Metadata)| {
        let changed = changed(&metadata).map(|at| format!(", changed {at} s after 1970"));
        let size_and_time = format!("({} bytes{})", metadata.len(), changed.unwrap_or_default());
        (format!("the model's {}", name.display()), size_and_time)
    };
    model_files(folder).into_iter().map(state).collect()
}

/// The files that the model in `folder` is read from, by their names below it, and what the system says of each.
fn model_files(folder: &Path) -> Vec<(PathBuf, Metadata)> {
    let listed = fs::read(folder.join("modules.json")).ok();
    let listed = listed.and_then(|list| serde_json::from_slice::<Value>(&list).ok());
    // The one module that needs no list.
    let listed = listed.unwrap_or_else(|| json!([{ "path": "1_Pooling" }]));
    let modules = listed.as_array().into_iter().flatten().filter_map(|module| module["path"].as_str());
    let mut files = Vec::new();
    for module in modules.chain([""]) {
        // A module without anything to configure may have no folder.
        for entry in fs::read_dir(folder.join(module)).into_iter().flatten().flatten() {
            let name = Path::new(module).join(entry.file_name());
            let end = name.extension().and_then(|end| end.to_str()).unwrap_or_default();
            // What a link leads to.
            let metadata = fs::metadata(entry.path()).ok().filter(Metadata::is_file);
            if let Some(metadata) = metadata.filter(|_| MODEL_ENDS.contains(&end)) {
                files.push((name, metadata));
            }
        }
    }
    files
}

/// When a file was last changed, in seconds after 1970, where the system knows.
fn changed(metadata: &Metadata) -> Option<String> {
    let since = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{}.{:09}", since.as_secs(), since.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_state_of_a_model_is_of_the_files_that_it_is_read_from() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        };
        for name in ["config.json", "README.md", "checkpoint-5/model.safetensors", "1_Pooling/config.json"] {
            write(name, "1");
        }
        write("2_Dense/model.safetensors", "12");
        write("chat_template.jinja", "x");
        let names = || model_state(folder.path()).into_keys().collect::<Vec<_>>();
        let template = "the model's chat_template.jinja";
        assert_eq!(names(), ["the model's 1_Pooling/config.json", template, "the model's config.json"]);
        write("modules.json", r#"[{"path": ""}, {"path": "2_Dense"}, {"path": "3_Normalize"}]"#);
        let weights = "the model's 2_Dense/model.safetensors";
        assert_eq!(names(), [weights, template, "the model's config.json", "the model's modules.json"]);

        // Trained once more: no other size, but another time.
        let file = fs::File::options().write(true).open(folder.path().join("2_Dense/model.safetensors"));
        file.unwrap().set_modified(UNIX_EPOCH + Duration::from_nanos(1_500_000_000)).unwrap();
        assert_eq!(model_state(folder.path())[weights], "(2 bytes, changed 1.500000000 s after 1970)");
    }
}
