//! The comparison from end to end, on the tests' tiny model: two processes of turbo stand against each other.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Result, bail};
use turbo_bench::{
    figures::cpu::{
        self, Comparison, Disturbance, Entrant, Precision, Regime, Rounds, Rows, Stage, TURBO, Work, goals,
        page, place, regime::equal,
    },
    record::Record,
    rival::{Linear, Rival},
};
use turbo_kernels::{Cpu, CpuOptions};

const MODEL: &str = "tiny-sentence";

/// turbo under two names.
struct Twice;

impl Stage for Twice {
    fn checkpoint(&self, model: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(model)
    }

    fn start(&self, entrant: &Entrant) -> Result<Rival> {
        Rival::start(&entrant.rival, &mut self.peer(entrant))
    }

    fn multiply(&self, rival: &str, precision: Precision, threads: usize) -> Result<Rival> {
        let mut peer = own();
        peer.args(["peer", "--products", "--threads", &threads.to_string(), "--dtype", precision.name()]);
        Rival::start(rival, &mut peer)
    }

    fn disturb(&self) -> Result<Disturbance> {
        Ok(Disturbance(own().args(["disturb", "--share", "0.05"]).stdin(Stdio::piped()).spawn()?))
    }
}

impl Twice {
    fn peer(&self, entrant: &Entrant) -> Command {
        let mut peer = own();
        peer.arg("peer").arg(self.checkpoint(&entrant.model));
        peer.args(["--threads", &entrant.threads.to_string(), "--dtype", entrant.precision.name()]);
        peer
    }
}

fn own() -> Command {
    Command::new(env!("CARGO_BIN_EXE_turbo-bench"))
}

fn regime(name: &'static str, work: Work) -> Regime {
    let (model, rivals) = (MODEL.to_owned(), vec!["again".to_owned()]);
    Regime { name, model, precision: Precision::F32, rivals, work }
}

fn regimes() -> Vec<Regime> {
    vec![
        regime("batch1", Work::Batches(vec![vec![5], vec![40], vec![12, 7]])),
        regime("stream-short", Work::Stream { lens: 5..=60, requests: 30 }),
        regime("scaling", Work::Scaling(vec![vec![20]])),
    ]
}

/// What is left of all regimes in a record.
fn compared(regimes: &[Regime], rounds: Rounds) -> Comparison {
    compared_on(&Twice, regimes, rounds)
}

fn compared_on(stage: &impl Stage, regimes: &[Regime], rounds: Rounds) -> Comparison {
    let device = Cpu::new(CpuOptions { threads: 2.try_into().ok(), isa: None }).unwrap();
    let mut record = None;
    cpu::run(regimes, rounds, &device, stage, |section, provenance, summary| {
        record = Some(cpu::merge(record.take(), section, (provenance.clone(), summary.clone()))?);
        Ok(())
    })
    .unwrap();
    record.unwrap()
}

#[test]
fn every_rival_has_every_row_and_the_record_is_read_as_it_was_written() {
    let comparison = compared(&regimes(), Rounds::Fixed(2));
    assert_eq!(comparison.rows.len(), 3);
    for section in &comparison.rows {
        assert_eq!((&section.commit, section.threads), (&comparison.provenance.commit, 2));
        assert!(section.agreement.iter().all(|it| it.difference == 0.0), "one engine has one result");
        match &section.rows {
            Rows::Batches(cases) => {
                assert_eq!(cases.len(), 3 * 2);
                for case in cases {
                    assert!(case.p10_ms <= case.median_ms && case.median_ms <= case.p90_ms, "{case:?}");
                    assert!(case.p10_ms > 0.0 && case.floor_ms > 0.0 && case.runs >= 2, "{case:?}");
                    assert_eq!(case.is_ragged(), case.batch_size == 2);
                }
            }
            Rows::Stream(streams) => {
                assert_eq!(streams.len(), 2);
                for stream in streams {
                    let policies = if stream.rival == TURBO { 3 } else { 4 };
                    assert_eq!((stream.estimates_s.len(), stream.requests), (policies, 30));
                    assert!(stream.median_s > 0.0 && stream.rounds <= 2, "{stream:?}");
                }
            }
            Rows::Scaling(scales) => {
                assert_eq!(scales.len(), 2);
                assert!(scales.iter().all(|it| it.one_ms > 0.0 && it.disturbed_ms > 0.0), "{scales:?}");
            }
            Rows::Products(_) => panic!("nobody asked for products"),
        }
    }

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(page::NOTES), "A note.").unwrap();
    cpu::write(&comparison, folder.path()).unwrap();
    let read: Comparison = Record::read(&folder.path().join("cpu.json")).unwrap();
    let shown = fs::read_to_string(folder.path().join("cpu.md")).unwrap();
    assert_eq!(page::page(&read, "A note.", &[]), shown);
    assert!(shown.contains("## What stands between\n\nA note.\n"), "{shown}");
    assert!(shown.contains("| 1 × 5 |") && shown.contains("| 2 × ≤ 12 |"), "{shown}");
    assert!(shown.contains("\n| 5 to 60 tokens") && shown.contains("| not measured |"), "{shown}");
    assert!(shown.contains("within a cosine of 0.999999 in f32."), "{shown}");
    assert!(
        !shown.contains("measured at once") && !shown.contains("earlier way"),
        "one run, one way: {shown}"
    );
    let picture = fs::read_to_string(folder.path().join("cpu-latency.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("tiny-sentence, one request"), "{picture}");

    let mut mixed = read;
    (mixed.rows[0].method, mixed.rows[0].commit, mixed.rows[1].method) = (1, "other".to_owned(), 3);
    let other = place::Other { processor: "Other".to_owned(), folder: "cpu/other".to_owned() };
    let shown = page::page(&mixed, "", &[other]);
    assert!(shown.contains("\nOther processors: [Other](cpu/other/cpu.md).\n"), "{shown}");
    assert!(shown.contains("That is tiny-sentence f32 batch1, tiny-sentence f32 stream-short.\n"), "{shown}");
    assert!(shown.contains("Not everything was measured at once") && shown.contains("| other |"), "{shown}");

    let short = page::short(&comparison);
    let line = short.lines().find(|line| line.starts_with("| tiny-sentence, f32")).unwrap();
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    // 1 × 40 and the short stream were measured, and nothing else that the table shows
    let compared: Vec<usize> = (0..cells.len()).filter(|&i| cells[i].contains(" × again)")).collect();
    assert_eq!((cells.len(), compared), (10, vec![3, 7]), "{short}");

    let readme = folder.path().join("README.md");
    let marked = "before\n<!-- written by `cargo xtask bench cpu` -->\nold\n<!-- until here -->\nafter\n";
    fs::write(&readme, marked).unwrap();
    cpu::write_into(&readme, &comparison).unwrap();
    let text = fs::read_to_string(&readme).unwrap();
    assert!(text.contains(&page::short(&comparison)) && !text.contains("old"), "{text}");
    assert!(text.starts_with("before\n") && text.ends_with("<!-- until here -->\nafter\n"), "{text}");
    fs::write(&readme, "no place").unwrap();
    assert!(cpu::write_into(&readme, &comparison).is_err());
}

/// Where others used more than a twentieth of the machine, the page and the README say so of each section.
#[test]
fn who_was_disturbed_is_told_beside_the_numbers() {
    let mut comparison = compared(&regimes(), Rounds::Fixed(1));
    for (most, told) in [(0.05, 0), (0.246, 1)] {
        for section in &mut comparison.rows {
            let foreign: Vec<&mut Option<f64>> = match &mut section.rows {
                Rows::Batches(cases) => cases.iter_mut().map(|it| &mut it.foreign_cpu).collect(),
                Rows::Stream(streams) => streams.iter_mut().map(|it| &mut it.foreign_cpu).collect(),
                Rows::Scaling(scales) => scales.iter_mut().map(|it| &mut it.foreign_cpu).collect(),
                Rows::Products(_) => panic!("nobody asked for products"),
            };
            let shares = [Some(most), None].into_iter().cycle();
            foreign.into_iter().zip(shares).for_each(|(foreign, share)| *foreign = share);
        }
        let [page, short] = [page::page(&comparison, "", &[]), page::short(&comparison)];
        let said = |text: &str, before: &str| {
            text.matches(&format!("{before}, others used up to 25 % of the machine")).count()
        };
        for before in ["(1 rounds", "| 5 to 60 tokens", "5 % of one core, milliseconds"] {
            assert_eq!(said(&page, before), told, "{before}");
        }
        assert_eq!(said(&short, "| tiny-sentence, f32"), told, "{short}");
    }
}

/// Its answers are timed by a script: two seconds a batch in its first looks, a millisecond in all others.
#[cfg(unix)]
#[test]
fn whoever_is_slow_when_looked_at_first_takes_part_in_all_rounds() {
    const SLOW_AT_FIRST: &str = r#"
        slow=$1
        shift
        "$@" | while read -r line; do
            case $line in '{"ms"'*)
                ms=1.0
                if [ "$slow" -gt 0 ]; then ms=2000.0 slow=$((slow - 1)); fi
                line=$(printf '%s' "$line" | sed "s/\[[0-9.,e-][0-9.,e-]*\]/[$ms]/g")
            esac
            printf '%s\n' "$line"
        done"#;
    struct Slow;
    impl Stage for Slow {
        fn checkpoint(&self, model: &str) -> PathBuf {
            Twice.checkpoint(model)
        }
        fn start(&self, entrant: &Entrant) -> Result<Rival> {
            if entrant.rival == TURBO {
                return Twice.start(entrant);
            }
            // A look and a half: each of four policies has an answer.
            let slow = if entrant.rival == "slow" { "6" } else { "0" };
            let (peer, mut shell) = (Twice.peer(entrant), Command::new("sh"));
            shell.args(["-c", SLOW_AT_FIRST, "sh", slow]).arg(peer.get_program()).args(peer.get_args());
            Rival::start(&entrant.rival, &mut shell)
        }
        fn multiply(&self, _: &str, _: Precision, _: usize) -> Result<Rival> {
            bail!("nobody asked for it")
        }
        fn disturb(&self) -> Result<Disturbance> {
            bail!("nobody asked for it")
        }
    }
    let stream = Regime {
        rivals: vec!["steady".to_owned(), "slow".to_owned()],
        ..regime("stream-short", Work::Stream { lens: 5..=60, requests: 30 })
    };
    let comparison = compared_on(&Slow, &[stream], Rounds::Fixed(2));
    let Rows::Stream(streams) = &comparison.rows[0].rows else { panic!("a stream was asked for") };
    let [_, steady, slow] = &streams[..] else { panic!("{streams:?}") };
    assert_eq!([steady.rounds, slow.rounds], [2, 2], "{streams:?}");
    let least = slow.estimates_s.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    assert!(least < 1.0, "the second look counts: {streams:?}");
}

#[test]
fn everyone_multiplies_at_every_precision_and_the_page_sets_them_against_each_other() {
    let products = |precision| Regime {
        precision,
        model: "bert-base".to_owned(),
        rivals: vec!["onednn".to_owned()],
        ..regime("products", Work::Products { shapes: vec![(64, 300), (48, 260)], rows: vec![1, 9] })
    };
    let comparison = compared(&Precision::ALL.map(products), Rounds::Fixed(2));
    for (section, precision) in comparison.rows.iter().zip(Precision::ALL) {
        let Rows::Products(products) = &section.rows else { panic!("products were asked for") };
        assert_eq!(products.len(), 2 * 2 * 2 * 2, "shapes, thread counts, rivals, row counts");
        assert!(
            products.iter().all(|it| it.bias_us > 0.0 && it.gelu_us > 0.0 && it.of_floor > 0.0),
            "{products:?}"
        );
        let near: Vec<&str> = section.agreement.iter().map(|it| it.rival.as_str()).collect();
        assert_eq!(near, [TURBO, "onednn", TURBO, "onednn"], "{}", precision.name());
        let is_exact = section.agreement.iter().all(|it| it.difference == 0.0);
        assert_eq!(is_exact, precision == Precision::F32, "they are set beside turbo in f32");
        assert_eq!(judged(&comparison, &format!("products, {}: 1 to 500 rows", precision.name())), [true]);
    }
    let shown = page::page(&comparison, "", &[]);
    assert!(shown.contains("| products, f32: 10 rows | of the floor, for 55 % of the peak |"), "{shown}");
    assert!(shown.contains("\nFor products of 10 rows in f32 the wish is 55 % of the peak"), "{shown}");
    assert!(shown.contains("| GELU costs | oneDNN | GELU costs | times as fast |"), "{shown}");
    assert!(shown.contains("\n| products | turbo"), "{shown}");
    assert!(shown.contains("oneDNN packs the weights"), "{shown}");

    let mut alone = comparison;
    for section in &mut alone.rows {
        if let Rows::Products(products) = &mut section.rows {
            products.retain(|it| it.rival == TURBO);
        }
    }
    let shown = page::page(&alone, "", &[]);
    assert!(!shown.contains("oneDNN packs") && !shown.contains("times as fast |\n|"), "{shown}");
    assert_eq!(judged(&alone, "products, f32: 1 to 500 rows"), [false]);
}

#[test]
fn whoever_multiplies_something_else_is_not_timed() {
    struct Wrong;
    impl Stage for Wrong {
        fn checkpoint(&self, model: &str) -> PathBuf {
            Twice.checkpoint(model)
        }
        fn start(&self, _: &Entrant) -> Result<Rival> {
            bail!("nobody asked for it")
        }
        fn multiply(&self, rival: &str, precision: Precision, threads: usize) -> Result<Rival> {
            let precision = if rival == TURBO { precision } else { Precision::Int8 };
            Twice.multiply(rival, precision, threads)
        }
        fn disturb(&self) -> Result<Disturbance> {
            bail!("nobody asked for it")
        }
    }
    let device = Cpu::new(CpuOptions { threads: 1.try_into().ok(), isa: None }).unwrap();
    let keep = |_, _: &_, _: &_| panic!("it was timed");
    let asked = regime("products", Work::Products { shapes: vec![(64, 300)], rows: vec![9] });
    let error = cpu::run(&[asked], Rounds::Fixed(1), &device, &Wrong, keep).unwrap_err();
    assert!(format!("{error:#}").contains("again: computes something else than turbo in f32"), "{error:#}");
}

#[test]
fn a_section_replaces_the_one_that_measured_the_same() {
    let regimes =
        [regime("batch1", Work::Batches(vec![vec![5]])), regime("batches", Work::Batches(vec![vec![5, 5]]))];
    let both = compared(&regimes, Rounds::Budget(0.0));
    assert!(both.rows.iter().all(|it| it.rounds == 1), "whatever the budget, once is the least");
    let mut again = both.rows[0].clone();
    again.rounds = 77;
    let about = (both.provenance.clone(), both.summary.clone());
    let mut other = again.clone();
    other.threads = 1;
    let refused = cpu::merge(Some(both.clone()), other, about.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the record is of 2 threads, got 1: choose another --threads, or another --out"
    );
    let merged = cpu::merge(Some(both), again, about).unwrap();
    assert_eq!(merged.rows.iter().map(|it| it.rounds).collect::<Vec<_>>(), [77, 1]);
    assert!(goals::verdicts(&merged).iter().all(|it| it.reached().is_none()), "no goal is about this model");
}

#[test]
fn a_record_holds_what_one_processor_did() {
    let mut first = compared(&[regime("batch1", Work::Batches(vec![vec![5]]))], Rounds::Fixed(1));
    first.rows[0].processor = "first".to_owned();
    let mut section = first.rows[0].clone();
    (section.name, section.processor) = ("batches".to_owned(), "second".to_owned());
    let about = (first.provenance.clone(), first.summary.clone());
    let refused = cpu::merge(Some(first), section, about).unwrap_err();
    assert_eq!(refused.to_string(), "the record is of first, this is second: choose another --out");
}

/// A rival with another model computes something else.
#[test]
fn whoever_computes_something_else_is_not_timed() {
    struct Wrong;
    impl Stage for Wrong {
        fn checkpoint(&self, model: &str) -> PathBuf {
            Twice.checkpoint(model)
        }
        fn start(&self, entrant: &Entrant) -> Result<Rival> {
            let model = if entrant.rival == TURBO { MODEL } else { "bert-base" };
            Twice.start(&Entrant { model: model.to_owned(), ..entrant.clone() })
        }
        fn multiply(&self, _: &str, _: Precision, _: usize) -> Result<Rival> {
            bail!("nobody asked for it")
        }
        fn disturb(&self) -> Result<Disturbance> {
            bail!("nobody asked for it")
        }
    }
    let device = Cpu::new(CpuOptions { threads: 1.try_into().ok(), isa: None }).unwrap();
    let keep = |_, _: &_, _: &_| panic!("it was timed");
    let error = cpu::run(&regimes()[..1], Rounds::Fixed(1), &device, &Wrong, keep).unwrap_err();
    assert!(format!("{error:#}").contains("again: computes something else than turbo in f32"), "{error:#}");
}

/// Pairs of one and one are no pairs.
#[test]
fn a_second_thread_is_measured_where_there_is_one() {
    let device = Cpu::new(CpuOptions { threads: 1.try_into().ok(), isa: None }).unwrap();
    let keep = |_, _: &_, _: &_| panic!("it was timed");
    let error = cpu::run(&regimes()[1..], Rounds::Fixed(1), &device, &Twice, keep).unwrap_err().to_string();
    assert_eq!(
        error,
        "tiny-sentence f32 scaling: what a second thread brings is measured with 2 threads or more, got 1"
    );
    let mut comparison = compared(&regimes()[2..], Rounds::Fixed(1));
    comparison.rows[0].model = "bert-base".to_owned();
    assert_eq!(judged(&comparison, "BERT-base, f32: a second thread"), [true]);
    comparison.rows[0].threads = 4;
    assert_eq!(judged(&comparison, "BERT-base, f32: a second thread"), [false]);
}

/// Whether there is a number for each goal of a regime.
fn judged(comparison: &Comparison, regime: &str) -> Vec<bool> {
    let verdicts = goals::verdicts(comparison);
    verdicts.iter().filter(|it| it.regime.starts_with(regime)).map(|it| it.found.is_some()).collect()
}

#[test]
fn a_neighbour_that_has_gone_ends_the_run() {
    struct Alone;
    impl Stage for Alone {
        fn checkpoint(&self, model: &str) -> PathBuf {
            Twice.checkpoint(model)
        }
        fn start(&self, entrant: &Entrant) -> Result<Rival> {
            Twice.start(entrant)
        }
        fn multiply(&self, _: &str, _: Precision, _: usize) -> Result<Rival> {
            bail!("nobody asked for it")
        }
        fn disturb(&self) -> Result<Disturbance> {
            let mut gone = own().args(["disturb", "--share", "0.05"]).stdin(Stdio::null()).spawn()?;
            gone.wait()?;
            Ok(Disturbance(gone))
        }
    }
    let device = Cpu::new(CpuOptions { threads: 2.try_into().ok(), isa: None }).unwrap();
    let keep = |_, _: &_, _: &_| panic!("it was timed alone");
    let error = cpu::run(&regimes()[2..], Rounds::Fixed(1), &device, &Alone, keep).unwrap_err();
    assert!(format!("{error:#}").contains("ended by itself"), "{error:#}");
}

/// A goal about lengths up to 500 says nothing where those of 500 are missing.
#[test]
fn ragged_batches_are_judged_beside_all_of_their_counterparts() {
    let [equal, uneven] = [vec![vec![5, 5], vec![9, 9]], vec![vec![5, 3], vec![9, 4]]];
    let names = [("batches", "ragged"), ("batches-long", "ragged-long")];
    let all = names.into_iter().flat_map(|(batches, ragged)| {
        [regime(batches, Work::Batches(equal.clone())), regime(ragged, Work::Batches(uneven.clone()))]
    });
    let mut whole = compared(&all.collect::<Vec<_>>(), Rounds::Fixed(1));
    whole.rows.iter_mut().for_each(|section| section.model = "bert-base".to_owned());
    let goal = "BERT-base, f32: 20 ragged";
    assert_eq!(judged(&whole, goal), [true]);
    for missing in 0..4 {
        let mut part = whole.clone();
        part.rows.remove(missing);
        assert_eq!(judged(&part, goal), [false], "without {}", whole.rows[missing].name);
        let mut part = whole.clone();
        if let Rows::Batches(cases) = &mut part.rows[missing].rows {
            cases.retain(|case| case.max_seq_len != 9);
        }
        assert_eq!(judged(&part, goal), [false], "without a shape of {}", whole.rows[missing].name);
    }
}

#[test]
fn a_goal_for_batches_that_nobody_measured_is_not_forgotten() {
    let batches = Work::Batches(vec![equal(20, 10), equal(20, 40)]);
    let mut comparison = compared(&[regime("batches", batches)], Rounds::Fixed(1));
    let section = &mut comparison.rows[0];
    section.model = "bert-base".to_owned();
    let Rows::Batches(cases) = &mut section.rows else { panic!("batches were asked for") };
    for case in cases.iter_mut().filter(|case| case.rival == "again") {
        case.rival = "ov".to_owned(); // a ratio counts only where this rival took part
    }
    assert_eq!(judged(&comparison, "BERT-base, f32: 20 × "), [true, true, false, false]);
    assert_eq!(judged(&comparison, "MiniLM, f32: 20 × "), [false; 4]);
}

#[test]
fn a_request_that_makes_no_sense_ends_the_process_with_a_reason() {
    let entrant = Entrant { rival: "it".into(), model: MODEL.into(), precision: Precision::F32, threads: 1 };
    let mut rival = Twice.start(&entrant).unwrap();
    let error = rival.time(&[vec![65]], 0, 1).unwrap_err().to_string();
    assert!(error.contains("it ended") && error.contains("64"), "{error}");
    let error = rival_at_products().time(&[vec![5]], 0, 1).unwrap_err().to_string();
    assert!(error.contains("there are products alone"), "{error}");
    let linear = Linear { rows: 0, in_features: 8, out_features: 8, gelu: false };
    let error = rival_at_products().product(linear, 0.0).unwrap_err().to_string();
    assert!(error.contains("expected a product with at least one row"), "{error}");
}

fn rival_at_products() -> Rival {
    Twice.multiply("it", Precision::F32, 1).unwrap()
}

/// The tables of the README, and the page, are those of the record, and there are none without one.
#[test]
fn the_readme_and_the_page_show_the_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, shown) = readme.split_once("<!-- written by `cargo xtask bench cpu` -->\n").unwrap();
    let (shown, _) = shown.split_once("<!-- until here -->").unwrap();
    let results = root.join("turbo-bench/results");
    let record = results.join("cpu.json");
    if !record.exists() {
        assert_eq!(shown, "");
        return;
    }
    let record: Comparison = Record::read(&record).unwrap();
    assert_eq!(shown, page::short(&record));
    let notes = fs::read_to_string(results.join(page::NOTES)).unwrap_or_default();
    assert_eq!(
        fs::read_to_string(results.join("cpu.md")).unwrap(),
        page::page(&record, &notes, &place::others(&results).unwrap())
    );
}
