//! Logs: on standard error, as plain lines or as JSON; and spans, for a collector.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, OnceLock},
};

use anyhow::Result;
use clap::Args;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
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
    /// The variable RUST_LOG, or LOG_LEVEL, says how much is logged. If more than 4096 lines wait to be read, the
    /// newest are lost, and a later line says how many.
    #[arg(long, env)]
    json_output: bool,
    /// OpenTelemetry collector that receives a span for each request
    ///
    /// Spans are sent over gRPC, for example to `http://localhost:4317`.
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

    /// Starts logging, which lasts as long as what it gives. One of [`VARIABLES`] says what is shown; without any,
    /// `info` and what is worse.
    ///
    /// # Errors
    /// A collector that cannot be one.
    pub(super) fn start(&self) -> Result<Log> {
        let set = |name| Some((name, std::env::var(name).ok().filter(|said| !said.is_empty())?));
        let said = VARIABLES.into_iter().find_map(set);
        let (filter, wrong) = match said.as_ref().map(|(_, said)| filter(said)).transpose() {
            Ok(filter) => (filter, None),
            Err(why) => (None, Some(why)),
        };
        let filter = filter.unwrap_or_else(|| EnvFilter::new("info"));
        let spans = Spans::to(self.otlp_endpoint.as_deref(), &self.otlp_service_name)?;
        let (writer, guard) = queue(self.json_output);
        let lines = fmt::layer().with_writer(writer).with_target(false);
        let lines = match self.json_output {
            true => lines.json().flatten_event(true).boxed(),
            false => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        };
        registry().with(spans.layer()).with(lines.with_filter(filter)).init();
        if let (Some((name, said)), Some(why)) = (said, wrong) {
            tracing::warn!(
                "{name} {said:?} cannot be used ({why}): `info` and more severe lines are logged instead"
            );
        }
        Ok(Log { spans, _lines: guard })
    }
}

/// Variables that say what is logged. The first one that is set counts; the second is text-embeddings-inference's.
const VARIABLES: [&str; 2] = [EnvFilter::DEFAULT_ENV, "LOG_LEVEL"];

/// A log that was started.
pub(super) struct Log {
    spans: Spans,
    /// Writes what was logged last when it is dropped, or gives up after a second.
    _lines: WorkerGuard,
}

impl Log {
    /// Sends and writes what was not sent and written yet.
    pub(super) fn end(self) {
        self.spans.end();
    }
}

/// Lines that may wait for who reads the log; more are lost.
const MOST_WAITING: usize = 4096;

/// The way to standard error. A thread of its own writes there, so that no other one ever waits for whoever reads it: a
/// server goes on answering while a supervisor does not look.
fn queue(json: bool) -> (NonBlocking, WorkerGuard) {
    let lost = Arc::<OnceLock<ErrorCounter>>::default();
    let reader = Reader { to: io::stderr(), json, lost: Arc::clone(&lost), told: 0 };
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MOST_WAITING);
    let (lines, guard) = builder.thread_name("turbo-log").finish(reader);
    // nothing was logged before
    let _ = lost.set(lines.error_counter());
    (lines, guard)
}

/// Who reads the log: is told of lines that were lost, behind the first one that is not.
struct Reader<W> {
    to: W,
    json: bool,
    lost: Arc<OnceLock<ErrorCounter>>,
    /// Lines that it was told of.
    told: usize,
}

impl<W: Write> Reader<W> {
    fn tell(&mut self) -> io::Result<()> {
        let lost = self.lost.get().map_or(0, ErrorCounter::dropped_lines);
        let why = format!("{} lines of the log were lost: nobody read them in time", lost - self.told);
        if lost == self.told {
            return Ok(());
        }
        self.told = lost;
        match self.json {
            true => writeln!(self.to, r#"{{"level":"WARN","message":"{why}"}}"#),
            false => writeln!(self.to, "WARN {why}"),
        }
    }
}

impl<W: Write> Write for Reader<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.to.write_all(line)?;
        self.tell()?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What a variable says.
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
            "`{word}` is not a level (off, error, warn, info, debug or trace); if it is a crate, write `{word}=info`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_told_of_lines_that_were_lost() {
        let lost = Arc::<OnceLock<ErrorCounter>>::default();
        let mut reader = Reader { to: Vec::new(), json: true, lost: Arc::clone(&lost), told: 0 };
        reader.write_all(b"a\n").unwrap();
        let (gate, opened) = std::sync::mpsc::channel::<()>();
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(1);
        let (mut lines, _guard) = builder.finish(Shut(opened));
        let counter = lines.error_counter();
        while counter.dropped_lines() < 3 {
            lines.write_all(b"b\n").unwrap();
        }
        let _ = lost.set(counter);
        for line in ["c\n", "d\n"] {
            reader.write_all(line.as_bytes()).unwrap();
        }
        drop(gate);
        let said = String::from_utf8(reader.to).unwrap();
        let told = r#"{"level":"WARN","message":"3 lines of the log were lost: nobody read them in time"}"#;
        assert_eq!(said, format!("a\nc\n{told}\nd\n"));
    }

    /// Takes nothing before the other end is dropped.
    struct Shut(std::sync::mpsc::Receiver<()>);

    impl Write for Shut {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn words_that_would_silence_the_log_are_no_filters() {
        for said in
            ["info", "WARN", "off", "3", "turbo", "turbo_serve::http", "info,hyper=warn", "warn,h2=off,"]
        {
            assert!(filter(said).is_ok(), "{said}");
        }
        for (said, word) in [("warning", "warning"), ("verbose", "verbose"), ("info,quiet", "quiet")] {
            let why = filter(said).unwrap_err();
            assert!(why.starts_with(&format!("`{word}` is not a level (off, error, ")), "{why}");
        }
        assert!(filter("turbo=loud").is_err());
    }
}
