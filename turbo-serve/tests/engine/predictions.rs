//! What batches cost is predicted, and told.

use turbo_serve::{
    engine::{Engine, EngineConfig, Infer, InferRequest, Input},
    http::Metrics,
};

use crate::{
    fake::{config, request, wait},
    paced,
};

/// The value of the metric whose line begins with this.
fn value(metrics: &Metrics, begins: &str) -> f64 {
    let text = metrics.render();
    let line =
        text.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no {begins} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn serve(engine: &Engine, rounds: u32) {
    for round in 0..rounds {
        let input = |n: u32| vec![n; 1 + ((round * 7 + n * 3) % 8) as usize];
        let inputs: Vec<Vec<u32>> = (0..1 + round % 4).map(input).collect();
        let inputs = inputs.into_iter().map(Input::Ids).collect();
        wait(engine.infer(InferRequest { inputs, ..request([]) })).unwrap();
    }
}

/// The median is of this many of the last errors.
const RECENT: u32 = 101;

/// The size of the errors also depends on how exactly a machine sleeps.
#[test]
fn the_errors_of_predicted_costs_and_their_median_are_told() {
    let metrics = Metrics::install().unwrap();
    let label = "predictions";
    let (engine, _ran) = paced::start(&EngineConfig { label: Some(label.into()), ..config() }, 0.1);
    serve(&engine, RECENT);
    // the last batch is counted after its answer is sent
    wait(engine.stop());
    let of = |name: &str| format!("{name}{{model=\"{label}\"");
    let median = value(&metrics, &of("turbo_batch_cost_error_median"));
    assert!(median > 0.0 && median.is_finite(), "{median}");
    assert_eq!(value(&metrics, &of("turbo_batch_cost_error_count")), f64::from(RECENT));
    for bound in [0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 1.0, 2.0, 4.0] {
        let bucket = format!("turbo_batch_cost_error_bucket{{model=\"{label}\",le=\"{bound}\"}}");
        let within = value(&metrics, &bucket);
        let is_half = within > f64::from(RECENT / 2);
        assert_eq!(is_half, median <= bound, "{within} within {bound}, and the median is {median}");
    }
    let fill = value(&metrics, &of("turbo_batch_fill_sum")) / value(&metrics, &of("turbo_batch_fill_count"));
    assert!(fill > 0.05 && fill < 0.5, "a few tokens of 64: {fill}");
}
