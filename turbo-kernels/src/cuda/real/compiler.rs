//! Compiles CUDA C++ to machine code of one GPU with NVRTC, which takes up to some seconds a file.

use std::{ffi::CString, ptr};

use super::{nvrtc, unavailable::Version};

/// The options for every file, besides its architecture. NVRTC has no folder of headers, and the kernels need none.
const OPTIONS: [&str; 1] = ["--std=c++17"];
/// The same, with the kernels of a file divided among all processors; newer versions of NVRTC know this option.
const OPTIONS_FROM_13: [&str; 2] = ["--std=c++17", "--split-compile=0"];

/// GPUs whose kernels use instructions that no other GPU has, so that no other GPU runs their code: `sm_90a`.
const HOPPER: (u32, u32) = (9, 0);

/// NVRTC for one kind of GPU.
#[derive(Clone, Debug)]
pub(super) struct Compiler {
    /// `sm_80`.
    architecture: String,
    version: Version,
}

impl Compiler {
    /// A compiler for GPUs of `capability`; `None` when NVRTC supports no architecture whose code they run.
    ///
    /// `version` is NVRTC's own, from the gate, which must have passed.
    pub(super) fn new(capability: (u32, u32), version: Version) -> Option<Self> {
        let architecture = architecture(capability, &supported())?;
        let own = if capability == HOPPER { "a" } else { "" };
        Some(Self { architecture: format!("sm_{architecture}{own}"), version })
    }

    /// Everything besides the source that the machine code depends on.
    pub(super) fn identity(&self) -> String {
        format!("nvrtc {} {} {}", self.version, self.architecture, self.options().join(" "))
    }

    fn options(&self) -> &'static [&'static str] {
        if self.version.major >= 13 { &OPTIONS_FROM_13 } else { &OPTIONS }
    }

    /// The architecture that the compiler targets: `sm_80`.
    pub(super) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Compiles `source` to machine code, a cubin.
    ///
    /// # Errors
    /// NVRTC's messages about the source.
    pub(super) fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
        let program = Program::new(source)?;
        let architecture = format!("--gpu-architecture={}", self.architecture);
        let options = [architecture.as_str()].into_iter().chain(self.options().iter().copied());
        let options: Vec<_> =
            options.map(|option| CString::new(option).expect("options have no zeros")).collect();
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is NVRTC's, and `pointers` point to the stated number of strings, which outlive the call.
        let answer =
            unsafe { nvrtc::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
        check(answer).map_err(|error| format!("{error}\n{}", program.log()))?;
        // SAFETY: both functions belong together: the first returns the number of bytes that the second writes.
        unsafe { program.text(nvrtc::nvrtcGetCUBINSize, nvrtc::nvrtcGetCUBIN) }
    }
}

/// The architectures of Jetsons, whose code other GPUs of the same major number need not run.
const JETSONS: [u32; 3] = [72, 87, 101];

/// The architecture whose machine code a GPU of `capability` runs best: among the `known` ones, its own, or else the
/// greatest below it with the same major number.
fn architecture((major, minor): (u32, u32), known: &[u32]) -> Option<u32> {
    let wanted = major * 10 + minor;
    let runs =
        |known: &u32| *known == wanted || known / 10 == major && *known < wanted && !JETSONS.contains(known);
    known.iter().copied().filter(runs).max()
}

/// The architectures that NVRTC supports: 90 is `sm_90`. Empty if NVRTC fails to answer.
fn supported() -> Vec<u32> {
    let mut count = 0;
    // SAFETY: writes one number.
    if unsafe { nvrtc::nvrtcGetNumSupportedArchs(&mut count) }.result().is_err() {
        return Vec::new();
    }
    let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: writes as many numbers as NVRTC reported before.
    match unsafe { nvrtc::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) }.result() {
        Ok(()) => architectures.into_iter().map(i32::unsigned_abs).collect(),
        Err(_) => Vec::new(),
    }
}

/// Converts a status of NVRTC; an error becomes its name.
fn check(answer: nvrtc::nvrtcResult) -> Result<(), String> {
    answer.result().map_err(|error| format!("{:?}", error.0))
}

/// Source that NVRTC compiles.
struct Program(nvrtc::nvrtcProgram);

/// A function of NVRTC that returns the number of bytes that another one writes.
type SizeOf = unsafe fn(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
/// A function of NVRTC that writes those bytes.
type Write = unsafe fn(nvrtc::nvrtcProgram, *mut std::ffi::c_char) -> nvrtc::nvrtcResult;

impl Program {
    fn new(source: &str) -> Result<Self, String> {
        let source = CString::new(source).map_err(|_| "the source has a zero".to_owned())?;
        let mut program = ptr::null_mut();
        // SAFETY: the source is a string that NVRTC copies; there are no headers, so no list of them is read.
        let answer = unsafe {
            nvrtc::nvrtcCreateProgram(&mut program, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null())
        };
        check(answer).map(|()| Self(program))
    }

    /// NVRTC's messages about the program, if any.
    fn log(&self) -> String {
        // SAFETY: both functions belong together, as above.
        let log = unsafe { self.text(nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog) };
        String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches(['\0', '\n']).to_owned()
    }

    /// The bytes that `write` writes.
    ///
    /// # Safety
    /// `write` writes as many bytes as `size_of` reports.
    unsafe fn text(&self, size_of: SizeOf, write: Write) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is one of NVRTC's; one number is written.
        check(unsafe { size_of(self.0, &mut bytes) })?;
        let mut text = vec![0; bytes];
        // SAFETY: the caller's promise: `text` has room for all.
        check(unsafe { write(self.0, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program came from `nvrtcCreateProgram` and is destroyed once.
        unsafe { nvrtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_runs_code_of_its_major_number() {
        let known = [75, 80, 86, 87, 89, 90, 100, 101, 120];
        for (capability, expected) in [
            ((8, 0), Some(80)),
            ((8, 6), Some(86)),
            ((8, 7), Some(87)),
            ((8, 8), Some(86)),
            ((9, 0), Some(90)),
            ((10, 0), Some(100)),
            ((10, 1), Some(101)),
            ((10, 3), Some(100)),
            ((11, 0), None),
            ((7, 0), None),
        ] {
            assert_eq!(architecture(capability, &known), expected, "{capability:?}");
        }
        assert_eq!(architecture((9, 0), &[]), None);
    }
}
