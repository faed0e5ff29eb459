//! The flags of commands that take a model: which one, from where, what it runs on; and those that several have beside.

use std::{
    fmt,
    num::NonZeroUsize,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use turbo_models::{DType, LayoutKind, Pooling, Task};
use turbo_serve::{
    engine::Layout,
    hub::{self, Hub, HubModel, HubSettings},
};

use super::{
    device::{Chosen, NoGpu, Wish, threads},
    fetching::Fetching,
    model_id::{self, Place},
    output,
};

/// Why a GPU does not do what a CPU does.
pub(super) const NO_INT8: &str =
    "--dtype int8: a GPU computes in f32, bf16 or float16; --device cpu computes in int8";

/// What a folder lacks that has ids for its only inputs.
pub(super) const NO_TOKENIZER: &str =
    "it has no tokenizer (tokenizer.json, vocab.txt, or vocab.json and merges.txt), and texts need one";

/// Which model, and what it runs on. Commands take it with `#[command(flatten)]`.
#[derive(Args, Clone)]
pub(super) struct ModelArguments {
    /// Model folder, short name, or name on the Hugging Face Hub
    ///
    /// A folder has config.json, safetensors and tokenizer.json. The only short name is `minilm`, which `cargo xtask
    /// model` fetches. A name on the Hub looks like `sentence-transformers/all-MiniLM-L6-v2`. Directly after `turbo
    /// serve`, `turbo inspect` and `turbo bench`, the model needs no flag.
    #[arg(long, env, value_name = "PATH|NAME", help_heading = "Model")]
    pub(super) model_id: String,
    /// Where it is, for a model of a configuration file: paths there are relative to the file.
    #[arg(skip)]
    pub(super) place: Option<Place>,
    /// Branch, tag or commit on the Hub
    #[arg(long, env, value_name = "REV", help_heading = "Model")]
    pub(super) revision: Option<String>,
    /// Token for models on the Hub that need one
    ///
    /// By default, the one that `hf auth login` has stored.
    #[arg(long, env, value_name = "TOKEN", hide_env_values = true, help_heading = "Model")]
    pub(super) hf_token: Option<String>,
    /// Folder in which files from the Hub are kept
    ///
    /// By default, where other tools keep them too (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub).
    #[arg(long, env, value_name = "DIR", help_heading = "Model")]
    pub(super) huggingface_hub_cache: Option<PathBuf>,
    /// Folder in which models with short names are kept
    #[arg(long, env, value_name = "DIR", default_value = "models", help_heading = "Model")]
    pub(super) turbo_models_dir: PathBuf,
    /// Data type to compute in
    ///
    /// On a CPU, products are computed in it, and the values between them are f32; a GPU also stores weights and
    /// activations in it. `turbo inspect` shows what each type gains and costs, `turbo devices` how this processor
    /// computes it. The spellings float, float32, bfloat16, half, f16 and fp16 are accepted too.
    #[arg(long, env, value_enum, default_value_t = Dtype::F32, help_heading = "Model")]
    pub(super) dtype: Dtype,

    /// Device to run on: `auto`, `cpu`, `cuda` or `cuda:N`
    ///
    /// GPUs are numbered from 0, as `turbo devices` lists them. `auto` is the first GPU that can be used, or else the
    /// CPU.
    #[arg(long, env, default_value_t = Wish::Auto, value_name = "DEVICE", help_heading = "Machine")]
    pub(super) device: Wish,
    /// CPU threads that share a batch
    ///
    /// At most 4096; by default, as many as the system lets this process use.
    #[arg(long, env, value_name = "N", value_parser = threads, help_heading = "Machine")]
    pub(super) threads: Option<NonZeroUsize>,
}

/// Types that can be computed in, as text-embeddings-inference and vLLM spell them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Dtype {
    /// Single precision
    #[value(aliases = ["float", "float32"])]
    F32,
    /// bfloat16: weights of half the size, and products at twice the speed if the processor supports it
    #[value(alias = "bfloat16")]
    Bf16,
    /// Half precision (f16, fp16) on a GPU, for all that it stores and multiplies; a CPU computes in bf16 instead
    #[value(aliases = ["half", "f16", "fp16"])]
    Float16,
    /// 8-bit integers, only on a CPU: a quarter of the size, and four times the speed if the processor supports it
    #[value(alias = "i8")]
    Int8,
}

impl Dtype {
    /// Bytes of each value on a GPU, which stores what it computes in.
    ///
    /// # Errors
    /// For the dtype that GPUs do not have.
    pub(super) fn bytes_on_gpu(self) -> Result<usize> {
        match self {
            Self::F32 => Ok(4),
            Self::Bf16 | Self::Float16 => Ok(2),
            Self::Int8 => bail!(NO_INT8),
        }
    }

    /// Looks whether `device` computes in it; of `auto` that is known when it was chosen.
    ///
    /// # Errors
    /// For a GPU and the dtype that GPUs do not have.
    pub(super) fn check_on(self, device: Wish) -> Result<()> {
        match (self, device) {
            (Self::Int8, Wish::Cuda(_)) => bail!(NO_INT8),
            _ => Ok(()),
        }
    }

    /// What a CPU's products are computed in.
    pub(super) fn of_cpu_products(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 | Self::Float16 => DType::Bf16,
            Self::Int8 => DType::Int8,
        }
    }
}

/// How it is spelled here.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Float16 => "float16",
            Self::Int8 => "int8",
        })
    }
}

/// How token vectors become what is given for an input.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum PoolingArgument {
    /// The vector of the first token
    Cls,
    /// The mean of all vectors
    Mean,
    /// The vector of the last token
    LastToken,
    /// The greatest value over all tokens, at each place of the vector
    Max,
    /// The words of the vocabulary, weighted by the head of a masked language model
    Splade,
}

impl From<PoolingArgument> for Task {
    fn from(pooling: PoolingArgument) -> Self {
        match pooling {
            PoolingArgument::Cls => Pooling::Cls.into(),
            PoolingArgument::Mean => Pooling::Mean.into(),
            PoolingArgument::LastToken => Pooling::LastToken.into(),
            PoolingArgument::Max => Pooling::Max.into(),
            PoolingArgument::Splade => Self::SparseEmbedding,
        }
    }
}

/// How the sequences of a batch share a tensor.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum LayoutArgument {
    /// End to end, without padding
    Packed,
    /// Each padded to the longest, for comparison
    Padded,
}

impl From<LayoutArgument> for Layout {
    fn from(layout: LayoutArgument) -> Self {
        match layout {
            LayoutArgument::Packed => Self::Packed,
            LayoutArgument::Padded => Self::Padded,
        }
    }
}

impl From<LayoutArgument> for LayoutKind {
    fn from(layout: LayoutArgument) -> Self {
        match layout {
            LayoutArgument::Packed => Self::Packed,
            LayoutArgument::Padded => Self::Padded,
        }
    }
}

/// A model whose files are all on this machine.
pub(super) struct LocalModel {
    /// The folder with its files.
    pub(super) folder: PathBuf,
    /// Its name for display: the last part of the model's name. (The Hub's folders are named after commits.)
    pub(super) name: String,
    /// The commit on the Hub; `None` for a folder of the user's.
    pub(super) sha: Option<String>,
}

impl ModelArguments {
    /// Finds the model, and fetches it from the Hub where it has to. Blocks: within a runtime, call it where that is
    /// allowed.
    ///
    /// # Errors
    /// When there is no such model, one line that says what to do about it.
    pub(super) fn local(&self) -> Result<LocalModel> {
        self.local_with(None, |warning| output::note(&format!("warning: {warning}")))
    }

    /// As [`Self::local`], with the module whose folder is `dense_path`; `warn` hears what was ignored, and where the
    /// Hub was not.
    ///
    /// # Errors
    /// As [`Self::local`].
    pub(super) fn local_with(
        &self,
        dense_path: Option<&Path>,
        warn: impl FnOnce(&str),
    ) -> Result<LocalModel> {
        let place = match &self.place {
            Some(place) => place.clone(),
            None => model_id::place(&self.model_id, Path::new(""), &self.turbo_models_dir)?,
        };
        match place {
            Place::Folder(folder) => {
                if let Some(revision) = &self.revision {
                    let folder = folder.display();
                    warn(&format!(
                        "--revision {revision} means nothing here: {folder} is a folder, and only the Hub has revisions"
                    ));
                }
                let name = name_of(&folder);
                Ok(LocalModel { folder, name, sha: None })
            }
            Place::Hub(name) => self.fetched(&name, dense_path.map(module_of).transpose()?, warn),
        }
    }

    fn fetched(&self, name: &str, module: Option<&str>, warn: impl FnOnce(&str)) -> Result<LocalModel> {
        let settings = HubSettings::from_env(self.hf_token.clone(), self.huggingface_hub_cache.clone())?;
        let revision = self.revision.as_deref().unwrap_or(hub::MAIN);
        let found = Hub::new(settings).model(HubModel { name, revision, module }, &mut Fetching::new(name));
        let found =
            found.with_context(|| format!("--model-id {name}: no such folder, so the Hub was asked"))?;
        if let Some(why) = found.stale {
            warn(&format!("using the cached files: {why}"));
        }
        let last = name.rsplit('/').next().unwrap_or(name).to_owned();
        Ok(LocalModel { folder: found.folder, name: last, sha: Some(found.commit) })
    }

    /// The device that was asked for; `tell` hears why it is not a GPU, where it might have been.
    ///
    /// # Errors
    /// When a GPU was asked for that cannot be used, or the processor cannot.
    pub(super) fn device(&self, tell: impl FnOnce(NoGpu)) -> Result<Chosen> {
        Chosen::new(self.device, self.threads, tell)
    }
}

/// The last part of a folder's path as it was given, where a link may have a better name than the folder it leads to;
/// of one that has none, such as `.`, that of the folder.
fn name_of(folder: &Path) -> String {
    let own = || folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let whole = if folder.file_name().is_some() { folder.to_owned() } else { own() };
    whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
}

/// The folder of a module as the Hub names it.
fn module_of(dense_path: &Path) -> Result<&str> {
    let is_below = dense_path.components().all(|part| matches!(part, Component::Normal(_)));
    let name = dense_path.to_str().map(|path| path.trim_end_matches('/'));
    name.filter(|name| is_below && !name.is_empty()).with_context(|| {
        format!(
            "--dense-path {}: for a model on the Hub, expected a folder below the model's, such as `2_Dense_1024`",
            dense_path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_of_the_hub_lies_below_its_model() {
        assert_eq!(module_of(Path::new("2_Dense_8/")).unwrap(), "2_Dense_8");
        for path in ["/2_Dense_8", "../2_Dense_8", ""] {
            assert!(
                module_of(Path::new(path)).unwrap_err().to_string().contains("below the model's"),
                "{path:?}"
            );
        }
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        model: ModelArguments,
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_has_the_name_it_was_asked_for_by() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("snapshot-17")).unwrap();
        std::os::unix::fs::symlink(path("snapshot-17"), path("current")).unwrap();
        for (asked, expected) in [
            ("snapshot-17", "snapshot-17"),
            ("current", "current"),
            ("current/", "current"),
            ("current/.", "current"),
            ("current/../snapshot-17/.", "snapshot-17"),
            ("current/x/..", "snapshot-17"),
        ] {
            std::fs::create_dir_all(path("snapshot-17/x")).unwrap();
            let asked = path(asked);
            let arguments: Command =
                clap::Parser::parse_from(["turbo", "--model-id", asked.to_str().unwrap()]);
            assert_eq!(arguments.model.local().unwrap().name, expected, "{}", asked.display());
        }
    }

    #[test]
    fn types_have_the_names_of_all_worlds() {
        for (name, dtype) in [
            ("f32", DType::F32),
            ("float", DType::F32),
            ("float32", DType::F32),
            ("bf16", DType::Bf16),
            ("bfloat16", DType::Bf16),
            ("int8", DType::Int8),
            ("float16", DType::Bf16),
            ("half", DType::Bf16),
            ("f16", DType::Bf16),
            ("fp16", DType::Bf16),
        ] {
            let parsed = Dtype::from_str(name, false).unwrap();
            assert_eq!(parsed.of_cpu_products(), dtype, "{name}");
        }
        assert!(Dtype::from_str("fp8", false).is_err());
        for dtype in Dtype::value_variants() {
            let shown = dtype.to_possible_value().unwrap();
            assert!(!shown.is_hide_set() && shown.get_name() == dtype.to_string(), "{dtype}");
        }
    }
}
