//! Signals in the middle of a run, and `--resume`.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::{
    command::{Done, run, run_with_input, signal_at, signal_in_vain_at, turbo},
    contents, model, texts,
};

struct Files {
    folder: tempfile::TempDir,
    input: String,
}

impl Files {
    fn new(count: usize) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), input: texts(count) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The command from a pipe to a file.
    fn embed(&self, output: &str, more: &[&str]) -> Command {
        let output = self.path(output);
        // Small batches, so that an interrupted run has many windows behind it.
        let size = if more.iter().any(|flag| flag.contains("batch")) { "" } else { "--max-batch-tokens=512" };
        let files = [PIPE[0], PIPE[1], output.to_str().unwrap(), size];
        let files = &files[..if size.is_empty() { 3 } else { 4 }];
        turbo("embed", &model("tiny-sentence"), &[files, more].concat())
    }

    fn run(&self, output: &str, more: &[&str]) -> Done {
        run_with_input(self.embed(output, more), self.input.as_bytes())
    }
}

/// The pipe from the test, by a name: a run whose input has no name cannot be resumed.
const PIPE: [&str; 2] = ["/dev/stdin", "--input-format=text"];

/// Rows of a sound array of numpy with 32 columns.
fn npy_rows(file: &Path) -> usize {
    let bytes = fs::read(file).unwrap();
    let header = String::from_utf8_lossy(&bytes[..128]).into_owned();
    let rows = header.split("'shape': (").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let rows: usize = rows.parse().unwrap();
    assert_eq!(bytes.len(), 128 + rows * 32 * 4, "{header}");
    rows
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bytes() {
    // Formats are written to the disk in different pieces: buffers, and parts of ten thousand rows.
    for (format, count, first_bytes) in
        [("jsonl", 2000, 300_000), ("npy", 4000, 200_000), ("parquet", 11_000, 1000)]
    {
        let files = Files::new(count);
        let (whole, parts) = (format!("whole.{format}"), format!("parts.{format}"));
        assert_eq!(files.run(&whole, &["--quiet"]), (Some(0), String::new(), String::new()));
        let output = files.path(&parts);
        let unfinished = files.path(&format!("{parts}.unfinished"));
        let (code, _, said) = signal_at(files.embed(&parts, &[]), &files.input, "INT", &output, first_bytes);
        assert_eq!(code, Some(130), "{said}");
        assert!(said.starts_with("interrupted after ") && said.ends_with(" with --resume\n"), "{said}");
        assert!(unfinished.exists());
        match format {
            "jsonl" => {
                let text = fs::read_to_string(&output).unwrap();
                let whole_lines =
                    text.lines().all(|line| line.starts_with("{\"index\":") && line.ends_with("]}"));
                assert!(whole_lines && text.ends_with('\n') && text.lines().count() < count);
            }
            "npy" => assert!((1..count).contains(&npy_rows(&output))),
            _ => assert!(contents(&output).keys().all(|name| name.ends_with(".parquet"))),
        }
        // Without a flag that says how to go on it does nothing, nor with vectors of another model.
        let (code, _, said) = files.run(&parts, &[]);
        assert_eq!(code, Some(1));
        assert!(said.contains("is unfinished: pass --resume to continue it, or --overwrite"), "{said}");
        let (code, _, said) = files.run(&parts, &["--resume", "--pooling=cls"]);
        assert_eq!(code, Some(1));
        assert!(said.contains("was begun with --pooling mean, not cls: go on"), "{said}");
        let (code, _, said) = files.run(&parts, &["--resume", "--prompt=q"]);
        assert!(code == Some(1) && said.contains("was begun with --prompt \"\", not q: go on"), "{said}");

        let (code, _, said) = files.run(&parts, &["--resume"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.starts_with(&format!("{count} rows, ")), "{said}");
        assert!(contents(&files.path(&whole)) == contents(&output), "{format}: other bytes");
        assert!(!unfinished.exists());
        let (code, _, said) = files.run(&parts, &["--resume"]);
        assert_eq!((code, said.contains("is complete: nothing to resume (")), (Some(0), true), "{said}");
    }
}

#[test]
fn an_interrupted_run_that_replaces_does_not_begin_anew() {
    let files = Files::new(2000);
    assert_eq!(files.run("whole.jsonl", &["--quiet"]).0, Some(0));
    let output = files.path("out.jsonl");
    fs::write(&output, "{}\n").unwrap();
    let embed = files.embed("out.jsonl", &["--overwrite"]);
    let (code, _, said) = signal_at(embed, &files.input, "INT", &output, 300_000);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.ends_with(" with --resume in place of --overwrite\n"), "{said}");
    assert!(files.path("out.jsonl.unfinished").exists());
    let begun = fs::read(&output).unwrap();
    assert!(begun.len() >= 300_000 && !begun.starts_with(b"{}"));

    let (code, _, said) = files.run("out.jsonl", &["--resume"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(contents(&files.path("whole.jsonl")) == contents(&output));
    assert!(!files.path("out.jsonl.unfinished").exists());
}

#[test]
fn a_killed_run_goes_on_to_the_same_bytes() {
    for (format, count, first_bytes) in [("jsonl", 2000, 300_000), ("npy", 4000, 200_000)] {
        let files = Files::new(count);
        let (whole, parts) = (format!("whole.{format}"), format!("parts.{format}"));
        assert_eq!(files.run(&whole, &["--quiet"]).0, Some(0));
        let output = files.path(&parts);
        let killed = signal_at(files.embed(&parts, &[]), &files.input, "KILL", &output, first_bytes);
        assert_eq!(killed.0, None);
        assert_eq!(files.run(&parts, &["--resume", "--quiet"]).0, Some(0));
        assert!(contents(&files.path(&whole)) == contents(&output), "{format}: other bytes");
    }
}

/// As under `nohup`.
#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let files = Files::new(2000);
    let output = files.path("out.jsonl");
    let embed = files.embed("out.jsonl", &["--quiet"]);
    let mut deaf = Command::new("sh");
    deaf.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(embed.get_program()).args(embed.get_args());
    deaf.env_clear().env("HF_HUB_OFFLINE", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, _, said) = signal_in_vain_at(deaf, &files.input, "HUP", &output, 300_000);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 2000);
}

/// Threads, batches and other texts in a batch change no bit of an answer.
#[cfg(unix)]
#[test]
fn a_limit_on_the_length_of_files_is_an_error() {
    let files = Files::new(400);
    let turbo = files.embed("rows.npy", &["--packed-cache=off"]);
    let mut shell = Command::new("sh");
    shell.env_clear().envs(turbo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.args(["-c", "ulimit -f 16; exec \"$0\" \"$@\""]).arg(turbo.get_program()).args(turbo.get_args());
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, _, said) = run_with_input(shell, files.input.as_bytes());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rows.npy: File too large"), "{said}");
}

#[test]
fn the_bytes_do_not_depend_on_batches_or_threads() {
    let files = Files::new(500);
    assert_eq!(files.run("a.npy", &["--quiet", "--threads=1"]).0, Some(0));
    let other = ["--quiet", "--threads=2", "--tokenization-workers=3", "--max-batch-tokens=200"];
    assert_eq!(files.run("b.npy", &other).0, Some(0));
    assert!(contents(&files.path("a.npy")) == contents(&files.path("b.npy")));
}

#[test]
fn an_input_that_has_changed_is_not_gone_on_with() {
    let files = Files::new(0);
    let (input, output) = (files.path("in.txt"), files.path("out.jsonl"));
    let text = texts(20_000);
    fs::write(&input, &text).unwrap();
    let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
    let embed = |flag| turbo("embed", &model("tiny-sentence"), &[&paths[..], &[flag]].concat());
    let (code, _, said) = signal_at(embed("--max-batch-tokens=512"), "", "INT", &output, 300_000);
    assert_eq!(code, Some(130), "{said}");
    let begun = contents(&output);
    fs::write(&input, format!("one more\n{text}")).unwrap();
    let (code, _, said) = run(embed("--resume"));
    assert_eq!(code, Some(1));
    assert!(said.contains("was begun with") && said.contains("input"), "{said}");
    assert!(contents(&output) == begun);
}

#[test]
fn an_input_that_is_read_as_another_format_is_not_gone_on_with() {
    let files = Files::new(0);
    let (input, output) = (files.path("in.jsonl"), files.path("out.jsonl"));
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    fs::write(&input, texts(20_000).lines().map(line).collect::<String>()).unwrap();
    let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
    let embed = |flags: &[&str]| turbo("embed", &model("tiny-sentence"), &[&paths, flags].concat());
    let as_text = embed(&["--input-format=text", "--max-batch-tokens=512"]);
    let (code, _, said) = signal_at(as_text, "", "INT", &output, 300_000);
    assert_eq!(code, Some(130), "{said}");
    let begun = contents(&output);
    let (code, _, said) = run(embed(&["--resume"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("was begun with --input-format text, not jsonl: go on with the same"), "{said}");
    assert!(contents(&output) == begun);
}

#[test]
fn a_model_that_has_changed_is_not_gone_on_with() {
    let files = Files::new(2000);
    let (folder, output) = (files.path("model"), files.path("out.jsonl"));
    copy(&model("tiny-sentence"), &folder);
    let embed = |flags: &[&str]| {
        let output = [output.to_str().unwrap(), "--max-batch-tokens=512"];
        turbo("embed", &folder, &[&PIPE, &output, flags].concat())
    };
    let (code, _, said) = signal_at(embed(&[]), &files.input, "INT", &output, 300_000);
    assert_eq!(code, Some(130), "{said}");
    let begun = contents(&output);
    // As after more training: other values in as many bytes.
    let weights = folder.join("model.safetensors");
    let mut values = fs::read(&weights).unwrap();
    *values.last_mut().unwrap() ^= 0x80;
    fs::write(&weights, values).unwrap();
    let (code, _, said) = run_with_input(embed(&["--resume"]), files.input.as_bytes());
    assert_eq!(code, Some(1));
    assert!(said.contains("was begun with the model's model.safetensors ("), "{said}");
    assert!(contents(&output) == begun);
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { fs::copy(&from, &to).map(drop).unwrap() }
    }
}

#[test]
fn a_complete_output_of_an_input_that_has_changed_is_told() {
    let files = Files::new(0);
    let (input, output) = (files.path("in.txt"), files.path("out.jsonl"));
    fs::write(&input, texts(3)).unwrap();
    let embed = || {
        run(turbo(
            "embed",
            &model("tiny-sentence"),
            &[input.to_str().unwrap(), output.to_str().unwrap(), "--resume"],
        ))
    };
    assert_eq!(embed().0, Some(0));
    let (code, _, said) = embed();
    assert!(code == Some(0) && said.contains("is complete: nothing to resume"), "{said}");
    let complete = contents(&output);
    fs::write(&input, texts(4)).unwrap();
    let later = fs::metadata(&output).unwrap().modified().unwrap() + Duration::from_secs(1);
    fs::File::options().write(true).open(&input).unwrap().set_modified(later).unwrap();
    let (code, _, said) = embed();
    assert!(code == Some(1) && said.contains("has changed since: pass --overwrite"), "{said}");
    assert!(contents(&output) == complete);
}

/// The model was trained further, or replaced by another one.
#[test]
fn a_complete_output_of_a_model_that_has_changed_is_told() {
    let files = Files::new(3);
    let (folder, output) = (files.path("model"), files.path("out.jsonl"));
    copy(&model("tiny-sentence"), &folder);
    let embed = || {
        let output = [output.to_str().unwrap(), "--resume"];
        let command = turbo("embed", &folder, &[PIPE, output].concat());
        run_with_input(command, files.input.as_bytes())
    };
    assert_eq!(embed().0, Some(0));
    let (code, _, said) = embed();
    assert!(code == Some(0) && said.contains("--overwrite if the model or the flags have changed"), "{said}");
    let complete = contents(&output);
    let later = fs::metadata(&output).unwrap().modified().unwrap() + Duration::from_secs(1);
    let weights = fs::File::options().write(true).open(folder.join("model.safetensors"));
    weights.unwrap().set_modified(later).unwrap();
    let (code, _, said) = embed();
    assert!(
        code == Some(1) && said.contains("model.safetensors has changed since: pass --overwrite"),
        "{said}"
    );
    assert!(contents(&output) == complete);
}

/// Nothing shows that standard input is still the same.
#[test]
fn standard_input_is_not_gone_on_with() {
    let files = Files::new(2000);
    let output = files.path("out.jsonl");
    let embed = |flags: &[&str]| {
        let files = ["-", output.to_str().unwrap(), "--max-batch-tokens=512"];
        turbo("embed", &model("tiny-sentence"), &[&files, flags].concat())
    };
    for flags in [&[][..], &["--overwrite"]] {
        let (code, _, said) = signal_at(embed(flags), &files.input, "INT", &output, 300_000);
        assert_eq!(code, Some(130), "{said}");
        assert!(said.ends_with(": pass --overwrite to start over\n"), "{said}");
    }
    let begun = contents(&output);
    let (code, _, said) = run_with_input(embed(&[]), files.input.as_bytes());
    assert_eq!(code, Some(1));
    assert!(said.ends_with("is unfinished: pass --overwrite to start over\n"), "{said}");
    let (code, _, said) = run_with_input(embed(&["--resume"]), files.input.as_bytes());
    assert_eq!(code, Some(1));
    assert!(said.contains("--resume: standard input ") && said.contains("into a file"), "{said}");
    assert!(contents(&output) == begun);
}

#[test]
fn an_input_that_ends_before_what_was_written_is_another_one() {
    let files = Files::new(2000);
    let output = files.path("out.jsonl");
    let (code, _, said) = signal_at(files.embed("out.jsonl", &[]), &files.input, "INT", &output, 300_000);
    assert_eq!(code, Some(130), "{said}");
    let begun = contents(&output);
    let short = files.embed("out.jsonl", &["--resume"]);
    let (code, _, said) = run_with_input(short, b"one\ntwo\n");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/dev/stdin: it ends after 2 rows, but "), "{said}");
    assert!(contents(&output) == begun);
    assert!(files.path("out.jsonl.unfinished").exists());
}

/// A pipe's metadata change whenever it is written to.
#[test]
fn a_complete_output_of_a_pipe_is_complete() {
    let files = Files::new(3);
    let (pipe, output) = (files.path("pipe"), files.path("out.jsonl"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let paths = [pipe.to_str().unwrap(), output.to_str().unwrap(), "--input-format=text", "--resume"];
    for said_so in ["3 rows, ", "is complete: nothing to resume"] {
        let (pipe, input) = (pipe.clone(), files.input.clone());
        // The second run does not read the pipe, for the output is complete, so this may fail.
        let writer = thread::spawn(move || drop(fs::write(pipe, input)));
        let (code, _, said) = run(turbo("embed", &model("tiny-sentence"), &paths));
        assert!(code == Some(0) && said.contains(said_so), "{said}");
        writer.join().unwrap();
    }
}
