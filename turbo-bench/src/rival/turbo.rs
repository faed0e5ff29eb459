//! turbo as a rival: the bare engine, from ids to the last hidden state, packed.

use std::{
    io::{BufRead, Write},
    path::Path,
    time::Instant,
};

use anyhow::{Result, bail};
use turbo_graph::LayoutKind;
use turbo_kernels::{Cpu, DType, EncoderKernels};
use turbo_models::{Checkpoint, Encoder, EncoderOptions, Pooling, Staging};

use super::{Answer, Request, converse, token};
use crate::figures::cpu::Precision;

/// Answers requests until there are no more.
///
/// # Errors
/// When the model cannot be loaded or run, or a request makes no sense.
pub fn serve(
    model: &Path,
    device: Cpu,
    precision: Precision,
    requests: impl BufRead,
    answers: impl Write,
) -> Result<()> {
    let mut turbo = Turbo::load(model, device, precision.into())?;
    let ready = Answer::Ready { library: turbo.library(), variant: precision.name().into() };
    converse(&ready, |request| turbo.answer(request), requests, answers)
}

/// Name, version and device.
pub(super) fn library(device: &str) -> String {
    format!("turbo {}, {device}", env!("CARGO_PKG_VERSION"))
}

/// An encoder on a device.
pub(crate) struct Turbo<D: EncoderKernels> {
    pub(crate) encoder: Encoder<D>,
    device: String,
    vocab_size: usize,
    staging: Staging,
}

impl<D: EncoderKernels> Turbo<D> {
    /// Loads a checkpoint; its products are computed in `dtype`.
    pub(crate) fn load(model: &Path, device: D, dtype: DType) -> Result<Self> {
        let checkpoint = Checkpoint::open(model)?;
        let name = device.name();
        let task = Pooling::Mean.into(); // every row of the last hidden state is computed, as the rivals do
        let options =
            EncoderOptions { layout: LayoutKind::Packed, task, dtype, ..EncoderOptions::of(&checkpoint) };
        let encoder = Encoder::new(device, &checkpoint, options)?;
        let vocab_size = checkpoint.limits().vocab_size;
        Ok(Self { encoder, device: name, vocab_size, staging: Staging::new() })
    }

    /// Name, version and device.
    pub(crate) fn library(&self) -> String {
        library(&self.device)
    }

    fn answer(&mut self, request: &Request) -> Result<Answer> {
        match request {
            Request::Time { batches, warm_up, runs } => {
                let time = |batch: &Vec<u32>| self.time(batch, *warm_up, *runs);
                Ok(Answer::Ms(batches.iter().map(time).collect::<Result<_>>()?))
            }
            Request::Rows { rows } => Ok(Answer::Rows(self.rows(rows)?)),
            Request::Product { .. } | Request::ProductRows { .. } => {
                bail!("asked for a product, and this is a model: `turbo-bench peer --products`")
            }
        }
    }

    /// Milliseconds of each of `runs` runs of a batch, from ids on the host to the last hidden state on the device.
    pub(crate) fn time(&mut self, lens: &[u32], warm_up: usize, runs: usize) -> Result<Vec<f64>> {
        self.stage(lens)?;
        let once = |_| {
            let start = Instant::now();
            self.encoder.run(&self.staging)?;
            self.encoder.finish()?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        let times = (0..warm_up + runs).map(once).collect::<Result<Vec<f64>>>()?;
        Ok(times[warm_up..].to_vec())
    }

    /// The first and the last token's vector of each sequence of a batch.
    pub(crate) fn rows(&mut self, lens: &[u32]) -> Result<Vec<Vec<f32>>> {
        self.stage(lens)?;
        self.encoder.run(&self.staging)?;
        let mut rows = Vec::new();
        for (sequence, &len) in lens.iter().enumerate() {
            let mut tokens = Vec::new();
            self.encoder.tokens(sequence, &mut tokens)?;
            let width = tokens.len() / len as usize;
            rows.extend([tokens[..width].to_vec(), tokens[tokens.len() - width..].to_vec()]);
        }
        Ok(rows)
    }

    /// Ids of sequences of these lengths.
    pub(crate) fn ids(&self, lens: &[u32]) -> Vec<Vec<u32>> {
        let of = |&len: &u32| (0..len).map(|t| token(t, len, self.vocab_size)).collect();
        lens.iter().map(of).collect()
    }

    fn stage(&mut self, lens: &[u32]) -> Result<()> {
        self.staging.clear();
        Ok(self.ids(lens).iter().try_for_each(|ids| self.staging.push(ids, &[]))?)
    }
}
