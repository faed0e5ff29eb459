//! Logs: on standard error, as plain lines or as JSON; and spans, for a collector.

use std::io::IsTerminal;

use anyhow::Result;
use clap::Args;
use tracing_subscriber::{
    EnvFilter, Layer, filter::LevelFilter, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt,
};

use super::spans::Spans;

/// Arguments about logs and spans.
#[derive(Args, Clone)]
#[command(next_help_heading = "Logs")]
pub(super) struct LogArguments {
    /// Log JSON instead of plain lines
    ///
    /// The variable RUST_LOG says how much is logged.
    #[arg(long, env)]
    json_output: bool,
    /// Collector of OpenTelemetry that is sent a span for each request
    ///
    /// Over gRPC, such as `http://localhost:4317`.
    #[arg(long, env, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Name of this server at the collector
    #[arg(long, env, value_name = "NAME", default_value = "turbo")]
    otlp_service_name: String,
}

impl LogArguments {
    /// Looks at what can be told before anything is opened.
    ///
    /// # Errors
    /// A collector that cannot be one.
    pub(super) fn check(&self) -> Result<()> {
        Spans::check(self.otlp_endpoint.as_deref())
    }

    /// Starts logging. `RUST_LOG` says what is shown; without it, `info` and what is worse.
    ///
    /// # Errors
    /// A collector that cannot be one.
    pub(super) fn start(&self) -> Result<Spans> {
        let said = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|said| !said.is_empty());
        let (filter, wrong) = match said.as_deref().map(filter).transpose() {
            Ok(filter) => (filter, None),
            Err(why) => (None, Some(why)),
        };
        let filter = filter.unwrap_or_else(|| EnvFilter::new("info"));
        let spans = Spans::to(self.otlp_endpoint.as_deref(), &self.otlp_service_name)?;
        let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
        let lines = match self.json_output {
            true => lines.json().boxed(),
            false => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        };
        registry().with(spans.layer()).with(lines.with_filter(filter)).init();
        if let (Some(said), Some(why)) = (said, wrong) {
            tracing::warn!(
                "RUST_LOG {said:?} cannot be used ({why}): what is shown is `info` and what is worse"
            );
        }
        Ok(spans)
    }
}

/// What `RUST_LOG` says.
///
/// # Errors
/// What is wrong with it. A lone word that is no level names a crate, whose lines alone would be shown: one that is not
/// turbo's is taken for a slip, such as `warning`.
fn filter(said: &str) -> Result<EnvFilter, String> {
    let filter = EnvFilter::try_new(said).map_err(|error| error.to_string())?;
    let is_slip = |word: &&str| {
        // What stands in brackets is of spans.
        let is_a_word = !word.is_empty() && !word.contains(['=', '[', ']', '{', '}']);
        is_a_word && !word.starts_with("turbo") && word.parse::<LevelFilter>().is_err()
    };
    match said.split(',').map(str::trim).find(is_slip) {
        None => Ok(filter),
        Some(word) => Err(format!(
            "`{word}` is no level (off, error, warn, info, debug or trace); if it is a crate, write `{word}=info`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_would_silence_the_log_are_no_filters() {
        for said in
            ["info", "WARN", "off", "3", "turbo", "turbo_serve::http", "info,hyper=warn", "warn,h2=off,"]
        {
            assert!(filter(said).is_ok(), "{said}");
        }
        for (said, word) in [("warning", "warning"), ("verbose", "verbose"), ("info,quiet", "quiet")] {
            let why = filter(said).unwrap_err();
            assert!(why.starts_with(&format!("`{word}` is no level (off, error, ")), "{why}");
        }
        assert!(filter("turbo=loud").is_err());
    }
}
