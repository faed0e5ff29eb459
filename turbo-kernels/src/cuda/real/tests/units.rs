//! Compiles all device code with NVRTC, which may refuse code that a C++ compiler accepts.

use std::{env, fs, path::Path, thread};

use crate::{
    attention, bias_act,
    cuda::{
        Family, Module,
        real::{compiler::Compiler, libraries, modules, nvrtc, remainder, unavailable::Version},
    },
    embed, gather, norm, pool, rotary, softmax, topk,
};

fn all_modules() -> Vec<&'static Module> {
    let families: [&Family; 9] = [
        &bias_act::cuda::FAMILY,
        &embed::cuda::FAMILY,
        &gather::cuda::FAMILY,
        &norm::cuda::FAMILY,
        &pool::cuda::FAMILY,
        &remainder::FAMILY,
        &rotary::cuda::FAMILY,
        &softmax::cuda::FAMILY,
        &topk::cuda::FAMILY,
    ];
    let of_families = families.into_iter().flat_map(|family| [&family.f32, &family.f16, &family.bf16]);
    of_families.chain(attention::cuda::MODULES).collect()
}

/// The modules that are compiled for each compute capability. Device code does not depend on it, so the oldest and the
/// newest stand for those between: what both have, they have. Hopper's own code runs on nothing else.
fn to_compile() -> [((u32, u32), Vec<&'static Module>); 3] {
    [((8, 0), all_modules()), ((9, 0), attention::cuda::WGMMA_MODULES.to_vec()), ((12, 0), all_modules())]
}

/// Calls `visit` with the device code below `folder`, except that of tests.
fn visit_device_code(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            visit_device_code(&path, visit);
        } else if path.extension().is_some_and(|ending| ending == "cu") {
            visit(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn no_device_code_is_forgotten() {
    let modules = to_compile().map(|(_, modules)| modules).concat();
    let mut files = 0;
    visit_device_code(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |path, source| {
        files += 1;
        assert!(modules.iter().any(|module| module.source.contains(source)), "{path:?}");
    });
    assert!(files >= 11, "{files}");
    for module in modules {
        let asks = modules::unit(module).contains("__CUDA_ARCH__");
        assert!(!asks, "{} is to be compiled for each architecture, then", module.name);
    }
}

/// With `TURBO_REQUIRE_NVRTC=1`, a missing NVRTC is a failure.
#[test]
fn all_device_code_compiles() {
    if !libraries::NVRTC.find(u32::MAX) {
        let required = env::var_os("TURBO_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "TURBO_REQUIRE_NVRTC=1: no NVRTC");
        return println!("skipped: no NVRTC (pip install nvidia-cuda-nvrtc, and TURBO_CUDA_LIB_DIR)");
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library was just found; two numbers are written.
    assert!(unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) }.result().is_ok());
    let version = Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
    let compiler = |capability| Compiler::new(capability, version);
    assert!(compiler((8, 0)).is_some(), "every NVRTC from 12.0 on knows it");
    let compile_all = |capability, modules: Vec<&Module>| {
        // an NVRTC that is older than the GPU
        let Some(compiler) = compiler(capability) else { return };
        for module in modules {
            let compiled = compiler.compile(&modules::unit(module));
            let cubin = compiled.unwrap_or_else(|error| panic!("{}: {error}", compiler.architecture()));
            assert!(cubin.starts_with(b"\x7fELF"), "{}", module.name);
        }
    };
    // a few dozen files, some seconds each
    thread::scope(|scope| {
        for (capability, modules) in to_compile() {
            scope.spawn(move || compile_all(capability, modules));
        }
    });
    // names that are chosen separately from the file
    let compiler = compiler((9, 0)).expect("every NVRTC from 12.0 on knows it");
    for (module, names) in [
        (&remainder::FAMILY.f32, ["product_f32", "finish_f32"]),
        (&remainder::FAMILY.f16, ["product_f16_to_f32", "finish_f16"]),
        (&remainder::FAMILY.bf16, ["product_bf16_to_f32", "finish_bf16"]),
    ] {
        let cubin = compiler.compile(&modules::unit(module)).expect("it was compiled above");
        for name in names {
            assert!(cubin.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
        }
    }
    assert!(compiler.compile("__global__ void f() { INFINITY; }").unwrap_err().contains("error"));
}
