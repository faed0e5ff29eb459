//! The variables that are read beside those of flags, as the long help lists them.

/// The list. Lines are short: help is wrapped to the terminal, without indents.
pub(super) const ENVIRONMENT: &str = "\
Environment:
  RUST_LOG            what `turbo serve` logs, such as `debug` or `warn,turbo_serve=debug`; by
                      default `info`
  TURBO_CPU           instruction set of the CPU: amx, avx512, avx2 or portable; by default the
                      best that it has
  TURBO_CUDA_CACHE    folder of compiled GPU kernels, or `off`; by default turbo/cubin in
                      XDG_CACHE_HOME
  TURBO_CUDA_LIB_DIR  folder with cuBLASLt and NVRTC; by default of VIRTUAL_ENV, CONDA_PREFIX or
                      the system
  HOSTNAME            where it is an address and --hostname is not given, what `turbo serve`
                      listens on
  HF_HUB_CACHE        folder of files from the Hub; by default `hub` in HF_HOME
  HF_HOME             folder of the Hub's tools; by default `huggingface` in XDG_CACHE_HOME
  HUGGING_FACE_HUB_TOKEN
                      token for the Hub, as older tools call it; HF_TOKEN goes before it
  HF_TOKEN_PATH       file with the token for the Hub; by default `token` in HF_HOME
  HF_ENDPOINT         address of the Hub; by default https://huggingface.co
  HF_HUB_OFFLINE      with 1 the Hub is not asked, and what is kept is used;
                      TRANSFORMERS_OFFLINE does the same
  XDG_CACHE_HOME      the user's cache folder; by default ~/.cache, but for packed weights
                      and costs ~/Library/Caches on macOS and LOCALAPPDATA on Windows

Empty ones count as not set. Flags also take the variables that stand in brackets behind them.";

/// Behind `--help`: the examples, and the list.
pub(super) fn long_help(examples: &str) -> String {
    format!("{examples}\n\n{ENVIRONMENT}")
}
