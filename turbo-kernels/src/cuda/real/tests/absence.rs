//! The messages where CUDA, or a part of it, is missing.

use std::path::Path;

use crate::cuda::{
    Driver,
    real::{
        Gpu, available,
        fake::{Fakes, apart},
    },
};

/// The result of opening the GPU, as text.
fn report() -> String {
    match Gpu::new(0) {
        Ok(gpu) => gpu.info().name.clone(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn without_a_driver_there_is_one_line() {
    let nothing = tempfile::tempdir().unwrap();
    let test = without_a_driver_there_is_one_line;
    let Some(answer) = apart(test, nothing.path(), &[], || format!("{}, {}", report(), available().is_err()))
    else {
        return;
    };
    if Path::new("/dev/nvidiactl").exists() {
        return println!("skipped: this machine has a driver");
    }
    let expected =
        "no NVIDIA driver found (libcuda.so.1); install one for CUDA 12.0 or newer, from 525 on, true";
    assert_eq!(answer, expected);
}

#[test]
fn what_is_missing_is_said() {
    let test = what_is_missing_is_said;
    const CUDA: (&str, &str) = ("libcuda.so", "cuda");
    const NVRTC: (&str, &str) = ("libnvrtc.so", "nvrtc");
    let ask = |libraries: &[(&str, &str)], variables: &[(&str, &str)]| {
        apart(test, Fakes::named(libraries)?.path(), variables, report)
    };
    if ask(&[CUDA], &[]).is_none() {
        return;
    }
    for (libraries, expected) in [
        (
            &[("libcuda.so", "cuda-without-graphs")][..],
            "libcuda.so.1 has no function cuGraphLaunch: install it anew",
        ),
        (
            &[CUDA],
            "NVRTC not found; pip install 'nvidia-cuda-nvrtc==13.*' into the active environment, or name its folder in \
             TURBO_CUDA_LIB_DIR",
        ),
        (
            &[CUDA, NVRTC],
            "cuBLASLt not found; pip install 'nvidia-cublas==13.*' into the active environment, or name its folder in \
             TURBO_CUDA_LIB_DIR",
        ),
    ] {
        assert_eq!(ask(libraries, &[]).unwrap(), expected);
    }
    let all = [CUDA, NVRTC, ("libcublasLt.so", "cublasLt")];
    for (variable, value, expected) in [
        (
            "FAKE_DRIVER",
            "11040",
            "the NVIDIA driver is for CUDA 11.4, needed is 12.0 or newer: install driver 525 or newer",
        ),
        (
            "FAKE_GPUS",
            "-1",
            "the NVIDIA driver gives no GPU (no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)); see what \
             nvidia-smi says, and CUDA_VISIBLE_DEVICES",
        ),
        (
            "FAKE_GPUS",
            "0",
            "the NVIDIA driver gives no GPU (it counts none); see what nvidia-smi says, and CUDA_VISIBLE_DEVICES",
        ),
        ("FAKE_CAPABILITY", "75", "Pretended GPU 0 has compute capability 7.5, needed is 8.0 or more"),
        ("FAKE_CAPABILITY", "120", "NVRTC 13.0 cannot compile for Pretended GPU 0: install a newer one"),
        ("FAKE_GPUS", "2", "Pretended GPU 0"),
    ] {
        assert_eq!(ask(&all, &[(variable, value)]).unwrap(), expected);
    }
    for (variable, value, found, newest, package, file) in [
        ("FAKE_NVRTC", "14010", "NVRTC is of CUDA 14.1", 13, "nvidia-cuda-nvrtc==13.*", "libnvrtc.so"),
        ("FAKE_NVRTC", "11080", "NVRTC is of CUDA 11.8", 13, "nvidia-cuda-nvrtc==13.*", "libnvrtc.so"),
        ("FAKE_DRIVER", "12080", "NVRTC is of CUDA 13.0", 12, "nvidia-cuda-nvrtc-cu12", "libnvrtc.so"),
        ("FAKE_CUBLAS", "110905", "cuBLASLt is of CUDA 11.9", 13, "nvidia-cublas==13.*", "libcublasLt.so"),
    ] {
        let expected = format!(
            "{found}, needed is one of 12.0 to {newest}: pip install '{package}', or link one as {file} in a folder of \
             LD_LIBRARY_PATH"
        );
        assert_eq!(ask(&all, &[(variable, value)]).unwrap(), expected);
    }
}

#[test]
fn a_folder_without_a_fitting_library_is_named() {
    let test = a_folder_without_a_fitting_library_is_named;
    let Some(loader) = Fakes::named(&[("libcuda.so", "cuda")]) else { return };
    // newer than the driver
    let place = Fakes::named(&[("libnvrtc.so.14", "nvrtc"), ("libnvrtc-builtins.so.14.0", "nvrtc")]);
    let place = place.expect("there is a compiler");
    let folder = place.path().to_str().unwrap();
    let Some(answer) = apart(test, loader.path(), &[("TURBO_CUDA_LIB_DIR", folder)], report) else { return };
    let expected = format!(
        "no NVRTC of CUDA 13 or older can be opened in {folder}, which TURBO_CUDA_LIB_DIR names, and none is found \
         elsewhere; pip install 'nvidia-cuda-nvrtc==13.*' into the active environment, or name its folder"
    );
    assert_eq!(answer, expected);
}

#[test]
fn gpus_are_listed_and_counted() {
    let Some(fakes) = Fakes::all() else { return };
    let list = || {
        let gpus = available().unwrap();
        format!("{gpus:?}, {}", Gpu::new(2).unwrap_err())
    };
    let Some(answer) = apart(gpus_are_listed_and_counted, fakes.path(), &[("FAKE_GPUS", "2")], list) else {
        return;
    };
    let gpu = |number| {
        format!(
            "FoundGpu {{ info: DeviceInfo {{ name: \"Pretended GPU {number}\", compute_capability: (9, 0), \
             multiprocessors: 132, memory_bytes: 1073741824 }}, usable: Ok(()) }}"
        )
    };
    let expected = format!("[{}, {}], no GPU 2, there are 2 from 0 on", gpu(0), gpu(1));
    assert_eq!(answer, expected);
}

#[test]
fn a_gpu_that_cannot_be_used_is_listed_with_the_reason() {
    let test = a_gpu_that_cannot_be_used_is_listed_with_the_reason;
    let Some(fakes) = Fakes::all() else { return };
    for (capability, expected) in [
        ("75", "Pretended GPU 0 has compute capability 7.5, needed is 8.0 or more"),
        ("120", "NVRTC 13.0 cannot compile for Pretended GPU 0: install a newer one"),
    ] {
        let list = || {
            let gpus = available().unwrap();
            gpus.into_iter().map(|gpu| gpu.usable.unwrap_err().to_string()).collect::<String>()
        };
        match apart(test, fakes.path(), &[("FAKE_CAPABILITY", capability)], list) {
            Some(answer) => assert_eq!(answer, expected),
            None => return,
        }
    }
}

#[test]
fn libraries_are_found_where_no_loader_looks() {
    let test = libraries_are_found_where_no_loader_looks;
    let Some(loader) = Fakes::named(&[("libcuda.so", "cuda")]) else { return };
    let places = Fakes::named(&[
        ("here/libnvrtc.so.13", "nvrtc"),
        ("here/libnvrtc-builtins.so.13.0", "nvrtc"),
        ("here/libcublasLt.so.13", "cublasLt"),
        ("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "nvrtc"),
        ("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvrtc"),
        ("venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.13", "cublasLt"),
    ]);
    let places = places.expect("there is a compiler");
    let [here, venv] = ["here", "venv"].map(|place| places.path().join(place).to_str().unwrap().to_owned());
    for variables in
        [[("TURBO_CUDA_LIB_DIR", here.as_str())], [("VIRTUAL_ENV", &venv)], [("CONDA_PREFIX", &venv)]]
    {
        match apart(test, loader.path(), &variables, report) {
            Some(answer) => assert_eq!(answer, "Pretended GPU 0", "{variables:?}"),
            None => return,
        }
    }
}

#[test]
fn an_environment_comes_before_what_the_loader_knows() {
    let test = an_environment_comes_before_what_the_loader_knows;
    // a library of an older version, and one that cannot be used
    let loader = [("libcuda.so", "cuda"), ("libnvrtc.so.12", "cuda"), ("libcublasLt.so", "cublasLt")];
    let Some(loader) = Fakes::named(&loader) else { return };
    let places = Fakes::named(&[
        ("lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "nvrtc"),
        ("lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvrtc"),
    ]);
    let places = places.expect("there is a compiler");
    let environment = places.path().to_str().unwrap();
    for (variable, expected) in [
        ("UNUSED", "NVRTC has no function nvrtcCompileProgram: install it anew"),
        ("VIRTUAL_ENV", "Pretended GPU 0"),
        ("CONDA_PREFIX", "Pretended GPU 0"),
    ] {
        match apart(test, loader.path(), &[(variable, environment)], report) {
            Some(answer) => assert_eq!(answer, expected, "{variable}"),
            None => return,
        }
    }
}
