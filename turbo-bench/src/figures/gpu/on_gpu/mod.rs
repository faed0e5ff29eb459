//! The steps that run where the GPU is. Each gives a [`Section`].
//!
//! Everything is generic over the driver, so that tests run it on an emulated GPU. Times mean nothing there.

mod encoder;
mod kernels;
mod operations;
mod overlap;
mod sanitizer;
mod suite;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::Result;
use turbo_kernels::{Device, cuda::Cuda};

use super::{
    Ceilings, Dtype, Found, Machine, Measured, Operation, Section, Torch, attention,
    ceilings::{COPY, NOTHING, PRODUCT, Rates},
    contest::{self, TURBO, Turns, contest, list},
    encoder::Workload,
    rows,
    sanitizer::Sanitized,
    suite::Check,
};
use crate::{figures::planning, record::Provenance};
use encoder::{Peers, Work};
use kernels::{Kernels, Way};
use operations::{ATTENTION, LONG, Lineup, REDUCTIONS, WIDE};

pub use suite::Extent;

/// Where steps run, and with which Python.
pub struct Site {
    /// The GPU.
    pub gpu: Cuda<f32>,
    /// A Python that has PyTorch; without one turbo is timed alone.
    pub python: Option<PathBuf>,
    /// The folder of PyTorch's scripts.
    pub peers: PathBuf,
    /// The device that PyTorch computes on: `cuda`, and `cpu` in tests.
    pub device: &'static str,
    /// The folder for sections.
    pub out: PathBuf,
}

/// An unfinished section. It is written anew whenever more is found.
struct Begun<'a> {
    section: Section,
    at: Instant,
    out: &'a Path,
}

impl Begun<'_> {
    fn write(&mut self, found: Found) -> Result<()> {
        self.section.found = found;
        self.section.seconds = self.at.elapsed().as_secs_f64().round();
        self.section.write(self.out)
    }
}

impl Site {
    /// Checks every family of kernels and every golden model of the folder `models`. Returns the checks that failed.
    ///
    /// # Errors
    /// When there are no models, or the section cannot be written.
    pub fn suite(&self, models: &Path, extent: Extent) -> Result<Vec<Check>> {
        let mut begun = self.begin(None, None);
        let checks = suite::run(&self.gpu, models, extent, |check| println!("{}", line(check)))?;
        let failed = checks.iter().filter(|check| check.failed.is_some()).cloned().collect();
        begun.write(Found::Suite(checks))?;
        Ok(failed)
    }

    /// Measures what the GPU can do at most.
    ///
    /// # Errors
    /// When the device or PyTorch fails, or the section cannot be written.
    pub fn ceilings(&self) -> Result<Ceilings> {
        let mut torch = self.torch()?;
        let ceilings = ceilings(&self.gpu, torch.as_mut(), [&COPY, &PRODUCT], LONG)?;
        self.begin(torch.as_ref(), Some(&ceilings)).write(Found::Ceilings)?;
        Ok(ceilings)
    }

    /// Measures operations on rows, and reductions.
    ///
    /// # Errors
    /// As [`Site::ceilings`].
    pub fn rows(&self) -> Result<()> {
        let mut torch = self.torch()?;
        let ceilings = ceilings(&self.gpu, torch.as_mut(), [&COPY, &PRODUCT], LONG)?;
        let mut begun = self.begin(torch.as_ref(), Some(&ceilings));
        let wide = self.each(torch.as_mut(), &WIDE, &rows::wide(), |wide| {
            begun.write(Found::Rows { wide: wide.to_vec(), reductions: Vec::new() })
        })?;
        self.each(torch.as_mut(), &REDUCTIONS, &rows::reductions(), |reductions| {
            begun.write(Found::Rows { wide: wide.clone(), reductions: reductions.to_vec() })
        })?;
        Ok(())
    }

    /// Measures attention.
    ///
    /// # Errors
    /// As [`Site::ceilings`].
    pub fn attention(&self) -> Result<()> {
        let mut torch = self.torch()?;
        let ceilings = ceilings(&self.gpu, torch.as_mut(), [&COPY, &PRODUCT], LONG)?;
        let mut begun = self.begin(torch.as_ref(), Some(&ceilings));
        let keep = |found: &[Measured]| begun.write(Found::Attention(found.to_vec()));
        self.each(torch.as_mut(), &ATTENTION, &attention::cases(), keep)?;
        Ok(())
    }

    /// Measures the encoder whose checkpoint is in the folder `model`.
    ///
    /// # Errors
    /// As [`Site::ceilings`], and when there is no such checkpoint.
    pub fn encoder(&self, model: &Path) -> Result<()> {
        let ceilings = ceilings(&self.gpu, None, [&COPY, &PRODUCT], LONG)?;
        let peers =
            self.python.as_deref().map(|python| Peers { python, peers: &self.peers, device: self.device });
        let mut begun = self.begin(None, Some(&ceilings));
        let workloads = Workload::all();
        let [.., ragged] = &workloads;
        let (batches, planning) = (ragged.packed(), planning::Data::default());
        let work = Work { model, workloads: &workloads, batches: &batches, planning: &planning };
        encoder::measure(&self.gpu, work, peers.as_ref(), |found| {
            begun.write(Found::Encoder(found.clone()))
        })?;
        Ok(())
    }

    /// Runs the command `watched` under compute-sanitizer.
    ///
    /// # Errors
    /// When the section cannot be written.
    pub fn sanitizer(&self, watched: &[String]) -> Result<Vec<Sanitized>> {
        let mut begun = self.begin(None, None);
        let found = sanitizer::run(watched)?;
        begun.write(Found::Sanitizer(found.clone()))?;
        Ok(found)
    }

    fn begin(&self, torch: Option<&Torch>, ceilings: Option<&Ceilings>) -> Begun<'_> {
        let section = Section {
            provenance: Provenance::here(self.gpu.name()),
            machine: machine(&self.gpu),
            libraries: torch.iter().map(|torch| torch.library().to_owned()).collect(),
            ceilings: ceilings.cloned(),
            seconds: 0.0,
            found: Found::Ceilings,
        };
        Begun { section, at: Instant::now(), out: &self.out }
    }

    fn torch(&self) -> Result<Option<Torch>> {
        let start = |python| Torch::start(python, &self.peers, self.device);
        self.python.as_deref().map(start).transpose()
    }

    /// Measures all cases. After each one, everything found so far is shown to `keep`.
    fn each(
        &self,
        mut torch: Option<&mut Torch>,
        lineup: &Lineup<'_>,
        cases: &[(Operation, Dtype)],
        mut keep: impl FnMut(&[Measured]) -> Result<()>,
    ) -> Result<Vec<Measured>> {
        let mut found = Vec::new();
        for (index, (operation, dtype)) in cases.iter().enumerate() {
            let measured =
                operations::measure(&self.gpu, torch.as_deref_mut(), lineup, (operation, *dtype), index)?;
            let times = list(&measured.times);
            println!("{} {} {}: {times}", dtype.name(), operation.name(), operation.sizes());
            found.push(measured);
            keep(&found)?;
        }
        Ok(found)
    }
}

/// A line for people about a check.
fn line(Check { what, dtype, worst, failed, seconds }: &Check) -> String {
    let worst = worst.map_or(String::new(), |worst| format!(", off by {worst:.1e}"));
    let how = failed.as_deref().map_or("ok".to_owned(), |why| format!("FAILED: {why}"));
    format!("{seconds:6.2} s  {} {what}{worst}: {how}", dtype.name())
}

fn machine(gpu: &Cuda<f32>) -> Machine {
    let info = gpu.driver().info();
    let mut query = Command::new("nvidia-smi");
    query.args(["--query-gpu=driver_version", "--format=csv,noheader"]);
    let said = query.output().ok().filter(|output| output.status.success());
    let driver = said
        .and_then(|output| Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned()));
    Machine {
        gpu: info.name.clone(),
        compute_capability: info.compute_capability,
        multiprocessors: info.multiprocessors,
        memory_bytes: info.memory_bytes,
        driver: driver.unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// Measures the ceilings with the operations `copy` and `product`, by turbo and by PyTorch.
fn ceilings(
    gpu: &Cuda<f32>,
    mut torch: Option<&mut Torch>,
    [copy, product]: [&Operation; 2],
    turns: Turns,
) -> Result<Ceilings> {
    let lineup = Lineup { turbo: &[(TURBO, Way::Chosen)], others: &[rows::EAGER], turns };
    let mut of =
        |operation, dtype| operations::measure(gpu, torch.as_deref_mut(), &lineup, (operation, dtype), 0);
    let copied = of(copy, Dtype::F32)?;
    let [bf16, f16, f32] = Dtype::ALL.map(|dtype| of(product, dtype));
    let (bf16, f16, f32) = (bf16?, f16?, f32?);
    let rates = copied.times.iter().map(|timed| {
        // from the best turns: a ceiling is what can be reached
        let rate = |measured: &Measured, amount: u64| {
            contest::of(&measured.times, &timed.who)
                .map_or(0.0, |timed| amount as f64 / (timed.p10_us * 1e-6))
        };
        Rates {
            by: timed.who.clone(),
            copy: rate(&copied, copy.bytes(Dtype::F32)),
            bf16: rate(&bf16, product.flops()),
            f16: rate(&f16, product.flops()),
            f32: rate(&f32, product.flops()),
        }
    });
    let mut nothing = Kernels::new(gpu, &NOTHING, &[Way::Chosen, Way::Enqueued])?;
    let names = ["launched", "enqueued"].map(str::to_owned);
    let launches = contest(&names, turns, 0, |way, runs| nothing.time(way, runs))?;
    Ok(Ceilings {
        rates: rates.collect(),
        launch_us: launches[0].median_us,
        enqueue_us: launches[1].median_us,
    })
}

#[cfg(test)]
mod tests;
