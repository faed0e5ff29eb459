//! The functions of CUDA that are called here. The gate checks that all of them exist, since the bindings panic when
//! one is missing.

/// The driver's functions; CUDA 12 has all of them.
pub(super) const OF_DRIVER: &[&str] = &[
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
];

/// NVRTC's functions.
pub(super) const OF_NVRTC: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// cuBLASLt's functions.
pub(super) const OF_CUBLAS_LT: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The functions that `source` names by `path`: for `cu::cu` their names are `cu` and the characters that follow,
    /// up to the first one that cannot be part of a name.
    fn named<'a>(source: &'a str, path: &str) -> impl Iterator<Item = &'a str> {
        let module = path.find("::").unwrap() + 2;
        source.match_indices(path).map(move |(at, _)| {
            let name = &source[at + module..];
            name.split(|sign: char| !sign.is_alphanumeric() && sign != '_').next().unwrap()
        })
    }

    #[test]
    fn all_that_is_called_is_looked_for() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/real");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        // this file calls nothing
        let rust =
            files.filter(|path| path.to_string_lossy().ends_with(".rs") && !path.ends_with("symbols.rs"));
        let code: String = rust.map(|path| fs::read_to_string(path).unwrap()).collect();
        // names of types, and of the library itself; types of cuBLASLt end in _t
        let is_other =
            |name: &&str| name.ends_with("_t") || ["nvrtcProgram", "nvrtcResult", "culib"].contains(name);
        for (path, listed) in
            [("cu::cu", OF_DRIVER), ("nvrtc::nvrtc", OF_NVRTC), ("lt::cublasLt", OF_CUBLAS_LT)]
        {
            let called: BTreeSet<&str> = named(&code, path).filter(|name| !is_other(name)).collect();
            assert_eq!(called, listed.iter().copied().collect(), "{path}");
        }
        // functions in these modules would load others behind our back
        for hidden in [
            "driver::result",
            "driver::safe",
            "nvrtc::result",
            "nvrtc::safe",
            "cublaslt::result",
            "cublaslt::safe",
        ] {
            assert_eq!(code.matches(&format!("{hidden}::")).count(), 0, "{hidden}");
        }
    }
}
