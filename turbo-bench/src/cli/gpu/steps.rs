//! The steps of a build with GPU support.

use std::{path::Path, sync::Arc};

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
/// When there is no GPU, or a step finds something wrong.
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
            let found = open(site)?.sanitizer(&watched(&own, site.gpu, scratch.path()))?;
            let wrong = found.iter().find(|it| matches!(it.finding, Finding::Errors(_) | Finding::Failed(_)));
            match wrong {
                Some(wrong) => bail!("{}: {:?}", wrong.tool, wrong.finding),
                None => Ok(()),
            }
        }
    }
}

/// The command line of this program's reduced suite on a GPU.
fn watched(own: &Path, gpu: u32, out: &Path) -> [String; 8] {
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let [own, gpu, out] = [shown(own), gpu.to_string(), shown(out)];
    [own, "gpu".into(), "suite".into(), "--reduced".into(), "--gpu".into(), gpu, "--out".into(), out]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_that_is_watched_is_the_one_that_was_chosen() {
        let words = watched(Path::new("turbo-bench"), 3, Path::new("out"));
        assert_eq!(words.join(" "), "turbo-bench gpu suite --reduced --gpu 3 --out out");
    }
}
