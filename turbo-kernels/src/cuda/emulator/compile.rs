//! Compiles device code to a library that the processor runs.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    sync::OnceLock,
};

/// The code in front of the device code, in this order: CUDA's language as C++.
const CUDA_ON_CPU: [&str; 8] = [
    include_str!("cuda_on_cpu/fibers.h"),
    include_str!("cuda_on_cpu/block.h"),
    include_str!("cuda_on_cpu/launch.h"),
    include_str!("cuda_on_cpu/language.h"),
    include_str!("cuda_on_cpu/collectives.h"),
    include_str!("cuda_on_cpu/numbers.h"),
    include_str!("cuda_on_cpu/tensor_cores.h"),
    include_str!("cuda_on_cpu/wgmma.h"),
];

/// The compiler's flags. Kernels cast pointers between types, which CUDA's compiler allows.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O2",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wno-attributes",
];

/// Flags for instructions that not every processor has. `fmaf`, which kernels consist of, is a call to the C library
/// unless the compiler may use the instruction, which saves a third of the time of attention's tests.
fn of_processor() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return &["-mavx2", "-mfma"];
    }
    &[]
}

/// The environment variable with more flags, such as `-fsanitize=address -g`.
pub(super) const MORE_FLAGS: &str = "TURBO_EMULATOR_FLAGS";

/// A library, and the kernels that it can run.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) library: PathBuf,
    pub(super) kernels: Vec<String>,
}

/// The compiler: `$CXX`, or `c++`.
pub(super) fn compiler() -> Command {
    let mut command = Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    command.env("LC_ALL", "C").env_remove("LD_PRELOAD");
    command
}

/// The compiler's version text.
///
/// # Errors
/// When there is none.
pub(super) fn compiler_version() -> Result<&'static str, &'static str> {
    static VERSION: OnceLock<Result<String, String>> = OnceLock::new();
    let ask = || {
        let output =
            compiler().arg("--version").output().map_err(|error| format!("no C++ compiler: {error}"))?;
        said(output).map_err(|error| format!("no C++ compiler: {error}"))
    };
    VERSION.get_or_init(ask).as_deref().map_err(String::as_str)
}

/// Compiles device code, unless that has been done before.
///
/// # Errors
/// The compiler's messages.
pub(super) fn compile(name: &str, unit: &str) -> Result<Compiled, String> {
    let unit = with_dynamic_shared(unit);
    let kernels = kernels_of(&unit)?;
    let launchers: String = kernels.iter().map(|kernel| format!("TURBO_LAUNCHER({kernel})\n")).collect();
    let source = format!("{}\n#line 1 \"{name}.cu\"\n{unit}\n{launchers}", CUDA_ON_CPU.concat());
    let more = env::var(MORE_FLAGS).unwrap_or_default();
    let flags: Vec<&str> =
        FLAGS.into_iter().chain(of_processor().iter().copied()).chain(more.split_whitespace()).collect();

    let mut hasher = DefaultHasher::new();
    (&source, &flags, compiler_version()?).hash(&mut hasher);
    let failed = |error: io::Error| format!("{name}: {error}");
    let folder = folder().map_err(failed)?;
    let library = folder.join(format!("{name}-{:016x}.so", hasher.finish()));
    if !library.exists() {
        build(&folder, &library, &source, &flags)?;
    }
    Ok(Compiled { library, kernels })
}

/// The folder that keeps libraries: beside the program, which for a test is in the target folder.
fn folder() -> io::Result<PathBuf> {
    let folder = env::current_exe()?.with_file_name("cuda-on-cpu");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Builds `library`, whole or not at all: other processes may need it, too.
fn build(folder: &Path, library: &Path, source: &str, flags: &[&str]) -> Result<(), String> {
    let own = folder.join(format!("{}-{:?}.so", process::id(), std::thread::current().id()));
    let compiled = feed(compiler().args(flags).args(["-x", "c++", "-", "-o"]).arg(&own), source);
    compiled.map(drop)?;
    fs::rename(&own, library).map_err(|error| error.to_string())
}

/// The output of `command` when it is given `input`.
fn feed(command: &mut Command, input: &str) -> Result<String, String> {
    let mut run = || {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn()?;
        let mut stdin = child.stdin.take().expect("it is piped");
        // a compiler reads all of its input before it says much, so neither waits for the other
        stdin.write_all(input.as_bytes())?;
        drop(stdin);
        child.wait_with_output()
    };
    run().map_err(|error| error.to_string()).and_then(said)
}

fn said(output: Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Replaces `extern __shared__ T name[];` by C++: a pointer to the block's dynamic shared memory.
fn with_dynamic_shared(unit: &str) -> String {
    const BEGIN: &str = "extern __shared__ ";
    const END: &str = "[];";
    let mut parts = unit.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let declared = part.split_once(END).and_then(|(declared, rest)| {
            let (ty, name) = declared.trim_end().rsplit_once(' ')?;
            // a pointer need not be aligned like the values that it points to
            let ty = ty
                .strip_prefix("__align__(")
                .and_then(|aligned| aligned.split_once(") "))
                .map_or(ty, |it| it.1);
            Some((ty, name, rest))
        });
        match declared {
            Some((ty, name, rest)) => {
                out += &format!("{ty}* const {name} = static_cast<{ty}*>(dynamic_shared());{rest}");
            }
            None => out += &format!("{BEGIN}{part}"),
        }
    }
    out
}

/// The names of all `__global__` functions, with macros expanded.
fn kernels_of(unit: &str) -> Result<Vec<String>, String> {
    let text = feed(compiler().args(["-std=c++17", "-DTURBO_ON_CPU", "-x", "c++", "-E", "-P", "-"]), unit)?;
    let mut names = Vec::new();
    for behind in text.split("__global__").skip(1) {
        let mut rest = behind.trim_start();
        while let Some(after) = rest.strip_prefix("__launch_bounds__").or_else(|| rest.strip_prefix("void "))
        {
            let after = after.trim_start();
            rest = if after.starts_with('(') { behind_parenthesis(after).trim_start() } else { after };
        }
        let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        names.push(name.to_owned());
    }
    Ok(names)
}

/// The text behind the parenthesised part that `text` begins with.
fn behind_parenthesis(text: &str) -> &str {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[i + 1..];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_shared_memory_becomes_a_pointer() {
        let unit = "a\n  extern __shared__ __half2 rows[];  \\\n  extern __shared__ float (*odd)[3];";
        let want = "a\n  __half2* const rows = static_cast<__half2*>(dynamic_shared());  \\\n  \
                    extern __shared__ float (*odd)[3];";
        assert_eq!(with_dynamic_shared(unit), want);
    }

    #[test]
    fn kernels_are_found_behind_macros_and_bounds() {
        if compiler_version().is_err() {
            return;
        }
        let unit = "#define INSTANCE(T) extern \"C\" __global__ void __launch_bounds__(f(2, 3)) op_##T(T* x) {}\n\
                    INSTANCE(float) // not a __global__ one\nextern \"C\" __launch_bounds__(1)\n__global__ void last(int) {}";
        assert_eq!(kernels_of(unit).unwrap(), ["op_float", "last"]);
    }
}
