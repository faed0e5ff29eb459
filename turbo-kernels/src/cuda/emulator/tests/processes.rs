//! The same tests in separate processes, with device code compiled differently.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Order, Program, Rig};
use crate::cuda::{
    Module,
    emulator::compile::{MORE_FLAGS, compiler},
};

static MODULE: Module = Module { name: "sanitized", source: include_str!("sanitized.cu") };

/// Runs tests of this program in a child process with other flags. `None` in such a child.
fn run_tests(filters: &[&str], flags: &str, preload: Option<&Path>) -> Option<(bool, String)> {
    if env::var_os(MORE_FLAGS).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(filters).env(MORE_FLAGS, flags).env("ASAN_OPTIONS", "detect_leaks=0");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// Whether a child reports that tests of each filter ran and all passed: a filter without matches goes unreported.
fn all_passed(filters: &[&str], text: &str) -> bool {
    text.contains("test result: ok") && filters.iter().all(|filter| text.contains(filter))
}

/// AddressSanitizer's library, which has to be loaded before anything else.
fn sanitizer() -> Option<PathBuf> {
    Rig::new(Order::Forward)?;
    let output = compiler().arg("-print-file-name=libasan.so").output().unwrap();
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    if path.is_absolute() {
        return Some(path);
    }
    let required = env::var_os("TURBO_REQUIRE_EMULATOR").is_some_and(|value| value == "1");
    assert!(!required, "TURBO_REQUIRE_EMULATOR=1, and there is no libasan");
    println!("skipped: the compiler has no libasan.so");
    None
}

/// The lowest optimisation level that is fast enough, since the sanitizer's code takes the compiler time.
const SANITIZE: &str = "-fsanitize=address -O1 -g1";

#[test]
fn fibers_switch_on_other_processors_too() {
    if Rig::new(Order::Forward).is_none() {
        return;
    }
    let filters = ["cuda::emulator::tests::collectives"];
    let Some((passed, text)) = run_tests(&filters, "-DTURBO_UCONTEXT", None) else { return };
    assert!(passed && all_passed(&filters, &text), "{text}");
}

#[test]
fn kernels_touch_nothing_beside_their_views() {
    let Some(library) = sanitizer() else { return };
    // all families take minutes, so they run only where nothing may be left out
    let families = env::var_os("TURBO_REQUIRE_EMULATOR").is_some_and(|value| value == "1");
    let own = ["cuda::emulator::tests::collectives", "cuda::emulator::tests::tensor_cores"];
    let filters = if families { &["cuda::tests", own[0], own[1]][..] } else { &own };
    let Some((passed, text)) = run_tests(filters, SANITIZE, Some(&library)) else { return };
    assert!(passed && all_passed(filters, &text), "{text}");
}

/// Each of these runs in a process that ends when the sanitizer finds the kernel's mistake.
#[test]
fn a_touch_beside_a_view_is_found() {
    let Some(library) = sanitizer() else { return };
    for (name, says) in [
        ("reads_behind_its_allocation", "heap-buffer-overflow"),
        ("reads_behind_its_view", "use-after-poison"),
        ("writes_before_its_view", "use-after-poison"),
        ("reads_behind_shared", "heap-buffer-overflow"),
    ] {
        let test = format!("cuda::emulator::tests::processes::{name}");
        let Some((passed, text)) = run_tests(&[&test, "--exact"], SANITIZE, Some(&library)) else { return };
        let found = !passed && text.contains(says) && text.contains(&format!("in {name}"));
        assert!(found && text.contains("sanitized.cu"), "{name}: {text}");
    }
}

/// Runs a kernel on 100 of 150 values, `first` values from the start, in a process under the sanitizer alone.
fn run_wrong(name: &'static str, first: usize) {
    if env::var(MORE_FLAGS).is_ok_and(|flags| flags.contains("address")) {
        let Some(mut rig) = Rig::new(Order::Forward) else { return };
        let program = Program::new(&MODULE, name, 32).shared_bytes(128);
        let result = rig.run_on_part(program, &[1; 150], first..first + 100);
        panic!("nobody found it: {result:?}");
    }
}

#[test]
fn reads_behind_its_allocation() {
    run_wrong("reads_behind_its_allocation", 50);
}

#[test]
fn reads_behind_its_view() {
    run_wrong("reads_behind_its_view", 30);
}

#[test]
fn writes_before_its_view() {
    run_wrong("writes_before_its_view", 30);
}

#[test]
fn reads_behind_shared() {
    run_wrong("reads_behind_shared", 30);
}
