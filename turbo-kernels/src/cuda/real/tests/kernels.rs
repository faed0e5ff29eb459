//! Kernels: compiled once for all processes, found once, launched with the memory that they request.

use std::fs;

use super::{SHAPE, add, download, free, kernel, on_a_gpu};
use crate::cuda::{
    Driver, Kernel, LaunchShape, Module,
    real::{
        Gpu,
        fake::{Fakes, apart, compiled, said, twice_apart},
    },
};

#[test]
fn kernels_are_compiled_and_found_once() {
    on_a_gpu(kernels_are_compiled_and_found_once, &[], |gpu| {
        static WRONG: Module = Module { name: "wrong", source: "mistake" };
        let block = gpu.allocate(400).unwrap();
        for _ in 0..2 {
            let mut stream = gpu.stream().unwrap();
            for _ in 0..2 {
                add(&mut *stream, block, 1, 100).unwrap();
            }
        }
        assert_eq!(compiled(), 1);
        let launched = "launched add_u32 2 3 1 by 64 with 0\n".repeat(4);
        assert_eq!(said(), format!("found add_u32\n{launched}"));

        let mut stream = gpu.stream().unwrap();
        let mut launch = |kernel, shared_bytes| {
            // SAFETY: these kernels take no arguments.
            unsafe { stream.launch(kernel, LaunchShape { shared_bytes, ..SHAPE }, &mut []) }
        };
        let error = launch(kernel("none_u32"), 0).unwrap_err().to_string();
        assert_eq!(error, "find a kernel: there is no none_u32");
        let error = launch(Kernel { module: &WRONG, name: "wrong_u32" }, 0).unwrap_err().to_string();
        assert_eq!(error, "compile kernels: NVRTC_ERROR_COMPILATION\nkernels.cu(1): error: a mistake");

        let before = said().len();
        for shared_bytes in [48 << 10, 100 << 10, 60 << 10, 227 << 10] {
            launch(kernel("large_u32"), shared_bytes).unwrap();
        }
        let launched = |shared_bytes: u32| format!("launched large_u32 2 3 1 by 64 with {shared_bytes}\n");
        let expected = [
            "found large_u32\n".to_owned(),
            launched(48 << 10),
            "allowed large_u32 102400\n".to_owned(),
            launched(100 << 10),
            launched(60 << 10),
            "allowed large_u32 232448\n".to_owned(),
            launched(227 << 10),
        ];
        assert_eq!(said()[before..], expected.concat());
        let error = launch(kernel("large_u32"), 228 << 10).unwrap_err().to_string();
        assert_eq!(error, "raise a kernel's shared memory: CUDA_ERROR_INVALID_VALUE");
        drop(stream);
        free(gpu, block, 400);
    });
}

#[test]
fn compiled_kernels_outlive_the_process() {
    let test = compiled_kernels_outlive_the_process;
    let Some(fakes) = Fakes::all() else { return };
    let cache = tempfile::tempdir().unwrap();
    let variables = [("TURBO_CUDA_CACHE", cache.path().to_str().unwrap())];
    let launch = || {
        let gpu = Gpu::new(0).unwrap();
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        add(&mut *stream, block, 1, 100).unwrap();
        assert_eq!(download(&mut *stream, block, 100), [1; 100]);
        free(&gpu, block, 400);
        format!("compiled {}", compiled())
    };
    // both at once: each compiles for itself, or the later one finds the first one's files
    let Some(answers) = twice_apart(test, fakes.path(), &variables, launch) else { return };
    assert!(
        answers.iter().all(|answer| ["compiled 0", "compiled 1"].contains(&answer.as_str())),
        "{answers:?}"
    );
    let entries: Vec<_> = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert!(entry.file_name().unwrap().to_str().unwrap().starts_with("kernels-sm_90a-"), "{entry:?}");
    assert_eq!(apart(test, fakes.path(), &variables, launch).unwrap(), "compiled 0");
    // another GPU, another NVRTC
    for other in [("FAKE_CAPABILITY", "80"), ("FAKE_NVRTC", "12090")] {
        assert_eq!(apart(test, fakes.path(), &[variables[0], other], launch).unwrap(), "compiled 1");
    }
    fs::write(entry, "damaged").unwrap();
    assert_eq!(apart(test, fakes.path(), &variables, launch).unwrap(), "compiled 1");
}
