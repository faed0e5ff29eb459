//! Memory does not grow with the file.

use std::{fs, io::Write, process::Stdio};

use crate::{command::turbo, model};

/// The most memory that embedding this many lines from standard input takes at any time, in KiB.
#[cfg(target_os = "linux")]
fn peak_kib(lines: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.npy");
    let arguments = ["-", output.to_str().unwrap(), "--quiet", "--threads=1"];
    let mut child =
        turbo("embed", &model("tiny-sentence"), &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let texts: String = (0..lines).map(|line| format!("the cat {line}\n")).collect();
    stdin.write_all(texts.as_bytes()).unwrap();
    // It still waits for more input, so its memory can be read; at most a window and the queues are not processed yet.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::metadata(&output).unwrap().len() as usize, 128 + lines * 32 * 4);
    peak
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_ten_times_as_long_takes_no_more_memory() {
    // What allocators keep grows by some MiB at first, for ten thousand lines and more.
    let (short, long) = (peak_kib(30_000), peak_kib(300_000));
    // It also varies by a few MiB; the vectors of the other lines alone would take 33 MiB.
    assert!(long < short + 6 * 1024, "{short} KiB, then {long} KiB");
}
