//! The steps of a build that looks for GPUs.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use turbo_bench::{
    checkpoint::Model,
    figures::gpu::{
        on_gpu::{self, Extent},
        sanitizer::Finding,
    },
};
use turbo_kernels::cuda::{Cuda, CudaOptions, Gpu};

use super::{Site, Step};

/// Runs a step.
///
/// # Errors
/// When there is no GPU, or something is wrong.
pub(super) fn run(step: &Step) -> Result<()> {
    match step {
        Step::Suite { site, models, reduced } => {
            let extent = if *reduced { Extent::Reduced } else { Extent::All };
            let failed = open(site)?.suite(models, extent)?;
            ensure!(failed.is_empty(), "{} checks failed, the first is {}", failed.len(), failed[0].what);
            Ok(())
        }
        Step::Ceilings(site) => {
            let found = open(site)?.ceilings()?;
            println!("{}", serde_json::to_string_pretty(&found)?);
            Ok(())
        }
        Step::Rows(site) => open(site)?.rows(),
        Step::Attention(site) => open(site)?.attention(),
        Step::Encoder { site, model } => {
            let site = open(site)?;
            Model::BertBase.shape().ensure(model, 0, |_| {})?;
            site.encoder(model)
        }
        Step::Sanitizer(site) => {
            let own = std::env::current_exe().context("cannot tell where this program is")?;
            let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
            let words =
                [own.as_os_str(), "gpu".as_ref(), "suite".as_ref(), "--reduced".as_ref(), "--out".as_ref()];
            let watched: Vec<String> =
                words.into_iter().chain([scratch.path().as_os_str()]).map(text).collect();
            let found = open(site)?.sanitizer(&watched)?;
            let wrong = found.iter().find(|it| matches!(it.finding, Finding::Errors(_) | Finding::Failed(_)));
            match wrong {
                Some(wrong) => bail!("{}: {:?}", wrong.tool, wrong.finding),
                None => Ok(()),
            }
        }
    }
}

fn text(word: &std::ffi::OsStr) -> String {
    word.to_string_lossy().into_owned()
}

fn open(site: &Site) -> Result<on_gpu::Site> {
    let gpu = Gpu::new(site.gpu)?;
    Ok(on_gpu::Site {
        gpu: Cuda::new(Arc::new(gpu), CudaOptions::default()),
        python: site.python.clone(),
        peers: site.peers.clone(),
        device: "cuda",
        out: site.out.clone(),
    })
}
