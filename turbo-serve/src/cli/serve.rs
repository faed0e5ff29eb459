//! `turbo serve`: from arguments to a server, until told to stop.

use std::{
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use turbo_models::{DType, EncoderKernels};
use turbo_serve::{
    cache::ResponseCache,
    engine::{Engine, EngineConfig, Model, ModelInfo, OpenOptions},
    grpc,
    http::{self, HttpOptions, Metrics},
    models::Models,
    net,
};

use super::{
    config::Config,
    device::{NoGpu, OnDevice, Wish},
    devices::{Devices, Shared},
    model_arguments::NO_TOKENIZER,
    serve_arguments::of_flags,
    shutdown::{self, Signals},
};

pub(super) use super::serve_arguments::Arguments;

/// Serves one model until told to stop.
///
/// # Errors
/// When the model, the device or the address cannot be used.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    serve_on(arguments, &[arguments.model.device], |host| {
        let arguments = arguments.clone();
        async move {
            let open = move || open(&arguments, host, Among::default()).map_err(of_flags);
            Ok(Models::single(blocking(open).await?))
        }
    })
}

/// Serves what a file describes, until told to stop.
///
/// # Errors
/// When a model, the device or the address cannot be used.
pub(super) fn run_config(config: Config) -> Result<()> {
    let (arguments, devices) = (config.server().clone(), config.devices());
    serve_on(&arguments, &devices, |host| async move {
        let models = blocking(move || config.declare(&host)).await?;
        models.start().await?;
        Ok(models)
    })
}

/// What all models of a process share.
#[derive(Clone)]
pub(super) struct Host {
    devices: Devices,
    cache: Option<ResponseCache>,
    /// Held while a model is loaded: two at once would disturb each other's measurements.
    loading: Arc<Mutex<()>>,
}

/// Serves what `load` loads, on these devices.
fn serve_on<L: Future<Output = Result<Models>>>(
    arguments: &Arguments,
    devices: &[Wish],
    load: impl FnOnce(Host) -> L,
) -> Result<()> {
    arguments.check()?;
    let log = arguments.log.start()?;
    #[cfg(unix)]
    super::file_limit::raise();
    for warning in arguments.tei.warnings() {
        tracing::warn!("{warning}");
    }
    let tell = |no_gpu: NoGpu| tracing::info!("{}", no_gpu.why);
    let devices = Devices::open(devices.iter().copied(), arguments.model.threads, tell)?;
    // Sockets and JSON take little, and wait while the model computes on all cores; two, so that a large body does not
    // hold up a look at `/health`.
    let io_threads = EngineConfig::workers_beside(devices.threads()).max(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(io_threads).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let served = runtime.block_on(serve(arguments, devices, load));
    // A model that was still being loaded when the signal came is left alone.
    runtime.shutdown_background();
    log.end();
    served
}

async fn serve<L: Future<Output = Result<Models>>>(
    arguments: &Arguments,
    devices: Devices,
    load: impl FnOnce(Host) -> L,
) -> Result<()> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    // Before the model is loaded, so that a port in use is reported at once; it listens when the model is warm, so that
    // no client is connected to a server that does not answer yet.
    let claimed = arguments.net.claim(arguments.tei.port()).await?;

    let metrics = Metrics::install()?;
    let cache = arguments.cache.open()?;
    let host = Host { devices, cache: cache.clone(), loading: Arc::default() };
    let models = tokio::select! {
        models = load(host) => models?,
        () = signals.next() => return Ok(()),
    };
    let options = HttpOptions {
        payload_limit: arguments.payload_limit.0,
        max_rerank_documents: arguments.max_rerank_documents,
        root_task: arguments.tei.root_task(),
    };
    let services = grpc::router(models.clone(), metrics.clone(), arguments.payload_limit.0);
    let router = http::router(models.clone(), metrics, options).merge(services);
    let router = arguments.net.guard(net::bounded(router, arguments.in_flight()));
    let router = arguments.tei.vertex_paths().before(router);
    let listeners = claimed.listen().await?;
    let grace = Duration::from_millis(arguments.shutdown_grace_ms);
    let served = shutdown::serve(&models, listeners, router, signals, grace).await;
    match (cache, &served) {
        (Some(cache), Ok(())) => close(cache).await,
        // There is no time left.
        (Some(cache), Err(_)) => cache.give_up(),
        (None, _) => {}
    }
    served
}

/// Has the last answers written, until it is told once more to stop.
async fn close(cache: ResponseCache) {
    let closing = cache.clone();
    let closed = tokio::task::spawn_blocking(move || closing.close());
    let told_again = async {
        match Signals::listen() {
            Ok(mut signals) => signals.next().await,
            Err(_) => std::future::pending().await, // without signals it waits for some seconds
        }
    };
    tokio::select! {
        biased;
        // It does not panic; if it did, there would be no more to wait for.
        _ = closed => {}
        () = told_again => cache.give_up(),
    }
}

/// Does what loads models on a thread where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("the model panicked while it was being loaded")?
}

/// What an engine is among others of its process; by default it is alone.
#[derive(Default)]
pub(super) struct Among {
    /// What it is called; `None` is its own name.
    pub(super) name: Option<String>,
    /// What its metrics are told apart by.
    pub(super) label: Option<String>,
}

/// An engine with the model of these arguments, warm. Blocks.
///
/// # Errors
/// When the model cannot be found, opened or run.
pub(super) fn open(arguments: &Arguments, host: Host, among: Among) -> Result<Engine> {
    let (Host { devices, cache, loading }, Among { name, label }) = (host, among);
    let Shared { device, turns } = devices.of(arguments.model.device);
    arguments.model.dtype.check_on(device.wish())?;
    let config = EngineConfig { label, turns, cache, ..arguments.config(device.threads()) };
    let warn = |warning: &str| tracing::warn!("{warning}");
    let local =
        arguments.tei.with_token(&arguments.model).local_with(arguments.dense_path.as_deref(), warn)?;
    // After the fetching, which does not disturb measurements. A load that panicked leaves nothing behind for the next.
    let _alone = loading.lock().unwrap_or_else(PoisonError::into_inner);
    let name = name.or(arguments.tei.served_model_name().map(str::to_owned)).unwrap_or(local.name);
    let fingerprint = config.cache.as_ref().is_some_and(ResponseCache::is_lasting);
    let options = OpenOptions { name: Some(name), sha: local.sha, fingerprint, ..arguments.open_options() };
    let open = Open { folder: local.folder, options };
    let shown = open.folder.display().to_string();
    let model = device.run(open, arguments.model.dtype, warn)?;
    if model.tokenizer.is_none() {
        warn(&format!("{shown}: {NO_TOKENIZER}: requests can send only token ids"));
    }
    let ModelInfo { name, device, task, .. } = &model.info;
    tracing::info!(model = name, device, %task, "loading");
    Ok(Engine::start(model, &config)?)
}

/// A model to be opened, wherever it runs.
struct Open {
    folder: PathBuf,
    options: OpenOptions,
}

impl OnDevice for Open {
    type Output = Model;

    fn on<D: EncoderKernels>(self, device: D, dtype: DType) -> Result<Model> {
        Ok(Model::open(&self.folder, device, OpenOptions { dtype, ..self.options })?)
    }
}
