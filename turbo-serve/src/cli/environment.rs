//! The variables that are read beside those of flags, as the long help lists them.

/// The list. Lines are short: help is wrapped to the terminal, without indents.
pub(super) const ENVIRONMENT: &str = "\
Environment:
  RUST_LOG            what `turbo serve` logs, such as `debug` or `warn,turbo_serve=debug`; by
                      default `info`; LOG_LEVEL counts where it is not set
  TURBO_CPU           instruction set to use: amx, avx512, avx2 or portable; by default the best
                      that the CPU has
  TURBO_CUDA_CACHE    folder of compiled GPU kernels, or `off`; by default turbo/cubin in
                      XDG_CACHE_HOME
  TURBO_CUDA_LIB_DIR  folder with cuBLASLt and NVRTC; by default those of VIRTUAL_ENV,
                      CONDA_PREFIX or the system
  HOSTNAME            address that `turbo serve` listens on without --hostname; ignored if it is
                      not an address
  HF_HUB_CACHE        folder of files from the Hub; by default `hub` in HF_HOME
  HF_HOME             folder of the Hub's tools; by default `huggingface` in XDG_CACHE_HOME
  HUGGING_FACE_HUB_TOKEN
                      token for the Hub, by its older name; HF_TOKEN takes precedence
  HF_TOKEN_PATH       file with the token for the Hub; by default `token` in HF_HOME
  HF_ENDPOINT         address of the Hub; by default https://huggingface.co
  HF_HUB_OFFLINE      with 1, the Hub is not asked, and files that are already here are used;
                      TRANSFORMERS_OFFLINE does the same
  XDG_CACHE_HOME      the user's cache folder; by default ~/.cache, but for packed weights and
                      costs ~/Library/Caches on macOS and LOCALAPPDATA on Windows

Empty variables count as not set, except API_KEY and CORS_ALLOW_ORIGIN, which are refused. A flag
is also set by the variable in brackets behind it.";

/// Behind `--help`: the examples, and the list.
pub(super) fn long_help(examples: &str) -> String {
    format!("{examples}\n\n{ENVIRONMENT}")
}
