//! The flags that every command has that takes a model: which one, from where, and what it runs on.

use std::{num::NonZeroUsize, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use turbo_models::Cpu;
use turbo_serve::hub::{self, Hub, HubSettings};

use super::{
    device,
    fetching::Fetching,
    model_id::{self, Place},
    output,
};

/// Which model, and what it runs on. Commands take it with `#[command(flatten)]`.
#[derive(Args, Clone)]
pub(super) struct ModelArguments {
    /// A model folder (config.json, safetensors, tokenizer.json), the short name `minilm`, or a name on the Hugging
    /// Face Hub such as `sentence-transformers/all-MiniLM-L6-v2`
    #[arg(long, env, value_name = "PATH|NAME", help_heading = "Model")]
    pub(super) model_id: String,
    /// Branch, tag or commit on the Hub
    #[arg(long, env, value_name = "REV", help_heading = "Model")]
    pub(super) revision: Option<String>,
    /// Token for models on the Hub that need one; by default what `hf auth login` left
    #[arg(long, env, value_name = "TOKEN", hide_env_values = true, help_heading = "Model")]
    pub(super) hf_token: Option<String>,
    /// Where files from the Hub are kept; by default where every other tool keeps them (HF_HUB_CACHE, HF_HOME/hub,
    /// ~/.cache/huggingface/hub)
    #[arg(long, env, value_name = "DIR", help_heading = "Model")]
    pub(super) huggingface_hub_cache: Option<PathBuf>,
    /// Where models with short names are kept
    #[arg(long, env, value_name = "DIR", default_value = "models", help_heading = "Model")]
    pub(super) turbo_models_dir: PathBuf,
    /// Type that is computed in
    #[arg(long, env, value_enum, default_value_t = Dtype::F32, help_heading = "Model")]
    pub(super) dtype: Dtype,

    /// `auto` or `cpu`
    #[arg(long, env, default_value = "auto", help_heading = "Machine")]
    pub(super) device: String,
    /// Threads that share a batch; by default as many as the system lets this process use
    #[arg(long, env, value_name = "N", help_heading = "Machine")]
    pub(super) threads: Option<NonZeroUsize>,
}

/// Types that can be computed in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dtype {
    /// Single precision
    #[value(alias = "float32")]
    F32,
}

impl Dtype {
    /// As a person writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
        }
    }
}

/// A model whose files are all on this machine.
pub(super) struct LocalModel {
    /// The folder with its files.
    pub(super) folder: PathBuf,
    /// What people call it: the last part of its name. (The Hub's folders are named after commits.)
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
        match model_id::place(&self.model_id, &self.turbo_models_dir)? {
            Place::Folder(folder) => {
                if let Some(revision) = &self.revision {
                    bail!(
                        "--revision {revision}: {} is a folder, and only the Hub has revisions",
                        folder.display()
                    );
                }
                let last = folder.canonicalize().unwrap_or_else(|_| folder.clone());
                let name = last.file_name().unwrap_or(last.as_os_str()).to_string_lossy().into_owned();
                Ok(LocalModel { folder, name, sha: None })
            }
            Place::Hub(name) => self.fetched(&name),
        }
    }

    fn fetched(&self, name: &str) -> Result<LocalModel> {
        let settings = HubSettings::from_env(self.hf_token.clone(), self.huggingface_hub_cache.clone())?;
        let revision = self.revision.as_deref().unwrap_or(hub::MAIN);
        let found = Hub::new(settings).model(name, revision, &mut Fetching::new(name));
        let found =
            found.with_context(|| format!("--model-id {name}: no such folder, so it is one of the Hub's"))?;
        if let Some(why) = found.stale {
            output::note(&format!("warning: using what the cache has: {why}"));
        }
        let last = name.rsplit('/').next().unwrap_or(name).to_owned();
        Ok(LocalModel { folder: found.folder, name: last, sha: Some(found.commit) })
    }

    /// The device that was asked for.
    ///
    /// # Errors
    /// When this build does not have it, or the processor cannot be used.
    pub(super) fn device(&self) -> Result<Cpu> {
        device::choose(&self.device, self.threads)
    }
}
