//! A server under fire, in the minute that a test has: the same clients as in the figure `serve`, aimed at a tiny model.
//!
//! The server is the `turbo` of this build, beside this test's own binary: `cargo test --workspace` makes both, and
//! `cargo build --bin turbo` the one that is missing or old. Where it is missing the tests say so and pass, unless
//! `TURBO_REQUIRE_SERVER=1`.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;
use turbo_bench::{
    figures::{
        rounds::Rounds,
        serve::{
            self, Arrivals, Kind, Pace, Regime, Report, Rows, Shares, Stage, TURBO, Work, contest::Contest,
            page,
        },
    },
    fire::{Server, Texts},
    record::Record,
    rival::Rival,
    siege::{self, Event, Size, Trial, Who},
};

const MODEL: &str = "tiny-sentence";

/// turbo on the tests' tiny model.
struct Tiny {
    turbo: PathBuf,
    texts: Texts,
}

impl Tiny {
    /// `None` where there is no server.
    fn new() -> Option<Self> {
        let turbo = Path::new(env!("CARGO_BIN_EXE_turbo-bench")).with_file_name("turbo");
        if !turbo.exists() {
            let required = std::env::var_os("TURBO_REQUIRE_SERVER").is_some_and(|value| value == "1");
            assert!(!required, "there is no {}: `cargo build --bin turbo` makes it", turbo.display());
            eprintln!("SKIPPED: there is no {}: `cargo build --bin turbo` makes it", turbo.display());
            return None;
        }
        Some(Self { turbo, texts: Texts::open(&model()).unwrap() })
    }

    fn serve(&self) -> Command {
        let mut command = Command::new(&self.turbo);
        command.env_clear().env("RUST_LOG", "info");
        command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--device=cpu"]);
        command.args(["--threads=2", "--packed-cache=off", "--model-id"]).arg(model());
        command
    }
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(MODEL)
}

impl siege::Stage for Tiny {
    /// As a shell starts it: with fewer open files than the crowd has connections, until the server raises the limit.
    fn command(&self) -> Command {
        let turbo = self.serve();
        let mut command = Command::new("sh");
        command.env_clear().env("RUST_LOG", "info");
        command
            .args(["-c", "ulimit -Sn 512; exec \"$0\" \"$@\""])
            .arg(turbo.get_program())
            .args(turbo.get_args());
        command
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl Stage for Tiny {
    fn checkpoint(&self, _: &str) -> PathBuf {
        model()
    }

    fn serve(&self, name: &str, kind: &Kind, _: &str) -> Result<Server> {
        let Kind::Turbo { batching, layout } = kind else { anyhow::bail!("nobody asked for others") };
        let mut command = Tiny::serve(self);
        command.args(["--cache-bytes=0", "--cost-cache=off", "--batching", batching, "--layout", layout]);
        Server::start(name, &mut command, Duration::from_secs(60))
    }

    fn engine(&self, _: &str) -> Result<Rival> {
        let mut engine = Command::new(env!("CARGO_BIN_EXE_turbo-bench"));
        Rival::start(TURBO, engine.arg("peer").arg(model()).arg("--threads=2"))
    }
}

#[test]
fn a_server_survives_its_clients() {
    let Some(tiny) = Tiny::new() else { return };
    let heard = |event: Event<'_>| {
        if let Event::Ended(_, trial) = event {
            println!("{trial}");
        }
    };
    let trials = siege::run(&tiny, Size::PART, heard).unwrap();
    assert!(trials.iter().map(|trial| trial.name.as_str()).eq(Who::ALL.map(Who::name)), "{trials:#?}");
    let broken: Vec<&Trial> = trials.iter().filter(|trial| !trial.broken.is_empty()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

fn contest(names: &[&str]) -> Work {
    let turbo = |batching: &str| Kind::Turbo { batching: batching.to_owned(), layout: "packed".to_owned() };
    Work::Contest {
        servers: names.iter().map(|name| turbo(name)).collect(),
        arrivals: Arrivals::Poisson(3..=40),
        promised: Duration::from_millis(500),
        shares: Shares::OfTheFirst,
    }
}

#[test]
fn what_is_measured_is_recorded_and_shown() {
    let Some(tiny) = Tiny::new() else { return };
    let regime = |name, work| Regime { name, model: MODEL.to_owned(), work };
    let regimes =
        [regime("packed-short", contest(&["dp", "none"])), regime("host-path", Work::HostPath(vec![10, 40]))];
    let short = Duration::from_millis(300);
    let pace = Pace { clients: 8, ramp: short / 3, capacity: short, turn: short, siege: Size::PART };
    let mut record: Option<Report> = None;
    serve::run(&regimes, Rounds::Fixed(2), 2, &pace, &tiny, |section, provenance, summary| {
        record = Some(serve::merge(record.take(), section, (provenance.clone(), summary.clone()))?);
        Ok(())
    })
    .unwrap();
    let report = record.unwrap();
    let mut sections = report.rows.iter().map(|section| &section.rows);
    let contest = sections.find_map(|rows| match rows {
        Rows::Contest(contest) => Some(contest),
        _ => None,
    });
    holds(contest.unwrap());
    let host_path = report.rows.iter().find_map(|section| match &section.rows {
        Rows::HostPath(found) => Some(found),
        _ => None,
    });
    let host_path = host_path.unwrap();
    assert!(host_path.rate.share() > 0.0 && host_path.rate.shares.len() == 2, "{host_path:?}");
    assert!(host_path.idle.iter().all(|it| it.server_ms > 0.0 && it.engine_ms > 0.0), "{host_path:?}");

    let folder = tempfile::tempdir().unwrap();
    serve::write(&report, folder.path()).unwrap();
    let read: Report = Record::read(&folder.path().join("serve.json")).unwrap();
    let shown = std::fs::read_to_string(folder.path().join("serve.md")).unwrap();
    assert_eq!(page::page(&read, ""), shown);
    assert!(shown.contains("Poisson, 3 to 40 tokens") && shown.contains("| not measured |"), "{shown}");
    for (file, said) in [
        ("serve-goodput.svg", Some("packed-short: answered in time")),
        ("serve-latency.svg", Some("packed-short: ")),
        // There were no others.
        ("serve-others.svg", None),
    ] {
        let picture = std::fs::read_to_string(folder.path().join(file)).ok();
        assert_eq!(picture.is_some(), said.is_some(), "{file}");
        assert_eq!(shown.contains(file), said.is_some(), "{shown}");
        if let (Some(picture), Some(said)) = (picture, said) {
            assert!(picture.starts_with("<svg") && picture.contains(said), "{file}: {picture}");
        }
    }
    let mut other = read.rows[0].clone();
    other.threads = 1;
    let about = (read.provenance.clone(), read.summary.clone());
    let refused = serve::merge(Some(read), other, about).unwrap_err();
    assert_eq!(refused.to_string(), "the record was measured with 2 threads, got 1");
}

/// What no measurement may say.
fn holds(contest: &Contest) {
    assert_eq!(contest.standings.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["dp", "none"]);
    for standing in &contest.standings {
        assert!(standing.capacity > 0.0 && standing.capacities.len() == 2, "{standing:?}");
        for point in &standing.points {
            let counted = point.served.count + point.refused.count + point.expired + point.dropped;
            assert_eq!(counted, point.offered, "each has one of these ends, and no other: {point:?}");
            assert!(point.failed.is_empty() && point.served.count > 0, "{point:?}");
            assert_eq!(point.dropped, 0, "who is let in is answered, and who is not is told so: {point:?}");
            assert!(point.cost_error.is_some_and(|off| (0.0..100.0).contains(&off)), "{point:?}");
            assert!(point.goodput <= point.achieved_rate && point.goodputs.len() == 2, "{point:?}");
            assert!(point.served.p50_ms <= point.served.p99_ms, "{point:?}");
        }
        let offered: Vec<u64> = standing.points.iter().map(|it| it.offered).collect();
        assert_eq!(offered, contest.standings[0].points.iter().map(|it| it.offered).collect::<Vec<_>>());
    }
}
