//! The goals of each regime, and whether they were reached.

use super::{Case, Comparison, Precision, Product, Rows, Scale, Section, Stream, TURBO};
use crate::figures::{
    numbers::{geometric_mean, quantile},
    verdict::{Kind, Verdict},
};

/// The models that goals are set for.
const MODELS: [&str; 2] = ["bert-base", "minilm"];
const BERT_BASE: &str = MODELS[0];
/// The library whose products set the bar.
const BAR: &str = "onednn";
/// Tokens from which on a layer is bound by arithmetic.
const LONG: u32 = 128;

/// All verdicts, in the order of the regimes.
#[must_use]
pub fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    let of_models = MODELS.into_iter().flat_map(|model| {
        let pick = |name: &str, precision| section(comparison, name, model, precision);
        let f32 = |name: &str| pick(name, Precision::F32);
        let by_model = |base: f64, minilm: f64| if model == BERT_BASE { base } else { minilm };
        let mut all = singles(model, f32("batch1"), by_model(1.12, 1.25));
        all.extend(batches(model, [f32("batches"), f32("batches-long")], by_model(1.05, 1.15)));
        all.extend(ragged(
            model,
            [("batches", "ragged"), ("batches-long", "ragged-long")]
                .map(|(equal, ragged)| [f32(equal), f32(ragged)]),
        ));
        for (name, what, base, minilm) in
            [("stream-short", "2 to 100 tokens", 1.12, 1.18), ("stream-long", "5 to 500 tokens", 1.07, 1.2)]
        {
            let found = f32(name).and_then(stream_ratio);
            let regime = format!("stream in order of arrival, {what}");
            all.push(verdict(
                model,
                Precision::F32,
                &regime,
                TIMES,
                Kind::Ratio,
                by_model(base, minilm),
                found,
            ));
        }
        let bf16 = by_model_points(model, [1.35, 1.08, 1.06, 1.08], [1.15; 4]);
        all.extend(points(model, Precision::Bf16, pick("points", Precision::Bf16), bf16));
        let int8 = by_model_points(model, [1.35; 4], [1.5; 4]);
        all.extend(points(model, Precision::Int8, pick("points", Precision::Int8), int8));
        all.extend(scaling(model, f32("scaling")));
        all
    });
    let of_products = Precision::ALL.into_iter().flat_map(|precision| {
        products(precision, comparison.data.threads, section(comparison, "products", BERT_BASE, precision))
    });
    of_products.chain(of_models).collect()
}

/// The label of most ratios.
const TIMES: &str = "times as fast as the best other";

/// The section of a regime.
pub(super) fn section<'a>(
    comparison: &'a Comparison,
    name: &str,
    model: &str,
    precision: Precision,
) -> Option<&'a Section> {
    comparison
        .rows
        .iter()
        .find(|it| (it.name.as_str(), it.model.as_str(), it.precision) == (name, model, precision))
}

/// The cases of a section, by shape.
pub(super) fn shapes(section: &Section) -> Vec<Vec<&Case>> {
    let Rows::Batches(cases) = &section.rows else { return Vec::new() };
    let mut shapes: Vec<Vec<&Case>> = Vec::new();
    for case in cases {
        match shapes.iter_mut().find(|of_shape| of_shape[0].shape() == case.shape()) {
            Some(of_shape) => of_shape.push(case),
            None => shapes.push(vec![case]),
        }
    }
    shapes
}

/// How many times longer the best other takes than turbo.
pub(super) fn ratio<'a>(times: impl IntoIterator<Item = (&'a str, f64)>) -> Option<f64> {
    let (mut turbo, mut best) = (None, f64::INFINITY);
    for (rival, time) in times {
        if rival == TURBO {
            turbo = Some(time);
        } else {
            best = best.min(time);
        }
    }
    turbo.map(|turbo| best / turbo).filter(|ratio| ratio.is_finite())
}

/// [`ratio`], if the best-known rival took part: without it the best of the others is not the bar.
fn fair_ratio(precision: Precision, times: &[(&str, f64)]) -> Option<f64> {
    let bar = precision.rivals().first()?;
    ratio(times.iter().copied()).filter(|_| times.iter().any(|(rival, _)| rival == bar))
}

fn case_ratio(precision: Precision, cases: &[&Case]) -> Option<f64> {
    let times: Vec<(&str, f64)> = cases.iter().map(|case| (case.rival.as_str(), case.median_ms)).collect();
    fair_ratio(precision, &times)
}

/// turbo's share of the floor's rate.
fn floor_share(cases: &[&Case]) -> Option<f64> {
    let turbo = cases.iter().find(|case| case.rival == TURBO)?;
    Some(turbo.floor_ms / turbo.median_ms)
}

fn stream_ratio(section: &Section) -> Option<f64> {
    let Rows::Stream(streams) = &section.rows else { return None };
    let times: Vec<(&str, f64)> =
        streams.iter().map(|it: &Stream| (it.rival.as_str(), it.median_s)).collect();
    fair_ratio(section.precision, &times)
}

fn least(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Option<Vec<f64>> = values.collect();
    all?.into_iter().reduce(f64::min)
}

fn verdict(
    model: &str,
    precision: Precision,
    regime: &str,
    what: &'static str,
    kind: Kind,
    wanted: f64,
    found: Option<f64>,
) -> Verdict {
    let regime = format!("{}, {}: {regime}", super::page::title(model), precision.name());
    Verdict { regime, what, kind, wanted, found }
}

/// The goals of products: what oneDNN reached at best, on a machine whose memory was twice as fast for its arithmetic.
/// The page says what that means for ten rows ([`super::page`]).
fn products(precision: Precision, threads: usize, section: Option<&Section>) -> Vec<Verdict> {
    let products = match section.map(|section| &section.rows) {
        Some(Rows::Products(products)) => &products[..],
        _ => &[],
    };
    let of_rows = |rows: usize, share: fn(&Product) -> f64| -> Option<f64> {
        let is_asked = |it: &&Product| (it.rival.as_str(), it.rows, it.threads) == (TURBO, rows, threads);
        geometric_mean(products.iter().filter(is_asked).map(share))
    };
    let share = |regime: &str, what, wanted, found| Verdict {
        regime: format!("products, {}: {regime}", precision.name()),
        what,
        kind: Kind::Limit,
        wanted,
        found,
    };
    let peak = |rows: usize, wanted| {
        share(&format!("{rows} rows"), "of the peak", wanted, of_rows(rows, |it| it.of_peak))
    };
    let gelu = of_rows(LONG as usize, |it| it.gelu_us / it.bias_us).map(|ratio| ratio - 1.0);
    let gelu =
        Verdict { kind: Kind::Cost, ..share("GELU in the epilogue, 128 rows", "more time", 0.03, gelu) };
    let beside = Verdict {
        kind: Kind::Ratio,
        ..share(
            "1 to 500 rows",
            "times as fast as oneDNN, at the worst row count",
            1.0,
            beside(products, threads),
        )
    };
    match precision {
        Precision::F32 => vec![
            share("1 row", "of memory's bandwidth", 0.85, of_rows(1, |it| it.of_memory)),
            share("10 rows", "of the floor, for 55 % of the peak", 0.81, of_rows(10, |it| it.of_floor)),
            peak(40, 0.86),
            peak(128, 0.96),
            peak(500, 0.96),
            gelu,
            beside,
        ],
        Precision::Bf16 => vec![peak(128, 0.92), peak(500, 0.92), gelu, beside],
        Precision::Int8 => vec![peak(128, 0.9), peak(500, 0.9), gelu, beside],
    }
}

/// Times as fast as oneDNN, at the row count where this is lowest.
fn beside(products: &[Product], threads: usize) -> Option<f64> {
    let mut rows: Vec<usize> = products.iter().map(|it| it.rows).collect();
    rows.sort_unstable();
    rows.dedup();
    least(rows.into_iter().map(|rows| product_ratio(products, BAR, threads, rows)))
}

/// Times as fast as `rival`, a geometric mean over the shapes.
pub(super) fn product_ratio(products: &[Product], rival: &str, threads: usize, rows: usize) -> Option<f64> {
    let is_asked = |it: &&Product| (it.rival.as_str(), it.threads, it.rows) == (rival, threads, rows);
    let ratios: Option<Vec<f64>> = products.iter().filter(is_asked).map(|it| it.times_turbo).collect();
    geometric_mean(ratios?)
}

fn singles(model: &str, section: Option<&Section>, mean: f64) -> Vec<Verdict> {
    let shapes = section.map(shapes);
    let ratios = || shapes.iter().flatten().map(|cases| case_ratio(Precision::F32, cases));
    let long = || shapes.iter().flatten().filter(|cases| cases[0].max_seq_len >= LONG);
    let one = |what, kind, wanted, found| {
        verdict(model, Precision::F32, "one request, 5 to 500 tokens", what, kind, wanted, found)
    };
    let all: Option<Vec<f64>> = ratios().collect();
    let mut verdicts = vec![
        one("times as fast as the best other, at the worst length", Kind::Ratio, 1.0, least(ratios())),
        one("times as fast, geometric mean", Kind::Ratio, mean, all.and_then(geometric_mean)),
    ];
    if model == BERT_BASE {
        let share = least(long().map(|cases| floor_share(cases)));
        verdicts.push(one("of the floor's rate, at the worst from 128 tokens on", Kind::Limit, 0.92, share));
    }
    verdicts
}

fn batches(model: &str, sections: [Option<&Section>; 2], wanted: f64) -> Vec<Verdict> {
    let shapes: Vec<Vec<&Case>> = sections.into_iter().flatten().flat_map(shapes).collect();
    let of_len = |len: u32| {
        let cases = shapes.iter().find(|cases| cases[0].shape() == (20, len, 20 * len));
        let found = cases.and_then(|cases| case_ratio(Precision::F32, cases));
        verdict(model, Precision::F32, &format!("20 × {len}"), TIMES, Kind::Ratio, wanted, found)
    };
    [10, 40, 100, 500].map(of_len).into()
}

/// The goal that ragged batches cost what their tokens cost: they are as close to their floor as equal batches are to
/// theirs.
fn ragged(model: &str, pairs: [[Option<&Section>; 2]; 2]) -> Vec<Verdict> {
    let what = "of the rate of equal lengths, at the worst";
    let found = least(pairs.into_iter().map(|[equal, ragged]| beside_equal(ragged?, equal?)));
    vec![verdict(model, Precision::F32, "20 ragged, up to 10 to 500", what, Kind::Share, 0.95, found)]
}

/// The share of the floor that ragged batches reach over that of equal batches with the same longest length, at the
/// worst. `None` if one has no counterpart.
fn beside_equal(ragged: &Section, equal: &Section) -> Option<f64> {
    let (ragged, equal) = (shapes(ragged), shapes(equal));
    let size = |cases: &[&Case]| (cases[0].batch_size, cases[0].max_seq_len);
    let share = |cases: &Vec<&Case>| {
        let counterpart = equal.iter().find(|it| size(it) == size(cases))?;
        Some(floor_share(cases)? / floor_share(counterpart)?)
    };
    least(ragged.iter().map(share)).filter(|_| ragged.len() == equal.len())
}

fn by_model_points(model: &str, base: [f64; 4], minilm: [f64; 4]) -> [f64; 4] {
    if model == BERT_BASE { base } else { minilm }
}

fn points(model: &str, precision: Precision, section: Option<&Section>, wanted: [f64; 4]) -> Vec<Verdict> {
    const POINTS: [(&str, usize, u32); 4] =
        [("10", 1, 10), ("128", 1, 128), ("500", 1, 500), ("20 × 40", 20, 40)];
    let shapes = section.map(shapes).unwrap_or_default();
    let of_point = |((name, batch_size, len), wanted): ((&str, usize, u32), f64)| {
        let cases =
            shapes.iter().find(|cases| cases[0].shape() == (batch_size, len, batch_size as u32 * len));
        let found = cases.and_then(|cases| case_ratio(precision, cases));
        verdict(model, precision, &format!("{name} tokens"), TIMES, Kind::Ratio, wanted, found)
    };
    POINTS.into_iter().zip(wanted).map(of_point).collect()
}

/// The goals of a second thread. They are for two threads, and say nothing about more or fewer.
fn scaling(model: &str, section: Option<&Section>) -> Vec<Verdict> {
    let rows = section.filter(|section| section.threads == 2).map(|section| &section.rows);
    let scales: Vec<&Scale> = match rows {
        Some(Rows::Scaling(scales)) => scales.iter().filter(|it| it.rival == TURBO).collect(),
        _ => Vec::new(),
    };
    let speedup = scales.iter().map(|it| it.speedup()).reduce(f64::min);
    let losses: Vec<f64> = scales.iter().map(|it| it.loss()).collect();
    let loss = (!losses.is_empty()).then(|| quantile(&losses, 1.0));
    let one = |regime: &str, what, kind, wanted, found| {
        verdict(model, Precision::F32, regime, what, kind, wanted, found)
    };
    vec![
        one(
            "a second thread, from 128 tokens on",
            "times as fast as one, at the worst",
            Kind::Ratio,
            1.9,
            speedup,
        ),
        one("5 % of a core taken away", "more time, at the worst", Kind::Cost, 0.06, loss),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_judged_where_they_are_the_worst() {
        let of = |rival: &str, rows, times_turbo| Product {
            rival: rival.to_owned(),
            threads: 2,
            rows,
            in_features: 3,
            out_features: 3,
            bias_us: 10.0,
            gelu_us: 10.0,
            times_turbo,
            giga_ops: 1.0,
            of_peak: 1.0,
            of_memory: 1.0,
            of_floor: 1.0,
        };
        let products = [
            of(TURBO, 1, None),
            of(BAR, 1, Some(2.0)),
            of(BAR, 1, Some(0.5)),
            of(TURBO, 40, None),
            of(BAR, 40, Some(1.5)),
        ];
        let is = |found: Option<f64>, ratio: f64| found.is_some_and(|found| (found - ratio).abs() < 1e-9);
        assert!(is(product_ratio(&products, BAR, 2, 40), 1.5));
        assert!(is(beside(&products, 2), 1.0), "a geometric mean over the shapes");
        assert_eq!(beside(&products, 1), None);
        assert_eq!(beside(&products[..4], 2), None, "nobody else has forty rows");
    }

    #[test]
    fn the_best_of_the_others_counts() {
        assert_eq!(ratio([("torch", 30.0), (TURBO, 10.0), ("ort", 15.0)]), Some(1.5));
        assert_eq!(ratio([(TURBO, 10.0)]), None);
        assert_eq!(ratio([("ort", 10.0)]), None);
    }

    #[test]
    fn without_the_best_known_rival_nobody_looked() {
        let times = [("ort", 15.0), (TURBO, 10.0), ("ov", 12.0)];
        assert_eq!(fair_ratio(Precision::F32, &times), Some(1.2));
        assert_eq!(fair_ratio(Precision::F32, &times[..2]), None);
        assert_eq!(fair_ratio(Precision::Int8, &times[..2]), Some(1.5));
    }
}
