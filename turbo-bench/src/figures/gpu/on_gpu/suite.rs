//! Checks every family of kernels, and every golden model, in all types.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use safetensors::{SafeTensors, tensor::Dtype as Stored};
use serde::Deserialize;
use turbo_kernels::{DType, EncoderKernels, Float, TopK, bf16, cuda::Cuda, f16, suite};
use turbo_models::{Checkpoint, Encoder, EncoderOptions, Pooling, Staging};

use super::super::{
    Dtype,
    suite::{Check, Off, differences},
};

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    All,
    /// Some kernels in bf16, on rows that are not long: as much as is feasible where each access is watched.
    Reduced,
}

/// Checks everything, and goes on if a check fails. `models` is the folder of the golden models.
///
/// # Errors
/// When there are no models.
pub(super) fn run(
    gpu: &Cuda<f32>,
    models: &Path,
    extent: Extent,
    mut show: impl FnMut(&Check),
) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let mut keep = |check: Check| {
        show(&check);
        checks.push(check);
    };
    if extent == Extent::Reduced {
        kernels(&gpu.with_float::<bf16>(), Dtype::Bf16, &reduced(), &mut keep);
        return Ok(checks);
    }
    let folders = golden(models)?;
    kernels(&gpu.with_float::<bf16>(), Dtype::Bf16, &families(), &mut keep);
    kernels(&gpu.with_float::<f16>(), Dtype::F16, &families(), &mut keep);
    kernels(gpu, Dtype::F32, &families(), &mut keep);
    for folder in &folders {
        keep(model(&gpu.with_float::<bf16>(), Dtype::Bf16, folder));
        keep(model(&gpu.with_float::<f16>(), Dtype::F16, folder));
        keep(model(gpu, Dtype::F32, folder));
    }
    Ok(checks)
}

/// A family of kernels, and a function that panics if the device departs from the twin.
pub(super) type Family<D> = (&'static str, fn(&D));

/// The families that are watched: each moves its data in a way of its own.
fn reduced<D: EncoderKernels>() -> Vec<Family<D>> {
    vec![
        ("softmax", suite::softmax),
        ("norm", suite::norm),
        ("bias_act", suite::bias_act),
        ("embed", suite::embed),
        ("pool", suite::pool),
        ("attention", suite::attention),
    ]
}

fn families<D: EncoderKernels + TopK>() -> Vec<Family<D>> {
    let mut all = reduced();
    all.extend([
        ("gemm", suite::gemm as fn(&D)),
        ("feed_forward", suite::feed_forward),
        ("experts", suite::experts),
        ("max_pool", suite::max_pool),
        ("matmul", suite::matmul),
        ("gather", suite::gather),
        ("rotary", suite::rotary),
        ("top_k", suite::top_k),
        ("empty", suite::empty),
        ("wide rows", suite::wide_rows),
    ]);
    all
}

pub(super) fn kernels<F: Float>(
    device: &Cuda<F>,
    dtype: Dtype,
    families: &[Family<Cuda<F>>],
    keep: &mut impl FnMut(Check),
) {
    for (family, check) in families {
        let begin = Instant::now();
        // first with values that are not aligned to a vector, then aligned as in a server: kernels take other paths for
        // each
        let done = catch_unwind(AssertUnwindSafe(|| {
            check(device);
            suite::aligned(|| check(device));
        }));
        let seconds = begin.elapsed().as_secs_f64();
        let failed = done.err().map(|panic| said(&*panic));
        keep(Check { what: format!("kernels: {family}"), dtype, worst: None, failed, seconds });
    }
}

/// The message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a word").to_owned()
}

/// The folders with hidden states of the reference, by name.
///
/// # Errors
/// When there are none.
fn golden(models: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(models).with_context(|| format!("cannot list {}", models.display()))?;
    let mut folders: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    folders.retain(|folder| is_encoder(folder).unwrap_or(false));
    folders.sort();
    ensure!(!folders.is_empty(), "{}: there are no golden models", models.display());
    Ok(folders)
}

/// Whether its golden file is of an encoder; `None` if there is no such file.
fn is_encoder(folder: &Path) -> Option<bool> {
    let golden = fs::read(folder.join("golden.json")).ok()?;
    Some(serde_json::from_slice::<serde_json::Value>(&golden).ok()?["kind"] == "encoder")
}

pub(super) fn model<F: Float>(device: &Cuda<F>, dtype: Dtype, folder: &Path) -> Check {
    let begin = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(|| Ok((compared(device, folder)?, allowed(dtype, folder)?))));
    let found = done.unwrap_or_else(|panic| Err(anyhow::anyhow!(said(&*panic))));
    let seconds = begin.elapsed().as_secs_f64();
    let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let (worst, failed) = match found {
        Ok((off, allowed)) if off.is_within(allowed) => (Some(off.worst), None),
        Ok((Off { worst, mean }, allowed)) => {
            let said = format!(
                "off by {worst:.1e}, {mean:.1e} in the mean; allowed are {:.1e}, {:.1e}",
                allowed.worst, allowed.mean
            );
            (Some(worst), Some(said))
        }
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    // JSON has no infinity
    let worst = worst.filter(|worst| worst.is_finite());
    Check { what: format!("model: {name}"), dtype, worst, failed, seconds }
}

/// How far hidden states of this model may be off.
fn allowed(dtype: Dtype, folder: &Path) -> Result<Off> {
    if dtype == Dtype::F32 {
        return Ok(Off::IN_F32);
    }
    let file = folder.join("golden.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let golden: serde_json::Value = serde_json::from_slice(&text)?;
    let lost = Off::deserialize(&golden["rounded_drift"][dtype.name()]);
    Ok(lost
        .with_context(|| format!("{}: what PyTorch loses in {}", file.display(), dtype.name()))?
        .beside_reference())
}

/// How far hidden states are from the reference's. All rows are one batch. It is run twice, since the second run takes
/// another path.
fn compared<F: Float>(device: &Cuda<F>, folder: &Path) -> Result<Off> {
    let checkpoint = Checkpoint::open(folder)?;
    let golden = Golden::read(folder, checkpoint.config().num_hidden_layers)?;
    let options =
        EncoderOptions { task: Pooling::Mean.into(), dtype: DType::F32, ..EncoderOptions::of(&checkpoint) };
    let mut encoder = Encoder::new(device.clone(), &checkpoint, options)?;
    let mut staging = Staging::new();
    for (ids, types) in &golden.rows {
        staging.push(ids, types)?;
    }
    let mut off = Off { worst: 0.0, mean: 0.0 };
    for _ in 0..2 {
        encoder.run(&staging)?;
        let mut hidden = Vec::new();
        (0..golden.rows.len()).try_for_each(|sequence| encoder.tokens(sequence, &mut hidden))?;
        off = off.max(differences(&hidden, &golden.hidden));
    }
    Ok(off)
}

/// Rows of different lengths, and their hidden states in the reference, as `reference/make_references.py` wrote them.
struct Golden {
    /// Ids and token types.
    rows: Vec<(Vec<u32>, Vec<u32>)>,
    hidden: Vec<f32>,
}

impl Golden {
    fn read(folder: &Path, num_layers: u32) -> Result<Self> {
        let file = folder.join("golden.safetensors");
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let tensors = SafeTensors::deserialize(&bytes).with_context(|| format!("{}", file.display()))?;
        let integers = |name: &str| -> Result<Vec<u32>> {
            let tensor = tensors.tensor(name)?;
            ensure!(tensor.dtype() == Stored::I64, "{name}: expected I64, got {:?}", tensor.dtype());
            let values = tensor.data().as_chunks().0.iter().map(|value| i64::from_le_bytes(*value));
            values.map(|value| Ok(u32::try_from(value)?)).collect()
        };
        let hidden = ["rows.last_hidden_state".to_owned(), format!("rows.hidden_states.{num_layers}")];
        let hidden = hidden.iter().find_map(|name| tensors.tensor(name).ok());
        let hidden = hidden.with_context(|| format!("{}: there are no hidden states", file.display()))?;
        ensure!(hidden.dtype() == Stored::F32, "hidden states: expected F32, got {:?}", hidden.dtype());
        let ids = integers("rows.input_ids")?;
        let types = integers("rows.token_type_ids").unwrap_or_else(|_| vec![0; ids.len()]);
        let ends = integers("rows.cu_seqlens")?;
        let of = |all: &[u32], ends: &[u32]| all[ends[0] as usize..ends[1] as usize].to_vec();
        Ok(Self {
            rows: ends.windows(2).map(|ends| (of(&ids, ends), of(&types, ends))).collect(),
            hidden: hidden.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
        })
    }
}
