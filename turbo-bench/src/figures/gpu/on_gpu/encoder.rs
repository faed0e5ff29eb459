//! Encoders of turbo and PyTorch, side by side.

use std::path::Path;

use anyhow::{Context, Result};
use turbo_kernels::{DType, Float, bf16, cuda::Cuda, f16};

use super::{
    super::{
        Dtype,
        contest::{TURBO, Turns, contest, list},
        encoder::{Agreed, COMPILED, Case, EAGER, Encoders, Workload},
        torch::script,
    },
    overlap,
};
use crate::{
    figures::{agree, planning},
    rival::{Rival, turbo::Turbo},
};

/// Turns for work that takes from half a millisecond to a tenth of a second.
const TURNS: Turns = Turns { us: 100_000.0, rounds: 9 };

/// How to start PyTorch's processes with a model.
pub(super) struct Peers<'a> {
    pub(super) python: &'a Path,
    /// The folder of the script.
    pub(super) peers: &'a Path,
    /// The device that it computes on.
    pub(super) device: &'a str,
}

/// The work that is measured.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    /// The folder of the checkpoint.
    pub(super) model: &'a Path,
    pub(super) workloads: &'a [Workload],
    /// Lengths of batches that are run one behind the other.
    pub(super) batches: &'a [Vec<u32>],
    /// Requests that are planned one at a time.
    pub(super) planning: &'a planning::Data,
}

impl Peers<'_> {
    fn start(&self, variant: &str, model: &Path, dtype: Dtype) -> Result<Rival> {
        let mut command = script(self.python, self.peers, self.device);
        command.args(["encoder", "--variant", variant, "--dtype", dtype.name(), "--model"]);
        Rival::start(variant, command.arg(model))
    }
}

/// Times all workloads in all types, then batches one behind the other, and at last, in bf16, those workloads again
/// that can be compiled for, since compiling takes long. Everything found is shown to `keep` at once.
///
/// # Errors
/// When the device or PyTorch fails, or a contestant computes something else.
pub(super) fn measure(
    gpu: &Cuda<f32>,
    work: Work<'_>,
    peers: Option<&Peers<'_>>,
    mut keep: impl FnMut(&Encoders) -> Result<()>,
) -> Result<Encoders> {
    let mut reference = Turbo::load(work.model, gpu.clone(), DType::F32)?;
    let mut found = Encoders::default();
    let mut of = Measuring { reference: &mut reference, work, peers, found: &mut found, keep: &mut keep };
    of.all(&gpu.with_float::<bf16>(), Dtype::Bf16)?;
    of.all(&gpu.with_float::<f16>(), Dtype::F16)?;
    of.all(gpu, Dtype::F32)?;
    let planned = planning::measure(work.planning, gpu.with_float::<bf16>(), work.model)?;
    of.found.planning = Some(planning::Summary::of(&planned));
    (of.keep)(of.found)?;
    of.overlapped(&gpu.with_float::<bf16>(), Dtype::Bf16)?;
    of.compiled(&gpu.with_float::<bf16>(), Dtype::Bf16)?;
    Ok(found)
}

/// What is needed to time one type after another.
struct Measuring<'a> {
    /// turbo in f32, which all vectors are compared with.
    reference: &'a mut Turbo<Cuda<f32>>,
    work: Work<'a>,
    peers: Option<&'a Peers<'a>>,
    found: &'a mut Encoders,
    keep: &'a mut dyn FnMut(&Encoders) -> Result<()>,
}

impl Measuring<'_> {
    /// Times all workloads with turbo and with the model as transformers has it.
    fn all<F: Float>(&mut self, device: &Cuda<F>, dtype: Dtype) -> Result<()> {
        let mut turbo = self.turbo(device, dtype)?;
        let mut rivals = self.start(&[EAGER], dtype)?;
        for rival in &mut rivals {
            self.admit(rival, dtype, &agree::LENS)?;
        }
        self.work
            .workloads
            .iter()
            .try_for_each(|workload| self.time(&mut turbo, &mut rivals, workload, dtype))
    }

    /// Times batches one behind the other.
    fn overlapped<F: Float>(&mut self, device: &Cuda<F>, dtype: Dtype) -> Result<()> {
        let mut turbo = self.turbo(device, dtype)?;
        self.found.overlap = Some(overlap::measure(&mut turbo, self.work.batches, dtype, TURNS)?);
        (self.keep)(self.found)
    }

    /// Times workloads of one shape with turbo, the model as it is, and the model compiled for that shape.
    fn compiled<F: Float>(&mut self, device: &Cuda<F>, dtype: Dtype) -> Result<()> {
        let mut rivals = self.start(&[EAGER, COMPILED], dtype)?;
        if rivals.is_empty() {
            return Ok(());
        }
        let mut turbo = self.turbo(device, dtype)?;
        for workload in self.work.workloads.iter().filter(|workload| workload.is_equal()) {
            println!("{} {}: compiling", dtype.name(), workload.name);
            for rival in &mut rivals {
                // with no other shape, since compiling for each one takes long
                self.admit(rival, dtype, &workload.lens)?;
            }
            self.time(&mut turbo, &mut rivals, workload, dtype)?;
        }
        Ok(())
    }

    fn turbo<F: Float>(&mut self, device: &Cuda<F>, dtype: Dtype) -> Result<Turbo<Cuda<F>>> {
        // a GPU multiplies what it stores
        let mut turbo = Turbo::load(self.work.model, device.clone(), DType::F32)?;
        let vectors = turbo.rows(&agree::LENS)?;
        self.judge((TURBO, &turbo.library()), &agree::LENS, &vectors, dtype)?;
        Ok(turbo)
    }

    fn start(&self, variants: &[&str], dtype: Dtype) -> Result<Vec<Rival>> {
        let Some(peers) = self.peers else { return Ok(Vec::new()) };
        variants.iter().map(|variant| peers.start(variant, self.work.model, dtype)).collect()
    }

    /// Makes sure that a rival computes the same for sequences of these lengths.
    fn admit(&mut self, rival: &mut Rival, dtype: Dtype, lens: &[u32]) -> Result<()> {
        let vectors = rival.rows(lens)?;
        self.judge((rival.name(), rival.library()), lens, &vectors, dtype)
    }

    fn judge(&mut self, who: (&str, &str), lens: &[u32], vectors: &[Vec<f32>], dtype: Dtype) -> Result<()> {
        let expected = self.reference.rows(lens)?;
        let agreement = agree::judge(who, &expected, vectors, dtype.least_cosine())
            .with_context(|| format!("{}: nobody is timed who computes something else", dtype.name()))?;
        let agreed = Agreed { dtype, agreement };
        if !self.found.agreement.contains(&agreed) {
            self.found.agreement.push(agreed);
        }
        Ok(())
    }

    fn time<F: Float>(
        &mut self,
        turbo: &mut Turbo<Cuda<F>>,
        rivals: &mut [Rival],
        workload: &Workload,
        dtype: Dtype,
    ) -> Result<()> {
        let (packed, padded) = (workload.packed(), workload.padded());
        let names = [TURBO].into_iter().chain(rivals.iter().map(Rival::name)).map(str::to_owned);
        let names: Vec<String> = names.collect();
        let times = contest(&names, TURNS, self.found.cases.len(), |who, runs| {
            let ms = match who.checked_sub(1) {
                None => packed.iter().map(|batch| turbo.time(batch, 0, runs)).collect::<Result<Vec<_>>>()?,
                Some(rival) => rivals[rival].time(&padded, 0, runs)?,
            };
            Ok(ms.concat().iter().sum::<f64>() * 1e3 / runs as f64)
        })?;
        println!("{} {}: {}", dtype.name(), workload.name, list(&times));
        let (workload, tokens) = (workload.name.to_owned(), workload.tokens());
        self.found.keep(Case { workload, dtype, tokens, times });
        (self.keep)(self.found)
    }
}
