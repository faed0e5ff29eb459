//! Spans on their way to a collector of OpenTelemetry.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::runtime::Runtime;
use tracing::Metadata;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// How long the last spans may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where spans are sent; nowhere without an endpoint.
pub(super) struct Spans(Option<Sending>);

struct Sending {
    provider: SdkTracerProvider,
    /// Its own, so that no thread that answers requests waits for a collector.
    runtime: Runtime,
}

impl Spans {
    /// Spans for the collector at `endpoint`, under the name `service`. It need not be there yet.
    ///
    /// # Errors
    /// When `endpoint` is no URL.
    pub(super) fn to(endpoint: Option<&str>, service: &str) -> Result<Self> {
        Self::check(endpoint)?;
        let Some(endpoint) = endpoint else { return Ok(Self(None)) };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("turbo-spans").enable_all().build();
        let runtime = runtime.context("cannot start the runtime for --otlp-endpoint")?;
        let in_runtime = runtime.enter();
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.with_context(|| expected(endpoint))?;
        drop(in_runtime);
        let resource = Resource::builder().with_service_name(service.to_owned()).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource);
        Ok(Self(Some(Sending { provider: provider.build(), runtime })))
    }

    /// Looks at what can be told before anything is opened.
    ///
    /// # Errors
    /// An address that is no URL.
    pub(super) fn check(endpoint: Option<&str>) -> Result<()> {
        // Without a scheme the exporter would take it for one of TLS, and say nothing.
        let is_url = |it: &str| ["http://", "https://"].iter().any(|scheme| it.starts_with(scheme));
        match endpoint {
            Some(endpoint) if !is_url(endpoint) => bail!(expected(endpoint)),
            _ => Ok(()),
        }
    }

    /// Takes the spans of requests, and nothing that libraries do in them.
    pub(super) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let Sending { provider, .. } = self.0.as_ref()?;
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("turbo"));
        let ours =
            |metadata: &Metadata<'_>| metadata.is_span() && metadata.target().starts_with("turbo_serve");
        Some(layer.with_location(false).with_threads(false).with_target(false).with_filter(filter_fn(ours)))
    }

    /// Sends what was not sent yet.
    pub(super) fn end(self) {
        let Some(Sending { provider, runtime }) = self.0 else { return };
        if let Err(error) = provider.shutdown_with_timeout(LAST_WORDS) {
            tracing::warn!(%error, "the last spans were not sent");
        }
        runtime.shutdown_background();
    }
}

fn expected(endpoint: &str) -> String {
    format!("--otlp-endpoint `{endpoint}`: expected a URL such as `http://localhost:4317`")
}
