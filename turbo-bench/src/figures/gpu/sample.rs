//! A whole run for tests, with invented numbers: turbo takes 100 µs for everything, PyTorch 110 at best.

use super::{
    Ceilings, Dtype, Findings, Found, Machine, Measured, Operation, Section, attention,
    ceilings::Rates,
    contest::{TURBO, Timed},
    encoder::{self, Agreed, Case, Encoders, Workload},
    overlap::{AFTER, BEHIND, Flight, Overlap, Timeline},
    returned::{Ended, Manifest, Packed, STEPS},
    rows,
    sanitizer::{Finding, Sanitized, TOOLS},
    suite::Check,
};
use crate::{
    figures::{agree::Agreement, planning},
    record::{Provenance, Record},
};

/// Bytes per second.
pub(super) const COPY: f64 = 9e12;
/// The spread of every time around its median.
pub(super) const SPREAD: f64 = 0.01;

fn timed(who: &str, median_us: f64) -> Timed {
    let (p10_us, p90_us) = (median_us * (1.0 - SPREAD), median_us * (1.0 + SPREAD));
    Timed { who: who.to_owned(), median_us, p10_us, p90_us, turns: 9, runs: 200 }
}

/// Times of turbo, and of others, each ten microseconds slower than the one before.
fn times(others: &[&str]) -> Vec<Timed> {
    let others = others.iter().enumerate().map(|(rank, who)| timed(who, 110.0 + 10.0 * rank as f64));
    std::iter::once(timed(TURBO, 100.0)).chain(others).collect()
}

fn measured((operation, dtype): (Operation, Dtype), others: &[&str]) -> Measured {
    let (error, launched, absent) = (Some(1e-4), Vec::new(), Vec::new());
    Measured { operation, dtype, times: times(others), error, launched, absent }
}

pub(super) fn ceilings() -> Ceilings {
    let rates = Rates { by: TURBO.to_owned(), copy: COPY, bf16: 800e12, f16: 790e12, f32: 50e12 };
    Ceilings { rates: vec![rates], launch_us: 1.0, enqueue_us: 2.0 }
}

fn encoders() -> Encoders {
    let cases = Workload::all().into_iter().flat_map(|workload| {
        Dtype::ALL.map(|dtype| Case {
            workload: workload.name.to_owned(),
            dtype,
            tokens: workload.tokens(),
            times: times(&[encoder::COMPILED, encoder::EAGER]),
        })
    });
    let agreement = |dtype: Dtype| Agreed {
        dtype,
        agreement: Agreement {
            rival: TURBO.to_owned(),
            library: "turbo 0.1.0".to_owned(),
            cosine: 0.9999,
            difference: 0.01,
        },
    };
    let planning = planning::Summary {
        percent: 0.5,
        least_percent: 0.1,
        most_percent: 2.0,
        unfolded_percent: 4.0,
        lens_ran_before: true,
    };
    Encoders {
        agreement: Dtype::ALL.map(agreement).to_vec(),
        cases: cases.collect(),
        planning: Some(planning),
        overlap: Some(overlap()),
    }
}

/// Batches of a hundred microseconds, one behind the other. The last one is launched two microseconds after the one
/// before was last seen running.
fn overlap() -> Overlap {
    let flight = |[begun_us, launched_us, done_us]: [u64; 3]| Flight {
        begun_us,
        launched_us,
        running_us: done_us - 2,
        done_us,
        read_us: done_us + 5,
    };
    let flights = [[0, 10, 100], [10, 20, 200], [190, 200, 295]].map(flight);
    Overlap {
        tokens: 200,
        times: vec![timed(AFTER, 125.0), timed(BEHIND, 100.0)],
        timeline: Timeline(flights.to_vec()),
    }
}

fn found(step: &str) -> Found {
    match step {
        "suite" => {
            let check = |what: &str, worst| {
                let what = what.to_owned();
                Dtype::ALL.map(|dtype| Check { what: what.clone(), dtype, worst, failed: None, seconds: 0.5 })
            };
            Found::Suite([check("kernels: softmax", None), check("model: bert-base", Some(1e-5))].concat())
        }
        "ceilings" => Found::Ceilings,
        "rows" => {
            let batched = rows::BATCHED.map(|(who, _)| who);
            let others =
                [&batched[..2], &[rows::CLASSICAL], &batched[2..], &[rows::EAGER, rows::COMPILED]].concat();
            let wide = rows::wide().into_iter().map(|it| measured(it, &[rows::AUTOTUNED, rows::EAGER]));
            let reductions = rows::reductions().into_iter().map(|it| {
                let mut of = measured(it, &others);
                of.times
                    .iter_mut()
                    .filter(|it| it.who == rows::CLASSICAL)
                    .for_each(|it| *it = timed(rows::CLASSICAL, 120.0));
                of
            });
            Found::Rows { wide: wide.collect(), reductions: reductions.collect() }
        }
        "attention" => Found::Attention(
            attention::cases().into_iter().map(|it| measured(it, &attention::OTHERS)).collect(),
        ),
        "encoder" => Found::Encoder(encoders()),
        _ => Found::Sanitizer(
            TOOLS.map(|tool| Sanitized { tool: tool.to_owned(), finding: Finding::Clean }).to_vec(),
        ),
    }
}

pub(super) fn sections() -> Vec<Section> {
    let of = |step: &str| Section {
        provenance: Provenance {
            date: "2000-01-01T00:00:00Z".to_owned(),
            commit: "unknown".to_owned(),
            processor: "a processor".to_owned(),
            cores: 16,
            device: "cuda (a GPU, f32)".to_owned(),
        },
        machine: Machine {
            gpu: "a GPU".to_owned(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 150_000_000_000,
            driver: "580.0".to_owned(),
        },
        libraries: vec!["torch 2.0 (operations)".to_owned()],
        ceilings: (!["suite", "sanitizer"].contains(&step)).then(ceilings),
        seconds: 30.0,
        found: found(step),
    };
    STEPS.map(of).to_vec()
}

pub(super) fn manifest() -> Manifest {
    let packed = |name: &str| Packed { name: name.to_owned(), bytes: 1, sha256: "00".to_owned() };
    Manifest {
        commit: "0123456789ab".to_owned(),
        date: "2000-01-01T00:00:00Z".to_owned(),
        files: vec![packed("gpu.sh"), packed("turbo-bench")],
    }
}

pub(super) fn steps() -> Vec<Ended> {
    STEPS.map(|step| Ended { step: step.to_owned(), rc: 0, seconds: 30, says: "done".to_owned() }).to_vec()
}

pub(super) fn findings() -> Findings {
    let sections = sections();
    let mut data = manifest();
    data.files.remove(0);
    let provenance = Provenance { commit: data.commit.clone(), ..sections[0].provenance.clone() };
    Record { figure: "gpu".to_owned(), provenance, data, summary: steps(), rows: sections }
}
