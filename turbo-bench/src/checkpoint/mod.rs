//! Checkpoints of a named shape with random weights: timing needs the sizes of a model, not its trained values.
//!
//! ```text
//! Model ──shape──▶ config.json, names and shapes of tensors ──write──▶ a folder that turbo and transformers load
//! ```
//!
//! Tensors have the names of the published checkpoint, so that the reference implementation's `from_pretrained` finds
//! all of them. All are random, even biases and gains: zeros and ones would hide a loader that drops them.

mod families;
mod file;

use std::{fs, io, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

pub use file::{Dtype, Tensor, Values};

/// A published model whose shape is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// BERT-base: 12 layers, hidden size 768; 438 MB
    BertBase,
    /// BERT-large: 24 layers, hidden size 1024; 1.3 GB
    BertLarge,
    /// all-MiniLM-L6: 6 layers, hidden size 384; 91 MB
    Minilm,
    /// DistilBERT-base: 6 layers, hidden size 768; 265 MB
    DistilbertBase,
    /// RoBERTa-base: 12 layers, hidden size 768; 499 MB
    RobertaBase,
    /// ALBERT-base: 12 layers that share weights, hidden size 768; 47 MB
    AlbertBase,
    /// ALBERT-xxlarge: 12 layers that share weights, hidden size 4096; 890 MB
    AlbertXxlarge,
    /// ELECTRA-base: 12 layers, hidden size 768; 436 MB
    ElectraBase,
    /// MPNet-base: 12 layers, hidden size 768, relative positions; 438 MB
    MpnetBase,
    /// ModernBERT-base: 22 layers, hidden size 768, local and global attention, 8k tokens; 596 MB
    ModernbertBase,
    /// nomic-embed-text: 12 layers, hidden size 768, rotary positions, gated, 8k tokens; 547 MB
    NomicBase,
    /// nomic-embed-text-v2-moe: 12 layers, hidden size 768, 2 of 8 experts in every other one; 1.9 GB
    NomicExperts,
    /// gte-base-en-v1.5: 12 layers, hidden size 768, rotary positions, gated, 8k tokens; 547 MB
    GteBase,
    /// Qwen3-Embedding-0.6B: 28 layers, hidden size 1024, causal, grouped queries, 32k tokens; 1.2 GB in bfloat16
    #[value(name = "qwen3-0.6b")]
    #[serde(rename = "qwen3-0.6b")]
    Qwen3Small,
}

/// A checkpoint before it has values.
#[derive(Clone, Debug)]
pub struct Shape {
    /// `config.json`.
    pub config: Value,
    /// Type of the stored weights.
    pub dtype: Dtype,
    /// Names and shapes, as published.
    pub tensors: Vec<Tensor>,
}

impl Model {
    /// Its name, which is also that of its folder.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Its sizes.
    pub fn shape(self) -> Shape {
        match self {
            Self::BertBase => families::BERT_BASE.bert(),
            Self::BertLarge => families::BERT_LARGE.bert(),
            Self::Minilm => families::MINILM.bert(),
            Self::DistilbertBase => families::DISTILBERT_BASE.distilbert(),
            Self::RobertaBase => families::ROBERTA_BASE.roberta(),
            Self::AlbertBase => families::ALBERT_BASE.albert(),
            Self::AlbertXxlarge => families::ALBERT_XXLARGE.albert(),
            Self::ElectraBase => families::BERT_BASE.electra(),
            Self::MpnetBase => families::MPNET_BASE.mpnet(),
            Self::ModernbertBase => families::modernbert_base(),
            Self::NomicBase => families::NOMIC_BASE.nomic(),
            Self::NomicExperts => families::NOMIC_EXPERTS.nomic_with_experts(),
            Self::GteBase => families::GTE_BASE.gte(),
            Self::Qwen3Small => families::qwen3_small(),
        }
    }
}

impl Shape {
    /// Writes `config.json` and `model.safetensors` into `dir`, which must exist; the same bytes for the same seed.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path, seed: u64, progress: impl FnMut(u64)) -> Result<()> {
        let file = dir.join("config.json");
        let config = serde_json::to_string_pretty(&self.config)? + "\n";
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let file = dir.join("model.safetensors");
        file::write(&file, self.dtype, &self.tensors, seed, progress)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Whether the folder `dir` holds this checkpoint with this seed.
    pub fn is_in(&self, dir: &Path, seed: u64) -> bool {
        let config = fs::read(dir.join("config.json")).ok();
        let config = config.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let weights = file::is_written(&dir.join("model.safetensors"), self.dtype, &self.tensors, seed);
        config.as_ref() == Some(&self.config) && weights.unwrap_or(false)
    }

    /// Makes sure that the folder `dir` is this checkpoint with this seed. The folder appears complete or not at all.
    /// If it is there already, it is left alone. Returns whether it was written.
    ///
    /// # Errors
    /// When `dir` is something else, or cannot be written.
    pub fn ensure(&self, dir: &Path, seed: u64, progress: impl FnMut(u64)) -> Result<bool> {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if self.is_in(dir, seed) {
            return Ok(false);
        }
        if dir.exists() {
            bail!("{} is there already and something else; remove it, or give another place", dir.display());
        }
        let cannot = || format!("cannot write to {}", parent.display());
        fs::create_dir_all(parent).with_context(cannot)?;
        sweep(parent);
        let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(parent).with_context(cannot)?;
        self.write(scratch.path(), seed, progress)?;
        readable_by_all(scratch.path()).with_context(cannot)?;
        fs::rename(scratch.path(), dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(true)
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len() * self.dtype.size()).sum()
    }

    /// The size of the vocabulary; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.config["vocab_size"].as_u64().unwrap_or(0) as usize
    }
}

/// Prefix of the names of scratch folders, and of no other name.
const SCRATCH: &str = ".turbo-random-checkpoint-";
/// A scratch folder older than this is abandoned: no checkpoint takes so long to write.
const ABANDONED: Duration = Duration::from_hours(1);

/// Removes the scratch folders of writers that were killed. A folder that cannot be removed stays, which does no harm.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_scratch = entry.file_name().to_string_lossy().starts_with(SCRATCH);
        let changed = entry.metadata().and_then(|about| about.modified()).ok();
        let age = changed.and_then(|changed| changed.elapsed().ok());
        if is_scratch && age.is_some_and(|age| age > ABANDONED) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Lets everyone read a model: a scratch folder is its owner's alone.
fn readable_by_all(dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

#[cfg(test)]
mod tests {
    use turbo_models::Checkpoint;

    use super::*;

    /// Opening checks every tensor's name and shape. The files have holes in place of the values, since most of these
    /// models are large.
    #[test]
    fn every_model_opens() {
        for model in Model::value_variants() {
            let dir = tempfile::tempdir().unwrap();
            let Shape { config, dtype, tensors } = model.shape();
            fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            file::write_holes(&dir.path().join("model.safetensors"), dtype, &tensors).unwrap();
            let opened = Checkpoint::open(dir.path());
            assert!(opened.is_ok(), "{}: {}", model.name(), opened.err().unwrap());
        }
    }

    #[test]
    fn the_sizes_that_are_told_are_those_of_the_files() {
        for model in Model::value_variants() {
            let told = model.to_possible_value().unwrap().get_help().unwrap().to_string();
            let told = told.split("; ").nth(1).unwrap();
            let bytes = model.shape().bytes() as f64;
            let expected = if bytes < 999.5e6 {
                format!("{:.0} MB", bytes / 1e6)
            } else {
                format!("{:.1} GB", bytes / 1e9)
            };
            assert!(told.starts_with(&expected), "{}: {told:?}, expected {expected:?}", model.name());
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_a_killed_writer_left_is_removed_in_the_end() {
        let parent = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| parent.path().join(format!("{SCRATCH}{name}")));
        [&old, &new].iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED;
        fs::File::open(&old).unwrap().set_modified(long_ago).unwrap();
        let mut shape = Model::AlbertBase.shape();
        shape.tensors.truncate(1);
        shape.ensure(&parent.path().join("albert"), 0, drop).unwrap();
        assert_eq!((old.exists(), new.exists()), (false, true), "the new one is somebody's");
    }

    #[test]
    fn a_folder_appears_whole_and_is_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("new/albert");
        let mut shape = Model::AlbertBase.shape();
        shape.tensors.truncate(2);
        let mut written = 0;
        assert!(shape.ensure(&dir, 0, |bytes| written += bytes).unwrap());
        assert_eq!(written, shape.bytes());
        let names = |dir: &Path| -> Vec<_> {
            let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&dir), ["config.json", "model.safetensors"]);
        assert_eq!(names(&parent.path().join("new")), ["albert"], "no scratch is left");
        assert!(!shape.ensure(&dir, 0, |_| panic!("written again")).unwrap());
        let error = shape.ensure(&dir, 1, drop).unwrap_err().to_string();
        assert!(error.contains("is there already and something else"), "{error}");
    }
}
