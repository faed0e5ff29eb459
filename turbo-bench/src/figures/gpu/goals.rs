//! The goals on a GPU, and whether they were reached.
//!
//! The numbers are for an H200: what its memory and its products allow for each operation, minus what others lose.

use super::{
    Ceilings, Dtype, Findings, Found, Measured, Operation, Section,
    contest::{self, TURBO, Timed},
    encoder::{self, Encoders},
    overlap::Overlap,
    rows,
};
use crate::figures::verdict::{Kind, Verdict};

/// Share of the copy bandwidth, for operations whose data no cache holds.
const OF_COPY: f64 = 0.85;
/// The least speed of rows that are reduced together over classical reduction, at the worst of all sizes.
const BATCHED_AT_WORST: f64 = 0.97;
/// The share of sizes at which they must be faster, among those that take longer than [`LAUNCHES`] launches.
const BATCHED_FASTER: f64 = 0.9;
const LAUNCHES: f64 = 3.0;
/// Microseconds of attention of 32 × 512 tokens in bf16: 250 · 10¹² operations per second.
const ATTENTION_US: f64 = 105.0;
/// Share of packing, planning and launching that must be hidden. The rest may be what the host did while the GPU was
/// not observed to compute.
const HIDDEN: f64 = 0.9;
/// The largest lag that noise excuses.
const MOST_SPREAD: f64 = 0.05;

/// All verdicts.
#[must_use]
pub fn verdicts(findings: &Findings) -> Vec<Verdict> {
    let found = |step: &str| section(findings, step);
    let (wide, reductions, ceilings) = match found("rows") {
        Some(Section { found: Found::Rows { wide, reductions }, ceilings, .. }) => {
            (&wide[..], &reductions[..], ceilings.as_ref())
        }
        _ => (&[][..], &[][..], None),
    };
    let attentions = match found("attention") {
        Some(Section { found: Found::Attention(all), .. }) => &all[..],
        _ => &[],
    };
    let encoders = match found("encoder") {
        Some(Section { found: Found::Encoder(encoders), .. }) => Some(encoders),
        _ => None,
    };
    let mut all = of_wide(wide, ceilings);
    all.extend(of_reductions(reductions, ceilings));
    all.extend(of_attention(attentions));
    all.extend(of_encoders(encoders));
    all
}

/// The section of a step.
pub(super) fn section<'a>(findings: &'a Findings, step: &str) -> Option<&'a Section> {
    findings.rows.iter().find(|section| section.found.step() == step)
}

/// How many times longer `other` takes than turbo.
pub(super) fn ratio(times: &[Timed], other: Option<&Timed>) -> Option<f64> {
    Some(other?.median_us / contest::of(times, TURBO)?.median_us)
}

/// The goal to be as fast as the best of `others`, within the spread of both.
fn not_slower(regime: String, times: &[Timed], others: &[&str]) -> Verdict {
    let best = contest::best(times, others);
    let spread =
        contest::of(times, TURBO).zip(best).map_or(0.0, |(turbo, best)| turbo.spread() + best.spread());
    Verdict {
        regime,
        what: "times as fast as the best of PyTorch, within the spread",
        kind: Kind::Ratio,
        wanted: 1.0 - spread.min(MOST_SPREAD),
        found: ratio(times, best),
    }
}

fn named(operation: &Operation, dtype: Dtype) -> String {
    format!("{} {}, {}", operation.name(), operation.sizes(), dtype.name())
}

fn of_wide(measured: &[Measured], ceilings: Option<&Ceilings>) -> Vec<Verdict> {
    let of = |(operation, dtype): (Operation, Dtype)| {
        let times = times(measured, &operation, dtype);
        let turbo = contest::of(times, TURBO).zip(ceilings);
        let share = Verdict {
            regime: named(&operation, dtype),
            what: "of the bandwidth of a copy",
            kind: Kind::Limit,
            wanted: OF_COPY,
            found: turbo.map(|(turbo, ceilings)| ceilings.of_copy(&operation, dtype, turbo.median_us)),
        };
        [share, not_slower(named(&operation, dtype), times, &[rows::EAGER, rows::AUTOTUNED])]
    };
    rows::wide().into_iter().flat_map(of).collect()
}

/// The times of an operation; empty if it was not measured.
fn times<'a>(measured: &'a [Measured], operation: &Operation, dtype: Dtype) -> &'a [Timed] {
    let found = measured.iter().find(|it| (&it.operation, it.dtype) == (operation, dtype));
    found.map_or(&[], |it| &it.times)
}

/// How many times longer the classical reduction takes, and whether it takes longer than a few launches.
pub(super) fn batched(times: &[Timed], ceilings: &Ceilings) -> Option<(f64, bool)> {
    let classical = contest::of(times, rows::CLASSICAL)?;
    Some((ratio(times, Some(classical))?, classical.median_us > LAUNCHES * ceilings.launch_us))
}

fn of_reductions(measured: &[Measured], ceilings: Option<&Ceilings>) -> Vec<Verdict> {
    let of = |name: &'static str| {
        let grid = rows::reductions().into_iter().filter(|(operation, _)| operation.name() == name);
        // there is no verdict on a grid of which a part is missing
        let points: Option<Vec<(f64, bool)>> =
            grid.map(|(operation, dtype)| batched(times(measured, &operation, dtype), ceilings?)).collect();
        let worst = points.iter().flatten().map(|(ratio, _)| *ratio).reduce(f64::min);
        let long: Vec<f64> =
            points.iter().flatten().filter(|(_, is_long)| *is_long).map(|(ratio, _)| *ratio).collect();
        let faster = long.iter().filter(|ratio| **ratio > 1.0).count();
        let verdict = |what, kind, wanted, found| Verdict {
            regime: format!("{name} as in Figure 5"),
            what,
            kind,
            wanted,
            found,
        };
        [
            verdict("times as fast as classical, at the worst", Kind::Ratio, BATCHED_AT_WORST, worst),
            verdict(
                "of the points longer than three launches are faster than classical",
                Kind::Share,
                BATCHED_FASTER,
                (!long.is_empty()).then(|| faster as f64 / long.len() as f64),
            ),
        ]
    };
    ["softmax", "layer norm"].into_iter().flat_map(of).collect()
}

fn of_attention(measured: &[Measured]) -> Vec<Verdict> {
    let mut cases = super::attention::cases().into_iter();
    let first = cases.next().map(|(operation, dtype)| Verdict {
        regime: named(&operation, dtype),
        what: "time",
        kind: Kind::Micros,
        wanted: ATTENTION_US,
        found: contest::of(times(measured, &operation, dtype), TURBO).map(|turbo| turbo.median_us),
    });
    let others = super::attention::cases().into_iter().filter(|(_, dtype)| *dtype == Dtype::Bf16).map(
        |(operation, dtype)| {
            not_slower(
                named(&operation, dtype),
                times(measured, &operation, dtype),
                &super::attention::OTHERS,
            )
        },
    );
    first.into_iter().chain(others).collect()
}

fn of_encoders(encoders: Option<&Encoders>) -> Vec<Verdict> {
    let case = |workload: &str| encoders.and_then(|encoders| encoders.case(workload, Dtype::Bf16));
    let against = |other: &str, wanted| {
        let found = case(encoder::ONE).and_then(|case| ratio(&case.times, contest::of(&case.times, other)));
        let what = if other == encoder::EAGER {
            "times as fast as PyTorch, eager"
        } else {
            "times as fast as PyTorch, compiled"
        };
        Verdict {
            regime: format!("BERT-base, bf16, {}", encoder::ONE),
            what,
            kind: Kind::Ratio,
            wanted,
            found,
        }
    };
    let tokens = |what, wanted| {
        let found = case(encoder::RAGGED).and_then(|case| {
            let turbo = contest::of(&case.times, TURBO)?;
            Some(case.tokens_per_s(turbo.median_us) / 1e6)
        });
        Verdict {
            regime: format!("BERT-base, bf16, {}", encoder::RAGGED),
            what,
            kind: Kind::MegaTokens,
            wanted,
            found,
        }
    };
    // without earlier runs of each length the running time includes more than running, and a share of it says nothing
    let planned = encoders.and_then(|encoders| encoders.planning.as_ref()).filter(|it| it.lens_ran_before);
    let planning = planned.map(|it| it.percent / 100.0);
    let overlap = encoders.and_then(|encoders| encoders.overlap.as_ref());
    let overlapped = |what, kind, wanted, found| Verdict {
        regime: format!("BERT-base, bf16, {}, batch behind batch", encoder::RAGGED),
        what,
        kind,
        wanted,
        found,
    };
    vec![
        against(encoder::EAGER, 3.0),
        against(encoder::COMPILED, 1.2),
        tokens("packed, at least", 1.3),
        tokens("packed, the goal", 2.6),
        Verdict {
            regime: format!("BERT-base, bf16, one request at a time, {}", encoder::RAGGED),
            what: "planning memory beside running",
            kind: Kind::Cost,
            wanted: 0.018,
            found: planning,
        },
        overlapped("times as fast as batch after batch", Kind::Ratio, 1.0, overlap.and_then(Overlap::gain)),
        overlapped(
            "of packing, planning and launching while another batch runs",
            Kind::Share,
            HIDDEN,
            overlap.and_then(|overlap| overlap.timeline.hidden()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::gpu::sample;

    fn found(verdicts: &[Verdict], regime: &str, kind: Kind) -> (f64, Option<f64>) {
        let verdict = verdicts.iter().find(|it| it.regime.starts_with(regime) && it.kind == kind).unwrap();
        (verdict.wanted, verdict.found.map(|found| (found * 1e4).round() / 1e4))
    }

    #[test]
    fn every_goal_has_a_number_of_a_whole_run_and_none_of_an_empty_one() {
        let mut findings = sample::findings();
        let verdicts = super::verdicts(&findings);
        assert!(verdicts.iter().all(|verdict| verdict.found.is_some()), "{verdicts:#?}");
        findings.rows.clear();
        let empty = super::verdicts(&findings);
        assert_eq!(empty.len(), verdicts.len());
        assert!(empty.iter().all(|verdict| verdict.found.is_none()), "{empty:#?}");
    }

    /// turbo takes 100 µs in the sample and PyTorch at best 110; classical reductions take 120.
    #[test]
    fn numbers_are_what_they_are_called() {
        let findings = sample::findings();
        let verdicts = verdicts(&findings);
        let share = 402_653_184.0 / 100e-6 / sample::COPY;
        let rounded = (share * 1e4).round() / 1e4;
        assert_eq!(found(&verdicts, "softmax 196608 × 512, bf16", Kind::Limit), (0.85, Some(rounded)));
        let (wanted, ratio) = found(&verdicts, "softmax 196608 × 512, bf16", Kind::Ratio);
        assert_eq!(ratio, Some(1.1));
        assert!((wanted - (1.0 - 2.0 * sample::SPREAD)).abs() < 1e-9, "{wanted}");
        assert_eq!(found(&verdicts, "softmax as in", Kind::Ratio), (0.97, Some(1.2)));
        assert_eq!(found(&verdicts, "layer norm as in", Kind::Share), (0.9, Some(1.0)));
        assert_eq!(found(&verdicts, "attention 32 × 512, bf16", Kind::Micros), (105.0, Some(100.0)));
        let tokens = encoder::Workload::all()[2].tokens() as f64 / 100e-6 / 1e6;
        let (_, found_tokens) = found(&verdicts, "BERT-base, bf16, 5 to 500", Kind::MegaTokens);
        assert_eq!(found_tokens, Some((tokens * 1e4).round() / 1e4));
        assert_eq!(found(&verdicts, "BERT-base, bf16, one request", Kind::Cost), (0.018, Some(0.005)));
        assert_eq!(found(&verdicts, "BERT-base, bf16, 5 to 500", Kind::Ratio), (1.0, Some(1.25)));
        assert_eq!(found(&verdicts, "BERT-base, bf16, 5 to 500", Kind::Share), (0.9, Some(0.9)));
    }

    /// Records from the time before each length ran once lack the field.
    #[test]
    fn planning_is_judged_beside_lengths_that_ran_before() {
        let mut findings = sample::findings();
        for section in &mut findings.rows {
            if let Found::Encoder(encoders) = &mut section.found {
                let old = r#"{"percent":0.1,"least_percent":0.1,"most_percent":0.1,"unfolded_percent":0.1}"#;
                encoders.planning = Some(serde_json::from_str(old).unwrap());
            }
        }
        let verdicts = verdicts(&findings);
        assert_eq!(found(&verdicts, "BERT-base, bf16, one request", Kind::Cost), (0.018, None));
    }

    #[test]
    fn a_point_that_is_missing_leaves_the_grid_unjudged() {
        let mut findings = sample::findings();
        let rows = findings.rows.iter_mut().find_map(|section| match &mut section.found {
            Found::Rows { reductions, .. } => Some(reductions),
            _ => None,
        });
        let reductions = rows.unwrap();
        let softmax = reductions.iter().position(|it| it.operation.name() == "softmax").unwrap();
        reductions.remove(softmax);
        let verdicts = verdicts(&findings);
        assert_eq!(found(&verdicts, "softmax as in", Kind::Ratio).1, None);
        assert_eq!(found(&verdicts, "layer norm as in", Kind::Ratio).1, Some(1.2));
    }

    #[test]
    fn short_points_are_no_share_and_noise_excuses_little() {
        let timed = |who: &str, median_us: f64, half: f64| Timed {
            who: who.to_owned(),
            median_us,
            p10_us: median_us - half,
            p90_us: median_us + half,
            turns: 3,
            runs: 1,
        };
        let ceilings = sample::ceilings();
        let classical = |us| [timed(TURBO, 1.0, 0.0), timed(rows::CLASSICAL, us, 0.0)];
        let floor = ceilings.launch_us;
        assert_eq!(batched(&classical(3.0 * floor), &ceilings), Some((3.0 * floor, false)));
        assert_eq!(batched(&classical(3.1 * floor), &ceilings), Some((3.1 * floor, true)));
        let noisy = [timed(TURBO, 10.0, 1.0), timed(rows::EAGER, 9.0, 1.0)];
        let verdict = not_slower(String::new(), &noisy, &[rows::EAGER]);
        assert_eq!((verdict.wanted, verdict.reached()), (0.95, Some(false)));
    }
}
